"""The course of the export scenario.

push ─▶ service 1 ─▶ a pool worker is killed ─▶ replaced; its files are retried
                  ─▶ service 1 is killed ─▶ its lease ends ─▶ service 2 takes over
                                                  job ended, message acked ─▶ report
"""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast.bootstrap import open_queue
from holdfast.bootstrap.exports import open_jobs
from holdfast.cli.demo.export.accounting import (
    ExportInterventions,
    ExportReport,
    compute_checksums,
    find_incomplete,
    make_report,
)
from holdfast.cli.demo.export.event_feed import ExportEventFeed
from holdfast.cli.demo.export.files import JOB, make_files, make_job_message, map_task_names
from holdfast.cli.demo.export.server import FileServer
from holdfast.cli.demo.export.view import ExportView, ServiceLine
from holdfast.cli.demo.processes import DemoProcess, DemoProcesses
from holdfast.cli.demo.screen import DemoScreen
from holdfast.cli.export.live_view import format_bytes
from holdfast.core.clock import SYSTEM_CLOCK
from holdfast.core.queue.message import AnyMessage
from holdfast.jobs.model import JobState, TaskStatus

LEASE_SECONDS = 3.0
POOL = 3
DOWNLOADS = 3
_POLL_SECONDS = 0.1
_KILL_WORKER_AFTER = 0.2  # the share of counted files
_KILL_SERVICE_AFTER = 0.45
_ALL = 10**9


@dataclass(frozen=True, slots=True)
class ExportScenarioSettings:
    """The size of the scenario, and its timeout."""

    files: int = 120
    timeout_seconds: float = 120.0


class ExportDemoStopped(Exception):
    """The scenario cannot continue. The report shows what is missing."""


