"""Bad input affects no other message, and messages of other versions are understood or wait."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

import pytest
from pydantic import field_validator

from holdfast.errors import HoldfastError, InvalidName, MalformedMessage, MessageTooLarge
from holdfast.events import DeadLettered, Events, SchemaTooNew
from holdfast.queue.message import MAX_BYTES, AnyMessage, QueueMessage, Upgrader
from holdfast.testing import ManualClock
from holdfast.testing.contracts.queue.support import (
    MUCH_LATER,
    AnyQueue,
    EventRecorder,
    Inject,
    MakeQueue,
    NoteMessage,
    assert_completed,
    get_dead_letter,
    get_fence,
    poll_one,
    push_and_poll,
    require_capabilities,
)

TORN = NoteMessage(text="a text that is cut off").model_dump_json().encode()[:-20]
MALFORMED: dict[str, bytes] = {
    "empty": b"",
    "blank": b" \n",
    "torn": TORN,
    "not UTF-8": b"\xff\xfe\x00{}",
    "NUL bytes": b"\0" * 300,
    "a list": b"[]",
    "null": b"null",
    "a text": b'"hello"',
    "nested without end": b"[" * 200_000,
    "a number with too many digits": b'{"id": "a", "number": ' + b"9" * 5000 + b"}",
    "an id that is a number": b'{"id": 5, "secret": "hunter2"}',
    "an empty id": b'{"id": "", "secret": "hunter2"}',
    "a field of the wrong type": b'{"id": "a", "number": "hunter2"}',
    "half a character": b'{"id": "a", "text": "hunter2 \\ud800"}',
    "a version that is no number": b'{"id": "a", "schema_version": "two"}',
    "a version that is true": b'{"id": "a", "schema_version": true, "number": "x"}',
}
HOSTILE: dict[str, str] = {
    "a path": "../../etc/passwd",
    "an absolute path": "/etc/passwd",
    "a dot": ".",
    "two dots": "..",
    "slashes": "a/b\\c",
    "NUL": "a\0b",
    "new lines": "a\nb\r",
    "a tilde": "~root~1~2",
    "our own file name": "0000000000000000~1~0.json",
    "wildcards": "*?[a-z]",
    "300 characters": "x" * 300,
    "512 wide characters": "\U0001f642" * 512,
    "Japanese": "日本語のタスク",
    "Arabic": "مهمة",
    "combining marks": "e\u0301\u0302",
    "right to left override": "\u202etxt.exe",
    "only a space": " ",
    "an option": "--help",
}


class StrictMessage(QueueMessage):
    """A message whose validator fails in a way that pydantic does not expect."""

    kind: str

    @field_validator("kind")
    @classmethod
    def check_kind(cls, kind: str) -> str:
        """Return the kind, or raise KeyError, which pydantic does not handle."""
        return {"good": "good"}[kind]


class BadInputPromises:
    """Promises about malformed bodies, unusual ids, and sizes."""

    @pytest.mark.parametrize("kind", MALFORMED)
    def test_a_malformed_body_goes_to_the_dead_letters_and_the_others_are_delivered(
        self, make_queue: MakeQueue, inject: Inject, clock: ManualClock, kind: str
    ) -> None:
        recorder = EventRecorder()
        queue = make_queue(model=NoteMessage, events=Events(recorder))
        queue.push(NoteMessage(text="before"))
        clock.advance(0.01)
        inject(queue, MALFORMED[kind])
        clock.advance(0.01)
        queue.push(NoteMessage(text="after"))
        assert [note.text for note in queue.poll(10)] == ["before", "after"]
        view = get_dead_letter(queue)
        assert view.reason
        [event] = recorder.select(DeadLettered)
        assert (event.queue, event.reason) == (queue.name, "malformed")
        assert "hunter2" not in view.reason
        assert "\n" not in view.reason

    @pytest.mark.parametrize(
        "kind",
        ["a field of the wrong type", "half a character", "a version that is no number"],
    )
    def test_the_event_of_a_malformed_message_names_its_id(
        self, make_queue: MakeQueue, inject: Inject, kind: str
    ) -> None:
        """An operator searches for the id that was pushed, not for a key."""
        recorder = EventRecorder()
        queue = make_queue(model=NoteMessage, events=Events(recorder))
        inject(queue, MALFORMED[kind])
        assert queue.poll() == []
        [event] = recorder.select(DeadLettered)
        assert event.message_id == get_dead_letter(queue).id == "a"

    def test_the_reason_names_the_field_that_is_wrong(
        self, make_queue: MakeQueue, inject: Inject
    ) -> None:
        queue = make_queue(model=NoteMessage)
        inject(queue, b'{"id": "a", "number": "seven"}')
        assert queue.poll() == []
        assert "number" in get_dead_letter(queue).reason

    def test_a_message_that_breaks_a_validator_goes_to_the_dead_letters(
        self, make_queue: MakeQueue, inject: Inject, clock: ManualClock
    ) -> None:
        queue = make_queue(model=StrictMessage)
        queue.push(StrictMessage(id="before", kind="good"))
        clock.advance(0.01)
        inject(queue, b'{"id": "a", "kind": "hunter2"}')
        clock.advance(0.01)
        queue.push(StrictMessage(id="after", kind="good"))
        assert [message.id for message in queue.poll(10)] == ["before", "after"]
        assert "hunter2" not in get_dead_letter(queue).reason

    def test_an_unreadable_message_can_be_found_and_dropped(
        self, queue: AnyQueue, inject: Inject
    ) -> None:
        require_capabilities(queue, "find", "drop")
        inject(queue, b"{ not JSON")
        assert queue.poll() == []
        name = get_dead_letter(queue).id
        [view] = queue.find(name)
        assert view.body is None
        assert queue.drop(name) == 1
        assert queue.stats().failed == 0

    def test_a_malformed_message_is_delivered_after_the_model_was_fixed(
        self, make_queue: MakeQueue, inject: Inject
    ) -> None:
        strict = make_queue(model=NoteMessage)
        inject(strict, b'{"id": "a", "number": "seven"}')
        assert strict.poll() == []
        lenient = make_queue(model=AnyMessage)
        assert lenient.redrive() == 1
        message = poll_one(lenient)
        assert (message.id, message.number, message.attempts) == ("a", "seven", 1)

    # -- ids

    @pytest.mark.parametrize("kind", HOSTILE)
    def test_any_text_is_an_id(self, make_queue: MakeQueue, kind: str) -> None:
        queue = make_queue()
        if "dedupe" in queue.capabilities:
            queue = make_queue(dedupe=True)
        message_id = HOSTILE[kind]
        assert queue.push(AnyMessage(id=message_id)) == message_id
        message = poll_one(queue)
        assert message.id == message_id
        queue.dead_letter(message, "no use")
        assert queue.redrive(message_id) == 1
        queue.ack(poll_one(queue))
        if "find" in queue.capabilities:
            [view] = queue.find(message_id)
            assert view.id == message_id

    @pytest.mark.parametrize("kind", HOSTILE)
    def test_asking_for_an_id_that_is_not_there_finds_nothing(
        self, queue: AnyQueue, kind: str, contents: Callable[[AnyQueue], object]
    ) -> None:
        queue.dead_letter(push_and_poll(queue, id="a"), "no use")
        before = contents(queue)
        unknown = HOSTILE[kind]
        assert (queue.redrive(unknown), queue.drop(unknown)) == (0, 0)
        if "find" in queue.capabilities:
            assert queue.find(unknown) == []
        assert contents(queue) == before

    def test_a_lone_surrogate_is_not_an_id(self, queue: AnyQueue) -> None:
        with pytest.raises(HoldfastError, match="ud800"):
            queue.push(AnyMessage.model_construct(id="\ud800"))
        assert queue.stats().ready == 0

    @pytest.mark.parametrize("verb", ["find", "redrive", "drop"])
    def test_asking_for_half_a_character_finds_nothing_or_says_why(
        self, queue: AnyQueue, verb: str
    ) -> None:
        # A shell passes this text if its argument is not UTF-8.
        queue.dead_letter(push_and_poll(queue, id="a"), "no use")
        if verb == "find":
            require_capabilities(queue, "find")
        with suppress(InvalidName):
            assert not getattr(queue, verb)("\udcff")
        assert queue.stats().failed == 1

    # -- sizes and contents

    def test_a_message_of_just_the_limit_is_taken(self, queue: AnyQueue) -> None:
        message = AnyMessage(text="")
        message.text = "x" * (MAX_BYTES - len(message.model_dump_json()))
        queue.push(message)
        assert poll_one(queue).text == message.text

    @pytest.mark.parametrize("others", [0, 2])
    def test_a_message_over_the_limit_is_refused_and_nothing_is_pushed(
        self, queue: AnyQueue, others: int
    ) -> None:
        message = AnyMessage(id="big", text="")
        message.text = "x" * (MAX_BYTES - len(message.model_dump_json()) + 1)
        with pytest.raises(MessageTooLarge, match=r"'big' is 1,048,577 bytes"):
            queue.push_many([*(AnyMessage() for _ in range(others)), message])
        assert queue.stats().ready == 0

    @pytest.mark.parametrize(
        "value",
        [object(), b"\xff", "\ud800", lambda: None],
        ids=lambda value: type(value).__name__,
    )
    def test_a_value_json_cannot_represent_is_refused_and_nothing_is_pushed(
        self, queue: AnyQueue, value: Any
    ) -> None:
        with pytest.raises(MalformedMessage, match="'a' cannot be written as JSON"):
            queue.push(AnyMessage(id="a", value=value))
        assert queue.stats().ready == 0

    def test_a_message_of_another_model_is_refused_and_nothing_is_pushed(
        self, make_queue: MakeQueue
    ) -> None:
        queue = make_queue(model=NoteMessage)
        with pytest.raises(MalformedMessage, match="takes NoteMessage, not AnyMessage"):
            queue.push_many([NoteMessage(), AnyMessage(id="a")])  # type: ignore[list-item]
        assert queue.stats().ready == 0

    def test_numbers_keep_their_value(self, queue: AnyQueue) -> None:
        numbers = [2**63, -(2**70), 0.1, 1e308, -0.0]
        queue.push(AnyMessage(numbers=numbers))
        assert json.dumps(poll_one(queue).numbers) == json.dumps(numbers)


class OrderV1(QueueMessage):
    """An order as the first version of the code knows it."""

    schema_version: int = 1
    name: str


class OrderWithNote(OrderV1):
    """An order whose model has one more field, at the same version."""

    note: str = ""


class OrderV3(QueueMessage):
    """An order of version 3, which upgrades older ones."""

    upgraders: ClassVar[Mapping[int, Upgrader]] = {
        1: lambda data: {**data, "first": data["name"].split()[0]},
        2: lambda data: {**data, "shout": data["first"].upper()},
    }
    schema_version: int = 3
    first: str
    shout: str


class OrderWithoutUpgrader(QueueMessage):
    """An order of version 2 that cannot upgrade version 1."""

    schema_version: int = 2
    name: str


class SchemaPromises:
    """Promises about messages of other schema versions."""

    @pytest.mark.requirement("R001-005")
    def test_an_older_message_is_upgraded_step_by_step(self, make_queue: MakeQueue) -> None:
        make_queue(model=OrderV1).push(OrderV1(id="a", name="Ada Lovelace"))
        newer = make_queue(model=OrderV3)
        order = poll_one(newer)
        assert (order.id, order.first, order.shout) == ("a", "Ada", "ADA")
        assert (order.schema_version, order.attempts) == (3, 1)
        newer.ack(order)
        assert_completed(newer, 1)

    def test_an_older_message_without_an_upgrader_names_what_is_missing(
        self, make_queue: MakeQueue
    ) -> None:
        make_queue(model=OrderV1).push(OrderV1(id="a", name="Ada"))
        newer = make_queue(model=OrderWithoutUpgrader)
        assert newer.poll() == []
        assert "upgraders[1]" in get_dead_letter(newer).reason

    @pytest.mark.requirement("R001-005")
    def test_a_newer_message_waits_uncharged_for_newer_code(
        self, make_queue: MakeQueue, clock: ManualClock
    ) -> None:
        newer = make_queue(model=OrderV3)
        newer.push(OrderV3(id="a", first="Ada", shout="ADA"))
        older = make_queue(model=OrderV1, max_attempts=2)
        for _ in range(5):
            assert older.poll() == []
            clock.advance(MUCH_LATER)
        assert (older.stats().ready, older.stats().failed) == (1, 0)
        order = poll_one(make_queue(model=OrderV3, max_attempts=2))
        assert (order.id, order.shout, order.attempts) == ("a", "ADA", 1)

    def test_a_message_that_waited_for_newer_code_is_given_all_its_attempts(
        self, make_queue: MakeQueue, clock: ManualClock
    ) -> None:
        newer = make_queue(model=OrderV3, max_attempts=2)
        newer.push(OrderV3(id="a", first="Ada", shout="ADA"))
        older = make_queue(model=OrderV1, max_attempts=2)
        for _ in range(5):
            assert older.poll() == []
            clock.advance(MUCH_LATER)
        newer.nack(poll_one(newer), delay_seconds=0)
        order = poll_one(newer)
        assert order.attempts <= 2
        assert get_fence(order) >= 2
        newer.ack(order)
        assert newer.stats().failed == 0

    def test_a_field_that_only_newer_code_knows_waits_for_it(
        self, make_queue: MakeQueue, clock: ManualClock
    ) -> None:
        newer = make_queue(model=OrderWithNote)
        newer.push(OrderWithNote(id="a", name="Ada", note="by post"))
        older = make_queue(model=OrderV1)
        assert older.poll() == []
        assert older.stats().failed == 0
        clock.advance(MUCH_LATER)
        assert (poll_one(newer).note, newer.stats().failed) == ("by post", 0)

    def test_a_newer_message_is_left_as_it_is(
        self, make_queue: MakeQueue, clock: ManualClock
    ) -> None:
        require_capabilities(make_queue(), "find")
        newer = make_queue(model=OrderV3)
        newer.push(OrderV3(id="a", first="Ada", shout="ADA"))
        [before] = newer.find("a")
        older = make_queue(model=OrderV1)
        older.poll()
        [after] = older.find("a")
        assert after.body == before.body
        assert (after.key, after.state, after.attempts) == (before.key, before.state, 0)

    def test_a_newer_message_is_not_redelivered_at_once(self, make_queue: MakeQueue) -> None:
        recorder = EventRecorder()
        make_queue(model=OrderV3).push(OrderV3(id="a", first="Ada", shout="ADA"))
        older = make_queue(model=OrderV1, events=Events(recorder))
        for _ in range(3):
            assert older.poll(10) == []
        [event] = recorder.select(SchemaTooNew)
        assert (event.queue, event.message_id, event.version) == (older.name, "a", 3)

    def test_a_newer_message_does_not_hold_up_the_others(
        self, make_queue: MakeQueue, clock: ManualClock
    ) -> None:
        make_queue(model=OrderV3).push(OrderV3(first="Ada", shout="ADA"))
        clock.advance(1)
        older = make_queue(model=OrderV1)
        older.push(OrderV1(id="b", name="Ada"))
        assert [order.id for order in older.poll(10)] == ["b"]
