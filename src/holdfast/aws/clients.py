"""Make clients of AWS's services, with deliberately chosen timeouts.

make_retrying_client    for receive and send. It outlasts a long poll and retries by itself.
make_fail_fast_client   for renew and settle. It gets a response soon or fails. The caller
                        tries again while the lease is valid; a client that retried for
                        minutes would only hide the failure.

The region is the one that the caller gives, then AWS_REGION, then what boto3 finds by itself,
which is AWS_DEFAULT_REGION or the profile. (boto3 does not read AWS_REGION.) An `endpoint_url`
comes from a queue's URL; an endpoint that is configured for boto3 takes precedence over it.

SQS, DynamoDB and Step Functions are called by the lean client (`json_client`), unless
HOLDFAST_AWS_CLIENT=boto3 is set, botocore is mocked or instrumented, or something is configured
that only boto3 does. All other services are called by boto3, with one session per process.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any

from holdfast.aws.json_client.client import JsonClient
from holdfast.aws.json_client.settings import (
    SERVICES,
    ClientSettings,
    ask_botocore,
    can_be_called,
    find_configured_endpoint,
    is_botocore_patched,
    read_environment,
)
from holdfast.aws.json_client.signing import freeze_credentials
from holdfast.aws.json_client.transport import CallLimits
from holdfast.errors import ConfigError

LONG_POLL_SECONDS = 20
CLIENT_VARIABLE = "HOLDFAST_AWS_CLIENT"

# Making a session or a client is not thread-safe in boto3; using a client is. The lock is
# taken around a fork, so that a child never inherits it locked.
_client_lock = Lock()
os.register_at_fork(before=_client_lock.acquire, after_in_parent=_client_lock.release)
os.register_at_fork(after_in_child=_client_lock.release)

# The key is the process id, because a forked child must make its own connections.
_sessions: dict[int, Any] = {}  # of botocore
_boto3_sessions: dict[int, Any] = {}


def make_retrying_client(service: str, **location: str | None) -> Any:
    """Make a client for calls that may take their time."""
    limits = CallLimits(connect_seconds=5.0, read_seconds=LONG_POLL_SECONDS + 10.0, tries=4)
    return _make_client(service, limits, **location)


def make_fail_fast_client(service: str, lease_seconds: float, **location: str | None) -> Any:
    """Make a client for calls that a lease depends on.

    Its timeouts are so short that two calls that hang leave time for a third.
    """
    seconds = min(5.0, max(0.25, lease_seconds / 8))
    return _make_client(service, CallLimits(seconds, seconds, tries=1), **location)


def _make_client(
    service: str,
    limits: CallLimits,
    region_name: str | None = None,
    endpoint_url: str | None = None,
) -> Any:
    make_boto3_client = partial(_make_boto3_client, service, limits, region_name, endpoint_url)
    with _explain_errors(service):
        settings = _choose_lean_settings(service, region_name, endpoint_url)
        if settings is None:
            return make_boto3_client()
        credentials = settings.credentials
        return JsonClient(
            service,
            settings,
            _ask_session_for_credentials if credentials is None else lambda: credentials,
            limits,
            make_boto3_client,
        )


def _choose_lean_settings(
    service: str, region: str | None, endpoint: str | None
) -> ClientSettings | None:
    """Return the settings of a lean client, or None if boto3 must be used.

    docs/how-to/run-on-sqs.md states the rule.
    """
    if service not in SERVICES or not _is_lean_allowed() or is_botocore_patched():
        return None
    with _client_lock:
        settings = read_environment(service, region, endpoint, os.environ)
        if settings is None:
            settings = ask_botocore(_get_session(), service, region, endpoint)
    return settings if settings is not None and can_be_called(settings.endpoint) else None


def _is_lean_allowed() -> bool:
    choice = os.environ.get(CLIENT_VARIABLE) or "auto"
    if choice not in ("auto", "boto3"):
        raise ConfigError(f"{CLIENT_VARIABLE} must be auto or boto3; got {choice[:40]!r}")
    return choice != "boto3"


def _get_session() -> Any:
    """Return this process's session of botocore, under the lock."""
    if (session := _sessions.get(os.getpid())) is None:
        from botocore.session import Session

        session = _sessions[os.getpid()] = Session()
    return session


def _ask_session_for_credentials() -> Any:
    with _client_lock:
        return _get_session().get_credentials()


def _get_boto3_session() -> Any:
    """Return this process's session of boto3, under the lock."""
    if (session := _boto3_sessions.get(os.getpid())) is None:
        import boto3

        session = boto3.Session(botocore_session=_get_session())
        _boto3_sessions[os.getpid()] = session
    return session


@contextmanager
def _explain_errors(service: str) -> Iterator[None]:
    try:
        try:
            yield
        except Exception as error:
            # Here, because a cold start without an error must not import them.
            from botocore.exceptions import BotoCoreError, NoRegionError

            if isinstance(error, NoRegionError):
                url = ", or use the queue's complete URL" if service == "sqs" else ""
                raise ConfigError(
                    f"no region for {service}: set AWS_REGION or AWS_DEFAULT_REGION{url}"
                ) from None
            if isinstance(error, BotoCoreError | ValueError):
                raise ConfigError(f"cannot make the {service} client: {error}") from error
            raise
    except ImportError:
        from holdfast.version import format_install_command

        text = f"Amazon's services need boto3: {format_install_command('aws')}"
        raise ConfigError(text) from None


def _make_boto3_client(
    service: str, limits: CallLimits, region: str | None, host: str | None
) -> Any:
    with _client_lock, _explain_errors(service):
        from botocore.config import Config

        config = Config(
            connect_timeout=limits.connect_seconds,
            read_timeout=limits.read_seconds,
            retries={"mode": "standard", "total_max_attempts": limits.tries},
            max_pool_connections=32,
            # Validating the parameters of ten entries costs a fifth of each renewal call, and
            # the entries are Holdfast's own.
            parameter_validation=limits.tries > 1,
            tcp_keepalive=True,
            # Made once here, because botocore would make its own for every call, which takes
            # a tenth of the call's CPU time.
            user_agent=_make_user_agent(),
        )
        region = region or os.environ.get("AWS_REGION") or None
        is_configured = find_configured_endpoint(_get_session(), service) is not None
        endpoint = None if is_configured else host  # None leaves the choice to boto3
        client = _get_boto3_session().client(
            service, region_name=region, endpoint_url=endpoint, config=config
        )
        # boto3 itself would report credentials that cannot be sent as an outage.
        credentials = _get_session().get_credentials()
        if credentials is not None:
            client.meta.events.register(
                "before-sign", lambda **_: freeze_credentials(credentials) and None
            )
        return client


def _make_user_agent() -> str:
    from importlib.metadata import version

    from holdfast.version import read_version

    return f"holdfast/{read_version()} boto3/{version('boto3')}"
