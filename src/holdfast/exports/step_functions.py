"""The three callbacks of Step Functions.

A call is tried once. If a response were lost and botocore tried again, an accepted success
would become TaskTimedOut, and the job would count as failed.
"""

import json
import logging
from collections.abc import Mapping
from threading import Lock
from typing import Any

from holdfast.aws.checked_call import call_checked
from holdfast.aws.clients import make_fail_fast_client
from holdfast.aws.errors import describe_cause, get_error_code, get_http_status
from holdfast.errors import ConfigError, HoldfastError
from holdfast.exports.errors import CallbackRefused, CallbackUnclear, TokenClosed
from holdfast.exports.model import TaskToken
from holdfast.lease import after_fork

_log = logging.getLogger("holdfast.stepfunctions")

# Limits of the service's own model, in characters.
MAX_ERROR_CHARS = 256
MAX_CAUSE_CHARS = 32_768
MAX_TOKEN_CHARS = 2_048

_MARK = " […cut]"
_HEARTBEAT_SECONDS = 60.0  # each call's timeout is chosen for this HeartbeatSeconds

# No task waits for this token any more. Only the job's own state shows why.
TOKEN_CLOSED = frozenset({"TaskTimedOut", "TaskDoesNotExist", "InvalidToken"})

# botocore's errors of calls that ended before any byte of the request was sent.
_NEVER_SENT = frozenset(
    {
        "ConnectTimeoutError",
        "EndpointConnectionError",
        "NoCredentialsError",
        "ParamValidationError",
        "PartialCredentialsError",
        "CredentialRetrievalError",
        "ProxyConnectionError",
        "TokenRetrievalError",
        "UnauthorizedSSOTokenError",
    }
)


class StepFunctionsCallbacks:
    """Step Functions callbacks over one client, which all threads share.

    It makes its own client unless the caller gives one, and another in a forked child. A given
    client must not retry by itself, and needs as many connections as threads call it.
    """

    def __init__(self, client: Any = None) -> None:
        self._given_client = client
        self._reset()
        self._connect()
        after_fork.run_after_fork(self, StepFunctionsCallbacks._reset)

    def _reset(self) -> None:
        self._client = self._given_client
        self._connecting = Lock()

    def _connect(self) -> Any:
        with self._connecting:  # otherwise every thread would create its own client
            if self._client is None:
                self._client = make_fail_fast_client("stepfunctions", _HEARTBEAT_SECONDS)
            return self._client

    def send_task_success(self, token: TaskToken, output: Mapping[str, Any]) -> None:
        """Report the task's success."""
        text = json.dumps(output, default=str)
        self._call("SendTaskSuccess", "send_task_success", token, output=text)

    def send_task_failure(self, token: TaskToken, error: str, cause: str) -> None:
        """Report the task's failure. Texts that are too long are cut and marked."""
        self._call(
            "SendTaskFailure",
            "send_task_failure",
            token,
            error=truncate_text(error, MAX_ERROR_CHARS),
            cause=truncate_text(cause, MAX_CAUSE_CHARS),
        )

    def send_task_heartbeat(self, token: TaskToken) -> None:
        """Report that the task is still running."""
        self._call("SendTaskHeartbeat", "send_task_heartbeat", token)

    def _call(self, name: str, operation: str, token: TaskToken, **arguments: str) -> None:
        if len(token.reveal()) > MAX_TOKEN_CHARS:
            raise TokenClosed("InvalidToken")
        client = self._connect()
        try:
            call_checked(client, operation, taskToken=token.reveal(), **arguments)
        except Exception as error:  # any kind: the port has three errors for it
            known = translate_error(name, error)
            _log.debug("%s for %s failed: %s", name, token, known)
            # Not `from error`, because the service's text may quote the request.
            raise known from None
        _log.debug("%s for %s was accepted", name, token)


def translate_error(name: str, error: BaseException) -> HoldfastError:
    """Return what a failed callback means. Codes are matched, never texts."""
    code, kind = get_error_code(error), type(error).__name__
    if code in TOKEN_CLOSED:
        return TokenClosed(code)
    if code and get_http_status(error) < 500:
        return CallbackRefused(f"Step Functions refused {name} ({code})")
    if isinstance(error, ConfigError):  # of the credentials
        return CallbackRefused(f"{name} never reached Step Functions: {error}")
    if kind in _NEVER_SENT:
        return CallbackRefused(f"{name} never reached Step Functions ({describe_cause(error)})")
    return CallbackUnclear(
        f"Step Functions did not respond to {name} ({describe_cause(error)})"
    )


def truncate_text(text: str, max_chars: int) -> str:
    """Return the text, or as much of it as may be sent, with a mark."""
    return text if len(text) <= max_chars else text[: max_chars - len(_MARK)] + _MARK
