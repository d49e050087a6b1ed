"""Rows that another program wrote, and indexes that are damaged, block no other message."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import AnyMessage, MessageState, QueueUnavailable, SQLiteQueue
from holdfast.queues.sqlite.schema import QUEUES
from holdfast.testing import ManualClock

LEASE = 10.0
SECRET = "hunter2"
VALUES = {
    "not UTF-8": f"CAST(x'{SECRET.encode().hex()}ff00fe' AS TEXT)",
    "a blob": f"x'{SECRET.encode().hex()}ff00'",
    "a text": f"'{SECRET}' || char(0) || 'x'",
    "a number below zero": "-5",
    "a number that is too large": "9e300",
}


def list_columns() -> Iterator[str]:
    """Yield each column of the file that is not a number of rows."""
    with closing(sqlite3.connect(":memory:")) as connection:
        QUEUES.create(connection)
        for [table] in connection.execute("SELECT name FROM sqlite_master WHERE type='table'"):
            for _, name, *_ in connection.execute(f"PRAGMA table_info({table})"):
                if not name.endswith("_no") and not table.startswith("sqlite_"):
                    yield f"{table}.{name}"
    yield "messages.worker_no"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(fast_path: Path, clock: ManualClock) -> Iterator[SQLiteQueue[AnyMessage]]:
    queue = SQLiteQueue(
        fast_path / "work.db", lease_seconds=LEASE, clock=clock, machine_clock=clock
    )
    with closing(queue):
        yield queue


def fill(queue: SQLiteQueue[AnyMessage]) -> None:
    """Give the queue a message in each state, with a row in each table."""
    for number, message_id in enumerate(("completed", "failed", "leased", "pending")):
        queue.push(AnyMessage(id=message_id))
        if number < 3:
            [message] = queue.poll()
            queue.nack(message, delay_seconds=0, reason="first try")
            [message] = queue.poll()
            queue.save_checkpoint(message, {"page": 1})
            message.lease.beat(0.5)
            queue.renew([message.lease], LEASE)
        if message_id == "completed":
            queue.save_result(message, 1)
            queue.ack(message)
        elif message_id == "failed":
            queue.dead_letter(message, "no use")


def change(path: Path, column: str, value: str) -> None:
    table, name = column.split(".")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE OR IGNORE {table} SET {name} = {value}")


def read_everything(queue: SQLiteQueue[AnyMessage]) -> None:
    for state in MessageState:
        messages = list(queue.peek(state))
        assert len(list(queue.search(state, where={"id": "x"}, error="x"))) == 0
        assert len(list(queue.search(state))) == len(messages)
        page = queue.browse(state, limit=1)
        for _ in messages:
            page = queue.browse(state, after=page.after, limit=1) if page.after else page
        assert page.after is None
        for message in messages:
            queue.find(message.id)
            assert queue.find_push(message.key) == queue.find(message.key)[0]
            repr(message)
    queue.stats()
    queue.workers()
    queue.count_completed(5)
    queue.load_result("completed")


@pytest.mark.parametrize("column", list(list_columns()))
@pytest.mark.parametrize("kind", VALUES)
def test_a_value_of_another_type_keeps_no_other_message_from_being_read_or_delivered(
    queue: SQLiteQueue[AnyMessage], fast_path: Path, clock: ManualClock, column: str, kind: str
) -> None:
    fill(queue)
    change(fast_path / "work.db", column, VALUES[kind])
    opened = SQLiteQueue(fast_path / "work.db", clock=clock, machine_clock=clock)
    with closing(opened) as other:
        read_everything(other)
        other.push(AnyMessage(id="good"))
        clock.advance(LEASE + 1)
        assert "good" in {message.id for message in other.poll(10)}
        read_everything(other)
        dead = list(other.peek(MessageState.FAILED))
        assert "reason" in column or SECRET not in str([info.reason for info in dead])
        other.cancel("leased")
        other.redrive()
        other.drop_many(dead)
        other.purge(0)


def test_a_body_that_is_not_utf_8_is_listed_searched_and_dead_lettered(
    queue: SQLiteQueue[AnyMessage], fast_path: Path
) -> None:
    queue.push_many([AnyMessage(id="bad"), AnyMessage(id="good")])
    with closing(sqlite3.connect(fast_path / "work.db")) as connection, connection:
        connection.execute("UPDATE messages SET body = CAST(x'7bff' AS TEXT) WHERE id = 'bad'")
    assert [info.id for info in queue.peek(MessageState.PENDING)] == ["bad", "good"]
    assert [info.id for info in queue.search(where={"id": "good"})] == ["good"]
    assert [message.id for message in queue.poll(10)] == ["good"]
    [dead] = queue.peek(MessageState.FAILED)
    assert (dead.id, dead.body) == ("bad", None)
    assert (dead.reason or "").startswith("malformed")


def test_a_message_with_more_refunds_than_claims_is_dead_lettered(
    queue: SQLiteQueue[AnyMessage], fast_path: Path
) -> None:
    """It would be tried without end, because no attempt would be charged."""
    queue.push(AnyMessage())
    change(fast_path / "work.db", "messages.refunds", "7")
    assert queue.poll() == []
    [dead] = queue.peek(MessageState.FAILED)
    assert dead.reason == "malformed: 1 claims, 7 of them not charged"


def damage_index(path: Path, change: str) -> None:
    """Change a row behind the back of the index of states, as a failing disk may do."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        [[sql]] = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'states'")
        connection.execute("UPDATE sqlite_master SET sql = '' WHERE name = 'states'")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        row = connection.execute("SELECT * FROM sqlite_master WHERE name = 'states'").fetchone()
        connection.execute("DELETE FROM sqlite_master WHERE name = 'states'")
        version = connection.execute("PRAGMA schema_version").fetchone()[0]
        connection.execute(f"PRAGMA schema_version = {version + 1}")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(change)
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", (*row[:4], sql))
        version = connection.execute("PRAGMA schema_version").fetchone()[0]
        connection.execute(f"PRAGMA schema_version = {version + 1}")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() != [("ok",)]


@pytest.mark.parametrize("damage", ["DELETE FROM messages", "UPDATE messages SET state = 3"])
def test_a_purge_of_a_file_with_a_damaged_index_stops_and_says_what_to_do(
    queue: SQLiteQueue[AnyMessage], fast_path: Path, damage: str
) -> None:
    queue.push_many(AnyMessage(id=f"m{number}") for number in range(3))
    queue.ack_many(queue.poll(3))
    queue.close()
    damage_index(fast_path / "work.db", f"{damage} WHERE id = 'm1'")
    with pytest.raises(QueueUnavailable, match=r"its index is damaged.* REINDEX"):
        queue.purge(0)
    queue.close()
    with closing(sqlite3.connect(fast_path / "work.db")) as connection:
        connection.execute("REINDEX")
    assert queue.purge(0) == 0
    assert queue.stats().completed == 0
