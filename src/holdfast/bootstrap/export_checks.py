"""Check exports for doctor: settings, downloads, job store, target, state machine."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.exports import open_jobs
from holdfast.config.heartbeat import HeartbeatSettings, read_heartbeat_settings
from holdfast.core.checks import CheckLevel, CheckResult, fail, ok, run_check, warn
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import ConfigError, HoldfastError
from holdfast.jobs.errors import JobNotFound
from holdfast.jobs.model import ACTIVE, CallbackState, ExportJob

if TYPE_CHECKING:
    from holdfast.adapters.aws.dynamodb.tables import JobTables

_QUIET_SECONDS = 600.0  # without progress, after which doctor warns


def check_exports(
    env: Mapping[str, str],
    *,
    jobs: str | os.PathLike[str],
    to: str | None = None,
    state_machine: str | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Iterator[CheckResult]:
    """Check exports and yield the results one by one.

    The target and the state machine are checked only if given. Nothing is left behind.
    """
    from holdfast.adapters.export import doctor

    interval_seconds: float | None = None  # unknown if the settings are wrong
    try:
        heartbeats = read_heartbeat_settings(env)
        interval_seconds = heartbeats.interval_seconds
    except ConfigError as error:
        yield fail("settings", str(error), "correct it; nothing starts with this setting")
    else:
        yield from _check_heartbeats(heartbeats)
    yield doctor.check_pycurl()
    yield from _check_store(os.fspath(jobs), clock)
    if to is not None:
        yield from run_check("target", _check_target, to)
    if state_machine is not None:
        from holdfast.adapters.aws import stepfunctions_doctor

        yield from run_check(
            "state machine", stepfunctions_doctor.examine, state_machine, interval_seconds
        )


def _check_heartbeats(heartbeats: HeartbeatSettings) -> Iterator[CheckResult]:
    if not heartbeats.enabled:
        yield warn(
            "heartbeats",
            "they are off, so Step Functions times out jobs that take longer than its "
            "HeartbeatSeconds",
            "set STEP_FUNCTIONS_HEARTBEAT_ENABLED to true, or unset it",
        )
    else:
        yield ok("heartbeats", f"they are on, every {heartbeats.interval_seconds:g} s")
    if (result := heartbeats.check_timeout()) is not None:
        yield result


def _check_store(url: str, clock: Clock) -> Iterator[CheckResult]:
    path = Path(url.partition(":")[2] if url.startswith(("sqlite:", "file:")) else url)
    if url.startswith("dynamodb:"):
        tables = list(run_check("table", check_job_tables, url))
        yield from tables
        if any(result.level is CheckLevel.FAIL for result in tables):
            return  # opening the store would only report the same problems
    elif not path.exists():
        yield ok("job store", f"{path} does not exist yet; the first job creates it")
        return
    try:
        with open_jobs(url, clock=clock) as jobs:
            with suppress(JobNotFound):
                jobs.note_progress(
                    "holdfast-doctor"
                )  # needs write permission; no such job exists
            active = [job for status in ACTIVE for job in jobs.find_by_status(status)]
    except HoldfastError as error:
        yield fail("job store", f"{url}: {error}", "check `--jobs` and the permissions")
        return
    yield ok("job store", f"{url} can be read and written")
    yield from _check_jobs(active, clock.time())


def _check_jobs(active: list[ExportJob], now: float) -> Iterator[CheckResult]:
    with_token = sum(job.has_task_token() for job in active)
    yield ok("jobs", f"{len(active)} active, {with_token} of them with a task token")
    pending = sum(job.callback.state is CallbackState.PENDING for job in active)
    if pending:
        yield warn(
            "callbacks",
            f"{pending} jobs are decided, but their result has not reached Step Functions",
            "run a service that can reach it, with `holdfast export serve`",
        )
    unmoved = [job for job in active if now - job.last_progress_at > _QUIET_SECONDS]
    if unmoved:
        yield warn(
            "progress",
            f"{len(unmoved)} active jobs have not moved for {_QUIET_SECONDS / 60:g} minutes",
            "`holdfast export list` shows them; check that a service is running",
        )


def _check_target(to: str) -> Iterator[CheckResult]:
    if not to.startswith("s3://"):
        from holdfast.adapters.export import doctor

        yield from doctor.check_folder(to)
        return
    from holdfast.adapters.export import s3_doctor

    yield from s3_doctor.examine(to)


# -- the tables of DynamoDB


def check_job_tables(url: str) -> Iterator[CheckResult]:
    """Check the tables of a dynamodb: store."""
    from holdfast.adapters.aws.clients import make_retrying_client
    from holdfast.adapters.aws.dynamodb.doctor import examine

    return examine(make_retrying_client("dynamodb"), _name_tables(url))


def create_job_tables(url: str) -> list[str]:
    """Create the missing tables and return their names.

    Raises ConfigError and StoreUnavailable.
    """
    from holdfast.adapters.aws.clients import make_retrying_client
    from holdfast.adapters.aws.dynamodb.tables import create_tables

    tables = _name_tables(url)
    client = make_retrying_client("dynamodb")
    return create_tables(client, jobs_table=tables.jobs, tasks_table=tables.tasks)


def _name_tables(url: str) -> "JobTables":
    from holdfast.adapters.aws.dynamodb.tables import JOBS, TASKS, JobTables

    prefix = url.removeprefix("dynamodb:")
    return JobTables(f"{prefix}{JOBS}", f"{prefix}{TASKS}")
