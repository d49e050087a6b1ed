"""Checks of exports: settings, downloads, job store, target, state machine."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from holdfast.doctor.checks import CheckResult, fail, ok, warn
from holdfast.doctor.runner import require_valid_settings, run_checks
from holdfast.doctor.stores import check_store
from holdfast.errors import ConfigError
from holdfast.exports.checks.state_machine import examine_state_machine
from holdfast.exports.checks.tables import check_job_tables
from holdfast.exports.checks.target import check_target
from holdfast.exports.errors import JobNotFound
from holdfast.exports.heartbeat_settings import read_heartbeat_settings
from holdfast.exports.model import ACTIVE, CallbackState, ExportJob
from holdfast.exports.ports import JobStateRepository
from holdfast.exports.sqlite_jobs import JOBS
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.text import format_count
from holdfast.version import format_install_command

_QUIET_SECONDS = 600.0  # without progress, after which doctor warns


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
        yield fail("is not installed", format_install_command("export"))
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


EXPORTS = (
    ("settings", _check_settings),
    ("pycurl", _check_pycurl),
    ("job store", _check_store),
)
