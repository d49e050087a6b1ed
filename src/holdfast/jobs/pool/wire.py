"""The messages between the pool and its worker processes: JSON with plain data only.

    pool   ─▶ worker  START, then the pickled factory; PROCESS_TASK, CANCEL_JOB.
                      The end of the pipe tells the worker to end.
    worker ─▶ pool    READY or BROKEN, TASK_COMPLETED for each task, PULSE regularly

A nonce names one attempt of one task on one worker. A report with an unknown nonce is about
an attempt that the worker no longer has. The pool does not trust its workers and checks all
that they send. This module imports little, because each worker process loads it.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from holdfast.core.process.frames import MAX_FRAME_BYTES
from holdfast.core.process.frames import BrokenFrame as BrokenFrame

CANCELLED = "Cancelled"  # the code of a cancelled task, which is given back without a result
MAX_TEXT = 500  # characters of an error message
MAX_CODE = 100
MAX_BYTES = 2**63 - 1  # of a count, because no store keeps more
_MAX_SCANNED = 10_000

_IN_URL = r"[^\s'\"<>]*"  # rather too much is hidden than too little
_USER = re.compile(rf"://{_IN_URL}@")
_QUERY = re.compile(rf"(://[^\s'\"<>?#]*)[?#]{_IN_URL}")


class InvalidResult(ValueError):
    """The task handler returned an invalid result."""


class WorkerReady(NamedTuple):
    """The task handler was created, so the worker can take tasks."""


class WorkerBroken(NamedTuple):
    """The task handler cannot be created.

    `code` may be shown anywhere; show `reason` only to the operator who configured it.
    """

    code: str
    reason: str


class TaskReport(NamedTuple):
    """The result of one attempt of a task."""

    nonce: int
    success: bool
    bytes_processed: int
    error: tuple[str, str] | None  # code and message, for every failure


class WorkerPulse(NamedTuple):
    """A sign of life, with the bytes processed so far by nonce of each running task."""

    bytes_by_nonce: dict[int, int]


WorkerMessage = WorkerReady | WorkerBroken | TaskReport | WorkerPulse


# -- to a worker


def pack_start(slots: int, pulse_seconds: float) -> bytes:
    """Pack the command that begins a worker's life."""
    return _pack("START", {"slots": slots, "pulse_seconds": pulse_seconds})


def pack_task(
    payload: Mapping[str, Any], job_id: str, task_id: str, attempt: int, nonce: int
) -> bytes:
    """Pack a task.

    Raises TypeError, ValueError or RecursionError if the payload is not plain data, and
    ValueError if it is too large.
    """
    ids = {"jobId": job_id, "taskId": task_id, "attempt": attempt, "nonce": nonce}
    frame = _pack("PROCESS_TASK", {**payload, **ids})
    if len(frame) > MAX_FRAME_BYTES:
        raise ValueError(f"the task is {len(frame):,} bytes, the limit {MAX_FRAME_BYTES:,}")
    return frame


def pack_cancel(job_id: str) -> bytes:
    """Pack the command to cancel the tasks of a job."""
    return _pack("CANCEL_JOB", {"jobId": job_id})


def unpack_command(frame: bytes) -> tuple[str, dict[str, Any]]:
    """Return the kind and the payload of a command.

    The worker does not check it, because it comes from the pool that started the worker.
    """
    command = json.loads(frame)
    return command["type"], command["payload"]


# -- from a worker


def pack_ready() -> bytes:
    """Pack the message that the worker can take tasks."""
    return _pack("READY", {})


def pack_broken(error: BaseException) -> bytes:
    """Pack the message that the task handler cannot be created."""
    return _pack("BROKEN", describe_error(error))


def pack_completed(task: Mapping[str, Any], result: Mapping[str, Any]) -> bytes:
    """Pack a result of `check_result` or `result_from_error`."""
    ids = {key: task[key] for key in ("taskId", "jobId", "nonce")}
    return _pack("TASK_COMPLETED", {**result, **ids})


def pack_pulse(bytes_by_nonce: Iterable[tuple[int, int]]) -> bytes:
    """Pack a pulse with the bytes processed so far."""
    return _pack("PULSE", {"bytes": list(bytes_by_nonce)})


