"""The course of the export scenario.

push ─▶ service 1 ─▶ a pool worker is killed ─▶ replaced; its files are retried
                  ─▶ service 1 is killed ─▶ its lease ends ─▶ service 2 takes over
                                                  job ended, message acked ─▶ report
"""

import os
import signal
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.bootstrap import open_queue
from holdfast.bootstrap.exports import open_jobs
from holdfast.cli.demo.act import ALL, Act
from holdfast.cli.demo.export.accounting import (
    compute_checksums,
    find_incomplete,
    make_report,
)
from holdfast.cli.demo.export.files import JOB, make_files, make_job_message, map_task_names
from holdfast.cli.demo.export.server import FileServer
from holdfast.cli.demo.processes import DemoProcess
from holdfast.cli.demo.screen import DemoReport, DemoScreen, render_processes
from holdfast.cli.formatting import format_bytes
from holdfast.cli.live_view import draw_shares
from holdfast.core.queue.message import AnyMessage
from holdfast.jobs.model import JobState, TaskStatus

if TYPE_CHECKING:
    from rich.console import RenderableType

LEASE_SECONDS = 3.0
POOL = 3
DOWNLOADS = 3
_KILL_WORKER_AFTER = 0.2  # the share of counted files
_KILL_SERVICE_AFTER = 0.45


