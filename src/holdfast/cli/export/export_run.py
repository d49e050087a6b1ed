"""One run of `holdfast export run`: carries out a plan and reports the result."""

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
from holdfast.cli.errors import ExitCode
from holdfast.cli.export.inspect import format_job_error
from holdfast.cli.export.live_view import PlainLines, show_export
from holdfast.cli.export.monitor import ExportMonitor
from holdfast.cli.export.plan import Plan
from holdfast.cli.foreground import ForegroundRunner, Runnable
from holdfast.cli.formatting import format_bytes, format_duration
from holdfast.cli.live_view import LiveStatus
from holdfast.core.clock import SYSTEM_CLOCK
from holdfast.core.events import Event as DomainEvent
from holdfast.core.events import Events, Subscriber
from holdfast.jobs.events import (
    JobResumed,
    PoolWorkerEnded,
    TaskCompleted,
    TaskFailed,
    TaskRetried,
)
from holdfast.jobs.model import ExportJob, ExportTask, JobStatus, TaskStatus

if TYPE_CHECKING:
    from holdfast.config.export import ExportSettings
    from holdfast.jobs.ports import JobStateRepository

_MAX_FAILURES = 10  # that are shown


class ExportRun:
    """One run of the command, with its plan and its result."""

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
        self.job = plan.existing_job or plan.request.to_job(SYSTEM_CLOCK.time())
        self.bytes = 0
        self.seconds = 0.0
        self.signal = 0

    def run(self) -> None:
        """Carry out the plan, in the foreground."""
        info(f"{self.plan.summary}; to {self.to}, job {self.job.job_id}")
        if self.plan.done:
            info(f"(to fetch all files again, delete the job store {self.store})")
            return
        if self.plan.existing_job is not None:
            # Before the engine checks the job, which was waiting for this run and is not
            # stalled.
            self.jobs.note_progress(self.job.job_id)
        started = SYSTEM_CLOCK.monotonic()
        runner = self._make_runner()
        self.job = runner.run()
        self.signal = 0 if self.job.terminal else runner.first_signal
        self.seconds = SYSTEM_CLOCK.monotonic() - started

    def _make_runner(self) -> ForegroundRunner[ExportJob]:
        from holdfast.bootstrap import log_events
        from holdfast.bootstrap.exports import build_export_engine
        from holdfast.config.heartbeat import read_heartbeat_settings

        events = Events(self._count, _report_exceptions(log_events(info, min_level="warning")))
        engine = build_export_engine(
            self.jobs,
            self.to,
            settings=self.settings,
            # No execution waits for a result, and a job that paused for days is not stalled.
            heartbeats=read_heartbeat_settings({"HOLDFAST_STALL_SECONDS": "never"}),
            by_job=False,
            events=events,
        )
        monitor = ExportMonitor(self.jobs, engine, lambda: [self.job.job_id])
        events.subscribe(monitor)
        status: LiveStatus = PlainLines(monitor)
        if is_terminal():
            status = show_export(monitor, f"to {self.to}", many=False)
        leave, lost = Event(), Event()

        def run() -> ExportJob:
            with engine:
                return engine.runner.run(
                    self.plan.request, lost=lost, should_leave=leave.is_set
                )

        runnable = Runnable(run, leave.set, lost.set, monitor.count_running)
        return ForegroundRunner(runnable, status, self.settings.drain_seconds)

    def _count(self, event: DomainEvent) -> None:
        if isinstance(event, TaskCompleted):
            self.bytes += event.bytes_processed

    @property
    def exit_code(self) -> int:
        """Return the exit code of the command."""
        if self.job.terminal or self.plan.done:
            completed = self.job.status is JobStatus.COMPLETED
            return ExitCode.OK if completed else ExitCode.FAILED
        return 128 + self.signal if self.signal else ExitCode.FAILED

    def find_failures(self) -> list[ExportTask]:
        """Return the first few failed tasks of a failed job."""
        if self.job.status is not JobStatus.FAILED:
            return []
        return self.jobs.tasks(self.job.job_id, status=TaskStatus.FAILED, limit=_MAX_FAILURES)


def _report_exceptions(log: Subscriber) -> Subscriber:
    """Return a subscriber that reports what a user should know while the job runs.

    It leaves out that a job is resumed, which the user asked for, and failed files, which
    are reported at the end by name.
    """

    def report(event: DomainEvent) -> None:
        match event:
            case JobResumed() | TaskFailed() | TaskRetried():
                return
            case PoolWorkerEnded(pid=pid, reason=reason):
                info(f"worker {pid} ended ({reason}); another one takes over its files")
            case _:
                log(event)

    return report


# -- the result


def print_export_run(run: ExportRun, as_json: bool) -> None:
    """Print the result of a run, as lines or as JSON."""
    if as_json:
        print_json(_run_to_json(run))
    elif run.job.terminal and not run.plan.done:
        print_result(f"{run.job.status}: {_summarize(run)}")
    if run.job.status is JobStatus.FAILED:
        _print_failures(run)
    elif not run.job.terminal:
        info(f"interrupted: {_summarize(run)}")
        info("run the same command again to continue")


def _summarize(run: ExportRun) -> str:
    state = run.job.state
    failed = f", {state.failed_tasks:,} failed" if state.failed_tasks else ""
    return (
        f"{state.completed_tasks:,} of {state.total_tasks:,} done{failed}; "
        f"{format_bytes(run.bytes)} in {format_duration(run.seconds)}"
    )


def _print_failures(run: ExportRun) -> None:
    error, state = run.job.error, run.job.state
    for task in run.find_failures():
        info(strip_control_characters(f"  {task.key}  {format_job_error(task.error)}"))
    if error is not None and error.code != "JobCompletedWithFailures":
        info(strip_control_characters(f"  {error.code}: {error.message}"))
    more = state.failed_tasks - _MAX_FAILURES
    command = shlex.join(["holdfast", "export", "show", run.job.job_id, "--failed"])
    command = f"{command} --jobs {shlex.quote(run.store)}"
    info(f"  … and {more:,} more: {command}" if more > 0 else f"to list them: {command}")
    info("run the same command again to retry the failed files")


def _run_to_json(run: ExportRun) -> dict[str, Any]:
    job, state = run.job, run.job.state
    return {
        "job": job.job_id,
        "status": job.status.value,
        "total": state.total_tasks,
        "completed": state.completed_tasks,
        "failed": state.failed_tasks,
        "bytes": run.bytes,
        "seconds": round(run.seconds, 3),
        "target": run.to,
        "store": run.store,
        "failures": [
            {
                "name": task.key,
                "code": task.error.code if task.error else None,
                "message": task.error.message if task.error else None,
            }
            for task in run.find_failures()
        ],
    }
