"""SQLiteConversations among real processes: at once, and killed at any point."""

import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlite_conversations_roles as roles
from sqlite_conversations_roles import KEY, LATER, NOW, PATIENCE_SECONDS, TURNS, fragment

from holdfast.adapters.local.sqlite import SQLiteConversations
from holdfast.conversations.model import Conversation, ParkedBatch, Status

PROCESSES = 3


def begin(role: Callable[..., None], path: Path, number: int) -> Any:
    command = [sys.executable, roles.__file__, role.__name__, str(path), str(number)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def said_by(processes: list[Any]) -> list[str]:
    try:
        said = [process.communicate(timeout=PATIENCE_SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * len(processes)
    return "".join(said).splitlines()


def assert_sound(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_of_many_processes_each_has_the_lock_alone(fast_path: Path) -> None:
    """R002-095, R002-096; MS-07; I-MS-3, I-MS-6: no fence is given twice, no zombie writes,
    and every turn that was finished is in the history once, in pairs."""
    path = fast_path / "conversations.db"
    with SQLiteConversations(path, durability="process") as store:
        store.create(Conversation(KEY))
        said = said_by([begin(roles.answerer, path, n) for n in range(PROCESSES)])
        fences = [int(line.split()[1]) for line in said]
        assert sorted(fences) == list(range(1, PROCESSES * TURNS + 1))
        finished = {f"m{line.split()[1]}" for line in said if line.startswith("finished")}
        history = store.history(KEY, limit=1_000)
        assert Counter(one.message_sid for one in history[::2]) == Counter(finished)
        assert [one.role for one in history] == ["user", "assistant"] * len(finished)
        assert [one.seq for one in history] == list(range(1, 2 * len(finished) + 1))
        assert store.processed(KEY, [f"m{fence}" for fence in fences]) == finished
    assert_sound(path)


def test_killed_at_any_statement_a_call_leaves_all_or_nothing(fast_path: Path) -> None:
    """R002-068; MS-06, MS-09; I-MS-6: history, processed sids, staged rows, outbox, lock and
    what is parked change together."""
    for name in roles.CALLS:
        with SQLiteConversations(fast_path / name) as store:
            store.create(Conversation(KEY))
            parked = ParkedBatch("parked", KEY, "why", NOW, (fragment("m4"),))
            store.park(None, parked, remember_until=LATER)
            for sid in ("m1", "m2", "m3"):
                store.stage(fragment(sid), expires_at=LATER)
    deaths = said_by([begin(roles.crasher, fast_path, 0)])
    assert [int(one) >= 5 for one in deaths] == [True] * 3  # BEGIN, a look, rows, COMMIT
    ended = {name: _end_of(fast_path / name) for name in roles.CALLS}
    assert ended == {
        "finish": (Status.REPLY_SENT, ["m3"], 2, []),
        "park": (Status.PARKED, ["m3"], 0, ["new", "parked"]),
        "unpark": (Status.PROCESSING, ["m1", "m2", "m3", "m4"], 0, []),
    }


def _end_of(path: Path) -> tuple[str, list[str], int, list[str]]:
    assert_sound(path)
    with SQLiteConversations(path) as store:
        found = store.get(KEY)
        assert found is not None
        assert found.message_count == len(store.history(KEY))
        staged = sorted(row.message_sid for row in store.staged(KEY.conversation_id))
        parked = sorted(one.parked_id for one in store.parked())
    return found.status, staged, found.message_count, parked
