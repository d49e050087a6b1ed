"""Check the settings of heartbeats before anything starts."""

from holdfast.doctor.checks import CheckLevel, CheckResult, fail, ok, warn
from holdfast.errors import ConfigError

MIN_INTERVAL_MS = 1000
# How long a job whose token was closed waits for another one. It covers every Retry of
# infra/exports.yaml: its waits, and the time for which each new message may be in the queue.
RETRY_GRACE_SECONDS = 600.0


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


def check_heartbeat_settings(
    interval_seconds: float,
    heartbeat_timeout_seconds: float | None,
    stall_seconds: float | None,
    concurrency: int,
) -> None:
    """Check the settings of an orchestrator. Raises ConfigError."""
    if not interval_seconds > 0:
        raise ConfigError(f"the heartbeat interval must be above 0, not {interval_seconds:g} s")
    if heartbeat_timeout_seconds is not None:
        result = check_interval(interval_seconds, heartbeat_timeout_seconds)
        if result.level is CheckLevel.FAIL:
            raise ConfigError(f"{result.found}; {result.remedy}")
    if stall_seconds is not None and not stall_seconds > 0:
        raise ConfigError(f"stall_seconds must be above 0, not {stall_seconds:g}")
    if concurrency < 1:
        raise ConfigError(f"heartbeats need at least one thread, not {concurrency}")
