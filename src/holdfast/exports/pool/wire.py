"""The frames between the pool and its worker processes: JSON with plain data only.

    pool   ─▶ worker  PROCESS_TASK, CANCEL_JOB
    worker ─▶ pool    TASK_COMPLETED for each task; the bytes of all running tasks in each PULSE

Besides these, there are the frames of every child (`process/frames.py`). The number of a
frame is the nonce of one attempt of one task on one worker. A report with an unknown nonce is
about an attempt that the worker no longer has. The pool does not trust its workers and checks
all that they send. This module imports little, because each worker process loads it.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.process.frames import (
    MAX_CODE,
    MAX_TEXT,
    BrokenFrame,
    describe_error,
    hide_secrets,
    parse_json,
    unpack_error,
)

CANCELLED = "Cancelled"  # the code of a cancelled task, which is given back without a result
MAX_BYTES = 2**63 - 1  # of a count, because no store keeps more
_ENCODER = json.JSONEncoder(allow_nan=False)


class InvalidResult(ValueError):
    """The task handler returned an invalid result."""


# -- to a worker


def pack_task(
    payload: Mapping[str, Any], job_id: str, task_id: str, attempt: int, nonce: int
) -> bytes:
    """Pack a task.

    Raises TypeError, ValueError or RecursionError if the payload is not plain data.
    """
    ids = {"jobId": job_id, "taskId": task_id, "attempt": attempt, "nonce": nonce}
    return _pack("PROCESS_TASK", {**payload, **ids})


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


def pack_completed(task: Mapping[str, Any], result: Mapping[str, Any]) -> bytes:
    """Pack a result of `check_result` or `result_from_error`."""
    return _pack("TASK_COMPLETED", {**result, "taskId": task["taskId"], "jobId": task["jobId"]})


def unpack_completed(frame: bytes) -> tuple[int, tuple[str, str] | None]:
    """Return the bytes that a task processed and, if it failed, the error's code and message.

    Raises BrokenFrame if the frame is invalid.
    """
    match parse_json(frame):
        case {
            "type": "TASK_COMPLETED",
            "payload": {"success": bool(success), "bytesProcessed": done, "error": error},
        }:
            return _check_count(done), None if success else unpack_error(error)
    raise BrokenFrame("it is no result of a task")


def pack_progress(bytes_by_nonce: Iterable[tuple[int, int]]) -> bytes:
    """Pack the bytes processed so far, for a pulse."""
    return json.dumps(list(bytes_by_nonce)).encode()


def unpack_progress(frame: bytes) -> dict[int, int]:
    """Return the bytes processed so far by nonce of each running task. Raises BrokenFrame."""
    match parse_json(frame[1:]):
        case [*pairs] if all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            return {_check_count(nonce): _check_count(done) for nonce, done in pairs}
    raise BrokenFrame("its pulse is invalid")


def _check_count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_BYTES:
        raise BrokenFrame("it has an invalid count")
    return value


def _pack(kind: str, payload: Mapping[str, Any]) -> bytes:
    return _ENCODER.encode({"type": kind, "payload": payload}).encode()


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
    return {"code": hide_secrets(code, MAX_CODE), "message": hide_secrets(message, MAX_TEXT)}


def result_from_error(error: BaseException) -> dict[str, Any]:
    """Return the result of a task whose handler raised."""
    return {"success": False, "bytesProcessed": 0, "error": describe_error(error)}
