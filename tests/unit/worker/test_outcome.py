"""Mapping a handler's return value or exception to an outcome."""

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.queue.manager import MAX_RESULT_BYTES
from holdfast.queue.message import QueueMessage
from holdfast.testing import MemoryQueue, run_once
from holdfast.worker.outcome import (
    Abandoned,
    Done,
    GiveBack,
    Reject,
    Retry,
    retry_after_error,
    to_outcome,
)


@pytest.mark.parametrize("result", [None, Done()])
def test_none_and_done_mean_done(result: Any) -> None:
    assert to_outcome(result) == Done()


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({"a": (1, 2)}, {"a": [1, 2]}),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (float("nan"), "NaN"),
        (0, 0),
        ("x" * (MAX_RESULT_BYTES - 2), "x" * (MAX_RESULT_BYTES - 2)),
    ],
)
def test_a_result_is_kept_as_plain_data(value: Any, kept: Any) -> None:
    assert to_outcome(Done(result=value)) == Done(result=kept)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), "a value of type object cannot be written as JSON"),
        ("secret" * MAX_RESULT_BYTES, "bytes, the limit is 65,536"),
        ("\ud800", "a value of type str cannot be written as JSON"),
    ],
)
def test_a_result_that_cannot_be_kept_is_ignored_with_a_reason(value: Any, reason: str) -> None:
    outcome = to_outcome(Done(result=value))
    assert isinstance(outcome, Done)
    assert outcome.result is None
    assert reason in outcome.ignored
    assert "secret" not in outcome.ignored


@pytest.mark.parametrize(
    "outcome", [Retry(), Retry(0), Retry(2.5, "later"), Reject("never"), GiveBack()]
)
def test_an_outcome_that_a_handler_returns_is_kept(outcome: Any) -> None:
    assert to_outcome(outcome) == outcome


@pytest.mark.parametrize(
    "invalid_result", [True, 0, "secret", {"secret": 1}, Retry, Reject, object(), (Done(),)]
)
def test_an_invalid_result_is_rejected_with_its_type_and_without_its_content(
    invalid_result: Any,
) -> None:
    outcome = to_outcome(invalid_result)
    assert isinstance(outcome, Reject)
    assert f"of type {type(invalid_result).__name__}" in outcome.reason
    assert "secret" not in outcome.reason


def test_a_handler_that_returns_abandoned_is_rejected() -> None:
    assert isinstance(to_outcome(Abandoned("me")), Reject)


@pytest.mark.parametrize(
    "after", ["soon", float("nan"), float("inf"), True, [1], 10**400, 1e300]
)
def test_a_retry_delay_that_is_not_a_number_is_rejected(after: Any) -> None:
    outcome = to_outcome(Retry(after))
    assert isinstance(outcome, Reject)
    assert "after_seconds" in outcome.reason


def test_a_reason_that_cannot_be_shown_does_not_end_the_worker() -> None:
    class Unprintable:
        def __str__(self) -> str:
            raise RuntimeError

    mute: Any = Unprintable()
    assert to_outcome(Retry(None, mute, mute, mute)) == Retry(
        None, *["(its text cannot be shown)"] * 3
    )


# Data whose JSON text with spaces or escapes is longer than the limit, and without is not.
@pytest.mark.parametrize("value", ["ä" * 32_767, [1] * 32_767, {"key": ["ä"] * 10_000}])
def test_a_queue_takes_every_result_that_was_not_ignored(value: Any) -> None:
    outcome = to_outcome(Done(result=value))
    assert isinstance(outcome, Done)
    assert outcome.ignored == ""
    queue = MemoryQueue(QueueMessage)
    queue.push(QueueMessage(id="a"))
    [message] = queue.poll()
    queue.save_result(message, outcome.result)
    queue.ack(message)
    assert queue.load_result("a") == value


async def fail_async(message: QueueMessage) -> None:
    raise ValueError("of no\nuse")


def fail(message: QueueMessage) -> None:
    raise ValueError("of no\nuse")


@pytest.mark.parametrize("handler", [fail, fail_async])
def test_an_exception_is_a_retry_by_the_backoff_with_its_text_and_traceback(
    handler: Any,
) -> None:
    outcome = run_once(handler, QueueMessage())
    assert isinstance(outcome, Retry)
    assert outcome.after_seconds is None
    assert outcome.reason == "ValueError: of no use"
    assert outcome.detail is not None
    assert f"in {handler.__name__}" in outcome.detail
    assert outcome.detail.count("File ") == 1  # Holdfast's own frames are left out


def test_an_exception_whose_text_fails_still_has_a_reason() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert retry_after_error(Unprintable()).reason == "Unprintable: (its text cannot be shown)"


def test_long_reasons_and_details_are_shortened() -> None:
    outcome = to_outcome(Retry(1, "r" * 10_000, "begin" + "d" * 100_000 + "end"))
    assert isinstance(outcome, Retry)
    assert len(outcome.reason) <= 500
    assert outcome.detail is not None
    assert len(outcome.detail) < 17_000
    assert outcome.detail.startswith("begin")
    assert outcome.detail.endswith("end")


class RateLimited(Retry):
    def __init__(self, seconds: float) -> None:
        super().__init__(seconds, "too many\ncalls")


class Unknown(Reject):
    def __init__(self) -> None:
        super().__init__("no such\ncompany")


def test_a_users_own_kind_of_outcome_may_take_other_arguments() -> None:
    """An error here would end the worker, and then every worker that gets the message."""
    assert to_outcome(RateLimited(5)) == Retry(5, "too many calls")
    assert to_outcome(Unknown()) == Reject("no such company")


def test_a_reason_that_is_not_text_is_converted_to_text() -> None:
    assert to_outcome(Reject(7)) == Reject("7")  # type: ignore[arg-type]
