"""What a handler's return value or exception amounts to."""

from typing import Any

import pytest

from holdfast.core.worker.outcome import Abandoned, Done, GiveBack, Reject, Retry
from holdfast.core.worker.outcome_mapping import outcome_of, retry_after_error


@pytest.mark.parametrize("result", [None, Done()])
def test_nothing_and_done_mean_done(result: Any) -> None:
    assert outcome_of(result) == Done()


@pytest.mark.parametrize(
    "outcome", [Retry(), Retry(0), Retry(2.5, "later"), Reject("never"), GiveBack()]
)
def test_what_a_handler_returns_is_taken_at_its_word(outcome: Any) -> None:
    assert outcome_of(outcome) == outcome


@pytest.mark.parametrize(
    "nonsense", [True, 0, "secret", {"secret": 1}, Retry, Reject, object(), (Done(),)]
)
def test_nonsense_is_rejected_by_its_type_without_its_content(nonsense: Any) -> None:
    outcome = outcome_of(nonsense)
    assert isinstance(outcome, Reject)
    assert f"of type {type(nonsense).__name__}" in outcome.reason
    assert "secret" not in outcome.reason


def test_what_only_the_worker_can_know_is_nonsense_from_a_handler() -> None:
    assert isinstance(outcome_of(Abandoned("me")), Reject)


@pytest.mark.parametrize(
    "after", ["soon", float("nan"), float("inf"), True, [1], 10**400, 1e300]
)
def test_a_delay_that_is_no_number_is_nonsense(after: Any) -> None:
    outcome = outcome_of(Retry(after))
    assert isinstance(outcome, Reject)
    assert "after_seconds" in outcome.reason


def test_a_reason_that_cannot_be_shown_does_not_end_the_worker() -> None:
    class Mute:
        def __str__(self) -> str:
            raise RuntimeError

    mute: Any = Mute()
    assert outcome_of(Retry(None, mute, mute, mute)) == Retry(
        None, *["(its text cannot be shown)"] * 3
    )


def test_an_exception_is_a_retry_by_the_backoff_with_its_text_and_traceback() -> None:
    def handler() -> None:
        raise ValueError("of no\nuse")

    try:
        handler()
    except ValueError as error:
        outcome = retry_after_error(error)
    assert outcome.after_seconds is None
    assert outcome.reason == "ValueError: of no use"
    assert outcome.detail is not None
    assert "in handler" in outcome.detail
    assert outcome.detail.count("File ") == 1  # our own frame tells nobody anything


def test_an_exception_whose_text_fails_still_has_a_reason() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert retry_after_error(Mute()).reason == "Mute: (its text cannot be shown)"


def test_endless_reasons_and_details_are_cut() -> None:
    outcome = outcome_of(Retry(1, "r" * 10_000, "begin" + "d" * 100_000 + "end"))
    assert isinstance(outcome, Retry)
    assert len(outcome.reason) <= 500
    assert outcome.detail is not None
    assert len(outcome.detail) < 17_000
    assert outcome.detail.startswith("begin")
    assert outcome.detail.endswith("end")


def test_a_reason_that_is_no_text_becomes_one() -> None:
    assert outcome_of(Reject(7)) == Reject("7")  # type: ignore[arg-type]
