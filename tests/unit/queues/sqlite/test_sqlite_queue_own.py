"""SQLiteQueue: what the contract does not say."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import AnyMessage, LeaseLost, MessageState, Refused, SQLiteQueue
from holdfast.store.sqlite.connection import Durability
from holdfast.testing import ManualClock

LEASE = 10.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(tmp_path: Path, clock: ManualClock) -> Iterator[SQLiteQueue[AnyMessage]]:
    with closing(open_queue(tmp_path, clock)) as queue:
        yield queue


def open_queue(folder: Path, clock: ManualClock) -> SQLiteQueue[AnyMessage]:
    return SQLiteQueue(folder / "work.db", lease_seconds=LEASE, clock=clock)


def push(queue: SQLiteQueue[AnyMessage], *ids: str) -> None:
    queue.push_many(AnyMessage(id=each) for each in ids)


def read(queue: SQLiteQueue[AnyMessage], statement: str) -> list[tuple[object, ...]]:
    with queue._database.begin_read() as connection:
        return connection.execute(statement).fetchall()


@pytest.mark.parametrize("how", ["purge", "drop"])
def test_the_number_of_a_deleted_message_is_not_given_again(
    queue: SQLiteQueue[AnyMessage], tmp_path: Path, clock: ManualClock, how: str
) -> None:
    """Otherwise a worker that froze could settle another message with its old lease."""
    push(queue, "old")
    [frozen] = queue.poll()
    clock.advance(LEASE + 1)
    with closing(open_queue(tmp_path, clock)) as other:
        [taken] = other.poll()
        if how == "purge":
            other.ack(taken)
            assert other.purge(0) == 1
        else:
            other.dead_letter(taken, "why")
            assert other.drop("old") == 1
        push(other, "new")
        [_] = other.poll()
    assert isinstance(queue.renew([frozen.lease], LEASE)[0], Refused)
    frozen.lease.deadline = clock.monotonic() + LEASE  # as if the clock had not moved for it
    with pytest.raises(LeaseLost):
        queue.ack(frozen)
    [running] = queue.peek(MessageState.LEASED)
    assert running.id == "new"


def test_what_keeps_a_number_is_not_seen_and_goes_with_the_next_delete(
    queue: SQLiteQueue[AnyMessage],
) -> None:
    for message_id in ("a", "b"):
        push(queue, message_id)
        queue.ack_many(queue.poll())
        assert queue.purge(0) == 1
        assert queue.stats().completed == 0
        assert queue.find(message_id) == []
        assert [info for number in "123" for info in queue.find(number)] == []
        assert [info for state in MessageState for info in queue.peek(state)] == []
        assert list(queue.search()) == []
        assert read(queue, "SELECT count(*), sum(state = 4) FROM messages") == [(1, 1)]


def test_a_lease_that_ended_is_taken_over_although_others_are_always_due(
    queue: SQLiteQueue[AnyMessage], clock: ManualClock
) -> None:
    push(queue, "frozen")
    queue.poll()
    clock.advance(LEASE + 1)
    claimed = []
    for number in range(4):
        push(queue, f"due{number}", f"more{number}")
        claimed += [message.id for message in queue.poll(1)]
        clock.advance(0.1)
    assert "frozen" in claimed


def test_a_lease_that_ended_is_taken_over_at_once_if_nothing_else_is_due(
    queue: SQLiteQueue[AnyMessage], clock: ManualClock
) -> None:
    push(queue, "frozen")
    queue.poll()
    clock.advance(LEASE - 0.1)
    assert queue.poll() == []  # it looked for leases that ended a moment ago
    clock.advance(0.15)
    assert [message.id for message in queue.poll(10)] == ["frozen"]


@pytest.mark.parametrize("renew", [False, True], ids=["claimed", "renewed"])
def test_a_holder_does_not_lose_a_fraction_of_a_millisecond(
    queue: SQLiteQueue[AnyMessage], clock: ManualClock, renew: bool
) -> None:
    """Deadlines in the file are whole milliseconds, and are rounded in the holder's favour."""
    push(queue, "a")
    clock.advance(0.0009)
    [message] = queue.poll()
    if renew:
        clock.advance(1)
        queue.extend(message)
    clock.advance(LEASE - 0.0005)
    assert queue.poll() == []
    queue.ack(message)


def test_an_idle_worker_does_not_write(queue: SQLiteQueue[AnyMessage]) -> None:
    queue.poll()
    with queue._database.begin_write() as writing:
        changes, statements = writing.total_changes, list[str]()
        writing.set_trace_callback(statements.append)
    assert [queue.poll() for _ in range(5)] == [[]] * 5
    with queue._database.begin_write() as writing:
        assert writing.total_changes == changes
    assert [statement for statement in statements if "UPDATE" in statement] == []


