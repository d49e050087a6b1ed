"""What happens in the second act, in order, and how it ends.

push ─▶ service 1 ─▶ a pool worker is killed ─▶ replaced; its files are done again
                  ─▶ service 1 is killed ─▶ its lease runs out ─▶ service 2 goes on
                                                       job ended, message acked ─▶ books
"""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast.bootstrap import open_queue
from holdfast.bootstrap.exports import open_jobs
from holdfast.cli.demo.crew import WorkerHandle, WorkerProcesses
from holdfast.cli.demo.export import files as stock
from holdfast.cli.demo.export.books import (
    ExportBooks,
    ExportInterventions,
    balance,
    checksums,
    torn,
)
from holdfast.cli.demo.export.files import JOB
from holdfast.cli.demo.export.news import ExportEventFeed
from holdfast.cli.demo.export.scene import ExportScene, ServiceLine
from holdfast.cli.demo.export.server import FileServer
from holdfast.cli.demo.stage import DemoScreen
from holdfast.cli.export.live_view import in_bytes
from holdfast.core.clock import SYSTEM_CLOCK
from holdfast.core.queue.message import AnyMessage
from holdfast.jobs.model import JobState, TaskStatus

LEASE_SECONDS = 3.0
POOL = 3
DOWNLOADS = 3
_LOOK_SECONDS = 0.1
_KILL_WORKER_AFTER = 0.2  # of the files counted
_KILL_SERVICE_AFTER = 0.45
_ALL = 10**9


@dataclass(frozen=True, slots=True)
class ExportScript:
    files: int = 120
    give_up_seconds: float = 120.0


class ExportDemoStopped(Exception):
    """The play cannot go on; the books will say what is missing."""


