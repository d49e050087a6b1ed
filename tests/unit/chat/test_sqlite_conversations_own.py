"""Tests of SQLiteConversations beside the contract: its file, cost, retention and
foreign rows.
"""

import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from contracts.conversations.support import (
    KEY,
    LATER,
    NOW,
    OTHER,
    acquire_grant,
    acquire_lock,
    answer_messages,
    create_conversation,
    get_conversation,
    list_staged_sids,
    make_fragment,
    make_parked,
    make_turn,
    make_window,
    stage_messages,
)
from holdfast.chat.errors import LockLost
from holdfast.chat.model import Fragment, LockGrant, UnreadableFragment
from holdfast.chat.outbox import (
    PreparedReply,
    SendingReply,
    SentReply,
    WriterAnswer,
    WritingReply,
    get_outbox_state,
)
from holdfast.chat.sqlite_conversations import SQLiteConversations
from holdfast.errors import ConfigError, StoreUnavailable
from holdfast.exports.sqlite_jobs import SQLiteJobs
from holdfast.store.sqlite.connection import Durability
from holdfast.testing import ManualClock


@pytest.fixture
def path(fast_path: Path) -> Path:
    return fast_path / "conversations.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteConversations]:
    with SQLiteConversations(path, clock=ManualClock()) as store:
        yield store


def run_sql(store: SQLiteConversations, statement: str, *values: object) -> list[Any]:
    """Run a statement in a transaction and return its rows."""
    with store._database.begin_write() as connection:
        return connection.execute(statement, values).fetchall()


# -- the file


def test_only_the_owner_can_read_what_customers_wrote(path: Path) -> None:
    with SQLiteConversations(path.parent / "new" / "c.db") as store:
        stage_messages(store, "m1")
        files = list((path.parent / "new").iterdir())
        assert {file.name for file in files} == {"c.db", "c.db-wal", "c.db-shm"}
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


@pytest.mark.parametrize(("durability", "synchronous"), [("power", 2), ("process", 1)])
def test_each_commit_reaches_the_disk_unless_configured_otherwise(
    path: Path, durability: Durability, synchronous: int
) -> None:
    for store, expected in (
        (SQLiteConversations(path), 2),
        (SQLiteConversations(path, durability=durability), synchronous),
    ):
        with store, store._database.begin_read() as connection:
            assert connection.execute("PRAGMA synchronous").fetchone() == (expected,)


def test_writes_that_must_survive_a_power_cut_are_on_disk_when_the_call_returns(
    path: Path,
) -> None:
    """These are the message, and the note that it is being sent, before it is sent. Other
    writes reach the disk with the next durable one.
    """
    statements: list[str] = []

    def is_durable(call: Callable[[], object]) -> bool:
        statements.clear()
        call()
        before_the_commit = statements[: statements.index("COMMIT")]
        return "PRAGMA synchronous = NORMAL" not in before_the_commit

    with SQLiteConversations(path) as store:
        create_conversation(store)
        with store._database.begin_write() as connection:
            connection.set_trace_callback(statements.append)
        written_reply = WriterAnswer("reply")
        durable_by_call = {
            "stage": is_durable(lambda: stage_messages(store, "m1")),
            "acquire": is_durable(lambda: acquire_grant(store, "next", now=NOW + 999.0)),
        }
        grant = acquire_grant(store, "last", now=NOW + 9999.0)
        for outbox in (
            WritingReply(("m1",)),
            PreparedReply(("m1",), written_reply),
            SendingReply(("m1",), written_reply, (), NOW),
            SentReply(("m1",), written_reply, ()),
        ):
            durable_by_call[get_outbox_state(outbox)] = is_durable(
                partial(store.note, grant, outbox, "thread")
            )
        durable_by_call["finish"] = is_durable(
            lambda: store.finish(grant, make_turn("m1"), now=NOW, remember_until=LATER)
        )
        durable_by_call["park"] = is_durable(
            lambda: store.park(None, make_parked(make_fragment("m2")), remember_until=LATER)
        )
    assert {name for name, durable in durable_by_call.items() if durable} == {
        "stage",
        "sending",
        "sent",
        "finish",
        "park",
    }


