"""Making boto3 clients: one session per process, timeouts chosen on purpose.

patient   receive and send: waits out a long poll, retries by itself
prompt    renew and settle: answers soon or fails; whoever asked tries again while the
          lease lives, which a client that retries for minutes would only hide

The region is the one that is given, then AWS_REGION, then what boto3 finds by itself:
AWS_DEFAULT_REGION or the profile. (boto3 does not read AWS_REGION.) An `endpoint_url` is
where a queue's URL points; an endpoint that is configured for boto3 wins over it.
"""

import os
from collections.abc import Callable
from functools import partial
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
            region = where.get("region_name") or os.environ.get("AWS_REGION") or None
            make = partial(session.client, service, region_name=region)
            endpoint = _endpoint(make, where.get("endpoint_url"))
            return make(config=config, endpoint_url=endpoint)
        except NoRegionError:
            url = ", or use the queue's whole URL" if service == "sqs" else ""
            raise ConfigError(
                f"no region for {service}: set AWS_REGION or AWS_DEFAULT_REGION{url}"
            ) from None
        except (BotoCoreError, ValueError) as error:
            raise ConfigError(f"no {service} client can be made: {error}") from error


def _endpoint(make: Callable[..., Any], host: str | None) -> str | None:
    """Return `host` unless an endpoint is configured (AWS_ENDPOINT_URL, the profile); then
    None, which leaves it to boto3. Only boto3 knows its settings, so it is asked with and
    without them.
    """
    from botocore.config import Config

    if host is None:
        return None
    configured = make(config=Config())
    plain = make(config=Config(ignore_configured_endpoint_urls=True))
    is_configured = configured.meta.endpoint_url != plain.meta.endpoint_url
    return None if is_configured else host


def _user_agent() -> str:
    from importlib.metadata import version

    return f"holdfast/{version('holdfast')} boto3/{version('boto3')}"
