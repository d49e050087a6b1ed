"""`holdfast export run`: fetch a list of files in the foreground.

No queue is involved. The job store records what is done, so after Ctrl-C, a crash or a power
cut the same command continues with the rest.
"""

import gc
import logging
import os
import shlex
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path
from threading import Event
from typing import Annotated, Any, Literal

import typer

from holdfast.cli.arguments import AsJson
from holdfast.cli.console import (
    ExitCode,
    info,
    is_terminal,
    print_json,
    print_result,
    strip_control_characters,
)
from holdfast.cli.foreground import ForegroundRunner
from holdfast.cli.live_view import LiveStatus
from holdfast.events import Event as DomainEvent
from holdfast.events import Events, Subscriber
from holdfast.exports import events as job_events
from holdfast.exports.building import build_export_engine, open_jobs, require_downloads
from holdfast.exports.commands.inspect import (
    DownloadOptions,
    Store,
    To,
    check_target,
    format_job_error,
    read_tasks,
    require_usable_target,
)
from holdfast.exports.commands.live_view import ExportMonitor, PlainLines
from holdfast.exports.commands.plan import Plan, make_plan, read_list
from holdfast.exports.file_names import OWN_FOLDER, find_store_in_folder
from holdfast.exports.model import ExportJob, ExportTask, JobStatus, TaskStatus
from holdfast.exports.ports import JobStateRepository
from holdfast.exports.settings import ExportSettings, HeartbeatSettings
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.settings import read_settings
from holdfast.telemetry.logging import make_line_log
from holdfast.text import format_bytes, format_duration

_MAX_FAILURES = 10  # that are shown


def run(
    list_: Annotated[
        str,
        "<LIST>",
        "A file with one URL or JSON object per line, a job as JSON with its tasks, or - for "
        "standard input.",
    ],
    *,
    to: To,
    jobs: Store = None,
    downloads: DownloadOptions,
    as_json: AsJson = False,
) -> None:
    """Fetch the files of a list. The same command again continues where it stopped."""
    folder = check_target(to)
    settings = downloads.resolve_settings()
    require_downloads()
    files = read_list(list_)
    store = _choose_store(jobs, folder, settings)
    # Jobs are kept forever, because the command may be repeated after months and must know
    # what it did. The store survives a power cut only if the files do (--durable).
    with open_jobs(store, keep_seconds=None, durable=settings.durable) as repository:
        plan = make_plan(files, os.path.abspath(to) if folder else to, repository)
        if not plan.done:
            require_usable_target(to)
        export_run = ExportRun(plan, to, repository, store, settings)
        export_run.run()
        export_run.print_result(as_json)
    raise typer.Exit(export_run.exit_code)


def _choose_store(given: str | None, folder: Path | None, settings: ExportSettings) -> str:
    if given:
        return find_store_in_folder(given)
    if folder is None:
        return settings.default_store
    # With the umask's mode; the store's folder is private.
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder / OWN_FOLDER / "jobs.db")


