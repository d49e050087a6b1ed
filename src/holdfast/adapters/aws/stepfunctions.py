"""The three callbacks of Step Functions, over boto3.

A call is tried once. botocore's own second try, after an answer that was lost, would turn
an accepted success into TaskTimedOut, and the job into one that failed.
"""

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.adapters.aws.clients import prompt
from holdfast.adapters.aws.errors import code_of, status_of
from holdfast.core.errors import HoldfastError
from holdfast.jobs.errors import CallbackRefused, CallbackUnclear, TokenClosed
from holdfast.jobs.model import TaskToken

_log = logging.getLogger("holdfast.stepfunctions")

# Characters, by the service's own model.
MAX_ERROR = 256
MAX_CAUSE = 32_768
MAX_OUTPUT = 262_144
MAX_TOKEN = 2_048

_MARK = " […cut]"
_MAX_KEPT = 1_024  # of one value, when an output must shrink
_PATIENCE_SECONDS = 60.0  # the HeartbeatSeconds a call's timeout is made for

# Nobody waits for this token. Which of the reasons it is only the job's own state tells.
CLOSED = frozenset({"TaskTimedOut", "TaskDoesNotExist", "InvalidToken"})

# botocore's names for what ended before a byte of the request was sent.
_NEVER_SENT = frozenset(
    {
        "ConnectTimeoutError",
        "EndpointConnectionError",
        "NoCredentialsError",
        "PartialCredentialsError",
        "CredentialRetrievalError",
        "ProxyConnectionError",
        "TokenRetrievalError",
        "UnauthorizedSSOTokenError",
    }
)


class StepFunctionsCallbacks:
    """A StepFunctions. One client for all threads; makes its own unless one is given.

    A client that is given must not retry by itself, and needs as many connections as
    threads call it.
    """

    def __init__(self, client: Any = None) -> None:
        self._client = prompt("stepfunctions", _PATIENCE_SECONDS) if client is None else client

    def send_task_success(self, token: TaskToken, output: Mapping[str, Any]) -> None:
        """An output longer than the service takes is cut: it says so, as `truncated`."""
        text = as_output(output)
        self._call("SendTaskSuccess", self._client.send_task_success, token, output=text)

    def send_task_failure(self, token: TaskToken, error: str, cause: str) -> None:
        self._call(
            "SendTaskFailure",
            self._client.send_task_failure,
            token,
            error=cut(error, MAX_ERROR),
            cause=cut(cause, MAX_CAUSE),
        )

    def send_task_heartbeat(self, token: TaskToken) -> None:
        self._call("SendTaskHeartbeat", self._client.send_task_heartbeat, token)

    def _call(self, name: str, send: Callable[..., Any], token: TaskToken, **said: str) -> None:
        if len(token.reveal()) > MAX_TOKEN:
            raise TokenClosed("InvalidToken")
        try:
            send(taskToken=token.reveal(), **said)
        except Exception as error:  # whatever it is, the port knows three
            known = translated(name, error)
            _log.debug("%s for %s failed: %s", name, token, known)
            # Not `from error`: its text is the service's, and may quote what was sent.
            raise known from None
        _log.debug("%s for %s was taken", name, token)


def translated(name: str, error: BaseException) -> HoldfastError:
    """The one table: what a failed callback means. By codes, never by texts."""
    code, kind = code_of(error), type(error).__name__
    if code in CLOSED:
        return TokenClosed(code)
    if code and status_of(error) < 500:
        return CallbackRefused(f"Step Functions refused {name} ({code})")
    if kind in _NEVER_SENT:
        return CallbackRefused(f"{name} never reached Step Functions ({kind})")
    return CallbackUnclear(f"Step Functions did not answer {name} ({code or kind})")


def cut(text: str, longest: int) -> str:
    """The text, or as much of it as may be sent, with a mark."""
    return text if len(text) <= longest else text[: longest - len(_MARK)] + _MARK


def as_output(output: Mapping[str, Any]) -> str:
    """JSON that the service takes. When all of it is too long, the short values of it."""
    text = json.dumps(output, default=str)
    if len(text) <= MAX_OUTPUT:
        return text
    kept: dict[str, Any] = {"truncated": True}
    room = MAX_OUTPUT - _MAX_KEPT
    for key, value in output.items():
        size = len(json.dumps({key: value}, default=str))
        if size <= _MAX_KEPT and (room := room - size) > 0:
            kept.setdefault(key, value)
    return json.dumps(kept, default=str)