@pytest.mark.parametrize("content", ["my notes of the year\n" * 400, "a short note"])
def test_a_file_that_is_not_a_database_is_refused_and_kept(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"conversation store .* not a SQLite database"):
        SQLiteConversations(path)
    assert path.read_text() == content


def test_a_file_whose_beginning_is_damaged_is_refused_and_kept(path: Path) -> None:
    with SQLiteConversations(path) as store:
        create_conversation(store)
    damaged = b"\xff" * 32 + path.read_bytes()[32:]
    path.write_bytes(damaged)
    with pytest.raises(ConfigError, match="not a SQLite database"):
        SQLiteConversations(path)
    assert path.read_bytes() == damaged


def test_a_store_whose_pages_are_damaged_says_so(path: Path) -> None:
    with SQLiteConversations(path) as store:
        create_conversation(store)
    intact = path.read_bytes()
    path.write_bytes(intact[:4096] + b"\xff" * (len(intact) - 4096))
    store = SQLiteConversations(path)
    with store, pytest.raises(StoreUnavailable, match="damaged: restore it from a backup"):
        store.get(KEY)


def test_the_database_of_another_application_is_refused_and_kept(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE photos (name)")
        other.commit()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="another application, not a conversation store"):
        SQLiteConversations(path)
    assert path.read_bytes() == before


def test_jobs_and_conversations_do_not_share_a_file(path: Path) -> None:
    """Both schemas have version 1."""
    SQLiteConversations(path).close()
    with pytest.raises(ConfigError, match="another application, not a job store"):
        SQLiteJobs(path)
    SQLiteJobs(path.with_name("jobs.db")).close()
    with pytest.raises(ConfigError, match="another application, not a conversation store"):
        SQLiteConversations(path.with_name("jobs.db"))


def test_a_store_of_newer_code_is_refused(path: Path) -> None:
    SQLiteConversations(path).close()
    with closing(sqlite3.connect(path)) as newer:
        newer.execute("PRAGMA user_version = 2")
    with pytest.raises(ConfigError, match=r"schema 2, .* supports 1: update"):
        SQLiteConversations(path)


def test_a_folder_and_a_path_below_a_file_are_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="give the path of a file for the conversations"):
        SQLiteConversations(path.parent)
    path.write_text("")
    with pytest.raises(ConfigError, match="cannot store conversations"):
        SQLiteConversations(path / "c.db")


def test_a_store_that_others_keep_locked_is_unavailable_and_then_works_again(
    path: Path,
) -> None:
    store = SQLiteConversations(path, busy_seconds=0.05)
    create_conversation(store)
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match=r"the conversation store .* locked"):
            acquire_grant(store)
        assert not get_conversation(store).is_locked(NOW)  # readers do not wait for writers
    acquire_grant(store)
    store.close()


def test_no_text_of_the_store_shows_a_phone_number_or_a_message(
    store: SQLiteConversations,
) -> None:
    create_conversation(store)
    stage_messages(store, "m1")
    grant = acquire_grant(store)
    store.release(grant, "")
    with pytest.raises(LockLost) as lost:
        store.finish(grant, make_turn("m1"), now=NOW, remember_until=LATER)
    texts = repr(store) + str(lost.value) + repr(store.staged("chat")) + repr(store.get(KEY))
    assert KEY.primary_channel not in texts
    assert "text of m1" not in texts


def test_updated_at_is_the_caller_s_time_or_the_clock_s(path: Path) -> None:
    clock = ManualClock()
    with SQLiteConversations(path, clock=clock) as store:
        create_conversation(store)
        writes: list[Callable[[LockGrant], object]] = [
            lambda grant: store.note(grant, WritingReply(("m1",)), ""),
            lambda _: store.set_status(KEY, "vip"),
            lambda grant: store.release(grant, ""),
        ]
        for write in writes:
            grant = acquire_grant(store, now=clock.time(), seconds=0.5)
            assert get_conversation(store).updated_at == clock.time()
            clock.advance(1.0)
            write(grant)
            assert get_conversation(store).updated_at == clock.time()


