"""Checks of exports: settings, downloads, job store, target, state machine."""

import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.adapters.local.sqlite.jobs import JOBS
from holdfast.config.heartbeat import read_heartbeat_settings
from holdfast.core.checks import CheckResult, fail, ok, warn
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import ConfigError
from holdfast.core.text import format_count
from holdfast.core.urls import TARGETS, parse_url
from holdfast.doctor.runner import (
    CheckFailed,
    explain_aws_errors,
    require_valid_settings,
    run_checks,
)
from holdfast.doctor.state_machine import examine_state_machine
from holdfast.doctor.stores import check_job_tables, check_store
from holdfast.jobs.errors import JobNotFound
from holdfast.jobs.file_names import OWN_FOLDER
from holdfast.jobs.model import ACTIVE, CallbackState, ExportJob
from holdfast.jobs.ports import JobStateRepository

_QUIET_SECONDS = 600.0  # without progress, after which doctor warns
_MIN_FREE_BYTES = 1 << 30
_PROBE = ".holdfast-doctor"


@dataclass(frozen=True, slots=True)
class Exports:
    """The setup of a process that exports files.

    `jobs` is the URL of its job store. The target and the state machine are checked only if
    they are given.
    """

    env: Mapping[str, str]
    jobs: str
    open_jobs: Callable[[str], JobStateRepository]
    to: str | None = None
    state_machine: str | None = None
    clock: Clock = SYSTEM_CLOCK


def examine_exports(exports: Exports) -> Iterator[CheckResult]:
    """Check exports and yield the results one by one. Nothing is left behind."""
    yield from run_checks(exports, *EXPORTS)
    if exports.to is not None:
        yield from run_checks(exports.to, ("target", check_target))
    if exports.state_machine is not None:
        interval_seconds: float | None = None  # unknown if the settings are wrong
        with suppress(ConfigError):
            interval_seconds = read_heartbeat_settings(exports.env).interval_seconds
        yield from examine_state_machine(exports.state_machine, interval_seconds)


# -- settings


def _check_settings(exports: Exports) -> Iterator[CheckResult]:
    with require_valid_settings():
        heartbeats = read_heartbeat_settings(exports.env)
    if heartbeats.enabled:
        text = f"they are on, every {heartbeats.interval_seconds:g} s"
        yield ok(text, check="heartbeats")
    else:
        yield warn(
            "they are off, so Step Functions times out jobs that take longer than its "
            "HeartbeatSeconds",
            "set STEP_FUNCTIONS_HEARTBEAT_ENABLED to true, or unset it",
            check="heartbeats",
        )
    if (result := heartbeats.check_timeout()) is not None:
        yield replace(result, check="heartbeat")


def _check_pycurl(exports: Exports) -> Iterator[CheckResult]:
    try:
        import pycurl
    except ImportError:
        yield fail("is not installed", "pip install 'holdfast[export]'")
    else:
        yield ok(f"is installed, with libcurl {pycurl.version_info()[1]}")


# -- the job store


def _check_store(exports: Exports) -> Iterator[CheckResult]:
    def examine(jobs: JobStateRepository) -> Iterator[CheckResult]:
        with suppress(JobNotFound):
            jobs.note_progress("holdfast-doctor")  # needs write permission; no such job exists
        active = [job for status in ACTIVE for job in jobs.find_by_status(status)]
        yield ok(f"{exports.jobs} can be read and written")
        yield from _check_jobs(active, exports.clock.time())

    return check_store(
        exports.jobs,
        exports.open_jobs,
        check_job_tables,
        examine,
        schema=JOBS,
        content="job",
        setting="`--jobs`",
    )


def _check_jobs(active: list[ExportJob], now: float) -> Iterator[CheckResult]:
    with_token = sum(job.has_task_token() for job in active)
    yield ok(f"{len(active)} active, {with_token} of them with a task token", check="jobs")
    if pending := sum(job.callback.state is CallbackState.PENDING for job in active):
        yield warn(
            f"{format_count(pending, 'decided job')} whose result has not reached Step "
            "Functions",
            "run a service that can reach it, with `holdfast export serve`",
            check="callbacks",
        )
    if unmoved := sum(now - job.last_progress_at > _QUIET_SECONDS for job in active):
        yield warn(
            f"{format_count(unmoved, 'active job')} without progress for "
            f"{_QUIET_SECONDS / 60:g} minutes",
            "`holdfast export list` shows them; check that a service is running",
            check="progress",
        )


# -- the target


def check_target(to: str) -> Iterator[CheckResult]:
    """Check a folder or s3://BUCKET/PREFIX."""
    return _check_s3(to) if parse_url(to, TARGETS).scheme == "s3" else _check_folder(to)


def _check_folder(to: str) -> Iterator[CheckResult]:
    """Check the target's folder, or the folder in which it would be made."""
    path = Path(to)
    if path.exists() and not path.is_dir():
        raise CheckFailed(f"{to} is a file", "name a folder")
    existing = next(
        above for above in (path.absolute(), *path.absolute().parents) if above.exists()
    )
    try:
        _try_to_write(existing, is_target=path.exists())
    except OSError as error:
        remedy = "allow this user to write there"
        raise CheckFailed(f"{existing}: {error.strerror}", remedy) from error
    made = "" if path.exists() else "; it will be made"
    yield ok(f"{to} can be written to{made}")
    free = shutil.disk_usage(existing).free
    if free < _MIN_FREE_BYTES:
        remedy = "free some space, or use another disk"
        yield warn(f"{free / 1e6:,.0f} MB are free", remedy, check="space")
    else:
        yield ok(f"{free / 1e9:,.1f} GB are free", check="space")


def _try_to_write(folder: Path, *, is_target: bool) -> None:
    from holdfast.adapters.export.partial_files import PartialFiles

    probe = folder / f"{_PROBE}-{secrets.token_hex(8)}"
    os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    probe.unlink()
    own = folder / OWN_FOLDER
    if is_target and own.exists():
        PartialFiles(str(own)).close()  # raises if a link is in its place


def _check_s3(to: str) -> Iterator[CheckResult]:
    """Begin a multipart upload and abort it.

    That needs the permissions of a put and leaves no object. Raises ConfigError if the
    client cannot be made.
    """
    from holdfast.adapters.aws.clients import make_retrying_client

    client = make_retrying_client("s3")
    bucket, _, prefix = parse_url(to, TARGETS).path.partition("/")
    where = {"Bucket": bucket, "Key": "/".join(filter(None, (prefix.strip("/"), _PROBE)))}
    with explain_aws_errors(
        f"{to} cannot be written to",
        denied="allow the role s3:PutObject and s3:AbortMultipartUpload there",
        otherwise="check the bucket's name, the region and the credentials",
    ):
        upload = client.create_multipart_upload(**where)
        client.abort_multipart_upload(**where, UploadId=upload["UploadId"])
    yield ok(f"{to} accepts uploads")


EXPORTS = (
    ("settings", _check_settings),
    ("pycurl", _check_pycurl),
    ("job store", _check_store),
)
