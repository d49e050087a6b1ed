"""A world for the orchestrator: a table of jobs, a simulated Step Functions and a clock."""

from dataclasses import replace
from typing import Any

from holdfast.events import Event, Events
from holdfast.exports.errors import StoreUnavailable
from holdfast.exports.model import ExportJob, JobState, JobStatus, TaskToken
from holdfast.exports.orchestrator import HeartbeatOrchestrator
from holdfast.testing.clock import ManualClock
from support.exports.simulated_step_functions import SimulatedStepFunctions
from support.waiting import wait_until


class FakeJobReader:
    """The part of a job store that an orchestrator may use. It cannot write."""

    def __init__(self) -> None:
        self.jobs: dict[str, ExportJob] = {}
        self.unlisted: set[str] = set()  # missing in an index that is behind
        self.stale: dict[str, ExportJob] = {}  # older jobs that the index has instead
        self.down = False
        self.listings = 0
        self.read: list[str] = []

    def put(self, job: ExportJob) -> ExportJob:
        """Store a job, and return it."""
        self.jobs[job.job_id] = job
        return job

    def find_by_id(self, job_id: str) -> ExportJob | None:
        """Return the job."""
        self._check_available()
        self.read.append(job_id)
        return self.jobs.get(job_id)

    def find_by_status(self, status: JobStatus) -> list[ExportJob]:
        """Return the jobs that the index has."""
        self.listings += 1
        self._check_available()
        jobs = [self.stale.get(job_id, job) for job_id, job in self.jobs.items()]
        return [j for j in jobs if j.status is status and j.job_id not in self.unlisted]

    def _check_available(self) -> None:
        if self.down:
            raise StoreUnavailable("the store does not respond")


class World:
    """Time moves only in `let_pass`, and all that is due happens before it moves on."""

    def __init__(self, heartbeat_seconds: float = 60.0, **options: Any) -> None:
        self.clock = ManualClock()
        self.store = FakeJobReader()
        self.service = SimulatedStepFunctions(self.clock)
        self.heartbeat_seconds = heartbeat_seconds
        self.events: list[Event] = []
        self.closed: list[tuple[str, str]] = []
        self.orchestrator = self.make_orchestrator(**options)

    def make_orchestrator(self, **options: Any) -> HeartbeatOrchestrator:
        """Make another orchestrator of this world."""
        arguments: dict[str, Any] = {
            "token_closed": lambda job, code: self.closed.append((job.job_id, code)),
            "events": Events(self.events.append),
            "clock": self.clock,
            "step_functions": self.service,
            **options,
        }
        return HeartbeatOrchestrator(self.store, **arguments)

    def add_job(
        self,
        job_id: str,
        status: JobStatus = JobStatus.DOWNLOADING,
        *,
        with_token: bool = True,
        **changes: Any,
    ) -> ExportJob:
        """Store a job that made no progress for half an interval, and return it."""
        token = self.open_token() if with_token else None
        quiet_since = self.clock.time() - 15
        job = ExportJob.create(job_id, "e", "u", JobState(status, 4), token, now=quiet_since)
        return self.store.put(replace(job, **changes))

    def open_token(self) -> TaskToken:
        """Open a token with the world's heartbeat timeout."""
        return self.service.open(heartbeat_seconds=self.heartbeat_seconds)

    def let_pass(
        self, seconds: float, *orchestrators: HeartbeatOrchestrator, step: float = 0.0
    ) -> None:
        """Advance the clock in the steps of the orchestrators' loops, or in longer ones."""
        loops = orchestrators or (self.orchestrator,)
        end = self.clock.monotonic() + seconds
        while True:
            next_at = min(self.run_until_idle(loop) for loop in loops)
            now = self.clock.monotonic()
            if now >= end:
                return
            self.clock.advance(min(max(next_at, now + step), end) - now)

    def run_until_idle(self, orchestrator: HeartbeatOrchestrator) -> float:
        """Do everything that is due, and return when more is due."""
        while True:
            next_at = orchestrator.tick()
            if orchestrator.in_flight == 0:
                if next_at > self.clock.monotonic():
                    return next_at
            else:
                wait_until(lambda: orchestrator.in_flight == 0)

    def list_beats(self, job: ExportJob) -> list[float]:
        """Return when heartbeats of the job were accepted, in seconds since the start."""
        assert job.task_token is not None
        return [at - 1_000.0 for at in self.service.heartbeats(job.task_token)]

    def list_events(self, kind: type[Event]) -> list[Event]:
        """Return the emitted events of that type."""
        return [event for event in self.events if type(event) is kind]
