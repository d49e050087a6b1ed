"""What the pool and its worker processes tell each other: JSON, plain data only.

    pool   ─▶ worker  START, then the pickled factory; PROCESS_TASK, CANCEL_JOB.
                      The end of the pipe is the order to end.
    worker ─▶ pool    READY or BROKEN, TASK_COMPLETED for each task, PULSE all the while

A nonce names one attempt of one task on one worker. An answer with any other nonce is to
something that was given away since. What a worker says is checked as if a stranger said it.
Imports little: each worker process has this in memory.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from holdfast.core.process.frames import MAX_FRAME_BYTES
from holdfast.core.process.frames import BrokenFrame as BrokenFrame

CANCELLED = "Cancelled"  # the code of what was called off: no result, it is returned
MAX_TEXT = 500  # of an error
MAX_CODE = 100
MOST_BYTES = 2**63 - 1  # of a count; no store keeps more
_MAX_LOOK = 10_000

_IN_URL = r"[^\s'\"<>]*"  # generous: rather too much is hidden than too little
_USER = re.compile(rf"://{_IN_URL}@")
_QUERY = re.compile(rf"(://[^\s'\"<>?#]*)[?#]{_IN_URL}")


class InvalidResult(ValueError):
    """The work returned what is no result."""


class WorkerReady(NamedTuple):
    """The work was made: tasks may come."""


class WorkerBroken(NamedTuple):
    """The work cannot be made. `code` may be shown anywhere, `reason` to who set it up."""

    code: str
    reason: str


class TaskReport(NamedTuple):
    nonce: int
    success: bool
    bytes_processed: int
    error: tuple[str, str] | None  # code and message; a failure always has them


class WorkerPulse(NamedTuple):
    """The worker answers. Bytes done so far, by nonce of what runs."""

    bytes_by_nonce: dict[int, int]


Said = WorkerReady | WorkerBroken | TaskReport | WorkerPulse


# -- to a worker


def pack_start(slots: int, pulse_seconds: float) -> bytes:
    return _pack("START", {"slots": slots, "pulse_seconds": pulse_seconds})


def pack_task(
    payload: Mapping[str, Any], job_id: str, task_id: str, attempt: int, nonce: int
) -> bytes:
    """Raises TypeError, ValueError or RecursionError for what is not plain data, ValueError
    for what is too large."""
    ours = {"jobId": job_id, "taskId": task_id, "attempt": attempt, "nonce": nonce}
    frame = _pack("PROCESS_TASK", {**payload, **ours})
    if len(frame) > MAX_FRAME_BYTES:
        raise ValueError(f"the task is {len(frame):,} bytes, the limit {MAX_FRAME_BYTES:,}")
    return frame


def pack_cancel(job_id: str) -> bytes:
    return _pack("CANCEL_JOB", {"jobId": job_id})


def unpack_order(frame: bytes) -> tuple[str, dict[str, Any]]:
    """Kind and payload. In the worker, from the pool that started it: taken as it is."""
    order = json.loads(frame)
    return order["type"], order["payload"]


# -- from a worker


def pack_ready() -> bytes:
    return _pack("READY", {})


def pack_broken(error: BaseException) -> bytes:
    return _pack("BROKEN", told(error))


def pack_completed(task: Mapping[str, Any], result: Mapping[str, Any]) -> bytes:
    """`result` is one of `checked` or `failure`."""
    ours = {key: task[key] for key in ("taskId", "jobId", "nonce")}
    return _pack("TASK_COMPLETED", {**result, **ours})


def pack_pulse(bytes_by_nonce: Iterable[tuple[int, int]]) -> bytes:
    return _pack("PULSE", {"bytes": list(bytes_by_nonce)})


def unpack_said(frame: bytes) -> Said:
    """Raises BrokenFrame for anything but a message of ours."""
    try:
        said = json.loads(frame)
        message: Said = _UNPACK[said["type"]](said["payload"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        # Without its text: that quotes what the worker said.
        raise BrokenFrame("the worker sent what is no message") from None
    return message


def _completed(payload: dict[str, Any]) -> TaskReport:
    error = payload["error"]
    success = _of(bool, payload["success"])
    return TaskReport(
        _count(payload["nonce"]),
        success,
        _count(payload["bytesProcessed"]),
        None if success else _problem(error),
    )


def _pulse(payload: dict[str, Any]) -> WorkerPulse:
    return WorkerPulse({_count(nonce): _count(done) for nonce, done in payload["bytes"]})


def _broken(payload: dict[str, Any]) -> WorkerBroken:
    return WorkerBroken(*_problem(payload))


def _problem(error: dict[str, Any]) -> tuple[str, str]:
    return _text(error["code"], MAX_CODE), _text(error["message"], MAX_TEXT)


_UNPACK: dict[str, Any] = {
    "READY": lambda payload: WorkerReady(),
    "BROKEN": _broken,
    "TASK_COMPLETED": _completed,
    "PULSE": _pulse,
}


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise BrokenFrame(f"not a {kind.__name__}")
    return value


def _text(value: Any, longest: int) -> str:
    text: str = _of(str, value)
    text.encode()  # half a surrogate pair fails in every store
    if len(text) > longest:
        raise BrokenFrame("too long a text")
    return text


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MOST_BYTES:
        raise BrokenFrame("not a count")
    return value


def _pack(kind: str, payload: Mapping[str, Any]) -> bytes:
    return json.dumps({"type": kind, "payload": payload}, allow_nan=False).encode()


# -- results and errors


def checked(result: Any) -> dict[str, Any]:
    """A result of the work, if it is one. Raises InvalidResult."""
    if not isinstance(result, Mapping):
        raise InvalidResult(f"the work returned a {type(result).__name__}, no result")
    success, done = result.get("success"), result.get("bytesProcessed", 0)
    if type(success) is not bool or type(done) is not int or not 0 <= done <= MOST_BYTES:
        raise InvalidResult("the work returned no success or no count of bytes")
    error = None if success else _error_in(result.get("error"))
    return {"success": success, "bytesProcessed": done, "error": error}


def _error_in(error: Any) -> dict[str, str]:
    error = error if isinstance(error, Mapping) else {}
    code, message = error.get("code", "TaskFailed"), error.get("message", "")
    return {"code": _plain(code, MAX_CODE), "message": _plain(message, MAX_TEXT)}


def failure(error: BaseException) -> dict[str, Any]:
    """The result of work that raised."""
    return {"success": False, "bytesProcessed": 0, "error": told(error)}


def told(error: BaseException) -> dict[str, str]:
    """An error as it may leave the process: its type, and its text without secrets."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # an error that cannot even say what it is
        text = ""
    return {"code": _plain(name, MAX_CODE), "message": _plain(text, MAX_TEXT)}


def _plain(text: Any, longest: int) -> str:
    """Hide what a URL can hold of credentials, then cut: half a URL hides nothing."""
    whole = _shortened(str(text)).encode("utf-8", "replace").decode()
    hidden = _QUERY.sub(r"\1?…", _USER.sub("://…@", whole))
    return hidden if len(hidden) <= longest else hidden[: longest - 1] + "…"


def _shortened(text: str) -> str:
    """An error may quote a whole page. Cut that between words, so that no URL is halved."""
    if len(text) <= _MAX_LOOK:
        return text
    return " ".join(text[:_MAX_LOOK].split()[:-1]) + " …"