# -- rows of other software


@pytest.mark.parametrize(
    "damage",
    [
        "body = NULL",
        "body = x'ff'",  # bytes, which JSON does not have
        "body = 7",
        "body = CAST(x'ff' AS TEXT)",
        "received_at = 'yesterday'",
        "received_at = NULL",
        "staged_at = 'just now'",
        "media = 'image'",
        "media = '[1]'",
        "media = NULL",
        "unreadable = 'not JSON'",
        "unreadable = '[]'",
    ],
)
def test_an_unreadable_row_is_returned_beside_the_others(
    store: SQLiteConversations, damage: str
) -> None:
    """It is neither lost nor does it block other rows (MS-18)."""
    readable, _ = stage_messages(store, "m1", "m2")
    run_sql(store, f"UPDATE stage SET {damage} WHERE message_sid = 'm2'")
    rows = {row.message_sid: row for row in store.staged(KEY.conversation_id)}
    assert rows["m1"] == readable
    if damage in ("body = 7", "body = CAST(x'ff' AS TEXT)"):  # it is read as a text
        assert isinstance(rows["m2"], Fragment)
        return
    assert isinstance(rows["m2"], UnreadableFragment)
    assert "text of" not in repr(rows["m2"])
    [waiting] = store.waiting()
    assert (waiting.key, waiting.fragments) == (KEY, 2)
    batch = make_parked(*rows.values())
    store.park(None, batch, remember_until=LATER)
    assert [row.message_sid for row in next(store.parked()).staged] == ["m1", "m2"]
    assert list_staged_sids(store) == []
    store.unpark(batch.parked_id, back_to_stage=True, now=NOW, expires_at=LATER)
    kinds = {row.message_sid: type(row) for row in store.staged(KEY.conversation_id)}
    assert kinds == {"m1": Fragment, "m2": UnreadableFragment}


def test_a_turn_never_replaces_or_drops_messages_of_the_history(
    store: SQLiteConversations,
) -> None:
    """The numbers are taken if the row of the conversation is older than its history."""
    create_conversation(store)
    answer_messages(store, "m1")
    run_sql(store, "UPDATE conversations SET message_count = 1")
    before = store.history(KEY)
    answer_messages(store, "m2")
    assert store.history(KEY)[:2] == before
    assert [message.seq for message in store.history(KEY)] == [1, 2, 3, 4]


def test_half_a_character_in_a_reply_is_replaced_in_the_history(
    store: SQLiteConversations,
) -> None:
    """The reply has been sent, so its history must be stored."""
    create_conversation(store)
    turn = make_turn("m1")
    broken = replace(turn, assistant=replace(turn.assistant, body="half \ud83d"))
    store.finish(acquire_grant(store), broken, now=NOW, remember_until=LATER)
    assert store.history(KEY)[-1].body == "half ?"


def test_a_slow_reader_of_a_listing_keeps_no_transaction_open(
    store: SQLiteConversations,
) -> None:
    """An open transaction would pin the WAL, which would then grow without limit."""
    for key in (KEY, OTHER):
        create_conversation(store, key)
    for sid in ("m1", "m2"):
        store.park(None, make_parked(make_fragment(sid)), remember_until=LATER)
    for listing in (store.conversations(), store.parked()):
        assert next(listing)
        assert store._database._lent == 0
        assert len(list(listing)) == 1


# -- cost


@contextmanager
def use_connections(store: SQLiteConversations) -> Iterator[tuple[sqlite3.Connection, ...]]:
    """Return the connections that the next read and the next write will use."""
    database = store._database
    with database.begin_read() as reading, database.begin_write() as writing:
        yield reading, writing