class ExportAct(Act):
    """One run of the scenario in one folder."""

    noun = "service"
    timeout_seconds = 120.0
    story: ClassVar = {
        "pool_worker_ended": "pool worker {pid} ended, {reason}: another one starts",
        "task_retried": "{name} is retried, attempt {attempt}",
        "job_started": "has the job",
        "task_failed": "{name} failed permanently: {code}",
        "job_finished": "the job is {status}: {code}",
        "message_lease_lost": "the job's message is {event}: {reason}",
        "retried": "the job's message is {event}: {reason}",
        "dead_lettered": "the job's message is {event}: {reason}",
    }

    def __init__(self, folder: Path, screen: DemoScreen, files: int) -> None:
        super().__init__(folder, screen, {"HOLDFAST_LEASE_SECONDS": f"{LEASE_SECONDS}"})
        self._server = FileServer(screen.report)
        self._files = make_files(files, self._server.origin)
        self._server.files = {f"/{file.key}": file for file in self._files}
        self._names = map_task_names(self._files, self._server.origin)
        self._sizes = {file.key: len(file.data) for file in self._files}
        self._url, self._store = str(folder / "demo" / "exports"), str(folder / "jobs.db")
        self._target = folder / "exported"
        self._queue = open_queue(self._url, AnyMessage, env={})
        self._jobs = open_jobs(self._store)
        self._workers: defaultdict[int, list[int]] = defaultdict(list)  # pids, by service
        self._torn: set[str] = set()
        self._counted: frozenset[str] = frozenset()
        self._requests_before = 0

    def run(self) -> DemoReport:
        """Run the scenario and return its report."""
        with self._server, self._queue, self._jobs, self.screen:
            self.run_processes()
            return self._make_report()

    # -- the steps

    def run_steps(self) -> None:
        """Run the steps. Raises DemoStopped."""
        job = make_job_message(self._files, self._server.origin)
        self._queue.push(AnyMessage(id=JOB, **job))
        size = format_bytes(sum(self._sizes.values()))
        self.screen.report(f"pushed job {JOB}: {len(self._files)} files, {size}")
        first = self.start(self._make_arguments())
        # Not before the file that was cut off is resumed, because if its worker were killed
        # before, the file would start again and no download would be continued.
        self.wait_until(self._server.came_back.is_set)
        self.wait_until(lambda: self._compute_share() >= _KILL_WORKER_AFTER)
        self._kill_worker_of(first)
        # The server holds one file half-way until the service is killed. So there is a
        # download to continue, and the job cannot end before.
        self.wait_until(lambda: self._count_replaced(first) and self._server.holding.is_set())
        self.wait_until(lambda: self._compute_share() >= _KILL_SERVICE_AFTER)
        self.kill(first, self._note_counted)
        second = self.start(self._make_arguments())
        self.wait_until(lambda: second.counts["job_resumed"] > 0)
        left = len(self._files) - self._read_state().processed_tasks
        self.screen.report(
            f"service 2: has the job, {self.seconds_since_kill:.1f} s after the kill "
            f"(lease {LEASE_SECONDS:.0f} s): {left} files left"
        )
        self.wait_until(self._is_settled)
        self.screen.report("the job's message is acked; the service drains")

    def _make_arguments(self) -> list[str]:
        arguments = ["export", "serve", self._url, "--log-format=json", "--drain=1"]
        arguments += [f"--to={self._target}", f"--jobs={self._store}"]
        arguments += [f"--workers={POOL}", f"--downloads={DOWNLOADS}"]
        return [*arguments, f"--allow-host={self._server.origin}"]

    def _kill_worker_of(self, service: DemoProcess) -> None:
        for pid in self._list_workers(service):
            # A pool worker leads a session, so the check makes sure that the id still belongs
            # to it and not to another process.
            with suppress(ProcessLookupError):
                if os.getsid(pid) == pid:
                    os.kill(pid, signal.SIGKILL)
                    self.screen.report(f"pool worker {pid} is killed with SIGKILL")
                    return
        self.stop("no pool worker is left to kill")

    def _count_replaced(self, service: DemoProcess) -> int:
        return max(0, service.counts["pool_worker_started"] - POOL)

    def _note_counted(self) -> str:
        """Record what the killed service has counted."""
        if self._jobs.find_by_id(JOB) is not None:
            rows = self._jobs.tasks(JOB, limit=ALL)
            done = (row.key for row in rows if row.status is not TaskStatus.PENDING)
            self._counted = frozenset(done)
        self._requests_before = len(self._server.requests)
        self._server.resume.set()
        return f"{len(self._counted)} files counted"

    def _is_settled(self) -> bool:
        stats = self._queue.stats()
        return bool(stats.completed or stats.failed)

    def describe_event(self, process: DemoProcess, event: dict[str, Any]) -> str | None:
        """Keep the list of pool workers, and name files instead of their tasks."""
        match event:
            case {"event": "pool_worker_started", "pid": pid}:
                self._workers[process.number].append(pid)
            case {"event": "pool_worker_ended", "pid": pid}:
                self._workers[process.number].remove(pid)
            case {"task_id": task}:
                event["name"] = self._names.get(task, task)
        return super().describe_event(process, event)

    # -- the state

    def observe(self) -> None:
        """Look for files that are visible while they are incomplete."""
        self._torn |= find_incomplete(self._target / JOB, self._sizes)

    def _read_state(self) -> JobState:
        job = self._jobs.find_by_id(JOB)
        return job.state if job else JobState()

    def _compute_share(self) -> float:
        return self._read_state().processed_tasks / len(self._files)

    def format_line(self) -> str:
        """Return the counts as one line."""
        state, left = self._read_state(), self._count_left()
        return (
            f"{state.completed_tasks} files counted, {state.failed_tasks} failed, "
            f"{left} left, {self._server.open} downloading, "
            f"{format_bytes(self._server.sent)} sent"
        )

    def render(self) -> "Sequence[RenderableType]":
        """Return the bar, the counts and a table of the services."""
        state, left = self._read_state(), self._count_left()
        moving = min(self._server.open, left)
        shares = [
            ("counted", state.completed_tasks, "green"),
            ("downloading", moving, "yellow"),
            ("left", left - moving, "blue"),
            ("failed", state.failed_tasks, "red"),
        ]
        bar, legend = draw_shares(shares)
        legend.append(f"{format_bytes(self._server.sent)} sent", style="dim")
        services = render_processes(
            self.noun,
            self.processes.started,
            pool_workers=lambda service: " ".join(map(str, self._list_workers(service))) or "-",
        )
        return [bar, legend, "", services]

    def _count_left(self) -> int:
        return len(self._files) - self._read_state().processed_tasks

    def _list_workers(self, service: DemoProcess) -> list[int]:
        return list(self._workers[service.number]) if service.is_alive else []

    # -- the report

    def _make_report(self) -> DemoReport:
        job = self._jobs.find_by_id(JOB)
        services, stats = self.processes.started, self._queue.stats()
        return make_report(
            self._files,
            compute_checksums(self._target / JOB),
            job,
            self._jobs.tasks(JOB, limit=ALL) if job else [],
            self._server.requests,
            counted=self._counted,
            requests_before=self._requests_before,
            torn=self._torn,
            workers=self._count_replaced(services[0]) if services else 0,
            services=sum(service.counts["job_resumed"] > 0 for service in services[1:]),
            acked=stats.completed == 1 and not (stats.ready or stats.leased or stats.failed),
        )
