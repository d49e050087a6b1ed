"""SQLiteConversations with real processes that run at once and are killed at any point."""

import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from holdfast.chat.errors import LockLost
from holdfast.chat.model import (
    Conversation,
    ConversationKey,
    Fragment,
    HistoryMessage,
    LockAcquired,
    LockGrant,
    ParkedBatch,
    Status,
    Turn,
)
from holdfast.chat.outbox import WritingReply
from holdfast.chat.sqlite_conversations import SQLiteConversations
from support.fork_server import SmallChild
from support.sqlite.statements import count_kills

PROCESSES = 3
TURNS = 15
WAIT_TIMEOUT_SECONDS = 60.0
NOW, LATER = 1_000.0, 9_000.0
KEY = ConversationKey("+4915700000001", "chat")


def acquire_grant(
    store: SQLiteConversations, owner: str, expires_at: float = LATER
) -> LockGrant | None:
    """Return the grant of the conversation's lock, or None if another process holds it."""
    outcome = store.acquire(KEY, owner=owner, trigger_id=owner, now=NOW, expires_at=expires_at)
    return outcome.grant if isinstance(outcome, LockAcquired) else None


def make_turn(*sids: str) -> Turn:
    """Return a turn that answers these sids."""
    return Turn(
        sids,
        HistoryMessage("user", f"asked {sids[0]}", NOW, sids[0]),
        HistoryMessage("assistant", f"answer to {sids[0]}", NOW, f"reply to {sids[0]}"),
        *("thread", "mark", 1, 1),
    )


def make_fragment(sid: str) -> Fragment:
    """Return a fragment with this sid."""
    return Fragment(KEY, sid, f"text of {sid}", NOW, NOW)


def assert_sound(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def answer_turns(path: Path, number: int, say: Callable[[str], None]) -> None:
    """Answer a number of turns whenever the lock is free, and report the fences.

    Every third lock expires as soon as it is taken, so another process may take it over before
    this one finishes.
    """
    store = SQLiteConversations(path, durability="process", busy_seconds=WAIT_TIMEOUT_SECONDS)
    turns = tries = 0
    while turns < TURNS:
        tries += 1
        expires = turns % 3 == 2
        grant = acquire_grant(store, f"{number}-{tries}", NOW if expires else LATER)
        if grant is None:
            continue
        turns += 1
        try:
            sid = f"m{grant.fence}"
            store.finish(grant, make_turn(sid), now=NOW, remember_until=LATER)
            say(f"finished {grant.fence}\n")
        except LockLost:
            say(f"lost {grant.fence}\n")


@pytest.mark.requirement("R002-095", "R002-096")
def test_only_one_of_many_processes_holds_the_lock(fast_path: Path) -> None:
    """No fence is given twice, no stale holder writes, and every finished
    turn is in the history once, in pairs (MS-07, I-MS-3, I-MS-6).
    """
    path = fast_path / "conversations.db"
    with SQLiteConversations(path, durability="process") as store:
        store.create(Conversation(KEY))
        processes = [SmallChild(partial(answer_turns, path, n)) for n in range(PROCESSES)]
        endings = [ending for process in processes if (ending := process.wait_for_stop())]
        lines = [line for ending in endings for line in ending.output.splitlines()]
        fences = [int(line.split()[1]) for line in lines]
        assert sorted(fences) == list(range(1, PROCESSES * TURNS + 1))
        finished = {f"m{line.split()[1]}" for line in lines if line.startswith("finished")}
        history = store.history(KEY, limit=1_000)
        assert Counter(message.message_sid for message in history[::2]) == Counter(finished)
        assert [message.role for message in history] == ["user", "assistant"] * len(finished)
        assert [message.seq for message in history] == list(range(1, 2 * len(finished) + 1))
        assert store.processed(KEY, [f"m{fence}" for fence in fences]) == finished
    assert_sound(path)


def finish(store: SQLiteConversations, grant: LockGrant) -> None:
    store.finish(
        grant, make_turn("m1", "m2"), now=NOW, remember_until=LATER, parked_id="parked"
    )


def park(store: SQLiteConversations, grant: LockGrant) -> None:
    rows = (make_fragment("m1"), make_fragment("m2"))
    store.park(grant, ParkedBatch("new", KEY, "why", NOW, rows), remember_until=LATER)


def unpark(store: SQLiteConversations, _: LockGrant) -> None:
    store.unpark("parked", back_to_stage=True, now=NOW, expires_at=LATER)


@pytest.mark.requirement("R002-068")
@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (finish, (Status.REPLY_SENT, ["m3"], 2, [])),
        (park, (Status.PARKED, ["m3"], 0, ["new", "parked"])),
        (unpark, (Status.PROCESSING, ["m1", "m2", "m3", "m4"], 0, [])),
    ],
)
def test_killed_at_any_statement_a_call_leaves_all_or_nothing(
    fast_path: Path,
    call: Callable[[SQLiteConversations, LockGrant], None],
    expected: tuple[Status, list[str], int, list[str]],
) -> None:
    """History, processed sids, staged rows, outbox, lock and parked batches change
    together (MS-06, MS-09, I-MS-6).
    """
    path = fast_path / "conversations.db"
    with SQLiteConversations(path) as store:
        store.create(Conversation(KEY))
        parked = ParkedBatch("parked", KEY, "why", NOW, (make_fragment("m4"),))
        store.park(None, parked, remember_until=LATER)
        for sid in ("m1", "m2", "m3"):
            store.stage(make_fragment(sid), expires_at=LATER)
        grant = acquire_grant(store, "crasher")
        assert grant is not None
        store.note(grant, WritingReply(("m1", "m2")), "thread")
        before = read_everything(store)

        def check() -> None:
            assert read_everything(store) == before

        kills = count_kills(store._database, lambda: call(store, grant), check)
        assert kills >= 5  # BEGIN, a read, rows, COMMIT
        assert_sound(path)
        conversation = store.get(KEY)
        assert conversation is not None
        assert conversation.message_count == len(store.history(KEY))
        staged = sorted(row.message_sid for row in store.staged(KEY.conversation_id))
        batches = sorted(batch.parked_id for batch in store.parked())
    assert (conversation.status, staged, conversation.message_count, batches) == expected


def read_everything(store: SQLiteConversations) -> object:
    """Return the complete content of the store."""
    return (
        store.get(KEY),
        store.history(KEY),
        sorted(row.message_sid for row in store.staged(KEY.conversation_id)),
        store.processed(KEY, ["m1", "m2", "m3", "m4"]),
        [batch.parked_id for batch in store.parked()],
    )
