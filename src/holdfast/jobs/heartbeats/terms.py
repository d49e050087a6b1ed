"""What heartbeats may be told: what cannot work is refused before anything starts."""

from holdfast.core.errors import ConfigError
from holdfast.core.findings import Finding, Level, fail, ok, warn

MIN_INTERVAL_MS = 1000


def interval_finding(interval_seconds: float, heartbeat_seconds: float) -> Finding:
    """Compare the interval with HeartbeatSeconds. This is the only place with that rule.

    Below twice the interval one late beat ends the job, so it is refused. From three times
    on a beat may fail with all its retries. In between it works, with a warning.
    """
    found = f"HeartbeatSeconds {heartbeat_seconds:g}, a beat every {interval_seconds:g} s"
    way_out = f"set HeartbeatSeconds to {3 * interval_seconds:g} or more"
    if (fitting_ms := int(heartbeat_seconds * 1000 / 3)) >= MIN_INTERVAL_MS:
        way_out += f", or STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS to {fitting_ms} or less"
    if heartbeat_seconds < 2 * interval_seconds:
        problem = f"{found}: below twice the interval, one late beat ends the job"
        return fail("heartbeat", problem, way_out)
    if heartbeat_seconds < 3 * interval_seconds:
        return warn("heartbeat", f"{found}: little room for a beat that is late", way_out)
    return ok("heartbeat", found)


def check_terms(
    interval_seconds: float,
    heartbeat_timeout_seconds: float | None,
    stall_seconds: float | None,
    concurrency: int,
) -> None:
    """Raises ConfigError."""
    if not interval_seconds > 0:
        raise ConfigError(f"the heartbeat interval must be above 0, not {interval_seconds:g} s")
    if heartbeat_timeout_seconds is not None:
        finding = interval_finding(interval_seconds, heartbeat_timeout_seconds)
        if finding.level is Level.FAIL:
            raise ConfigError(f"{finding.found}; {finding.way_out}")
    if stall_seconds is not None and not stall_seconds > 0:
        raise ConfigError(f"stall_seconds must be above 0, not {stall_seconds:g}")
    if concurrency < 1:
        raise ConfigError(f"heartbeats need at least one thread, not {concurrency}")