class ExportPlay:
    """One performance in one folder."""

    def __init__(self, script: ExportScript, folder: Path, stage: DemoScreen) -> None:
        self._folder, self._stage = folder, stage
        self._server = FileServer(stage.tell)
        self._files = stock.shelf(script.files, self._server.origin)
        self._sizes = {file.key: len(file.data) for file in self._files}
        self._server.offer(self._files)
        self._url = str(folder / "demo" / "exports")
        self._store = str(folder / "jobs.db")
        self._target = folder / "exported"
        self._queue = open_queue(self._url, AnyMessage, env={})
        self._jobs = open_jobs(self._store)
        self._news = ExportEventFeed(stage.tell, stock.names(self._files, self._server.origin))
        self._crew = WorkerProcesses(
            folder, {"HOLDFAST_LEASE_SECONDS": f"{LEASE_SECONDS}"}, self._news
        )
        self._give_up_at = SYSTEM_CLOCK.monotonic() + script.give_up_seconds
        self._torn: set[str] = set()
        self._counted: frozenset[str] = frozenset()
        self._asks_before = 0

    def run(self) -> ExportBooks:
        with self._server, self._queue, self._jobs, self._stage:
            with self._crew, suppress(ExportDemoStopped):
                self._course()
            self._look()
            return self._balance()

    # -- the course of events

    def _course(self) -> None:
        """Raises ExportDemoStopped."""
        self._push()
        first = self._serve()
        # Not before the file that was cut off goes on: a worker killed in between has it
        # begin anew, and there would be less to see.
        self._until(self._server.came_back.is_set)
        self._until(lambda: self._share() >= _KILL_WORKER_AFTER)
        self._kill_a_worker_of(first)
        # The server holds one file half-way until the service is killed. So there is
        # something to continue, and the job cannot be over before.
        self._until(lambda: self._replaced(first) and self._server.holding.is_set())
        self._until(lambda: self._share() >= _KILL_SERVICE_AFTER)
        killed_at = self._kill(first)
        second = self._serve()
        self._until(lambda: second.counts["job_resumed"] > 0)
        after = SYSTEM_CLOCK.monotonic() - killed_at
        left = len(self._files) - self._state().processed_tasks
        self._stage.tell(
            f"service 2: has the job, {after:.1f} s after the kill "
            f"(lease {LEASE_SECONDS:.0f} s): {left} files to go"
        )
        self._until(self._settled)
        self._stage.tell("the job's message is acked: the service is told to drain")

    def _push(self) -> None:
        job = stock.message(self._files, self._server.origin)
        self._queue.push(AnyMessage(id=JOB, **job))
        size = in_bytes(sum(self._sizes.values()))
        self._stage.tell(f"pushed job {JOB}: {len(self._files)} files, {size}")

    def _serve(self) -> WorkerHandle:
        words = ["export", "serve", self._url, "--log-format=json", "--drain=1"]
        words += [f"--to={self._target}", f"--jobs={self._store}"]
        words += [f"--workers={POOL}", f"--downloads={DOWNLOADS}"]
        hand = self._crew.hire([*words, f"--allow-host={self._server.origin}"])
        self._stage.tell(f"starting service {hand.number} (pid {hand.pid})")
        return hand

    def _kill_a_worker_of(self, service: WorkerHandle) -> None:
        for pid in self._news.workers_of(service):
            # A pool worker leads a session: nobody else is hit who got its number since.
            with suppress(ProcessLookupError):
                if os.getsid(pid) == pid:
                    os.kill(pid, signal.SIGKILL)
                    self._stage.tell(f"pool worker {pid} is killed with SIGKILL")
                    return
        raise ExportDemoStopped

    def _replaced(self, service: WorkerHandle) -> int:
        return max(0, service.counts["pool_worker_started"] - POOL)

    def _kill(self, service: WorkerHandle) -> float:
        """Kill it, and write down what it has counted; when that was."""
        service.kill()
        killed_at = SYSTEM_CLOCK.monotonic()
        self._counted, self._asks_before = self._done(), len(self._server.asks)
        self._server.let_go.set()
        service.fate = f"killed with SIGKILL, {len(self._counted)} files counted"
        self._stage.tell(f"service {service.number} (pid {service.pid}) is {service.fate}")
        return killed_at

    def _settled(self) -> bool:
        stats = self._queue.stats()
        return bool(stats.completed or stats.failed)

    def _until(self, met: Callable[[], object]) -> None:
        """Watch until it is. Raises ExportDemoStopped when it cannot be, or takes too long."""
        while not met():
            self._look()
            if not any(hand.alive for hand in self._crew.hands):
                self._stage.tell(f"no service is left: {self._crew.last_words}")
                raise ExportDemoStopped
            if SYSTEM_CLOCK.monotonic() > self._give_up_at:
                self._stage.tell("this takes too long: giving up")
                raise ExportDemoStopped
            SYSTEM_CLOCK.sleep(_LOOK_SECONDS)

    # -- how things stand

    def _look(self) -> None:
        self._torn |= torn(self._target / JOB, self._sizes)
        services = [ServiceLine(hand, self._news.workers_of(hand)) for hand in self._crew.hands]
        self._stage.draw(
            ExportScene(
                len(self._files), self._state(), self._server.open, self._server.sent, services
            )
        )

    def _state(self) -> JobState:
        job = self._jobs.find_by_id(JOB)
        return job.state if job else JobState()

    def _share(self) -> float:
        return self._state().processed_tasks / len(self._files)

    def _done(self) -> frozenset[str]:
        if self._jobs.find_by_id(JOB) is None:
            return frozenset()
        rows = self._jobs.tasks(JOB, limit=_ALL)
        return frozenset(row.key for row in rows if row.status is not TaskStatus.PENDING)

    # -- the end

    def _balance(self) -> ExportBooks:
        job = self._jobs.find_by_id(JOB)
        hands, stats = self._crew.hands, self._queue.stats()
        deeds = ExportInterventions(
            counted=self._counted,
            asks_before=self._asks_before,
            torn=frozenset(self._torn),
            workers_replaced=self._replaced(hands[0]) if hands else 0,
            services_replaced=sum(hand.counts["job_resumed"] > 0 for hand in hands[1:]),
            acked=stats.completed == 1 and not (stats.ready or stats.leased or stats.failed),
        )
        return balance(
            self._files,
            checksums(self._target / JOB),
            job,
            self._jobs.tasks(JOB, limit=_ALL) if job else [],
            self._server.asks,
            deeds,
        )
