"""SchemaPromises: older messages are upgraded, and newer ones wait for newer code."""

from collections.abc import Mapping
from typing import ClassVar

import pytest

from holdfast.events import Events, SchemaTooNew
from holdfast.queue.message import QueueMessage, Upgrader
from holdfast.testing import ManualClock
from holdfast.testing.contracts.queue.support import (
    MUCH_LATER,
    EventRecorder,
    MakeQueue,
    assert_completed,
    get_dead_letter,
    get_fence,
    poll_one,
    require_capabilities,
)


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
