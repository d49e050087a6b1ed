"""One scenario for each verb of the SQLite queue, and the workers that come afterwards."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.queue.message import get_lease
from holdfast.testing import ManualClock
from support.files.crash import Ending, die
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
from support.sqlite.queue_file import Queue, QueueFile, find_faults
from support.sqlite.statements import StatementCounter

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
