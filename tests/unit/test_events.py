"""Events reach every subscriber, and no subscriber can disturb the queue or another one."""

import dataclasses
import logging
import pickle
from typing import Any

import pytest

from holdfast import events
from holdfast.chat import events as chat_events
from holdfast.events import (
    Claimed,
    Completed,
    DeadLettered,
    Event,
    Events,
    MessageEvent,
    Retried,
)
from holdfast.exports import events as job_events
from holdfast.queue.message import AnyMessage
from holdfast.testing import MemoryQueue


def list_kinds(module: Any) -> list[type[Event]]:
    """Return the events that the module defines, without their common base."""
    return [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
    ]


KINDS = list_kinds(events)
ALL_KINDS = [*KINDS, *list_kinds(job_events), *list_kinds(chat_events)]


def make_event(kind: type[Event]) -> Event:
    """Return an event of this kind with a value in every field."""
    values: dict[Any, Any] = {"int": 1, "float": 0.5, "str": "x", "bool": True}
    values |= {"float | None": None, "str | None": None}
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


def test_a_late_subscriber_gets_only_later_events() -> None:
    heard: list[Event] = []
    hub = Events()
    hub.emit(Claimed("q", "before", 1))
    assert not hub.has_subscribers
    hub.subscribe(heard.append)
    assert hub.has_subscribers
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
def test_events_of_queues_name_their_queue(kind: type[Event]) -> None:
    assert make_event(kind).get_fields()["queue"] == "x"


@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.__name__)
def test_events_are_values(kind: type[Event]) -> None:
    event = make_event(kind)
    assert event == make_event(kind) == kind(**event.get_fields())
    assert hash(event) == hash(make_event(kind))
    assert not hasattr(event, "__dict__")
    for name in [*event.get_fields(), "another"]:
        with pytest.raises(AttributeError):
            setattr(event, name, "y")
        with pytest.raises(AttributeError):
            delattr(event, name)


@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.__name__)
def test_events_work_with_the_functions_for_dataclasses(kind: type[Event]) -> None:
    event: Any = make_event(kind)
    assert dataclasses.is_dataclass(event)
    assert dataclasses.asdict(event) == event.get_fields()
    assert dataclasses.replace(event) == event
    assert pickle.loads(pickle.dumps(event)) == event
    assert kind.__match_args__ == tuple(field.name for field in dataclasses.fields(event))


def test_an_event_takes_its_fields_by_position_or_by_name() -> None:
    event = Completed("q", "m", 1, 0.5)
    assert event == Completed("q", "m", attempt=1, seconds=0.5)
    assert event == Completed(seconds=0.5, attempt=1, message_id="m", queue="q")
    assert event != Completed("q", "m", 1, 0.25)
    assert Claimed("q", "m", 1) != MessageEvent("q", "m", 1)
    assert repr(event) == "Completed(queue='q', message_id='m', attempt=1, seconds=0.5)"


@pytest.mark.parametrize(
    ("kind", "args", "named"),
    [
        (Completed, (), {}),
        (Completed, ("q", "m", 1), {}),
        (Completed, ("q", "m", 1, 0.5, 2), {}),
        (Completed, ("q", "m", 1), {"attempt": 2}),
        (Completed, ("q", "m", 1, 0.5), {"seconds": 0.5}),
        (Completed, ("q", "m", 1), {"seconds": 0.5, "more": 1}),
        (DeadLettered, ("q", "m", 1), {}),
        (DeadLettered, ("q", "m", 1, "x", None), {"exception": None}),
        (DeadLettered, ("q", "m", 1, "x", None, None, None), {}),
        (DeadLettered, ("q", "m", 1), {"exception": None}),
        (DeadLettered, ("q", "m", 1, "x"), {"error": None}),
    ],
)
def test_an_event_takes_each_field_and_its_exception_once_and_nothing_else(
    kind: Any, args: Any, named: Any
) -> None:
    last = "seconds" if kind is Completed else "reason, exception"
    with pytest.raises(TypeError, match=f"queue, message_id, attempt, {last}"):
        kind(*args, **named)


def test_an_exception_is_carried_but_is_not_a_field() -> None:
    error = ValueError("quotes a body")
    event = Retried("q", "m", 1, None, "ValueError", exception=error)
    assert event.exception is error
    assert event == Retried("q", "m", 1, None, "ValueError")
    assert hash(event) == hash(Retried("q", "m", 1, None, "ValueError"))
    assert "exception" not in event.get_fields()
    assert "quotes a body" not in repr(event)
    assert "quotes a body" not in str(dataclasses.asdict(event))  # type: ignore[call-overload]
    assert b"quotes a body" not in pickle.dumps(event)
    assert Retried("q", "m", 1, None, "ValueError", error).exception is error
    assert DeadLettered("q", "m", 1, reason="x").exception is None
    with pytest.raises(AttributeError):
        event.exception = None  # type: ignore[misc]


def test_an_event_can_be_matched_by_position_and_by_name() -> None:
    match Completed("q", "m", 1, 0.5):
        case MessageEvent(queue, message_id, attempt, seconds=seconds):  # type: ignore[misc]
            assert (queue, message_id, attempt, seconds) == ("q", "m", 1, 0.5)
        case _:
            pytest.fail("not matched")


@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.__name__)
def test_no_event_has_room_for_a_body_a_receipt_or_a_token(kind: type[Event]) -> None:
    names = {field.name for field in dataclasses.fields(kind)}
    assert not names & {"body", "message", "payload", "handle", "receipt", "token", "lease"}
