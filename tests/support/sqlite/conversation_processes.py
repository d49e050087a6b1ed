"""Roles of processes that share a conversation store; run as a script: `… ROLE PATH NUMBER`."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from holdfast.chat.errors import LockLost
from holdfast.chat.model import (
    ConversationKey,
    Fragment,
    HistoryMessage,
    LockAcquired,
    LockGrant,
    ParkedBatch,
    Turn,
)
from holdfast.chat.outbox import WritingReply
from holdfast.chat.sqlite_conversations import SQLiteConversations

WAIT_TIMEOUT_SECONDS = 60.0
TURNS = 15
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


def answer_turns(path: Path, number: int) -> None:
    """Answer a number of turns whenever the lock is free, and print the fences.

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
            print("finished", grant.fence, flush=True)
        except LockLost:
            print("lost", grant.fence, flush=True)


def crash_at_each_statement(folder: Path, _: int) -> None:
    """Die at each statement of a call, one after the other, and print how often.

    The stores are named after the calls.
    """
    for name, call in CALLS.items():
        store = SQLiteConversations(folder / name, busy_seconds=WAIT_TIMEOUT_SECONDS)
        grant = acquire_grant(store, "crasher")
        assert grant is not None
        store.note(grant, WritingReply(("m1", "m2")), "thread")
        print(
            _count_deaths(store, lambda store=store, call=call, grant=grant: call(store, grant))
        )


def _count_deaths(store: SQLiteConversations, call: Callable[[], None]) -> int:
    before, deaths = read_everything(store), 0
    while not _has_survived(store, call, deaths):
        deaths += 1
        assert read_everything(store) == before, deaths
    assert read_everything(store) != before
    return deaths


def _has_survived(store: SQLiteConversations, call: Callable[[], None], statement: int) -> bool:
    """Return whether a child that should die at this statement ended before it."""
    child = os.fork()
    if child == 0:
        _die_at(store, statement)
        call()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        assert os.waitstatus_to_exitcode(status) == 0
        return True
    return False


def _finish(store: SQLiteConversations, grant: LockGrant) -> None:
    store.finish(
        grant, make_turn("m1", "m2"), now=NOW, remember_until=LATER, parked_id="parked"
    )


def _park(store: SQLiteConversations, grant: LockGrant) -> None:
    rows = (make_fragment("m1"), make_fragment("m2"))
    store.park(grant, ParkedBatch("new", KEY, "why", NOW, rows), remember_until=LATER)


def _unpark(store: SQLiteConversations, _: LockGrant) -> None:
    store.unpark("parked", back_to_stage=True, now=NOW, expires_at=LATER)


CALLS = {"finish": _finish, "park": _park, "unpark": _unpark}


def read_everything(store: SQLiteConversations) -> object:
    """Return the complete content of the store."""
    return (
        store.get(KEY),
        store.history(KEY),
        sorted(row.message_sid for row in store.staged(KEY.conversation_id)),
        store.processed(KEY, ["m1", "m2", "m3", "m4"]),
        [batch.parked_id for batch in store.parked()],
    )


def _die_at(store: SQLiteConversations, statement: int) -> None:
    statements: list[str] = []

    def trace(sql: str) -> None:
        statements.append(sql)
        if len(statements) > statement + 1:  # the first one ends this transaction
            os.kill(os.getpid(), signal.SIGKILL)

    with store._database.begin_write() as connection:
        connection.set_trace_callback(trace)


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
