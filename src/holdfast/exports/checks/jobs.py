"""Checks of exports: settings, downloads, job store. `holdfast export doctor` runs them."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from holdfast.doctor.checks import CheckResult, fail, ok, run_checks, warn
from holdfast.doctor.stores import StoreKind, StoreTables, check_store
from holdfast.exports.building import create_job_tables, open_jobs
from holdfast.exports.errors import JobNotFound
from holdfast.exports.model import ACTIVE, CallbackState
from holdfast.exports.ports import JobStateRepository
from holdfast.exports.settings import HeartbeatSettings, find_job_store
from holdfast.exports.sqlite_jobs import JOBS
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.settings import read_settings
from holdfast.text import format_count
from holdfast.version import format_install_command

_QUIET_SECONDS = 600.0  # without progress, after which doctor warns


def examine_exports(target: str, env: Mapping[str, str]) -> Iterator[CheckResult]:
    """Check exports and yield the results one by one. Nothing is left behind."""
    return run_checks(env, *EXPORTS)


def _check_settings(env: Mapping[str, str]) -> Iterator[CheckResult]:
    heartbeats = read_settings(HeartbeatSettings, env)
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


def _check_pycurl(env: Mapping[str, str]) -> Iterator[CheckResult]:
    try:
        import pycurl
    except ImportError:
        yield fail("is not installed", format_install_command("export"))
    else:
        yield ok(f"is installed, with libcurl {pycurl.version_info()[1]}")


def _check_store(env: Mapping[str, str]) -> Iterator[CheckResult]:
    return check_store(JOB_STORE, find_job_store(env), env)


EXPORTS = (
    ("settings", _check_settings),
    ("pycurl", _check_pycurl),
    ("job store", _check_store),
)


# -- the job store


def _define_tables(prefix: str) -> StoreTables:
    from holdfast.exports.dynamodb import tables

    names = tables.JobTables(f"{prefix}{tables.JOBS}", f"{prefix}{tables.TASKS}")
    expiring = dict.fromkeys((names.jobs, names.tasks), "ttl")
    command = tables.format_tables_command(names)
    return StoreTables(tables.define_tables(names), expiring, command)


def _examine_jobs(jobs: JobStateRepository, env: Mapping[str, str]) -> Iterator[CheckResult]:
    with suppress(JobNotFound):
        jobs.note_progress("holdfast-doctor")  # needs write permission; no such job exists
    active = [job for status in ACTIVE for job in jobs.find_by_status(status)]
    with_token = sum(job.has_task_token() for job in active)
    yield ok(f"{len(active)} active, {with_token} of them with a task token", check="jobs")
    if pending := sum(job.callback.state is CallbackState.PENDING for job in active):
        yield warn(
            f"{format_count(pending, 'decided job')} whose result has not reached Step "
            "Functions",
            "run a service that can reach it, with `holdfast export serve`",
            check="callbacks",
        )
    before = SYSTEM_CLOCK.time() - _QUIET_SECONDS
    if unmoved := sum(job.last_progress_at < before for job in active):
        yield warn(
            f"{format_count(unmoved, 'active job')} without progress for "
            f"{_QUIET_SECONDS / 60:g} minutes",
            "`holdfast export list` shows them; check that a service is running",
            check="progress",
        )


JOB_STORE = StoreKind(
    JOBS, _define_tables, create_job_tables, open_jobs, _examine_jobs, "job", "--jobs"
)
