"""Processes that share a store of conversations; run as a script: `… ROLE PATH NUMBER`."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from holdfast.adapters.local.sqlite import SQLiteConversations
from holdfast.conversations.errors import LockLost
from holdfast.conversations.model import (
    ConversationKey,
    Fragment,
    HistoryMessage,
    LockAcquired,
    LockGrant,
    ParkedBatch,
    Turn,
)
from holdfast.conversations.outbox import WritingReply

PATIENCE_SECONDS = 60.0
TURNS = 15
NOW, LATER = 1_000.0, 9_000.0
KEY = ConversationKey("+4915700000001", "chat")


def taken(
    store: SQLiteConversations, owner: str, expires_at: float = LATER
) -> LockGrant | None:
    said = store.acquire(KEY, owner=owner, trigger_id=owner, now=NOW, expires_at=expires_at)
    return said.grant if isinstance(said, LockAcquired) else None


def turn_of(*sids: str) -> Turn:
    return Turn(
        sids,
        HistoryMessage("user", f"asked {sids[0]}", NOW, sids[0]),
        HistoryMessage("assistant", f"answer to {sids[0]}", NOW, f"reply to {sids[0]}"),
        *("thread", "mark", 1, 1),
    )


def fragment(sid: str) -> Fragment:
    return Fragment(KEY, sid, f"text of {sid}", NOW, NOW)


def answerer(path: Path, number: int) -> None:
    """Answer so many turns, whenever the lock is free; say the fences. Every third lock has
    run out as soon as it is taken: another one may be faster than the finish."""
    store = SQLiteConversations(path, durability="process", busy_seconds=PATIENCE_SECONDS)
    turns = tries = 0
    while turns < TURNS:
        tries += 1
        runs_out = turns % 3 == 2
        grant = taken(store, f"{number}-{tries}", NOW if runs_out else LATER)
        if grant is None:
            continue
        turns += 1
        try:
            sid = f"m{grant.fence}"
            store.finish(grant, turn_of(sid), now=NOW, remember_until=LATER)
            print("finished", grant.fence, flush=True)
        except LockLost:
            print("lost", grant.fence, flush=True)


def crasher(folder: Path, _: int) -> None:
    """Die at each statement of a call, one after the other; say how often. The stores are
    named after the calls."""
    for name, call in CALLS.items():
        store = SQLiteConversations(folder / name, busy_seconds=PATIENCE_SECONDS)
        grant = taken(store, "crasher")
        assert grant is not None
        store.note(grant, WritingReply(("m1", "m2")), "thread")
        print(_deaths(store, lambda store=store, call=call, grant=grant: call(store, grant)))


def _deaths(store: SQLiteConversations, call: Callable[[], None]) -> int:
    before, deaths = seen(store), 0
    while not _survives(store, call, deaths):
        deaths += 1
        assert seen(store) == before, deaths
    assert seen(store) != before
    return deaths


def _survives(store: SQLiteConversations, call: Callable[[], None], statement: int) -> bool:
    """Whether a child that is to die at this statement came to its end before."""
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
    store.finish(grant, turn_of("m1", "m2"), now=NOW, remember_until=LATER, parked_id="parked")


def _park(store: SQLiteConversations, grant: LockGrant) -> None:
    rows = (fragment("m1"), fragment("m2"))
    store.park(grant, ParkedBatch("new", KEY, "why", NOW, rows), remember_until=LATER)


def _unpark(store: SQLiteConversations, _: LockGrant) -> None:
    store.unpark("parked", back_to_stage=True, now=NOW, expires_at=LATER)


CALLS = {"finish": _finish, "park": _park, "unpark": _unpark}


def seen(store: SQLiteConversations) -> object:
    """All there is."""
    return (
        store.get(KEY),
        store.history(KEY),
        sorted(row.message_sid for row in store.staged(KEY.conversation_id)),
        store.processed(KEY, ["m1", "m2", "m3", "m4"]),
        [one.parked_id for one in store.parked()],
    )


def _die_at(store: SQLiteConversations, statement: int) -> None:
    run: list[str] = []

    def trace(sql: str) -> None:
        run.append(sql)
        if len(run) > statement + 1:  # the first is the end of this very transaction
            os.kill(os.getpid(), signal.SIGKILL)

    with store._database.reading() as connection:
        connection.set_trace_callback(trace)


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
