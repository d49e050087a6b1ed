"""Every verb is killed between any two SQL statements, or meets a disk that is full or fails.

After each kill the file is sound, nothing that was pushed is lost, each transaction of the verb
is in the file as a whole or not at all, each message is in one state, no message has a second
holder, and the log that the killed process left is read, with and without its index.

A verb whose disk fails raises QueueUnavailable, and nothing is half done.
"""

import re
import shutil
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from holdfast.errors import QueueUnavailable
from holdfast.queue.message import get_lease
from holdfast.testing import ManualClock
from support.disks import mounted
from support.files.crash import Ending, die, run_in_child
from support.files.queue_folder import LEASE, make_message
from support.files.scenarios import (
    ABSENT,
    DEAD,
    DONE,
    SCENARIOS,
    Fate,
    Scenario,
    delivered,
    used_up,
)
from support.fork_server import run_in_small_child
from support.sqlite.disk import FOLDER, IOERR_FSYNC, Disk, Op, watch
from support.sqlite.queue_file import Queue, QueueFile, find_faults
from support.sqlite.statements import StatementCounter
from support.waiting import wait_until

SQLITE_FULL = 13
LATER_SECONDS = 2_000.0  # past every lease and delay of the scenarios
MANY_ATTEMPTS = 10
OF_FILES_ONLY = {"take over from another host", "watch another host", "sweep"}


# -- scenarios with batches, because a batch is one transaction here


def held_batch(ground: QueueFile, queue: Queue) -> list[Any]:
    queue.push_many([make_message(i) for i in "abc"])
    batch = queue.poll(3)
    queue.nack(batch[0], delay_seconds=0)
    batch[:1] = queue.poll(1)
    queue.save_checkpoint(batch[0], {"page": 1})
    return batch


def mixed(ground: QueueFile, queue: Queue) -> None:
    """Prepare a message without attempts left, one to take over, a torn one and a new one."""
    queue.push(make_message("b"))
    ground.queue(lease_seconds=MANY_ATTEMPTS * LEASE).poll()
    used_up(ground, queue)
    queue.push_many([make_message("c"), make_message("d")])
    ground.tear("c")


def renew_batch(queue: Queue, messages: list[Any]) -> None:
    queue.renew([get_lease(message) for message in messages], 2 * LEASE)


BATCH = {"a": delivered(3), "b": delivered(2), "c": delivered(2)}
BATCHES = (
    Scenario("renew a batch", held_batch, renew_batch, BATCH, BATCH),
    Scenario(
        "ack a batch",
        held_batch,
        lambda q, batch: q.ack_many(batch),
        BATCH,
        dict.fromkeys("abc", DONE),
    ),
    Scenario(
        "claim all kinds",
        mixed,
        lambda q, _: q.poll(10),
        {"a": DEAD, "b": delivered(2), "c": DEAD, "d": delivered(1)},
        {"a": DEAD, "b": delivered(3), "c": DEAD, "d": delivered(2)},
    ),
)
# A verb is one transaction. A poll may be several, because it registers its worker, claims what
# is due, takes over what has expired, and settles each message that must not be delivered.
TRANSACTIONS = {
    "push again with dedupe": 0,
    "claim": 2,
    "take over": 2,
    "dead-letter the used up": 3,
    "dead-letter the torn": 2,
    "dead-letter the torn with dedupe": 2,
    "give back the newer": 2,
    "claim all kinds": 5,
}
ALL = (*(s for s in SCENARIOS if s.name not in OF_FILES_ONLY), *BATCHES)


def later() -> ManualClock:
    clock = ManualClock()
    clock.advance(LATER_SECONDS)
    return clock