def test_a_message_that_comes_later_is_found_by_an_idle_worker(
    queue: SQLiteQueue[AnyMessage], clock: ManualClock
) -> None:
    queue.poll()
    queue.push(AnyMessage(id="later"), delay_seconds=5)
    assert queue.poll() == []
    clock.advance(5.1)
    assert [message.id for message in queue.poll()] == ["later"]
    clock.advance(LEASE + 1)
    assert [message.id for message in queue.poll()] == ["later"]


def test_a_checkpoint_is_deleted_with_the_ack_of_its_attempt(
    queue: SQLiteQueue[AnyMessage],
) -> None:
    push(queue, "first", "second")
    messages = queue.poll(2)
    for message in messages:
        queue.save_checkpoint(message, {"page": 1})
    queue.ack(messages[0])
    queue.ack_many(messages[1:])
    assert read(queue, "SELECT count(*) FROM checkpoints") == [(0,)]
    assert queue._checkpointed == set()


def test_one_statement_claims_a_batch_and_one_transaction_settles_it(
    queue: SQLiteQueue[AnyMessage],
) -> None:
    push(queue, *(f"m{number}" for number in range(51)))
    queue.poll(1)  # registers the worker and looks for leases that ended
    statements = list[str]()
    with queue._database.begin_write() as writing:
        writing.set_trace_callback(statements.append)
    statements.clear()
    messages = queue.poll(100)
    assert len(messages) == 50
    assert [statement.split()[0] for statement in statements] == ["UPDATE"]
    for settle in (
        lambda: queue.renew([message.lease for message in messages], LEASE),
        lambda: queue.ack_many(messages),
    ):
        statements.clear()
        settle()
        words = [statement.split()[0] for statement in statements]
        assert words == ["BEGIN", *["UPDATE"] * 50, "COMMIT"]


def test_the_log_is_copied_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(SQLiteQueue(tmp_path / "work.db")) as queue:
        monkeypatch.setattr(queue._database._writer, "_checkpoint_pages", 500)
        for _ in range(12):
            push(queue, *(f"m{number}" for number in range(500)))
            checkpoint = queue._database._checkpoint
        assert checkpoint is not None
        checkpoint.join()
        assert (tmp_path / "work.db").stat().st_size > 100_000


def test_a_thread_that_is_not_available_leaves_the_log_to_sqlite(
    queue: SQLiteQueue[AnyMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)
    monkeypatch.setattr(queue._database._writer, "_checkpoint_pages", 1)
    push(queue, "a", "b")
    queue.push(AnyMessage(id="c"))
    assert queue.stats().ready == 3


@pytest.mark.parametrize("durability", ["process", "power"])
def test_slots_share_only_claims_that_wait_for_the_disk(
    tmp_path: Path, durability: Durability
) -> None:
    with closing(SQLiteQueue(tmp_path / "work.db", durability=durability)) as queue:
        assert (queue.slot_wait_seconds > 0) == (durability == "power")


def test_beats_of_claims_that_ended_are_deleted(
    queue: SQLiteQueue[AnyMessage], clock: ManualClock
) -> None:
    push(queue, "done", "failed", "held")
    messages = {message.id: message for message in queue.poll(3)}
    for message in messages.values():
        message.lease.beat(clock.monotonic(), 0.5)
    queue.renew([message.lease for message in messages.values()], LEASE)
    queue.ack(messages["done"])
    queue.dead_letter(messages["failed"], "why")
    clock.advance(LEASE / 2)
    queue.extend(messages["held"])
    clock.advance(LEASE / 2 + 1)
    queue.extend(messages["held"])
    assert read(queue, "SELECT message_no FROM beats") == [(messages["held"].lease.handle,)]


def test_tables_and_columns_that_an_earlier_commit_did_not_create_are_added(
    queue: SQLiteQueue[AnyMessage], tmp_path: Path, clock: ManualClock
) -> None:
    push(queue, "a", "b")
    queue.poll()
    with queue._database.begin_write() as connection:
        for table in ("beats", "results", "worker_notes"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("ALTER TABLE messages DROP COLUMN headers")
    with closing(open_queue(tmp_path, clock)) as other:
        [leased] = other.browse(MessageState.LEASED).messages
        assert leased.holder is not None
        assert leased.holder.beat_at is None
        [message] = other.poll()
        other.save_result(message, 5)
        other.ack(message)
        assert other.load_result("b") == 5
        assert len(other.workers()) == 1
