"""JsonClient: the methods of boto3's clients, for the operations that Holdfast calls often.

    sign ──▶ send ──▶ result or error ──▶ return, raise, or wait and sign again

A request is repeated if the service throttled it or failed, or if no response came. One that
may not reach the service twice is repeated only if the service cannot have received it.
"""

import json
import os
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from threading import Lock
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urlsplit

from holdfast.aws.json_client.responses import (
    HttpResponse,
    InvalidResponse,
    parse_error,
    parse_result,
)
from holdfast.aws.json_client.settings import (
    IDEMPOTENCY_PARAMETERS,
    NOT_REPEATABLE,
    SERVICES,
    ClientSettings,
    is_botocore_patched,
    name_operation,
)
from holdfast.aws.json_client.signing import Signer, freeze_credentials
from holdfast.aws.json_client.transport import CallLimits, ConnectionPool, NoResponse
from holdfast.lease import after_fork
from holdfast.lease.backoff import Backoff
from holdfast.lease.clock import SYSTEM_CLOCK, Clock

# The service did not do what was asked, and may do it later. These are botocore's codes.
_THROTTLED = frozenset(
    {
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "LimitExceededException",
        "PriorRequestNotComplete",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
        "TransactionInProgressException",
    }
)
_TIMED_OUT = frozenset({"RequestTimeout", "RequestTimeoutException"})
_SERVER_FAILED = frozenset({500, 502, 503, 504})

_BACKOFF = Backoff(first_seconds=0.5, max_seconds=10.0)
_NOT_ASKED: Any = object()


class RetryBudget:
    """Limits retries while most calls fail, so that clients do not prolong an overload.

    It has the figures of botocore's standard mode: a retry takes 5 of 500, and a call that
    succeeds gives 1 back.
    """

    _CAPACITY, _COST = 500, 5

    def __init__(self) -> None:
        self._left = self._CAPACITY
        self._lock = Lock()

    def take(self) -> bool:
        """Return whether a retry is allowed, and pay for it."""
        with self._lock:
            is_allowed = self._left >= self._COST
            self._left -= self._COST if is_allowed else 0
            return is_allowed

    def restore(self) -> None:
        """Give back a part, after a call that succeeded."""
        if self._left < self._CAPACITY:  # usually not, and then no lock is needed
            with self._lock:
                self._left = min(self._CAPACITY, self._left + 1)