@dataclass
class Site:
    """One file, its scenario, and the workers that come afterwards."""

    folder: Path
    scenario: Scenario
    attempts: dict[str, int] = field(default_factory=dict)
    checkpoints: dict[str, Any] = field(default_factory=dict)

    def ground(self, clock: ManualClock) -> QueueFile:
        return QueueFile(
            self.folder, clock, max_attempts=MANY_ATTEMPTS, **self.scenario.options
        )

    def copy(self, folder: Path, *, index: bool) -> "Site":
        """Copy what a killed process left, with or without the index of the log."""
        ignored = [] if index else ["*-shm"]
        shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns(*ignored))
        return Site(folder, self.scenario)

    def play(self, kill_at: int) -> Ending:
        """Prepare, then act until killed before that statement; report if it returned."""
        return run_in_small_child(partial(_play, self.folder, self.scenario.name, kill_at))

    def crash_recovery(self, kill_at: int) -> bool:
        """Return whether the recovery was killed, and did not finish before that statement."""
        play = partial(_recover, self.folder, self.scenario.name, kill_at)
        return run_in_small_child(play).killed

    def recover(self, clock: ManualClock) -> Queue:
        queue = self.ground(clock).queue()
        for _ in range(2):
            for message in queue.poll(10):
                self.attempts[message.id] = message.attempts
                self.checkpoints[message.id] = queue.load_checkpoint(message)
                queue.ack(message)
            clock.advance(LEASE + 1.0)
        return queue

    def fate(self, message_id: str, queue: Queue) -> Fate:
        infos = queue.find(message_id)
        assert len(infos) <= 1, f"{message_id!r} is there {len(infos)} times"
        return Fate(self.attempts.get(message_id), infos[0].state.value) if infos else ABSENT

    def check(self, clock: ManualClock, allowed: Mapping[str, set[Fate]]) -> None:
        """Check what a new worker finds."""
        assert find_faults(self.ground(clock).path) == []
        queue = self.recover(clock)
        assert find_faults(self.ground(clock).path) == []
        assert queue.stats().leased == 0
        for message_id, fates in allowed.items():
            assert self.fate(message_id, queue) in fates


# What a child runs gets the name of a scenario, because a scenario cannot be pickled.


def _play(folder: Path, name: str, kill_at: int, say: Callable[[str], None]) -> None:
    site, statements = Site(folder, _find_scenario(name)), StatementCounter(kill_at)
    ground = site.ground(ManualClock())
    queue = ground.queue()
    prepared = site.scenario.prepare(ground, queue)
    statements.armed = True
    site.scenario.act(queue, prepared)
    statements.armed = False
    say("returned")
    die()


def _recover(folder: Path, name: str, kill_at: int, say: Callable[[str], None]) -> None:
    statements = StatementCounter(kill_at)
    statements.armed = True  # opening the file is part of the recovery
    Site(folder, _find_scenario(name)).recover(later())


def _find_scenario(name: str) -> Scenario:
    [scenario] = [scenario for scenario in ALL if scenario.name == name]
    return scenario


# -- kills

ONE_IN = 20  # crashes of the recovery that are tried for each crash of the verb
THREADS = 4
WITHOUT_DEDUPE = [s for s in ALL if not s.options.get("dedupe")]
every_scenario = pytest.mark.parametrize("scenario", ALL, ids=lambda s: s.name)


def read_content(path: Path) -> str:
    """Return all tables and rows, without process ids and the times of real clocks.

    So two processes that do the same leave the same content.
    """
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "UPDATE workers SET pid = 0, worker_id = replace(worker_id, '-' || pid || '-', '-')"
        )
        content = "\n".join(connection.iterdump())  # the change is not committed
    return re.sub('"created_at":"[^"]*"', "", content)


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


# -- a disk that fails


class FailingCall:
    """Fails the call of this number, and those after it as long as the disk `stays_full`."""

    def __init__(self, number: int, *, stays_full: bool) -> None:
        self._number, self._stays_full = number, stays_full
        self.count = 0

    def __call__(self, op: Op) -> int:
        if op.kind == "delete" or op.name == FOLDER:
            return 0
        self.count += 1
        if self.count == self._number or (self._stays_full and self.count > self._number):
            return IOERR_FSYNC if op.kind == "sync" else SQLITE_FULL
        return 0


def fail_at_each_call(folder: Path, scenario: Scenario, check: Callable[..., None]) -> int:
    """Let each call of the verb to the disk fail in turn; return how many there were."""
    number, reached = 0, True
    while reached:
        number += 1
        site = Site(folder / f"{number}", scenario)
        with watch(site.folder) as disk:
            ground = site.ground(ManualClock())
            queue = ground.queue(durability="power")
            prepared = scenario.prepare(ground, queue)
            failing = FailingCall(number, stays_full=bool(number % 2))
            error = act(disk, failing, lambda q=queue, p=prepared: scenario.act(q, p))
            reached = failing.count >= number
            # A poll that delivers other messages does not raise.
            assert bool(error) == reached or scenario.name == "claim all kinds"
            assert not error or "disk" in error
            check(site, queue, bool(error))
            queue.close()
    return number - 1