@contextmanager
def trace_statements(store: SQLiteConversations) -> Iterator[list[str]]:
    """Collect every statement that is run in the block."""
    statements: list[str] = []
    with use_connections(store) as connections:
        for connection in connections:
            connection.set_trace_callback(statements.append)
    yield statements
    with use_connections(store) as connections:
        for connection in connections:
            connection.set_trace_callback(None)


def make_every_call(store: SQLiteConversations) -> None:
    """Make every call of a turn, and those of an operator."""
    store.create(replace(get_conversation(store), status="again"))
    fragments = stage_messages(store, "m1", "m2", "m3", "m4")
    opened = make_window()
    store.open_window(opened, now=NOW, untriggered_before=NOW)
    store.mark_triggered(opened)
    store.window(KEY.conversation_id)
    grant = acquire_lock(store).grant
    store.renew(grant, now=NOW, expires_at=NOW + 99.0)
    store.staged(KEY.conversation_id)
    store.close_window(KEY.conversation_id, "w1")
    store.processed(KEY, ["m1", "m2"])
    store.note(grant, WritingReply(("m1", "m2")), "thread")
    store.finish(grant, make_turn("m1", "m2"), now=NOW, remember_until=LATER)
    store.history(KEY, before=9)
    store.drop_staged(KEY.conversation_id, ["m3"])
    store.set_status(KEY, "vip")
    batch = make_parked(fragments[3])
    store.park(acquire_grant(store), batch, remember_until=LATER)
    store.unpark(batch.parked_id, back_to_stage=True, now=NOW, expires_at=LATER)
    store.drop_staged(KEY.conversation_id, ["m4"])
    list(store.conversations(KEY.conversation_id))


def test_no_call_of_a_turn_reads_a_table_from_end_to_end(store: SQLiteConversations) -> None:
    """With a hundred thousand messages a turn costs as much as with two (I-MS-10)."""
    create_conversation(store)
    with trace_statements(store) as traced:
        make_every_call(store)
    statements = [
        statement
        for statement in traced
        if statement.split()[0] in ("SELECT", "UPDATE", "DELETE")
    ]
    with store._database.begin_read() as connection:
        plans = {
            statement: [
                step[3] for step in connection.execute(f"EXPLAIN QUERY PLAN {statement}")
            ]
            for statement in statements
        }
    tables = {"conversations", "messages", "stage", "windows", "processed", "parked"}
    assert {word for statement in plans for word in statement.split()} >= tables
    scans = {
        statement: plan
        for statement, plan in plans.items()
        if any("SCAN" in step for step in plan)
    }
    assert scans == {}
    unindexed = [statement for statement, plan in plans.items() if not _uses_a_key(plan)]
    assert unindexed == []


def _uses_a_key(plan: list[str]) -> bool:
    searches = [step for step in plan if step.startswith("SEARCH")]
    return bool(searches) and all("INDEX" in step or "KEY" in step for step in searches)


def test_a_turn_costs_the_same_with_a_long_history(store: SQLiteConversations) -> None:
    """The history has a hundred thousand messages. The cost is counted in steps of SQLite's
    virtual machine, which do not depend on the computer (I-MS-10).
    """
    create_conversation(store)
    create_conversation(store, OTHER)
    for number in range(10):
        answer_messages(store, f"m{number}")
    with store._database.begin_write() as connection:
        connection.executemany(
            "INSERT INTO messages VALUES (1, ?, 'user', 'body', 1.0, 'sid', '{}')",
            [(seq,) for seq in range(21, 100_021)],
        )
        connection.executemany(
            "INSERT INTO processed VALUES ('chat', ?, ?, ?)",
            [(KEY.primary_channel, f"old{n}", LATER) for n in range(100_000)],
        )
        connection.execute("UPDATE conversations SET message_count = 100020")
        connection.execute("UPDATE conversations SET message_count = 0 WHERE conversation_no=2")
    long = _count_steps(store, lambda: answer_messages(store, "m1", key=KEY))
    short = _count_steps(store, lambda: answer_messages(store, "m1", key=OTHER))
    assert short > 50
    assert long <= 1.2 * short