class JsonClient:
    """A client for one service with boto3's methods, results and exceptions.

    Threads may share it, and a forked child makes its own connections. `get_credentials`
    returns an object with botocore's `get_frozen_credentials`, or None. It is called now, and
    again in a forked child. Operations that are not in the table of operations, and all calls
    while botocore is mocked or instrumented, go to the client that `make_boto3_client` makes.
    """

    def __init__(
        self,
        service: str,
        settings: ClientSettings,
        get_credentials: Callable[[], Any],
        limits: CallLimits,
        make_boto3_client: Callable[[], Any],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._service_name = service
        self._service = SERVICES[service]
        self._get_credentials = get_credentials
        self._max_tries = limits.tries
        self._clock = clock
        self._signer = Signer(self._service.host_prefix, settings.region)
        self._pool = ConnectionPool(settings.endpoint, limits, clock, settings.ca_bundle)
        self._headers = {
            "content-type": "application/x-amz-json-1.0",
            "host": _format_host(settings.endpoint),
            **self._service.headers,
        }
        self._unsigned_headers = {
            "accept-encoding": "identity",
            "user-agent": _make_user_agent(),
        }
        self._make_boto3_client = make_boto3_client
        self.meta = SimpleNamespace(region_name=settings.region, endpoint_url=settings.endpoint)
        self._reset()
        self._credentials = get_credentials()
        after_fork.run_after_fork(self, JsonClient._reset)

    def _reset(self) -> None:
        self._pool.forget()
        # Another thread of the parent may have been refreshing its credentials. In the child
        # their lock would never be released.
        self._credentials = _NOT_ASKED
        self._budget = RetryBudget()
        self._random = Random()
        self._boto3_client: Any = None
        self._making_boto3_client = Lock()

    def __repr__(self) -> str:
        return f"<JsonClient {self._service_name} {self.meta.endpoint_url}>"

    def __getattr__(self, name: str) -> Any:
        """Return the method of an operation."""
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._service.operations or is_botocore_patched():
            return getattr(self.get_boto3_client(), name)
        return partial(self._call, name)

    def get_boto3_client(self) -> Any:
        """Return boto3's client for the same service, and create it on first use."""
        with self._making_boto3_client:
            if self._boto3_client is None:
                self._boto3_client = self._make_boto3_client()
            return self._boto3_client

    def close(self) -> None:
        """Close the connections. The next call opens new ones."""
        self._pool.close()
        if self._boto3_client is not None:
            self._boto3_client.close()

    # -- one call

    def _call(self, method: str, **arguments: Any) -> dict[str, Any]:
        operation, is_repeatable = name_operation(method), method not in NOT_REPEATABLE
        if (parameter := IDEMPOTENCY_PARAMETERS.get(method)) is not None:
            arguments.setdefault(parameter, _make_token())
        body = encode_body(arguments)
        attempt, reconnects = 1, True
        while True:
            try:
                response = self._send(operation, body, use_new_connection=not is_repeatable)
                if response.status <= 300:
                    result = self._parse_result(response, attempt)
                    self._budget.restore()
                    return result
            except NoResponse as failed:
                may_repeat = is_repeatable or not failed.may_have_arrived
                if failed.stale and may_repeat and reconnects:
                    # The server closed a connection that was idle. That says nothing about
                    # the service, so it does not count as a try.
                    reconnects = False
                    self._pool.close()
                    continue
                error = failed.error
            else:
                code, error = parse_error(self._service_name, operation, response, attempt)
                may_repeat = _may_repeat(is_repeatable, code, response.status)
            if not may_repeat or attempt >= self._max_tries or not self._budget.take():
                raise error
            self._clock.sleep(_BACKOFF.delay(attempt, self._random))
            attempt += 1

    def _send(self, operation: str, body: bytes, *, use_new_connection: bool) -> HttpResponse:
        if self._credentials is _NOT_ASKED:
            self._credentials = self._get_credentials()
        if self._credentials is None:
            from botocore.exceptions import NoCredentialsError

            raise NoCredentialsError
        target = f"{self._service.target_prefix}.{operation}"
        signed = self._signer.sign(
            self._headers | {"x-amz-target": target},
            body,
            freeze_credentials(self._credentials),
            self._clock.time(),
        )
        return self._pool.send(
            signed | self._unsigned_headers | _trace_header(),
            body,
            use_new_connection=use_new_connection,
        )

    def _parse_result(self, response: HttpResponse, attempt: int) -> dict[str, Any]:
        try:
            return parse_result(self._service_name, response, attempt)
        except InvalidResponse as error:
            from botocore.exceptions import ResponseStreamingError

            raise NoResponse(
                ResponseStreamingError(error=error), may_have_arrived=True
            ) from error


def _may_repeat(is_repeatable: bool, code: str, status: int) -> bool:
    """Return whether a request that the service answered with an error is worth repeating."""
    if code in _THROTTLED or status == 429:
        return True  # the service refused it before doing anything
    return is_repeatable and (code in _TIMED_OUT or status in _SERVER_FAILED)


def _encode_value(value: object) -> Any:
    if isinstance(value, bytes | bytearray):
        return b64encode(value).decode()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not a type of JSON")


_encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_encode_value)


def encode_body(arguments: Mapping[str, Any]) -> bytes:
    """Return the arguments of a call as JSON, with binary values in base64.

    Raises ParamValidationError, which names the type of a value but not the value.
    """
    try:
        return _encoder.encode(arguments).encode()
    except (TypeError, ValueError, RecursionError) as error:
        from botocore.exceptions import ParamValidationError

        report = str(error) if isinstance(error, TypeError) else "a value is not valid in JSON"
        raise ParamValidationError(report=report) from None


def _format_host(endpoint: str) -> str:
    """Return the Host header as botocore writes it: without a port that is the default."""
    parts = urlsplit(endpoint)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    is_default = parts.port in (None, 443 if parts.scheme == "https" else 80)
    return host if is_default else f"{host}:{parts.port}"


def _make_user_agent() -> str:
    import botocore

    return f"holdfast botocore/{botocore.__version__}"


def _make_token() -> str:
    from uuid import uuid4  # only a write transaction needs it

    return str(uuid4())


def _trace_header() -> dict[str, str]:
    """Return botocore's header by which Lambda recognises a loop of functions."""
    trace = os.environ.get("_X_AMZN_TRACE_ID")
    if not trace or "AWS_LAMBDA_FUNCTION_NAME" not in os.environ:
        return {}
    return {"x-amzn-trace-id": quote(trace, safe="-=;:+&[]{}\"',")}
