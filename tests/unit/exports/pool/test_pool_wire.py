"""The messages between the pool and its workers.

(JB-29).
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.exports.pool import wire
from holdfast.process.frames import (
    MAX_TEXT,
    PULSE,
    BrokenFrame,
    describe_error,
    pack_broken,
    unpack_broken,
)

TASK = {"jobId": "j", "taskId": "t", "nonce": 7}


@pytest.mark.requirement("R004-036", "R004-037", "R004-039")
def test_a_task_command_is_json_with_the_ids_of_the_task() -> None:
    payload = {"url": "https://x/y", "s3Bucket": "b", "s3Key": "k", "jobId": "forged"}
    frame = wire.pack_task(payload, "j", "t", 2, 7)
    assert json.loads(frame) == {
        "type": "PROCESS_TASK",
        "payload": {
            "url": "https://x/y",
            "s3Bucket": "b",
            "s3Key": "k",
            "jobId": "j",
            "taskId": "t",
            "attempt": 2,
            "nonce": 7,
        },
    }
    assert wire.unpack_command(frame)[0] == "PROCESS_TASK"
    assert wire.unpack_command(wire.pack_cancel("j")) == ("CANCEL_JOB", {"jobId": "j"})


@pytest.mark.requirement("R004-027", "R004-072")
@pytest.mark.parametrize("value", [object(), len, float("nan"), b"bytes", {1, 2}])
def test_only_plain_data_can_be_sent(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        wire.pack_task({"value": value}, "j", "t", 1, 1)


def test_the_messages_of_a_worker_arrive_unchanged() -> None:
    done = wire.check_result({"success": True, "bytesProcessed": 5, "error": None})
    frame = wire.pack_completed(TASK, done)
    assert json.loads(frame)["payload"] == {
        "taskId": "t",
        "jobId": "j",
        "success": True,
        "bytesProcessed": 5,
        "error": None,
    }
    assert wire.unpack_completed(frame) == (5, None)
    failed = wire.pack_completed(TASK, wire.result_from_error(KeyError("x")))
    assert wire.unpack_completed(failed) == (0, ("KeyError", "'x'"))
    assert wire.unpack_progress(PULSE + wire.pack_progress([(7, 5)])) == {7: 5}
    assert unpack_broken(pack_broken(KeyError("x"))) == ("KeyError", "'x'")


@pytest.mark.parametrize(
    "message",
    [
        [],
        "TASK_COMPLETED",
        {"type": "TASK_COMPLETED"},
        {"type": "TASK_COMPLETED", "payload": None},
        {"type": "PROCESS_TASK", "payload": {}},
        {"type": ["TASK_COMPLETED"], "payload": {}},
    ],
)
def test_an_invalid_report_is_refused(message: Any) -> None:
    with pytest.raises(BrokenFrame):
        wire.unpack_completed(json.dumps(message).encode())


@pytest.mark.parametrize(
    "progress",
    [
        *(None, {}, "[]", [1], [[1]], [[1, 2, 3]], ["12"], [[1, -1]], [[-1, 1]]),
        *([[1, 2**63]], [[1, float("nan")]], [[1, True]], [["1", 1]], [[[], 1]]),
    ],
)
def test_an_invalid_pulse_is_refused(progress: Any) -> None:
    with pytest.raises(BrokenFrame):
        wire.unpack_progress(PULSE + json.dumps(progress).encode())


@pytest.mark.parametrize(
    "error",
    [
        None,
        {},
        {"code": "c"},
        {"code": 1, "message": "m"},
        {"code": "c", "message": None},
        {"code": "c" * 101, "message": "m"},
        {"code": "c", "message": "m" * 501},
        {"code": "c", "message": "half of a pair \ud800"},
    ],
)
def test_an_invalid_report_of_a_broken_start_is_refused(error: Any) -> None:
    with pytest.raises(BrokenFrame):
        unpack_broken(b"b" + json.dumps(error).encode())


@pytest.mark.requirement("R004-045")
@pytest.mark.parametrize(
    "change",
    [
        {"success": 1},
        {"success": False},
        {"success": False, "error": {"code": "c"}},
        {"success": False, "error": {"code": "c", "message": None}},
        {"bytesProcessed": -1},
        {"bytesProcessed": 1.5},
        {"bytesProcessed": 2**63},
        {"success": False, "error": {"code": "c" * 101, "message": ""}},
        {"success": False, "error": {"code": "c", "message": "m" * 501}},
        {"success": False, "error": {"code": "c", "message": "half of a pair \ud800"}},
    ],
)
def test_a_result_with_anything_wrong_is_refused(change: dict[str, Any]) -> None:
    valid = {"success": True, "bytesProcessed": 0, "error": None}
    assert wire.unpack_completed(pack(valid))
    with pytest.raises(BrokenFrame):
        wire.unpack_completed(pack(valid | change))


def pack(payload: dict[str, Any]) -> bytes:
    """Pack the payload of a completed task."""
    return json.dumps({"type": "TASK_COMPLETED", "payload": payload}).encode()


@pytest.mark.parametrize(
    ("unpack", "prefix"),
    [(wire.unpack_completed, b""), (wire.unpack_progress, PULSE + b"{"), (unpack_broken, b"b")],
)
@given(frame=st.binary())
def test_arbitrary_bytes_from_a_worker_are_refused(
    unpack: Callable[[bytes], Any], prefix: bytes, frame: bytes
) -> None:
    with pytest.raises(BrokenFrame) as refused:
        unpack(prefix + frame)
    assert str(refused.value).startswith(("it is ", "its "))  # without a part of the frame


@pytest.mark.parametrize("unpack", [wire.unpack_completed, wire.unpack_progress, unpack_broken])
def test_a_deeply_nested_frame_is_refused(unpack: Callable[[bytes], Any]) -> None:
    with pytest.raises(BrokenFrame):
        unpack(b"[" * 200_000)


@pytest.mark.parametrize(
    "result",
    [
        None,
        "done",
        {},
        {"success": "yes"},
        {"success": True, "bytesProcessed": -1},
        {"success": True, "bytesProcessed": 2**63},
    ],
)
def test_an_invalid_result_of_the_handler_is_refused(result: Any) -> None:
    with pytest.raises(wire.InvalidResult):
        wire.check_result(result)


@pytest.mark.requirement("R004-047")
def test_a_failure_always_has_a_code() -> None:
    assert wire.check_result({"success": False})["error"] == {
        "code": "TaskFailed",
        "message": "",
    }
    odd = wire.check_result({"success": False, "error": {"code": 404, "message": "x" * 600}})
    assert odd["error"]["code"] == "404"
    assert len(odd["error"]["message"]) == MAX_TEXT


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("GET https://me:pass@host/a failed", "GET https://…@host/a failed"),
        ("https://me:pa/s@s@host/a", "https://…@host/a"),
        ("'https://host/a?X-Amz-Signature=s&b=c' gone", "'https://host/a?…' gone"),
        ("https://host/a#token=s", "https://host/a?…"),
        ("ftp://u@h/ and http://h?x=s", "ftp://…@h/ and http://h?…"),
        ("nothing to hide? a@b.c", "nothing to hide? a@b.c"),
        ("half a character \ud800", "half a character ?"),
    ],
)
def test_the_text_of_an_error_hides_the_secrets_of_a_url(text: str, shown: str) -> None:
    assert describe_error(ValueError(text)) == {"code": "ValueError", "message": shown}


@given(st.text(max_size=700), st.text(max_size=700))
def test_credentials_are_hidden_wherever_the_text_is_cut(before: str, after: str) -> None:
    shown = describe_error(ValueError(f"{before} https://canary:canary@host/ {after}"))[
        "message"
    ]
    assert "canary" not in shown
    assert len(shown) <= MAX_TEXT


def test_the_text_of_an_error_may_be_a_whole_page() -> None:
    page = "://" * 1_000_000
    assert describe_error(ValueError(page))["message"] == " …"
    assert describe_error(ValueError(" " * 20_000))["message"] == " …"
    halved = "http://me:canary" + "@" * 50
    page = " ".join(["http://h?" + "x" * 90] * 99) + " " + "y" * 70 + " " + halved
    assert page.find("canary") < 10_000 < len(page)
    assert "canary" not in describe_error(ValueError(page))["message"]


def test_an_error_without_a_text_still_has_a_name() -> None:
    class Textless(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert describe_error(Textless()) == {"code": "Textless", "message": ""}