def _count_steps(store: SQLiteConversations, call: Callable[[], None]) -> int:
    steps: list[int] = []
    with use_connections(store) as connections:
        for connection in connections:
            connection.set_progress_handler(lambda: steps.append(1), 1)  # type: ignore[arg-type]
    call()
    with use_connections(store) as connections:
        for connection in connections:
            connection.set_progress_handler(None, 0)
    return len(steps)


# -- retention


def count_rows(store: SQLiteConversations, table: str) -> int:
    return int(run_sql(store, f"SELECT count(*) FROM {table}")[0][0])


def test_processed_sids_are_forgotten_when_they_expire(
    store: SQLiteConversations,
) -> None:
    """The sids are deleted with later turns (MS-20)."""
    create_conversation(store)
    for number in range(3):
        grant = acquire_grant(store)
        until = NOW + 100.0 * (number + 1)
        store.finish(grant, make_turn(f"m{number}"), now=NOW, remember_until=until)
    sids = {"m0", "m1", "m2"}
    for now, remembered in ((NOW + 100.0, sids), (NOW + 100.5, sids - {"m0"})):
        store.finish(acquire_grant(store), make_turn("x"), now=now, remember_until=LATER)
        assert store.processed(KEY, sids) == remembered
    store.park(
        None, make_parked(make_fragment("y"), parked_at=NOW + 201.0), remember_until=LATER
    )
    assert store.processed(KEY, sids) == {"m2"}


@pytest.mark.requirement("R002-094")
def test_a_staged_row_is_deleted_when_it_expires_and_not_before(
    store: SQLiteConversations,
) -> None:
    """Until then the row can be parked (MS-16, I-MS-1)."""
    create_conversation(store)
    store.stage(make_fragment("old", OTHER), expires_at=NOW + 100.0)
    store.stage(make_fragment("new", OTHER), expires_at=NOW + 200.0)
    for now, left in ((NOW + 100.0, ["new", "old"]), (NOW + 100.5, ["new"])):
        store.finish(acquire_grant(store), make_turn("x"), now=now, remember_until=LATER)
        assert list_staged_sids(store, OTHER) == left


def test_a_turn_forgets_a_bounded_number_of_rows_the_oldest_first(
    store: SQLiteConversations,
) -> None:
    create_conversation(store)
    with store._database.begin_write() as connection:
        connection.executemany(
            "INSERT INTO processed VALUES ('chat', 'x', ?, ?)",
            [(f"old{n:03}", NOW - 1_000.0 + n) for n in range(250)],
        )
        connection.executemany(
            "INSERT INTO stage VALUES ('c', ?, 'x', 'b', 1, 1, '[]', NULL, ?)",
            [(f"old{n:03}", NOW - 1_000.0 + n) for n in range(250)],
        )
    for left in (150, 50, 0):
        answer_messages(store, "m1")
        assert (count_rows(store, "processed") - 1, count_rows(store, "stage")) == (left, left)
        oldest = run_sql(store, "SELECT min(message_sid) FROM stage")[0][0]
        assert oldest == (f"old{250 - left:03}" if left else None)


# -- listings


def test_the_latest_conversations_and_the_oldest_parked_come_first(
    store: SQLiteConversations,
) -> None:
    for number in range(3):
        create_conversation(store, replace(KEY, conversation_id=f"{number}"))
    for number in (1, 0, 2):
        key = replace(KEY, conversation_id=f"{number}")
        grant = acquire_grant(store, key=key)
        now = NOW + 10.0 + number
        store.finish(grant, make_turn("m1"), now=now, remember_until=LATER)
        store.park(
            None, make_parked(make_fragment(f"p{number}"), parked_at=now), remember_until=LATER
        )
    assert [entry.key.conversation_id for entry in store.conversations()] == ["2", "1", "0"]
    assert [entry.sids for entry in store.parked()] == [("p0",), ("p1",), ("p2",)]
