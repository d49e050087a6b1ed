"""Build the export engine from a job store, a target and Step Functions."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError
from holdfast.events import Events
from holdfast.exports.engine import EngineSettings, JobEngine
from holdfast.exports.errors import InvalidJob
from holdfast.exports.model import ExportTask
from holdfast.exports.ports import JobStateRepository, StepFunctions
from holdfast.exports.request import JobRequest, TaskSpec, parse_manifest
from holdfast.exports.settings import ExportSettings, HeartbeatSettings
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.urls import STORES, TARGETS, parse_url
from holdfast.version import format_install_command

if TYPE_CHECKING:
    from holdfast.exports.downloads.work import WorkSettings

KEEP_SECONDS = 30 * 86_400.0  # finished jobs can be inspected for a month


def open_jobs(
    url: str | os.PathLike[str],
    *,
    clock: Clock = SYSTEM_CLOCK,
    keep_seconds: float | None = KEEP_SECONDS,
    durable: bool = True,
) -> JobStateRepository:
    """Open the job store behind a URL. With `durable`, counted tasks survive a power cut.

    jobs.db, sqlite:/srv/jobs.db     a file, created if it does not exist
    dynamodb:                        the tables ExportJobs and ExportTasks
    dynamodb:acme-                   the tables acme-ExportJobs and acme-ExportTasks
    """
    store = parse_url(os.fspath(url), STORES)
    if store.scheme == "dynamodb":
        from holdfast.exports.dynamodb import DynamoDBJobs

        return DynamoDBJobs(
            jobs_table=f"{store.path}ExportJobs",
            tasks_table=f"{store.path}ExportTasks",
            clock=clock,
            keep_seconds=keep_seconds,
        )
    from holdfast.exports.sqlite_jobs import SQLiteJobs

    return SQLiteJobs(
        Path(store.path),
        clock=clock,
        keep_seconds=keep_seconds,
        durability="power" if durable else "process",
    )


def create_job_tables(url: str) -> list[str]:
    """Create the missing tables of a dynamodb: store and return their names.

    Raises ConfigError and StoreUnavailable.
    """
    from holdfast.aws.clients import make_retrying_client
    from holdfast.exports.dynamodb import create_tables

    prefix = parse_url(url, STORES).path
    return create_tables(
        make_retrying_client("dynamodb"),
        jobs_table=f"{prefix}ExportJobs",
        tasks_table=f"{prefix}ExportTasks",
    )


def open_step_functions(*, needed: bool) -> StepFunctions | None:
    """Return a Step Functions client with the usual AWS settings.

    Without AWS settings it returns None, or raises ConfigError if it is `needed`.
    """
    try:
        from holdfast.exports.step_functions import StepFunctionsCallbacks

        return StepFunctionsCallbacks()
    except ConfigError:
        if needed:
            raise
        return None


def require_downloads() -> None:
    """Raise ConfigError if the library that downloads need is not installed."""
    try:
        import pycurl  # noqa: F401
    except ImportError:
        text = f"exports need pycurl: {format_install_command('export')}"
        raise ConfigError(text) from None


def check_download_url(url: str) -> None:
    """Raise InvalidJob unless this is a plain http or https URL. The text never quotes it."""
    from holdfast.exports.downloads.task import TaskError
    from holdfast.exports.downloads.url_guard import parse_url as parse_download_url

    try:
        parse_download_url(url)
    except TaskError as error:
        raise InvalidJob(error.message) from None


def build_export_engine(
    jobs: JobStateRepository,
    to: str,
    *,
    settings: ExportSettings,
    heartbeats: HeartbeatSettings,
    manifests: str | None = None,
    by_job: bool = True,
    callbacks: StepFunctions | None = None,
    events: Events | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> JobEngine:
    """Build the engine that exports files to `to`, a folder or s3://BUCKET/PREFIX.

    With `by_job`, the files of each job go below its id. `manifests` is the place of the
    file lists of jobs that name only an export.
    """
    from holdfast.exports.downloads.work import make_work

    return JobEngine(
        jobs,
        make_work(_make_work_settings(to, settings)),
        partial(_make_payload, bucket=_parse_bucket(to), by_job=by_job),
        _make_list_reader(manifests),
        callbacks,
        settings=_make_engine_settings(settings, heartbeats),
        events=events,
        clock=clock,
    )


def _make_engine_settings(
    settings: ExportSettings, heartbeats: HeartbeatSettings
) -> EngineSettings:
    return EngineSettings(
        pool_size=settings.worker_pool_size,
        slots=settings.downloads,
        max_task_attempts=settings.task_attempts,
        task_timeout_seconds=settings.task_seconds,
        interval_seconds=heartbeats.interval_seconds,
        heartbeats=heartbeats.enabled,
        heartbeat_timeout_seconds=heartbeats.heartbeat_timeout_seconds,
        stall_seconds=heartbeats.stall_seconds,
        retry_grace_seconds=heartbeats.retry_grace_seconds,
        drain_seconds=settings.drain_seconds,
    )


def _make_work_settings(to: str, settings: ExportSettings) -> "WorkSettings":
    from holdfast.exports.downloads.work import WorkSettings

    return WorkSettings(
        target=to if _parse_bucket(to) else os.path.abspath(to),
        scratch=os.path.abspath(Path(settings.data_dir, "exports", "parts")),
        allow_private=settings.allow_private,
        allow_hosts=settings.allow_hosts,
        attempts=settings.download_attempts,
        max_bytes=settings.max_bytes,
        stall_seconds=settings.quiet_seconds,
        durable=settings.durable,
    )


def _make_payload(task: ExportTask, *, bucket: str | None, by_job: bool) -> Mapping[str, Any]:
    """Return what a worker process gets of a task: references only, and no task token."""
    return {
        "url": task.url,
        "s3Bucket": bucket,
        "s3Key": f"{task.job_id}/{task.key}" if by_job else task.key,
        "checksum": task.checksum,
        "size": task.size,
    }


def _parse_bucket(to: str) -> str | None:
    target = parse_url(to, TARGETS)
    return target.path.partition("/")[0] if target.scheme == "s3" else None


# -- manifests


def _make_list_reader(manifests: str | None) -> Callable[[JobRequest], Iterator[TaskSpec]]:
    """Return a function that reads the manifest of an export, EXPORT_ID.jsonl or .txt.

    It has a URL or a JSON object on each line.
    """
    read_lines: Callable[[str], Iterator[str]] = _read_lines
    if manifests is not None and parse_url(manifests, TARGETS).scheme == "s3":
        from holdfast.exports.downloads import s3_target

        read_lines, manifests = s3_target.read_lines, manifests.rstrip("/")

    def read_manifest(request: JobRequest) -> Iterator[TaskSpec]:
        if manifests is None:
            raise InvalidJob(
                "the job lists no tasks, and without --manifests its exportId cannot be "
                "looked up"
            )
        for suffix in (".jsonl", ".txt"):
            with suppress(FileNotFoundError):
                path = os.path.join(manifests, f"{request.export_id}{suffix}")
                return parse_manifest(read_lines(path))
        raise InvalidJob(
            f"there is no manifest {request.export_id}.jsonl or {request.export_id}.txt"
        )

    return read_manifest


def _read_lines(path: str) -> Iterator[str]:
    # Read at once, so that a missing file is noticed here and not in the middle of a job.
    with open(path, encoding="utf-8", errors="strict") as lines:
        return iter(lines.read().splitlines())
