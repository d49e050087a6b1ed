"""Events reach every subscriber, and no subscriber can disturb the queue or another one."""

import dataclasses
import logging
from typing import Any

import pytest

from holdfast.core import events
from holdfast.core.events import Claimed, DeadLettered, Event, Events
from holdfast.core.queue.message import AnyMessage
from holdfast.testing import MemoryQueue

KINDS = [
    kind
    for kind in vars(events).values()
    if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
]


def make_event(kind: type[Event]) -> Event:
    """Return an event of this kind with a value in every field."""
    values: dict[Any, Any] = {"int": 1, "float": 0.5, "str": "x", "float | None": None}
    fields = dataclasses.fields(kind)
    return kind(*(values[_type_name(field.type)] for field in fields))


def _type_name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def test_every_subscriber_gets_every_event_in_order() -> None:
    first: list[Event] = []
    second: list[Event] = []
    hub = Events(first.append)
    hub.subscribe(second.append)
    emitted = [Claimed("q", "a", 1), DeadLettered("q", "a", 1, "no use")]
    for event in emitted:
        hub.emit(event)
    assert first == second == emitted


def test_has_subscribers_is_false_until_the_first_subscription() -> None:
    hub = Events()
    assert not hub.has_subscribers
    hub.emit(Claimed("q", "a", 1))
    hub.subscribe(lambda event: None)
    assert hub.has_subscribers


def test_a_late_subscriber_gets_only_later_events() -> None:
    heard: list[Event] = []
    hub = Events()
    hub.emit(Claimed("q", "before", 1))
    hub.subscribe(heard.append)
    hub.emit(Claimed("q", "after", 1))
    assert heard == [Claimed("q", "after", 1)]


def test_a_failing_subscriber_is_logged_and_the_next_one_is_still_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(event: Event) -> None:
        raise RuntimeError("metrics are down")

    heard: list[Event] = []
    with caplog.at_level(logging.ERROR, "holdfast"):
        Events(broken, heard.append).emit(Claimed("q", "a", 1))
    assert heard == [Claimed("q", "a", 1)]
    assert "event subscriber failed on Claimed" in caplog.text


def test_a_failing_subscriber_does_not_fail_a_message() -> None:
    def broken(event: Event) -> None:
        raise RuntimeError("metrics are down")

    queue = MemoryQueue(events=Events(broken))
    queue.inject(b"not JSON")
    queue.push(AnyMessage(id="a"))
    with_others = queue.poll(10)
    assert [message.id for message in with_others] == ["a"]


def test_a_subscriber_may_add_another_during_an_event() -> None:
    hub = Events()
    heard: list[Event] = []
    hub.subscribe(lambda event: hub.subscribe(heard.append))
    hub.emit(Claimed("q", "a", 1))
    hub.emit(Claimed("q", "b", 1))
    assert heard == [Claimed("q", "b", 1)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_events_are_values_that_name_their_queue(kind: type[Event]) -> None:
    event = make_event(kind)
    assert event == make_event(kind)
    assert hash(event) == hash(make_event(kind))
    assert event.queue == "x"
    with pytest.raises(AttributeError):
        event.queue = "y"  # type: ignore[misc]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_event_has_room_for_a_body_a_receipt_or_a_token(kind: type[Event]) -> None:
    names = {field.name for field in dataclasses.fields(kind)}
    assert not names & {"body", "message", "payload", "handle", "receipt", "token", "lease"}