class ExportScenario:
    """One run of the scenario in one folder."""

    def __init__(
        self, settings: ExportScenarioSettings, folder: Path, screen: DemoScreen
    ) -> None:
        self._folder, self._screen = folder, screen
        self._server = FileServer(screen.report)
        self._files = make_files(settings.files, self._server.origin)
        self._sizes = {file.key: len(file.data) for file in self._files}
        self._server.add_files(self._files)
        self._url = str(folder / "demo" / "exports")
        self._store = str(folder / "jobs.db")
        self._target = folder / "exported"
        self._queue = open_queue(self._url, AnyMessage, env={})
        self._jobs = open_jobs(self._store)
        self._feed = ExportEventFeed(
            screen.report, map_task_names(self._files, self._server.origin)
        )
        self._processes = DemoProcesses(
            folder, {"HOLDFAST_LEASE_SECONDS": f"{LEASE_SECONDS}"}, self._feed
        )
        self._deadline = SYSTEM_CLOCK.monotonic() + settings.timeout_seconds
        self._torn: set[str] = set()
        self._counted: frozenset[str] = frozenset()
        self._requests_before = 0

    def run(self) -> ExportReport:
        """Run the scenario and return its report."""
        with self._server, self._queue, self._jobs, self._screen:
            with self._processes, suppress(ExportDemoStopped):
                self._run_steps()
            self._draw()
            return self._make_report()

    # -- the steps

    def _run_steps(self) -> None:
        """Run the steps. Raises ExportDemoStopped."""
        self._push_job()
        first = self._start_service()
        # Not before the file that was cut off is resumed, because if its worker were killed
        # before, the file would start again and no download would be continued.
        self._wait_until(self._server.came_back.is_set)
        self._wait_until(lambda: self._compute_share() >= _KILL_WORKER_AFTER)
        self._kill_worker_of(first)
        # The server holds one file half-way until the service is killed. So there is a
        # download to continue, and the job cannot end before.
        self._wait_until(lambda: self._count_replaced(first) and self._server.holding.is_set())
        self._wait_until(lambda: self._compute_share() >= _KILL_SERVICE_AFTER)
        killed_at = self._kill(first)
        second = self._start_service()
        self._wait_until(lambda: second.counts["job_resumed"] > 0)
        after = SYSTEM_CLOCK.monotonic() - killed_at
        left = len(self._files) - self._read_state().processed_tasks
        self._screen.report(
            f"service 2: has the job, {after:.1f} s after the kill "
            f"(lease {LEASE_SECONDS:.0f} s): {left} files left"
        )
        self._wait_until(self._is_settled)
        self._screen.report("the job's message is acked; the service drains")

    def _push_job(self) -> None:
        job = make_job_message(self._files, self._server.origin)
        self._queue.push(AnyMessage(id=JOB, **job))
        size = format_bytes(sum(self._sizes.values()))
        self._screen.report(f"pushed job {JOB}: {len(self._files)} files, {size}")

    def _start_service(self) -> DemoProcess:
        arguments = ["export", "serve", self._url, "--log-format=json", "--drain=1"]
        arguments += [f"--to={self._target}", f"--jobs={self._store}"]
        arguments += [f"--workers={POOL}", f"--downloads={DOWNLOADS}"]
        service = self._processes.start([*arguments, f"--allow-host={self._server.origin}"])
        self._screen.report(f"starting service {service.number} (pid {service.pid})")
        return service

    def _kill_worker_of(self, service: DemoProcess) -> None:
        for pid in self._feed.list_workers(service):
            # A pool worker leads a session, so the check makes sure that the id still belongs
            # to it and not to another process.
            with suppress(ProcessLookupError):
                if os.getsid(pid) == pid:
                    os.kill(pid, signal.SIGKILL)
                    self._screen.report(f"pool worker {pid} is killed with SIGKILL")
                    return
        raise ExportDemoStopped

    def _count_replaced(self, service: DemoProcess) -> int:
        return max(0, service.counts["pool_worker_started"] - POOL)

    def _kill(self, service: DemoProcess) -> float:
        """Kill the service, record what it has counted, and return the time."""
        service.kill()
        killed_at = SYSTEM_CLOCK.monotonic()
        self._counted, self._requests_before = self._list_counted(), len(self._server.requests)
        self._server.resume.set()
        service.outcome = f"killed with SIGKILL, {len(self._counted)} files counted"
        self._screen.report(
            f"service {service.number} (pid {service.pid}) is {service.outcome}"
        )
        return killed_at

    def _is_settled(self) -> bool:
        stats = self._queue.stats()
        return bool(stats.completed or stats.failed)

    def _wait_until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition. Raises ExportDemoStopped if it can no longer be met in time."""
        while not condition():
            self._draw()
            if not any(service.is_alive for service in self._processes.processes):
                self._screen.report(f"no service is left: {self._processes.last_output}")
                raise ExportDemoStopped
            if SYSTEM_CLOCK.monotonic() > self._deadline:
                self._screen.report("timeout; stopping the demo")
                raise ExportDemoStopped
            SYSTEM_CLOCK.sleep(_POLL_SECONDS)

    # -- the state

    def _draw(self) -> None:
        self._torn |= find_incomplete(self._target / JOB, self._sizes)
        services = [
            ServiceLine(service, self._feed.list_workers(service))
            for service in self._processes.processes
        ]
        self._screen.draw(
            ExportView(
                len(self._files),
                self._read_state(),
                self._server.open,
                self._server.sent,
                services,
            )
        )

    def _read_state(self) -> JobState:
        job = self._jobs.find_by_id(JOB)
        return job.state if job else JobState()

    def _compute_share(self) -> float:
        return self._read_state().processed_tasks / len(self._files)

    def _list_counted(self) -> frozenset[str]:
        if self._jobs.find_by_id(JOB) is None:
            return frozenset()
        rows = self._jobs.tasks(JOB, limit=_ALL)
        return frozenset(row.key for row in rows if row.status is not TaskStatus.PENDING)

    # -- the report

    def _make_report(self) -> ExportReport:
        job = self._jobs.find_by_id(JOB)
        services, stats = self._processes.processes, self._queue.stats()
        interventions = ExportInterventions(
            counted=self._counted,
            requests_before=self._requests_before,
            torn=frozenset(self._torn),
            workers_replaced=self._count_replaced(services[0]) if services else 0,
            services_replaced=sum(
                service.counts["job_resumed"] > 0 for service in services[1:]
            ),
            acked=stats.completed == 1 and not (stats.ready or stats.leased or stats.failed),
        )
        return make_report(
            self._files,
            compute_checksums(self._target / JOB),
            job,
            self._jobs.tasks(JOB, limit=_ALL) if job else [],
            self._server.requests,
            interventions,
        )