@dataclass
class ExportRun:
    """One run of the command, with its plan and its result."""

    plan: Plan
    to: str
    jobs: JobStateRepository
    store: str
    settings: ExportSettings
    bytes = 0
    seconds = 0.0
    signal = 0

    def __post_init__(self) -> None:
        self.job = self.plan.existing_job or self.plan.request.to_job(SYSTEM_CLOCK.time())

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
        self._run_engine()
        self.seconds = SYSTEM_CLOCK.monotonic() - started

    def _run_engine(self) -> None:
        style: Literal["plain", "text"] = "plain" if is_terminal() else "text"
        log = make_line_log(info, style, min_level=logging.WARNING)
        events = Events(_report_exceptions(log))
        engine = build_export_engine(
            self.jobs,
            self.to,
            settings=self._limit_workers(),
            # No execution waits for a result, and a job that paused for days is not stalled.
            heartbeats=read_settings(HeartbeatSettings, {"HOLDFAST_STALL_SECONDS": "never"}),
            by_job=False,
            events=events,
        )
        monitor = ExportMonitor(self.jobs, engine, lambda: [self.job.job_id])
        events.subscribe(monitor)
        status: LiveStatus = PlainLines(monitor)
        if is_terminal():
            status = monitor.show(f"to {self.to}", many=False)
        leave, lost = Event(), Event()

        def run() -> ExportJob:
            with engine:
                return engine.runner.run(
                    self.plan.request, lost=lost, should_leave=leave.is_set
                )

        drain = self.settings.drain_seconds
        runner = ForegroundRunner(run, leave.set, lost.set, monitor.count_running, drain)
        # The imported modules live to the end. Without them, each collection is short, and so
        # is the last one, for which the command would keep its caller waiting.
        gc.freeze()
        self.job = runner.run(status)
        self.bytes = monitor.bytes
        self.signal = 0 if self.job.terminal else runner.first_signal

    def _limit_workers(self) -> ExportSettings:
        """Return the settings with at most one worker for each file."""
        files = len(self.plan.request.tasks or ())
        workers = max(1, min(self.settings.worker_pool_size, files))
        return self.settings.model_copy(update={"worker_pool_size": workers})

    @property
    def exit_code(self) -> int:
        """Return the exit code of the command."""
        if self.job.terminal or self.plan.done:
            completed = self.job.status is JobStatus.COMPLETED
            return ExitCode.OK if completed else ExitCode.FAILED
        return 128 + self.signal if self.signal else ExitCode.FAILED

    # -- the result

    def print_result(self, as_json: bool) -> None:
        """Print the result of the run, as lines or as JSON."""
        failures = self._find_failures()
        if as_json:
            print_json(self._to_json(failures))
        elif self.job.terminal and not self.plan.done:
            print_result(f"{self.job.status}: {self._summarize()}")
        if self.job.status is JobStatus.FAILED:
            self._print_failures(failures)
        elif not self.job.terminal:
            info(f"interrupted: {self._summarize()}")
            info("run the same command again to continue")

    def _find_failures(self) -> list[ExportTask]:
        """Return the first few failed tasks of a failed job, in the order of their names."""
        if self.job.status is not JobStatus.FAILED:
            return []
        failed = read_tasks(self.jobs, self.job.job_id, TaskStatus.FAILED)
        return nsmallest(_MAX_FAILURES, failed, key=lambda task: task.key)

    def _summarize(self) -> str:
        state = self.job.state
        failed = f", {state.failed_tasks:,} failed" if state.failed_tasks else ""
        done = f"{state.completed_tasks:,} of {state.total_tasks:,} done{failed}"
        return f"{done}; {format_bytes(self.bytes)} in {format_duration(self.seconds)}"

    def _print_failures(self, failures: list[ExportTask]) -> None:
        error, more = self.job.error, self.job.state.failed_tasks - _MAX_FAILURES
        lines = [f"  {task.key}  {format_job_error(task.error)}" for task in failures]
        if error is not None and error.code != "JobCompletedWithFailures":
            lines.append(f"  {format_job_error(error)}")
        for line in lines:
            # Cleaned as a whole, so that a newline in an error does not make a second line.
            info(strip_control_characters(line))
        command = shlex.join(["holdfast", "export", "show", self.job.job_id, "--failed"])
        command = f"{command} --jobs {shlex.quote(self.store)}"
        info(f"  … and {more:,} more: {command}" if more > 0 else f"to list them: {command}")
        info("run the same command again to retry the failed files")

    def _to_json(self, failures: list[ExportTask]) -> dict[str, Any]:
        job, state = self.job, self.job.state
        return {
            "job": job.job_id,
            "status": job.status.value,
            "total": state.total_tasks,
            "completed": state.completed_tasks,
            "failed": state.failed_tasks,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "target": self.to,
            "store": self.store,
            "failures": [
                {
                    "name": task.key,
                    "code": task.error.code if task.error else None,
                    "message": task.error.message if task.error else None,
                }
                for task in failures
            ],
        }


def _report_exceptions(log: Subscriber) -> Subscriber:
    """Return a subscriber that reports what a user should know while the job runs.

    It leaves out that a job is resumed, which the user asked for, and failed files, which
    are reported at the end by name.
    """

    def report(event: DomainEvent) -> None:
        match event:
            case job_events.JobResumed() | job_events.TaskFailed() | job_events.TaskRetried():
                return
            case job_events.PoolWorkerEnded(pid=pid, reason=reason):
                info(f"worker {pid} ended ({reason}); another one takes over its files")
            case _:
                log(event)

    return report