def act(disk: Disk, failing: FailingCall, verb: Callable[[], object]) -> str:
    """Return the text of the QueueUnavailable that the verb raised, or nothing."""
    disk.fail = failing
    try:
        verb()
    except QueueUnavailable as error:
        return str(error)
    finally:
        disk.fail = lambda op: 0
    return ""


def check_goes_on(site: Site, queue: Queue, raised: bool) -> None:
    """Check that the same queue goes on, and that a new worker finds all or nothing."""
    queue.push(make_message("after"))
    queue.poll(10)
    [info] = queue.find("after")
    assert info.state.value == "leased"
    scenario = site.scenario
    assert find_faults(queue._database.path) == []
    ends = {
        i: {after.ends, scenario.before[i].ends} if raised else {after.ends}
        for i, after in scenario.after.items()
    }
    queue = site.recover(later())
    for message_id, allowed in ends.items():
        assert site.fate(message_id, queue).ends in allowed


@pytest.mark.parametrize(
    "scenario", [s for s in ALL if not s.options.get("dedupe")], ids=lambda s: s.name
)
def test_a_verb_whose_disk_fails_has_happened_or_not(
    fast_path: Path, scenario: Scenario
) -> None:
    assert fail_at_each_call(fast_path, scenario, check_goes_on) >= 3


def test_a_claim_whose_disk_fails_holds_nothing_that_it_does_not_deliver(
    fast_path: Path,
) -> None:
    number, reached = 0, True
    while reached:
        number += 1
        with watch(fast_path / f"{number}") as disk:
            ground = QueueFile(fast_path / f"{number}")
            queue = ground.queue()
            queue.push(make_message("expired"))
            queue.poll()
            ground.clock.advance(LEASE + 1)
            queue.push(make_message("due"))
            failing = FailingCall(number, stays_full=True)
            error = act(disk, failing, lambda q=queue: q.poll(2))
            reached = failing.count >= number
            fences = [queue.find(message_id)[0].fence for message_id in ("expired", "due")]
            assert not error or fences == [1, 0]
            queue.close()


# -- a disk that is really full


def test_a_full_disk_stops_every_verb_until_there_is_space_again(fast_path: Path) -> None:
    with mounted(fast_path / "small", "-t", "tmpfs", "-o", "size=1m", "small"):
        use_full_disk(QueueFile(fast_path / "small"))


def use_full_disk(ground: QueueFile) -> None:
    queue, other = ground.queue(), ground.queue()
    queue.push_many([make_message(i) for i in "abcdef"])
    held = queue.poll(3)
    filler = ground.root / "filler"
    filler.write_bytes(bytes(300_000))
    pushed = push_until_full(queue)
    before = queue.stats()
    assert before.ready == 3 + pushed
    verbs: dict[str, Callable[[], Any]] = {
        "push": lambda: other.push(make_message("x", text="x" * 10_000)),
        "push_many": lambda: other.push_many([make_message(f"{n}") for n in range(200)]),
        "claim": lambda: other.poll(100),
        "ack": lambda: queue.ack_many(held),
        "nack": lambda: queue.nack(held[0]),
        "release": lambda: queue.release(held[1]),
        "dead_letter": lambda: queue.dead_letter(held[2], "no use"),
        "checkpoint": lambda: queue.save_checkpoint(held[0], "x" * 10_000),
    }
    for name, verb in verbs.items():
        with pytest.raises(QueueUnavailable, match="disk"):
            verb()
        assert queue.stats() == before, name
    filler.unlink()
    queue.ack(held[0])
    assert len(other.poll(3)) == 3
    assert find_faults(ground.path) == []
    assert (queue.stats().completed, queue.stats().leased) == (1, 5)


def push_until_full(queue: Queue) -> int:
    for number in range(1_000):
        try:
            queue.push(make_message(f"filler-{number}"))
        except QueueUnavailable:
            return number
    raise AssertionError("the disk never became full")
