"""One run of `holdfast export run`: a plan is worked on, and what became of it is told."""

import shlex
from threading import Event
from typing import TYPE_CHECKING, Any

from holdfast.cli.console import (
    info,
    is_terminal,
    print_json,
    print_result,
    strip_control_characters,
)
from holdfast.cli.durations import in_words
from holdfast.cli.errors import ExitCode
from holdfast.cli.export.live_view import LiveView, PlainLines, in_bytes
from holdfast.cli.export.plan import Plan
from holdfast.cli.export.watch import Watch
from holdfast.cli.foreground import ForegroundRunner
from holdfast.core.clock import SYSTEM_CLOCK
from holdfast.core.events import Event as SomeEvent
from holdfast.core.events import Events, Subscriber
from holdfast.jobs.events import (
    JobResumed,
    PoolWorkerEnded,
    TaskCompleted,
    TaskFailed,
    TaskRetried,
)
from holdfast.jobs.model import ExportJob, ExportTask, JobStatus, TaskStatus
from holdfast.jobs.request import JobRequest

if TYPE_CHECKING:
    from holdfast.config.settings import ExportSettings
    from holdfast.jobs.engine import JobEngine
    from holdfast.jobs.ports import JobStateRepository

_SHOWN = 10  # failures


class ExportRun:
    """One run of the command: a plan, and what became of it."""

    def __init__(
        self,
        plan: Plan,
        to: str,
        jobs: "JobStateRepository",
        store: str,
        settings: "ExportSettings",
    ) -> None:
        self.plan, self.to, self.jobs = plan, to, jobs
        self.store, self.settings = store, settings
        self.job = plan.found or plan.request.job(SYSTEM_CLOCK.time())
        self.bytes = 0
        self.seconds = 0.0
        self.signal = 0

    def go(self) -> None:
        info(f"{self.plan.says}; to {self.to}, job {self.job.job_id}")
        if self.plan.done:
            info(f"(to fetch everything anew, delete the job store {self.store})")
            return
        if self.plan.found is not None:
            # Before the engine looks at it: it waited for us, it did not hang.
            self.jobs.note_progress(self.job.job_id)
        started = SYSTEM_CLOCK.monotonic()
        shift = self._shift()
        self.job = shift.run()
        self.signal = 0 if self.job.terminal else shift.first_signal
        self.seconds = SYSTEM_CLOCK.monotonic() - started

    def _shift(self) -> ForegroundRunner[ExportJob]:
        from holdfast.bootstrap import log_events
        from holdfast.bootstrap.exports import export_engine
        from holdfast.config.settings import heartbeat_settings

        events = Events(self._count, _remarks(log_events(info, at_least="warning")))
        engine = export_engine(
            self.jobs,
            self.to,
            settings=self.settings,
            # Nobody waits for an answer, and a job that rested for a weekend is not stuck.
            heartbeats=heartbeat_settings({"HOLDFAST_STALL_SECONDS": "never"}),
            by_job=False,
            events=events,
        )
        watch = Watch(self.jobs, engine, lambda: [self.job.job_id])
        events.subscribe(watch)
        live = is_terminal()
        screen = LiveView(watch, f"to {self.to}", many=False) if live else PlainLines(watch)
        stint = RunnableJob(engine, self.plan.request, watch)
        return ForegroundRunner(stint, screen, self.settings.drain_seconds)

    def _count(self, event: SomeEvent) -> None:
        if isinstance(event, TaskCompleted):
            self.bytes += event.bytes_processed

    @property
    def code(self) -> int:
        if self.job.terminal or self.plan.done:
            good = self.job.status is JobStatus.COMPLETED
            return ExitCode.OK if good else ExitCode.NO
        return 128 + self.signal if self.signal else ExitCode.NO

    def failures(self) -> list[ExportTask]:
        if self.job.status is not JobStatus.FAILED:
            return []
        return self.jobs.tasks(self.job.job_id, status=TaskStatus.FAILED, limit=_SHOWN)


class RunnableJob:
    """One job, as a shift sees it."""

    def __init__(self, engine: "JobEngine", request: JobRequest, watch: Watch) -> None:
        self._engine, self._request, self._watch = engine, request, watch
        self._leave, self._lost = Event(), Event()

    @property
    def running(self) -> int:
        return self._watch.running

    def run(self) -> ExportJob:
        with self._engine as engine:
            return engine.runner.run(self._request, lost=self._lost, leave=self._leave.is_set)

    def stop(self) -> None:
        self._leave.set()

    def stop_now(self) -> None:
        self._lost.set()


def _remarks(log: Subscriber) -> Subscriber:
    """What a person should know while it runs. Going on is what was asked for, and what
    failed is told at the end, by its name."""

    def told(event: SomeEvent) -> None:
        match event:
            case JobResumed() | TaskFailed() | TaskRetried():
                return
            case PoolWorkerEnded(pid=pid, reason=reason):
                info(f"worker {pid} ended ({reason}); another one does what it did")
            case _:
                log(event)

    return told


# -- the end, in words


def print_export_run(outing: ExportRun, as_json: bool) -> None:
    if as_json:
        print_json(_as_json(outing))
    elif outing.job.terminal and not outing.plan.done:
        print_result(f"{outing.job.status}: {_sum(outing)}")
    if outing.job.status is JobStatus.FAILED:
        _tell_failures(outing)
    elif not outing.job.terminal:
        info(f"interrupted: {_sum(outing)}")
        info("the same command goes on with the rest")


def _sum(outing: ExportRun) -> str:
    state = outing.job.state
    failed = f", {state.failed_tasks:,} failed" if state.failed_tasks else ""
    return (
        f"{state.completed_tasks:,} of {state.total_tasks:,} done{failed}; "
        f"{in_bytes(outing.bytes)} in {in_words(outing.seconds)}"
    )


def _tell_failures(outing: ExportRun) -> None:
    error, state = outing.job.error, outing.job.state
    for task in outing.failures():
        why = task.error
        said = f"{why.code}: {why.message}" if why else "failed"
        info(strip_control_characters(f"  {task.key}  {said}"))
    if error is not None and error.code != "JobCompletedWithFailures":
        info(strip_control_characters(f"  {error.code}: {error.message}"))
    more = state.failed_tasks - _SHOWN
    see = shlex.join(["holdfast", "export", "show", outing.job.job_id, "--failed"])
    see = f"{see} --jobs {shlex.quote(outing.store)}"
    info(f"  … and {more:,} more: {see}" if more > 0 else f"to see them again: {see}")
    info("the same command tries what failed again")


def _as_json(outing: ExportRun) -> dict[str, Any]:
    job, state = outing.job, outing.job.state
    return {
        "job": job.job_id,
        "status": job.status.value,
        "total": state.total_tasks,
        "completed": state.completed_tasks,
        "failed": state.failed_tasks,
        "bytes": outing.bytes,
        "seconds": round(outing.seconds, 3),
        "target": outing.to,
        "store": outing.store,
        "failures": [
            {
                "name": task.key,
                "code": task.error.code if task.error else None,
                "message": task.error.message if task.error else None,
            }
            for task in outing.failures()
        ],
    }
