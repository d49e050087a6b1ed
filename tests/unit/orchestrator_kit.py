"""A world for the orchestrator: a shelf of jobs, a Step Functions, and time by hand."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from holdfast.core.events import Event, Events
from holdfast.jobs.errors import StoreUnavailable
from holdfast.jobs.heartbeats.orchestrator import HeartbeatOrchestrator
from holdfast.jobs.model import ExportJob, JobState, JobStatus, TaskToken
from holdfast.testing.clock import ManualClock
from holdfast.testing.stepfunctions import SimulatedStepFunctions

GENEROUS_SECONDS = 20.0


def eventually(true: Callable[[], Any]) -> None:
    end = time.monotonic() + GENEROUS_SECONDS
    while not true():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.0005)


class Shelf:
    """All an orchestrator may ask of a store: there is no way to write."""

    def __init__(self) -> None:
        self.jobs: dict[str, ExportJob] = {}
        self.unlisted: set[str] = set()  # an index that is behind
        self.stale: dict[str, ExportJob] = {}  # what the index says instead
        self.down = False
        self.listings = 0
        self.read: list[str] = []

    def put(self, job: ExportJob) -> ExportJob:
        self.jobs[job.job_id] = job
        return job

    def find_by_id(self, job_id: str) -> ExportJob | None:
        self._answer()
        self.read.append(job_id)
        return self.jobs.get(job_id)

    def find_by_status(self, status: JobStatus) -> list[ExportJob]:
        self.listings += 1
        self._answer()
        found = [self.stale.get(k, job) for k, job in self.jobs.items()]
        return [j for j in found if j.status is status and j.job_id not in self.unlisted]

    def _answer(self) -> None:
        if self.down:
            raise StoreUnavailable("the store does not answer")


class World:
    """Time moves only in `let_pass`; all that is due happens before it moves on."""

    def __init__(self, heartbeat_seconds: float = 60.0, **options: Any) -> None:
        self.clock = ManualClock()
        self.shelf = Shelf()
        self.service = SimulatedStepFunctions(self.clock)
        self.heartbeat_seconds = heartbeat_seconds
        self.events: list[Event] = []
        self.closed: list[tuple[str, str]] = []
        self.orchestrator = self.another(**options)

    def another(self, **options: Any) -> HeartbeatOrchestrator:
        given: dict[str, Any] = {
            "token_closed": lambda job, code: self.closed.append((job.job_id, code)),
            "events": Events(self.events.append),
            "clock": self.clock,
            "step_functions": self.service,
            **options,
        }
        return HeartbeatOrchestrator(self.shelf, **given)

    def job(
        self,
        job_id: str,
        status: JobStatus = JobStatus.DOWNLOADING,
        *,
        with_token: bool = True,
        **changes: Any,
    ) -> ExportJob:
        """A new job on the shelf, its state just entered."""
        token = self.token() if with_token else None
        job = ExportJob.create(
            job_id, "e", "u", JobState(status, 4), token, now=self.clock.time()
        )
        return self.shelf.put(replace(job, **changes))

    def token(self) -> TaskToken:
        return self.service.open(heartbeat_seconds=self.heartbeat_seconds)

    def let_pass(
        self, seconds: float, *orchestrators: HeartbeatOrchestrator, step: float = 0.0
    ) -> None:
        """By the steps that the loops of the orchestrators would take, or longer ones."""
        loops = orchestrators or (self.orchestrator,)
        end = self.clock.monotonic() + seconds
        while True:
            looks_at = min(self.settled(loop) for loop in loops)
            now = self.clock.monotonic()
            if now >= end:
                return
            self.clock.advance(min(max(looks_at, now + step), end) - now)

    def settled(self, orchestrator: HeartbeatOrchestrator) -> float:
        """Everything due is done; when there is more."""
        while True:
            looks_at = orchestrator.tick()
            if orchestrator.under_way == 0:
                if looks_at > self.clock.monotonic():
                    return looks_at
            else:
                eventually(lambda: orchestrator.under_way == 0)

    def beats(self, job: ExportJob) -> list[float]:
        """When the job was beaten, in seconds since the world began."""
        assert job.task_token is not None
        return [at - 1_000.0 for at in self.service.heartbeats(job.task_token)]

    def told(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if type(event) is kind]
