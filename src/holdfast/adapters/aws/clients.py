"""Making boto3 clients: one session per process, timeouts chosen on purpose.

patient   receive and send: waits out a long poll, retries by itself
prompt    renew and settle: answers soon or fails; whoever asked tries again while the
          lease lives, which a client that retries for minutes would only hide
"""

import os
from threading import Lock
from typing import Any

from holdfast.core.errors import ConfigError

LONG_POLL_SECONDS = 20

# Making a session or a client is not thread-safe in boto3; using a client is. A fork must
# not inherit the lock held.
_making = Lock()
os.register_at_fork(before=_making.acquire, after_in_parent=_making.release)
os.register_at_fork(after_in_child=_making.release)

_sessions: dict[int, Any] = {}  # by process: a fork makes its own connections


def patient(service: str, **where: str | None) -> Any:
    """A client for calls that may take their time."""
    return _client(service, where, read=LONG_POLL_SECONDS + 10.0, connect=5.0, attempts=4)


def prompt(service: str, lease_seconds: float, **where: str | None) -> Any:
    """A client for calls a lease hangs on: two that hang leave time for a third."""
    seconds = min(5.0, max(0.25, lease_seconds / 8))
    # To check ten of our own entries costs a fifth of the call, for every renewal.
    return _client(service, where, read=seconds, connect=seconds, attempts=1, checked=False)


def _client(
    service: str,
    where: dict[str, str | None],
    *,
    read: float,
    connect: float,
    attempts: int,
    checked: bool = True,
) -> Any:
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, NoRegionError
    except ImportError:
        raise ConfigError("Amazon's services need boto3: pip install 'holdfast[aws]'") from None
    config = Config(
        connect_timeout=connect,
        read_timeout=read,
        retries={"mode": "standard", "total_max_attempts": attempts},
        max_pool_connections=32,
        parameter_validation=checked,
        tcp_keepalive=True,
        # Made once here: botocore makes its own anew for every call, for a tenth of its cost.
        user_agent=_user_agent(),
    )
    with _making:
        try:
            if (session := _sessions.get(os.getpid())) is None:
                session = _sessions[os.getpid()] = boto3.Session()
            return session.client(service, config=config, **where)
        except NoRegionError:
            raise ConfigError(
                f"no region for {service}: set AWS_REGION, or use the queue's whole URL"
            ) from None
        except (BotoCoreError, ValueError) as error:
            raise ConfigError(f"no {service} client can be made: {error}") from error


def _user_agent() -> str:
    from importlib.metadata import version

    return f"holdfast/{version('holdfast')} boto3/{version('boto3')}"