def unpack_message(frame: bytes) -> WorkerMessage:
    """Return a worker's message. Raises BrokenFrame if it is invalid."""
    try:
        data = json.loads(frame)
        message: WorkerMessage = _UNPACK[data["type"]](data["payload"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        # The error's own text is left out, because it quotes what the worker sent.
        raise BrokenFrame("the worker sent an invalid message") from None
    return message


def _unpack_completed(payload: dict[str, Any]) -> TaskReport:
    error = payload["error"]
    success = _check_type(bool, payload["success"])
    return TaskReport(
        _check_count(payload["nonce"]),
        success,
        _check_count(payload["bytesProcessed"]),
        None if success else _unpack_error(error),
    )


def _unpack_pulse(payload: dict[str, Any]) -> WorkerPulse:
    return WorkerPulse(
        {_check_count(nonce): _check_count(done) for nonce, done in payload["bytes"]}
    )


def _unpack_broken(payload: dict[str, Any]) -> WorkerBroken:
    return WorkerBroken(*_unpack_error(payload))


def _unpack_error(error: dict[str, Any]) -> tuple[str, str]:
    return _check_text(error["code"], MAX_CODE), _check_text(error["message"], MAX_TEXT)


_UNPACK: dict[str, Any] = {
    "READY": lambda payload: WorkerReady(),
    "BROKEN": _unpack_broken,
    "TASK_COMPLETED": _unpack_completed,
    "PULSE": _unpack_pulse,
}


def _check_type(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise BrokenFrame(f"not a {kind.__name__}")
    return value


def _check_text(value: Any, max_length: int) -> str:
    text: str = _check_type(str, value)
    text.encode()  # raises for a lone surrogate, which every store refuses
    if len(text) > max_length:
        raise BrokenFrame(f"a text of {len(text)} characters; at most {max_length} are allowed")
    return text


def _check_count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_BYTES:
        raise BrokenFrame("not a count")
    return value


def _pack(kind: str, payload: Mapping[str, Any]) -> bytes:
    return json.dumps({"type": kind, "payload": payload}, allow_nan=False).encode()


# -- results and errors


def check_result(result: Any) -> dict[str, Any]:
    """Return the handler's result in its packed form. Raises InvalidResult."""
    if not isinstance(result, Mapping):
        raise InvalidResult(f"the task handler returned a {type(result).__name__}, no result")
    success, done = result.get("success"), result.get("bytesProcessed", 0)
    if type(success) is not bool or type(done) is not int or not 0 <= done <= MAX_BYTES:
        raise InvalidResult("the task handler returned no success or no count of bytes")
    error = None if success else _check_error(result.get("error"))
    return {"success": success, "bytesProcessed": done, "error": error}


def _check_error(error: Any) -> dict[str, str]:
    error = error if isinstance(error, Mapping) else {}
    code, message = error.get("code", "TaskFailed"), error.get("message", "")
    return {"code": _hide_secrets(code, MAX_CODE), "message": _hide_secrets(message, MAX_TEXT)}


def result_from_error(error: BaseException) -> dict[str, Any]:
    """Return the result of a task whose handler raised."""
    return {"success": False, "bytesProcessed": 0, "error": describe_error(error)}


def describe_error(error: BaseException) -> dict[str, str]:
    """Return the error's type and its text without secrets, as they may leave the process."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # even the error's own __str__ may raise
        text = ""
    return {"code": _hide_secrets(name, MAX_CODE), "message": _hide_secrets(text, MAX_TEXT)}


def _hide_secrets(text: Any, max_length: int) -> str:
    """Hide credentials in URLs, then cut the text.

    In the opposite order, a URL that was cut would not be recognized.
    """
    valid = _shorten(str(text)).encode("utf-8", "replace").decode()
    hidden = _QUERY.sub(r"\1?…", _USER.sub("://…@", valid))
    return hidden if len(hidden) <= max_length else hidden[: max_length - 1] + "…"


def _shorten(text: str) -> str:
    """Cut a long text between words, so that no URL is cut. An error may quote a whole page."""
    if len(text) <= _MAX_SCANNED:
        return text
    return " ".join(text[:_MAX_SCANNED].split()[:-1]) + " …"
