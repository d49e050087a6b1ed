"""What becomes of a claimed message."""

from typing import Any

import pytest
from pydantic import field_validator

from holdfast.errors import LeaseLost, QueueUnavailable
from holdfast.events import Events, PollFailed
from holdfast.queue.admission import Delivery, PutBack, Rejected, decide
from holdfast.queue.message import MessageCodec, QueueMessage
from holdfast.testing import MemoryQueue


class Order(QueueMessage):
    kind: str = "good"

    @field_validator("kind")
    @classmethod
    def check_kind(cls, kind: str) -> str:
        return {"good": "good"}[kind]  # a KeyError is none of pydantic's errors


def admit(
    body: bytes, attempt: int = 1, problem: str | None = None, has_refunds: bool = False
) -> Any:
    delivery = Delivery("handle", "key", body, attempt, 9, 0.0, problem=problem)
    return decide(delivery, MessageCodec(Order), 3, has_refunds)


def test_a_message_is_admitted_up_to_its_last_attempt() -> None:
    order = admit(b'{"id": "a"}', attempt=3)
    assert (type(order), order.id) == (Order, "a")


def test_a_message_without_an_id_keeps_the_one_that_the_queue_gives_it() -> None:
    assert admit(b"{}").id == admit(b"{}").id == "key"


@pytest.mark.parametrize(
    ("body", "attempt", "problem", "verdict"),
    [
        (b'{"id": "a", "schema_version": 2}', 1, None, PutBack("a", 2)),
        (b'{"schema_version": 2}', 9, None, PutBack("key", 2)),
        (b'{"id": "a"}', 4, None, ("a", "gave up after 3 attempts")),
        (b'{"id": "a"}', 1, "closed", ("key", "closed")),
        (b"", 1, None, ("key", "malformed")),
        (b'{"id": "a", "kind": "hunter2"}', 1, None, ("a", "malformed")),
    ],
)
def test_other_messages_wait_or_are_rejected(
    body: bytes, attempt: int, problem: str | None, verdict: Any
) -> None:
    decided = admit(body, attempt, problem)
    if isinstance(decided, Rejected):
        assert (decided.message_id, decided.log_reason) == verdict
        assert decided.reason.startswith(decided.log_reason)
        assert "hunter2" not in decided.reason
        assert decided.is_exhausted == (attempt > 3)
    else:
        assert decided == verdict


@pytest.mark.parametrize(
    ("body", "message_id"),
    [
        (b'{"id": "a"}', "a"),
        (b'{"id": "a", "kind": "hunter2"}', "a"),
        (b'{"id": "a", "schema_version": 2}', "a"),
        (b'{"id": 1}', "key"),
        (b"{", "key"),
    ],
)
def test_a_queue_that_refunds_claims_judges_by_the_attempts_before_the_body(
    body: bytes, message_id: str
) -> None:
    rejected = admit(body, attempt=4, has_refunds=True)
    assert rejected == Rejected(
        message_id, *["gave up after 3 attempts"] * 2, is_exhausted=True
    )


class Broken(MemoryQueue[Order]):
    def _dead_letter(self, *_: Any) -> Any:
        raise QueueUnavailable("the disk is full")


def test_a_message_that_cannot_be_rejected_does_not_affect_the_others() -> None:
    seen: list[Any] = []
    queue = Broken(Order, events=Events(seen.append))
    queue.inject(b"{")
    queue.push(Order(id="good"))
    assert [order.id for order in queue.poll(10)] == ["good"]
    assert [event.error for event in seen if isinstance(event, PollFailed)] == [
        "the disk is full"
    ]
    queue.inject(b"{")
    with pytest.raises(QueueUnavailable, match="the disk is full"):
        queue.poll(10)


class TakenAway(MemoryQueue[Order]):
    def _dead_letter(self, *_: Any) -> Any:
        return LeaseLost("another worker took it over")


def test_a_message_that_was_taken_over_meanwhile_is_not_reported_as_dead() -> None:
    seen: list[Any] = []
    queue = TakenAway(Order, events=Events(seen.append))
    queue.inject(b"{")
    assert queue.poll() == []
    assert (seen, queue.dead_lettered_by_poll) == ([], 0)


@pytest.mark.parametrize("name", ["lease_seconds", "max_attempts"])
def test_invalid_settings_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        MemoryQueue(**{name: 0})
