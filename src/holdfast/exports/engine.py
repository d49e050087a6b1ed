"""Wire the parts of a process that works on jobs; start and stop them in order.

start   pool ─▶ orchestrator ─▶ jobs
stop    jobs ─▶ pool ─▶ orchestrator

The orchestrator stops last, because jobs need heartbeats until the last one has left.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from holdfast.events import Events
from holdfast.exports.dispatcher import TaskDispatcher
from holdfast.exports.model import ExportTask
from holdfast.exports.pool.pool import WorkerPool
from holdfast.exports.pool.worker import HandlerFactory
from holdfast.exports.ports import JobStateRepository, StepFunctions
from holdfast.exports.reconciler import Reconciler
from holdfast.exports.runner import JobRunner, Listing, NoHeartbeats
from holdfast.exports.settings import RETRY_GRACE_SECONDS
from holdfast.exports.tracker import JobTracker
from holdfast.lease.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from holdfast.exports.orchestrator import HeartbeatOrchestrator


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The limits and intervals of a process that works on jobs."""

    pool_size: int = 4
    slots: int = 4  # tasks at a time in each worker
    max_task_attempts: int = 3  # a task fails after so many workers died with it
    task_timeout_seconds: float = 6 * 3600.0
    response_timeout_seconds: float = 30.0
    interval_seconds: float = 30.0
    heartbeats: bool = True
    heartbeat_timeout_seconds: float | None = None
    stall_seconds: float | None = 3600.0
    retry_grace_seconds: float = RETRY_GRACE_SECONDS
    drain_seconds: float = 30.0


class JobEngine:
    """A context manager that runs all parts. Give jobs to `runner` while it is entered."""

    def __init__(
        self,
        jobs: JobStateRepository,
        make_handler: HandlerFactory,
        payload: Callable[[ExportTask], Mapping[str, Any]],
        listing: Listing,
        step_functions: StepFunctions | None = None,
        *,
        settings: EngineSettings | None = None,
        events: Events | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        settings = settings or EngineSettings()
        events = Events() if events is None else events
        self.tracker = JobTracker(jobs, step_functions, events=events)
        self.dispatcher = TaskDispatcher(
            jobs,
            self.tracker,
            payload,
            drain_seconds=settings.drain_seconds,
            # Other processes look for progress twice in an interval.
            progress_seconds=min(30.0, settings.interval_seconds / 3),
            events=events,
            clock=clock,
        )
        self.pool = WorkerPool(
            make_handler,
            self.dispatcher,
            size=settings.pool_size,
            slots=settings.slots,
            max_attempts=settings.max_task_attempts,
            task_timeout_seconds=settings.task_timeout_seconds,
            response_timeout_seconds=settings.response_timeout_seconds,
            events=events,
            clock=clock,
        )
        self.dispatcher.attach_pool(self.pool)
        self.orchestrator: HeartbeatOrchestrator | None = None
        if step_functions is not None:
            from holdfast.exports import orchestrator

            self.orchestrator = orchestrator.HeartbeatOrchestrator(
                jobs,
                step_functions,
                interval_seconds=settings.interval_seconds,
                enabled=settings.heartbeats,
                stall_seconds=settings.stall_seconds,
                heartbeat_timeout_seconds=settings.heartbeat_timeout_seconds,
                token_closed=self.tracker.token_closed,
                events=events,
                clock=clock,
            )
        # The listing of the heartbeats, if they run.
        lister = self.orchestrator.lister if self.orchestrator and settings.heartbeats else None
        self.reconciler = Reconciler(
            jobs,
            self.tracker,
            lister=lister,
            stall_seconds=settings.stall_seconds,
            retry_grace_seconds=settings.retry_grace_seconds,
            interval_seconds=settings.interval_seconds,
            events=events,
            clock=clock,
        )
        self.runner = JobRunner(
            jobs,
            self.tracker,
            self.dispatcher,
            self.orchestrator or NoHeartbeats(),
            listing,
            step_functions,
            events=events,
            clock=clock,
        )

    def __enter__(self) -> Self:
        """Start all parts. If one cannot start, stop those that did start."""
        try:
            self.pool.start()
            if self.orchestrator is not None:
                self.orchestrator.start()
            self.reconciler.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.stop(0.0)  # each job was drained by the thread that ran it
        self.reconciler.stop()
        if self.orchestrator is not None:
            self.orchestrator.stop()
