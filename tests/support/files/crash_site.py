"""A queue folder that a killed process left, and the workers that come afterwards."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.testing.clock import ManualClock
from support.files.copies import copy_with_links
from support.files.crash import CrashingFs, Ending, die
from support.files.queue_folder import LEASE, Ground, Queue, make_clock
from support.files.scenarios import ABSENT, SCENARIOS, Fate, Scenario
from support.fork_server import run_in_small_child

LATER_SECONDS = 2_000.0  # past every lease and delay of the scenarios
MANY_ATTEMPTS = 10


def later() -> ManualClock:
    clock = make_clock()
    clock.advance(LATER_SECONDS)
    return clock


@dataclass
class Site:
    """One folder, its scenario, and the workers that come afterwards."""

    folder: Path
    scenario: Scenario
    attempts: dict[str, int] = field(default_factory=dict)
    checkpoints: dict[str, Any] = field(default_factory=dict)

    def ground(self, clock: ManualClock) -> Ground:
        options = self.scenario.options
        return Ground(self.folder, clock, max_attempts=MANY_ATTEMPTS, **options)

    def copy(self, folder: Path) -> "Site":
        copy_with_links(self.folder, folder)
        return Site(folder, self.scenario)

    def play(self, kill_at: int | None, *, changes_only: bool = False) -> Ending:
        """Prepare, then act until killed before that call; report when it reached the end."""
        play = partial(_play, self.folder, self.scenario.name, kill_at, changes_only)
        return run_in_small_child(play)

    def act_until_killed(
        self, kill_at: int | None, changes_only: bool, say: Callable[[str], None]
    ) -> None:
        """In the child: prepare and act; say the number of calls at the end."""
        ground = self.ground(make_clock())
        fs = CrashingFs(ground.clock.time, kill_at, changes_only=changes_only)
        queue = ground.queue(fs)
        prepared = self.scenario.prepare(ground, queue)
        fs.armed = True
        self.scenario.act(queue, prepared)
        fs.armed = False
        say(str(fs.count))
        die()

    def crash_recovery(self, kill_at: int) -> bool:
        """Return whether the recovery was killed, and did not finish before that call."""
        play = partial(_recover, self.folder, self.scenario.name, kill_at)
        return run_in_small_child(play).killed

    def recover_until_killed(self, kill_at: int) -> None:
        """In the child: recover as the next worker."""
        clock = later()
        fs = CrashingFs(clock.time, kill_at, changes_only=True)
        queue = self.ground(clock).queue(fs)
        fs.armed = True
        self.work(queue, clock)

    def recover(self, clock: ManualClock) -> Queue:
        queue = self.ground(clock).queue()
        self.work(queue, clock)
        return queue

    def work(self, queue: Queue, clock: ManualClock) -> None:
        """Take and complete all messages, then sweep."""
        for _ in range(3):
            for message in queue.poll(10):
                self.attempts[message.id] = message.attempts
                self.checkpoints[message.id] = queue.load_checkpoint(message)
                queue.ack(message)
            clock.advance(LEASE + 1.0)  # a lease that has to be watched is taken over, too
        queue.operator.sweep(0)

    def fate(self, message_id: str, queue: Queue) -> Fate:
        views = queue.find(message_id) or [
            view
            for view in queue.dead_letters()
            if view.id == view.key  # unreadable
        ]
        assert len(views) <= 1, f"{message_id!r} is there {len(views)} times"
        if not views:
            return ABSENT
        return Fate(self.attempts.get(message_id), views[0].state.value)

    def ends_in(self) -> dict[str, set[str | None]]:
        before, after = self.scenario.before, self.scenario.after
        return {i: {before[i].ends, after[i].ends} for i in after}


# What a child runs gets the name of a scenario, because a scenario cannot be pickled.


def _play(
    folder: Path,
    name: str,
    kill_at: int | None,
    changes_only: bool,
    say: Callable[[str], None],
) -> None:
    Site(folder, _find_scenario(name)).act_until_killed(kill_at, changes_only, say)


def _recover(folder: Path, name: str, kill_at: int, say: Callable[[str], None]) -> None:
    Site(folder, _find_scenario(name)).recover_until_killed(kill_at)


def _find_scenario(name: str) -> Scenario:
    [scenario] = [scenario for scenario in SCENARIOS if scenario.name == name]
    return scenario
