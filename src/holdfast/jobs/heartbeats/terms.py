"""What heartbeats may be told: what cannot work is refused before anything starts."""

from holdfast.core.errors import ConfigError


def check_terms(
    interval_seconds: float,
    heartbeat_timeout_seconds: float | None,
    stall_seconds: float | None,
    concurrency: int,
) -> None:
    """Raises ConfigError."""
    if not interval_seconds > 0:
        raise ConfigError(f"the heartbeat interval must be above 0, not {interval_seconds:g} s")
    if heartbeat_timeout_seconds is not None and interval_seconds >= heartbeat_timeout_seconds:
        raise ConfigError(
            f"a heartbeat every {interval_seconds:g} s cannot keep a task alive whose "
            f"HeartbeatSeconds is {heartbeat_timeout_seconds:g}"
        )
    if stall_seconds is not None and not stall_seconds > 0:
        raise ConfigError(f"stall_seconds must be above 0, not {stall_seconds:g}")
    if concurrency < 1:
        raise ConfigError(f"heartbeats need at least one thread, not {concurrency}")
