"""Settings of exports and of their heartbeats, from the environment or the caller."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field

from holdfast.doctor.checks import CheckLevel, CheckResult, fail, ok, warn
from holdfast.exports.file_names import find_store_in_folder
from holdfast.settings import Settings, read_settings

MIN_INTERVAL_MS = 1000
# How long a job whose token was closed waits for another one. It covers every Retry of
# infra/exports.yaml: its waits, and the time for which each new message may be in the queue.
RETRY_GRACE_SECONDS = 600.0


def _split_list(value: object) -> object:
    """Split a variable that holds several values with commas between them."""
    return tuple(part for part in value.split(",") if part) if isinstance(value, str) else value


class ExportSettings(Settings):
    """The settings of a process that exports files. Each is also HOLDFAST_<NAME>, except
    WORKER_POOL_SIZE, whose name comes from the seed."""

    variables: ClassVar = {"worker_pool_size": "WORKER_POOL_SIZE"}

    #: the most worker processes; as many as there are CPU cores start at once, more when no
    #: slot becomes free for a second; recommended: as many as there are CPU cores, typically 4
    #: to 8
    worker_pool_size: int = Field(default=4, ge=1, le=64)
    #: downloads at a time in each worker
    downloads: int = Field(default=4, ge=1, le=64)
    #: connections to one host, in all workers together
    per_host: int = Field(default=16, ge=1, le=1024)
    #: workers that one file may kill before it fails
    task_attempts: int = Field(default=3, ge=1, le=100)
    #: maximum seconds for one file
    task_seconds: float = Field(default=6 * 3600.0, gt=0)
    #: attempts of one download before it fails
    download_attempts: int = Field(default=5, ge=1, le=100)
    #: seconds without a byte after which a download is retried
    quiet_seconds: float = Field(default=60.0, gt=0)
    #: maximum size of a file in bytes
    max_bytes: int | None = Field(default=None, ge=1)
    #: also fetch from private and loopback addresses
    allow_private: bool = False
    #: hosts that may be fetched from although their address is private, separated by commas
    allow_hosts: Annotated[tuple[str, ...], BeforeValidator(_split_list)] = ()
    #: sync each file, so that it survives a power cut
    durable: bool = False
    #: seconds that running downloads may take to finish when the process is stopped
    drain_seconds: float = Field(default=30.0, ge=0)
    #: the folder of the job store and of partial files for S3
    data_dir: str = Field(default="data", min_length=1)
    #: the job store: a file, or `dynamodb:PREFIX`; without it `exports/jobs.db` below
    #: `data_dir`
    jobs: str | None = Field(default=None, min_length=1)

    @property
    def default_store(self) -> str:
        """Return the job store in the data folder."""
        return str(Path(self.data_dir, "exports", "jobs.db"))


def find_job_store(env: Mapping[str, str], given: str | None = None) -> str:
    """Return the given store, or else the variable's, or else the one in the data folder."""
    if url := given or env.get(ExportSettings.to_variable("jobs"), ""):
        return find_store_in_folder(url)
    return read_settings(ExportSettings, env).default_store


# -- heartbeats

_BOOLEANS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}


def _parse_bool(value: object) -> bool:
    """Parse a switch. Any other word is a mistake, and is not taken for a yes or a no."""
    if isinstance(value, bool):
        return value
    if (parsed := _BOOLEANS.get(str(value).strip().lower())) is None:
        raise ValueError("use one of true, false, 1, 0, yes, no, on, off")
    return parsed


def _parse_never(value: object) -> object:
    return None if str(value).strip().lower() == "never" else value


class HeartbeatSettings(Settings):
    """The settings of heartbeats. Their variables' names come from the seed."""

    variables: ClassVar = {
        "interval_ms": "STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS",
        "enabled": "STEP_FUNCTIONS_HEARTBEAT_ENABLED",
        "heartbeat_timeout_seconds": "STEP_FUNCTIONS_HEARTBEAT_TIMEOUT_SECONDS",
    }

    #: milliseconds between two heartbeats of a job; at least 1000
    interval_ms: int = Field(default=30_000, ge=MIN_INTERVAL_MS)
    #: `false` switches heartbeats off; allowed values are true, false, 1, 0, yes, no, on, off
    enabled: Annotated[bool, BeforeValidator(_parse_bool)] = True
    #: the state's HeartbeatSeconds; refused below twice the interval, a warning below three
    #: times
    heartbeat_timeout_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    #: seconds without progress after which a job fails and gets no more heartbeats; `never`
    #: switches this off
    stall_seconds: Annotated[float | None, BeforeValidator(_parse_never)] = Field(
        default=3600.0, gt=0, allow_inf_nan=False
    )
    #: seconds for which a job whose token was closed waits for the token of the state's Retry,
    #: then it fails
    retry_grace_seconds: float = Field(default=RETRY_GRACE_SECONDS, ge=0, allow_inf_nan=False)

    @property
    def interval_seconds(self) -> float:
        """Return the interval in seconds."""
        return self.interval_ms / 1000

    def find_contradictions(self) -> Iterator[str]:
        """Yield the problem of an interval that does not fit HeartbeatSeconds."""
        result = self.check_timeout()
        if result is not None and result.level is CheckLevel.FAIL:
            yield (
                "STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS does not fit "
                "STEP_FUNCTIONS_HEARTBEAT_TIMEOUT_SECONDS "
                f"({result.found}): {result.remedy}"
            )

    def check_timeout(self) -> CheckResult | None:
        """Check the interval against HeartbeatSeconds; None if HeartbeatSeconds is unknown."""
        if (timeout := self.heartbeat_timeout_seconds) is None:
            return None
        return check_interval(self.interval_seconds, timeout)


def check_interval(interval_seconds: float, heartbeat_seconds: float) -> CheckResult:
    """Compare the interval with HeartbeatSeconds. This is the only place with that rule.

    If HeartbeatSeconds is below twice the interval, one late heartbeat ends the job, so the
    check fails. From three times the interval on, a heartbeat may fail with all its
    retries. In between it works, with a warning.
    """
    settings = f"HeartbeatSeconds {heartbeat_seconds:g}, a beat every {interval_seconds:g} s"
    remedy = f"set HeartbeatSeconds to {3 * interval_seconds:g} or more"
    if (fitting_ms := int(heartbeat_seconds * 1000 / 3)) >= MIN_INTERVAL_MS:
        remedy += f", or STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS to {fitting_ms} or less"
    if heartbeat_seconds < 2 * interval_seconds:
        problem = f"{settings}: below twice the interval, one late beat ends the job"
        return fail(problem, remedy)
    if heartbeat_seconds < 3 * interval_seconds:
        return warn(f"{settings}: little room for a beat that is late", remedy)
    return ok(settings)
