"""What doctor finds about exports: settings, downloads, job store, target, state machine."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.exports import open_jobs
from holdfast.config.settings import HeartbeatSettings, heartbeat_settings
from holdfast.core.checks import CheckLevel, CheckResult, check_inputs, fail, ok, warn
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import ConfigError, HoldfastError
from holdfast.jobs.errors import JobNotFound
from holdfast.jobs.model import ACTIVE, CallbackState, ExportJob

if TYPE_CHECKING:
    from holdfast.adapters.aws.dynamodb.tables import JobTables

_QUIET_SECONDS = 600.0  # without progress: somebody should look


def export_findings(
    env: Mapping[str, str],
    *,
    jobs: str | os.PathLike[str],
    to: str | None = None,
    state_machine: str | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Iterator[CheckResult]:
    """What doctor finds about exports, one by one: settings, downloads, job store, target,
    state machine. Nothing is made, and nothing is left behind."""
    from holdfast.adapters.export import doctor

    interval_seconds: float | None = None  # unknown, when the settings are wrong
    try:
        heartbeats = heartbeat_settings(env)
        interval_seconds = heartbeats.interval_seconds
    except ConfigError as error:
        yield fail("settings", str(error), "mend it; nothing starts with this")
    else:
        yield from _heartbeat_findings(heartbeats)
    yield doctor.downloads()
    yield from _store_findings(os.fspath(jobs), clock)
    if to is not None:
        yield from check_inputs("target", _target_findings, to)
    if state_machine is not None:
        from holdfast.adapters.aws import stepfunctions_doctor

        yield from check_inputs(
            "state machine", stepfunctions_doctor.examine, state_machine, interval_seconds
        )


def _heartbeat_findings(heartbeats: HeartbeatSettings) -> Iterator[CheckResult]:
    if not heartbeats.enabled:
        yield warn(
            "heartbeats",
            "are switched off: Step Functions times out jobs that take longer than its "
            "HeartbeatSeconds",
            "set STEP_FUNCTIONS_HEARTBEAT_ENABLED to true, or leave it out",
        )
    else:
        yield ok("heartbeats", f"are on, every {heartbeats.interval_seconds:g} s")
    if (finding := heartbeats.finding()) is not None:
        yield finding


def _store_findings(url: str, clock: Clock) -> Iterator[CheckResult]:
    path = Path(url.partition(":")[2] if url.startswith(("sqlite:", "file:")) else url)
    if url.startswith("dynamodb:"):
        tables = list(check_inputs("table", job_table_findings, url))
        yield from tables
        if any(one.level is CheckLevel.FAIL for one in tables):
            return  # the store would say the same again
    elif not path.exists():
        yield ok("job store", f"{path} is not there yet; the first job makes it")
        return
    try:
        with open_jobs(url, clock=clock) as jobs:
            with suppress(JobNotFound):
                jobs.note_progress("holdfast-doctor")  # a write, and there is no such job
            active = [job for status in ACTIVE for job in jobs.find_by_status(status)]
    except HoldfastError as error:
        yield fail("job store", f"{url}: {error}", "see `--jobs`, and who may write there")
        return
    yield ok("job store", f"{url} can be read and written")
    yield from _job_findings(active, clock.time())


def _job_findings(active: list[ExportJob], now: float) -> Iterator[CheckResult]:
    with_token = sum(job.has_task_token() for job in active)
    yield ok("jobs", f"{len(active)} active, {with_token} of them with a task token")
    owing = sum(job.callback.state is CallbackState.PENDING for job in active)
    if owing:
        yield warn(
            "callbacks",
            f"{owing} jobs are decided, and Step Functions was not told yet",
            "see that a service runs that can reach it: `holdfast export serve`",
        )
    still = [job for job in active if now - job.last_progress_at > _QUIET_SECONDS]
    if still:
        yield warn(
            "progress",
            f"{len(still)} active jobs have not moved for {_QUIET_SECONDS / 60:g} minutes",
            "`holdfast export list` names them; is a service running?",
        )


def _target_findings(to: str) -> Iterator[CheckResult]:
    if not to.startswith("s3://"):
        from holdfast.adapters.export import doctor

        yield from doctor.folder(to)
        return
    from holdfast.adapters.aws import s3_doctor

    yield from s3_doctor.examine(to)


# -- the tables of DynamoDB


def job_table_findings(url: str) -> Iterator[CheckResult]:
    """What doctor finds about the tables of a dynamodb: store."""
    from holdfast.adapters.aws.clients import patient
    from holdfast.adapters.aws.dynamodb.doctor import examine

    return examine(patient("dynamodb"), _tables_of(url))


def create_job_tables(url: str) -> list[str]:
    """Make those that are not there; their names. Raises ConfigError, StoreUnavailable."""
    from holdfast.adapters.aws.clients import patient
    from holdfast.adapters.aws.dynamodb.tables import create_tables

    tables = _tables_of(url)
    client = patient("dynamodb")
    return create_tables(client, jobs_table=tables.jobs, tasks_table=tables.tasks)


def _tables_of(url: str) -> "JobTables":
    from holdfast.adapters.aws.dynamodb.tables import JOBS, TASKS, JobTables

    prefix = url.removeprefix("dynamodb:")
    return JobTables(f"{prefix}{JOBS}", f"{prefix}{TASKS}")
