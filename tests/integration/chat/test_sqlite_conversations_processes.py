"""SQLiteConversations with real processes that run at once and are killed at any point."""

import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.chat.model import Conversation, ParkedBatch, Status
from holdfast.chat.sqlite_conversations import SQLiteConversations
from support.sqlite import conversation_processes as roles
from support.sqlite.conversation_processes import (
    KEY,
    LATER,
    NOW,
    TURNS,
    WAIT_TIMEOUT_SECONDS,
    make_fragment,
)

PROCESSES = 3


def start_role(role: Callable[..., None], path: Path, number: int) -> Any:
    command = [sys.executable, roles.__file__, role.__name__, str(path), str(number)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def collect_output(processes: list[Any]) -> list[str]:
    try:
        outputs = [
            process.communicate(timeout=WAIT_TIMEOUT_SECONDS)[0] for process in processes
        ]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * len(processes)
    return "".join(outputs).splitlines()


def assert_sound(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.requirement("R002-095", "R002-096")
def test_only_one_of_many_processes_holds_the_lock(fast_path: Path) -> None:
    """No fence is given twice, no stale holder writes, and every finished
    turn is in the history once, in pairs (MS-07, I-MS-3, I-MS-6).
    """
    path = fast_path / "conversations.db"
    with SQLiteConversations(path, durability="process") as store:
        store.create(Conversation(KEY))
        lines = collect_output(
            [start_role(roles.answer_turns, path, n) for n in range(PROCESSES)]
        )
        fences = [int(line.split()[1]) for line in lines]
        assert sorted(fences) == list(range(1, PROCESSES * TURNS + 1))
        finished = {f"m{line.split()[1]}" for line in lines if line.startswith("finished")}
        history = store.history(KEY, limit=1_000)
        assert Counter(message.message_sid for message in history[::2]) == Counter(finished)
        assert [message.role for message in history] == ["user", "assistant"] * len(finished)
        assert [message.seq for message in history] == list(range(1, 2 * len(finished) + 1))
        assert store.processed(KEY, [f"m{fence}" for fence in fences]) == finished
    assert_sound(path)


@pytest.mark.requirement("R002-068")
def test_killed_at_any_statement_a_call_leaves_all_or_nothing(fast_path: Path) -> None:
    """History, processed sids, staged rows, outbox, lock and parked batches change
    together (MS-06, MS-09, I-MS-6).
    """
    for name in roles.CALLS:
        with SQLiteConversations(fast_path / name) as store:
            store.create(Conversation(KEY))
            parked = ParkedBatch("parked", KEY, "why", NOW, (make_fragment("m4"),))
            store.park(None, parked, remember_until=LATER)
            for sid in ("m1", "m2", "m3"):
                store.stage(make_fragment(sid), expires_at=LATER)
    deaths = collect_output([start_role(roles.crash_at_each_statement, fast_path, 0)])
    assert [int(count) >= 5 for count in deaths] == [True] * 3  # BEGIN, a read, rows, COMMIT
    ended = {name: _read_end(fast_path / name) for name in roles.CALLS}
    assert ended == {
        "finish": (Status.REPLY_SENT, ["m3"], 2, []),
        "park": (Status.PARKED, ["m3"], 0, ["new", "parked"]),
        "unpark": (Status.PROCESSING, ["m1", "m2", "m3", "m4"], 0, []),
    }


def _read_end(path: Path) -> tuple[str, list[str], int, list[str]]:
    assert_sound(path)
    with SQLiteConversations(path) as store:
        conversation = store.get(KEY)
        assert conversation is not None
        assert conversation.message_count == len(store.history(KEY))
        staged = sorted(row.message_sid for row in store.staged(KEY.conversation_id))
        parked = sorted(batch.parked_id for batch in store.parked())
    return conversation.status, staged, conversation.message_count, parked
