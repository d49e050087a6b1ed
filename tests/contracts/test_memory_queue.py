"""MemoryQueue keeps the queue contract."""

import subprocess
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from holdfast.events import Events
from holdfast.queue.info import QueueStats
from holdfast.queue.message import AnyMessage, QueueMessage, Upgrader
from holdfast.testing import ManualClock, MemoryQueue, MemoryQueueFactory, SkippingClock
from holdfast.testing.contracts.queue.contract import QueueContract
from holdfast.testing.contracts.queue.support import LEASE, AnyQueue, Inject, MakeQueue


class Strict(QueueMessage):
    number: int


class TestMemoryQueue(QueueContract):
    @pytest.fixture
    def make_queue(self, clock: ManualClock) -> MakeQueue:
        first: MemoryQueue[Any] = MemoryQueue(clock=clock)
        return lambda **settings: MemoryQueue(
            **{"lease_seconds": LEASE, "clock": clock, "shared_with": first} | settings
        )

    @pytest.fixture
    def make_other_queue(self, clock: ManualClock) -> MakeQueue:
        return lambda: MemoryQueue(name="other", lease_seconds=LEASE, clock=clock)

    @pytest.fixture
    def inject(self) -> Inject:
        def inject_body(queue: AnyQueue, body: bytes) -> None:
            assert isinstance(queue, MemoryQueue)
            queue.inject(body)

        return inject_body


# -- tests beyond the contract


def test_queues_share_messages_only_if_shared_with_is_given() -> None:
    first, stranger = MemoryQueue(name="same"), MemoryQueue(name="same")
    neighbour = MemoryQueue(shared_with=first)
    first.push(AnyMessage(id="a"))
    assert stranger.poll() == []
    assert [message.id for message in neighbour.poll()] == ["a"]


def test_a_stepped_wall_clock_neither_ends_a_lease_nor_keeps_it(
    manual_clock: ManualClock,
) -> None:
    queue = MemoryQueue(clock=manual_clock)
    queue.push(AnyMessage())
    queue.poll()
    manual_clock.step_time(100_000)
    assert queue.poll() == []
    manual_clock.step_time(-200_000)
    manual_clock.advance(queue.lease_seconds)
    assert [message.attempts for message in queue.poll()] == [2]


def test_a_subscriber_may_call_the_queue(manual_clock: ManualClock) -> None:
    counted: list[QueueStats] = []
    events = Events(lambda _: counted.append(queue.stats()))
    queue = MemoryQueue(Strict, max_attempts=1, clock=manual_clock, events=events)
    queue.push(Strict(id="exhausted", number=1))
    queue.poll()
    manual_clock.advance(queue.lease_seconds)
    queue.inject(b"malformed")
    queue.inject(b'{"schema_version": 9}')
    assert queue.poll() == []
    # One was taken over and is dead-lettered, then the malformed one; the newer is put back.
    expected = [(1, 0), (0, 1), (0, 2), (0, 2)]
    assert [(stats.leased, stats.failed) for stats in counted] == expected


def test_a_worker_too_slow_to_decode_its_claim_does_not_dead_letter_its_successors(
    manual_clock: ManualClock,
) -> None:
    # Its upgrader fails after more time than the lease has.
    taken = []

    def slow(data: dict[str, Any]) -> dict[str, Any]:
        manual_clock.advance(first.lease_seconds)
        taken.extend(successor.poll())
        raise ValueError("cannot upgrade this")

    class Newer(QueueMessage):
        upgraders: ClassVar[Mapping[int, Upgrader]] = {1: slow}
        schema_version: int = 2

    first = MemoryQueue(Newer, clock=manual_clock)
    successor = MemoryQueue(clock=manual_clock, shared_with=first)
    successor.push(AnyMessage(id="a"))
    assert first.poll() == []
    assert (first.stats().leased, first.stats().failed) == (1, 0)
    successor.ack(taken[0])


def test_thousands_of_renewals_and_checkpoints_leave_nothing_behind(
    manual_clock: ManualClock,
) -> None:
    queue = MemoryQueue(clock=manual_clock)
    queue.push(AnyMessage())
    [message] = queue.poll()
    for step in range(5_000):
        manual_clock.advance(1)
        queue.extend(message)
        queue.save_checkpoint(message, step)
        queue.poll()
    with queue._database.begin_read() as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        rows = {
            table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for (table,) in tables.fetchall()
        }
    assert rows["checkpoints"] == 1
    assert max(rows.values()) <= 2


# -- the pytest plugin


def list_loaded_modules(plugin: str, *, after: str) -> list[str]:
    """Return what importing `plugin` loads in a new interpreter that has loaded `after`."""
    code = (
        f"import sys, {after}; before = {{*sys.modules}}; import {plugin}\n"
        "print(*(n for n in sys.modules if n not in before and "
        "n.split('.')[0] in ('pydantic', 'holdfast')))"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return sorted(ran.stdout.decode().split())


def test_the_plugin_adds_nothing_to_the_package() -> None:
    plugin = "holdfast.testing.pytest_plugin"
    assert list_loaded_modules(plugin, after="holdfast") == ["holdfast.testing", plugin]


def test_the_plugin_does_not_load_pydantic_in_other_projects() -> None:
    assert "pydantic" not in list_loaded_modules(
        "holdfast.testing.pytest_plugin", after="pytest"
    )


def test_the_testing_package_names_what_it_offers() -> None:
    from holdfast import testing

    assert [getattr(testing, name).__name__ for name in testing.__all__] == testing.__all__
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        testing.Nonsense  # noqa: B018


def test_the_fixtures_belong_together(
    memory_queue: MemoryQueueFactory, skipping_clock: SkippingClock
) -> None:
    queue = memory_queue()
    queue.push(AnyMessage(), delay_seconds=10)
    assert queue.poll() == []
    skipping_clock.advance(10)
    assert len(queue.poll()) == 1


def test_the_factory_makes_queues_of_a_type_with_settings(
    memory_queue: MemoryQueueFactory, manual_clock: ManualClock
) -> None:
    queue = memory_queue(Strict, max_attempts=1, lease_seconds=5, clock=manual_clock)
    queue.push(Strict(number=7))
    assert queue.poll()[0].number == 7
    assert (queue.max_attempts, queue.lease_seconds, queue.clock) == (1, 5, manual_clock)
    assert memory_queue(Strict).poll() == []  # each queue is its own
