"""SIGKILL between any two SQL statements of every verb; then a new worker and an audit.

After each kill the file is sound, nothing that was pushed is lost, each transaction of the verb
is in the file as a whole or not at all, each message is in one state, no message has a second
holder, and the log that the killed process left is read, with and without its index.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from holdfast.testing import ManualClock
from support.files.crash import Ending, run_in_child
from support.files.queue_folder import make_message
from support.files.scenarios import Scenario
from support.sqlite.queue_file import QueueFile, find_faults, read_content
from support.sqlite.queue_scenarios import ALL, LATER_SECONDS, TRANSACTIONS, Site, later
from support.sqlite.statements import StatementCounter
from support.waiting import wait_until

ONE_IN = 20  # crashes of the recovery that are tried for each crash of the verb
THREADS = 4
WITHOUT_DEDUPE = [s for s in ALL if not s.options.get("dedupe")]
every_scenario = pytest.mark.parametrize("scenario", ALL, ids=lambda s: s.name)


def kill_at_each_statement(folder: Path, scenario: Scenario) -> list[tuple[Site, str]]:
    """Return what each kill left, and the output of the verb if it had returned.

    At the last of them the verb had returned.
    """
    killed: list[tuple[Site, str]] = []
    while not killed or not killed[-1][1]:
        site = Site(folder / f"{len(killed) + 1}", scenario)
        killed.append((site, site.play(len(killed) + 1).output))
    return killed


@every_scenario
def test_a_kill_at_any_statement_leaves_all_or_nothing(
    fast_path: Path, scenario: Scenario
) -> None:
    killed = kill_at_each_statement(fast_path, scenario)
    assert len(killed) > 1  # at least one statement, before and after it
    contents: list[str] = []
    for site, returned in killed:
        copy = site.copy(site.folder.with_suffix(".at-once"), index=True)
        contents.append(read_content(copy.folder / "work.db"))
        check_no_second_holder(copy)
        allowed = {
            i: {after} if returned else {after, scenario.before[i]}
            for i, after in scenario.after.items()
        }
        site.check(later(), allowed)
        if returned and scenario.checkpoint is not None:
            assert site.checkpoints["a"] == scenario.checkpoint
    # Half a transaction would be one more content of the file.
    assert len(set(contents)) == 1 + TRANSACTIONS.get(scenario.name, 1)


def check_no_second_holder(site: Site) -> None:
    """Check that a worker that comes at once gets nothing that the killed one had claimed."""
    with closing(sqlite3.connect(site.folder / "work.db")) as connection:
        rows = connection.execute("SELECT id, at_ms FROM messages WHERE state = 1").fetchall()
        claimed_ms = connection.execute("SELECT max(claimed_ms) FROM messages").fetchone()[0]
    held = {message_id for message_id, ends_ms in rows if ends_ms > (claimed_ms or 0)}
    clock = ManualClock()
    if claimed_ms:  # the time of the last claim
        clock.advance(claimed_ms / 1000 - clock.time())
    got = {message.id for message in site.ground(clock).queue().poll(10)}
    assert not got & held


@pytest.mark.nightly
@pytest.mark.parametrize("scenario", WITHOUT_DEDUPE, ids=lambda s: s.name)
def test_a_kill_of_the_recovery_too_loses_nothing(fast_path: Path, scenario: Scenario) -> None:
    """Each recovery starts from a copy of what the first kill left, half of them without the
    index of the log, which a reboot removes.
    """
    allowed = {i: {scenario.before[i].ends, scenario.after[i].ends} for i in scenario.after}
    for number, (killed, _) in enumerate(kill_at_each_statement(fast_path, scenario)):
        again_at, is_killed = 1 + number % ONE_IN, True
        while is_killed:
            folder = fast_path / f"{number}-{again_at}"
            site = killed.copy(folder, index=bool(again_at % 2))
            is_killed = site.crash_recovery(again_at)
            clock = later()
            clock.advance(LATER_SECONDS)
            assert find_faults(site.ground(clock).path) == []
            queue = site.recover(clock)
            assert find_faults(site.ground(clock).path) == []
            for message_id, ends in allowed.items():
                assert site.fate(message_id, queue).ends in ends
            again_at += ONE_IN


def test_a_kill_while_a_new_file_is_opened_leaves_a_file_that_can_be_opened(
    fast_path: Path,
) -> None:
    def open_and_push(say: Callable[[str], None]) -> None:
        statements = StatementCounter(kill_at)
        statements.armed = True
        QueueFile(folder).queue().push(make_message("a"))
        say("pushed")

    kill_at, ending = 0, Ending(True, "")
    while ending.killed:
        kill_at += 1
        folder = fast_path / f"{kill_at}"
        ending = run_in_child(open_and_push)
        queue = QueueFile(folder).queue()
        assert queue.stats().ready <= 1
        assert queue.stats().ready or not ending.output
        queue.push(make_message("b"))
        assert find_faults(folder / "work.db") == []
    assert kill_at > 10


def test_a_kill_during_a_shared_commit_loses_nothing_that_returned(fast_path: Path) -> None:
    """Some threads push and some ack. Another process keeps the file locked until all wait, so
    that they share a commit.
    """
    kill_at, ending = 0, Ending(True, "")
    while ending.killed:
        kill_at += 1
        ground = QueueFile(fast_path / f"{kill_at}")
        ground.queue().push_many([make_message(f"old-{n}") for n in range(THREADS)])
        ending = run_in_child(partial(write_together, ground, kill_at))
        returned = ending.output.split()
        assert find_faults(ground.path) == []
        clock = ManualClock()
        clock.advance(LATER_SECONDS)
        states = {
            info.id: info.state.value
            for n in range(THREADS)
            for i in (f"old-{n}", f"new-{n}")
            for info in QueueFile(ground.root, clock).queue().find(i)
        }
        assert all(f"old-{n}" in states for n in range(THREADS))
        for message_id in returned:
            expected = "completed" if message_id.startswith("old") else "pending"
            assert states[message_id] == expected
    assert len(returned) == 2 * THREADS
    assert kill_at > 2 * THREADS


def write_together(ground: QueueFile, kill_at: int, say: Callable[[str], None]) -> None:
    blocker = sqlite3.connect(ground.path, isolation_level=None)
    statements = StatementCounter(kill_at)
    queue = ground.queue()
    old = queue.poll(THREADS)
    blocker.execute("BEGIN IMMEDIATE")
    started: list[str] = []

    def push(message_id: str) -> None:
        started.append(message_id)
        queue.push(make_message(message_id))
        say(f"{message_id} ")

    def ack(message: Any) -> None:
        started.append(message.id)
        queue.ack(message)
        say(f"{message.id} ")

    threads = [Thread(target=push, args=[f"new-{n}"]) for n in range(THREADS)]
    threads += [Thread(target=ack, args=[message]) for message in old]
    statements.armed = True
    for thread in threads:
        thread.start()
    wait_until(lambda: len(started) == len(threads))
    blocker.execute("COMMIT")
    for thread in threads:
        thread.join()
