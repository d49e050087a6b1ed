"""SIGKILL before every file system call of every verb; then a new worker and an audit.

After each kill, nothing that was pushed is lost, the verb has happened or has not, the task
is in one place, all visible files are complete, dead letters have reasons, the attempts are
right, and a sweep leaves no residue.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from holdfast.testing.clock import ManualClock
from support.files import audit
from support.files.crash import Ending, die
from support.files.queue_folder import Ground, Queue, make_clock, make_message
from support.files.scenarios import SCENARIOS, Done, Scenario, find_fate, work
from support.files.watched import Concerns, CrashingFs, changes
from support.fork_server import run_in_small_child

LATER_SECONDS = 2_000.0  # past every lease and delay of the scenarios
ONE_IN = 2  # crashes of the recovery that are tried for each crash of the verb

every_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)


@dataclass(frozen=True)
class Site:
    """A queue folder that a killed process leaves, and the name of its scenario.

    A child gets the name, because a scenario cannot be pickled.
    """

    folder: Path
    name: str

    @property
    def scenario(self) -> Scenario:
        [scenario] = [scenario for scenario in SCENARIOS if scenario.name == self.name]
        return scenario

    def ground(self, clock: ManualClock) -> Ground:
        return Ground(self.folder, clock, max_attempts=10, **self.scenario.options)

    def play(self, kill_at: int, concerns: Concerns) -> Ending:
        """Prepare, then act until killed before that call; report when it reached the end."""
        return run_in_small_child(partial(self._act_until_killed, kill_at, concerns))

    def _act_until_killed(
        self, kill_at: int, concerns: Concerns, say: Callable[[str], None]
    ) -> None:
        ground = self.ground(make_clock())
        fs = CrashingFs(ground.clock.time, 0, at=kill_at, concerns=concerns)
        queue = ground.queue(fs)
        prepared = self.scenario.prepare(ground, queue)
        fs.refusing = True
        self.scenario.act(queue, prepared)
        fs.refusing = False
        say(str(fs.count))
        die()

    def crash_recovery(self, kill_at: int) -> bool:
        """Return whether the recovery was killed, and did not finish before that call."""
        return run_in_small_child(partial(self._recover_until_killed, kill_at)).killed

    def _recover_until_killed(self, kill_at: int, say: Callable[[str], None]) -> None:
        clock = later()
        fs = CrashingFs(clock.time, 0, at=kill_at, concerns=changes)
        queue = self.ground(clock).queue(fs)
        fs.refusing = True
        work(queue, clock)
        queue.operator.sweep(0)

    def recover(self, clock: ManualClock) -> tuple[Queue, Done]:
        queue = self.ground(clock).queue()
        done = work(queue, clock)
        queue.operator.sweep(0)
        return queue, done

    def find_faults(self) -> dict[str, list[str]]:
        """Find faults, except the file that the scenario itself tore."""
        faults = audit.find_faults(self.ground(later()).folder)
        if self.scenario.tears:
            faults.pop("unreadable", None)
        return faults


def all_calls(name: str, args: object) -> bool:
    return True


def later() -> ManualClock:
    clock = make_clock()
    clock.advance(LATER_SECONDS)
    return clock


def copy_with_links(source: Path, target: Path) -> None:
    """Copy a folder. Names of one file are names of one file in the copy, too."""
    copies: dict[int, str] = {}

    def copy(name: str, copied_name: str) -> None:
        inode = os.stat(name).st_ino
        if inode in copies:
            os.link(copies[inode], copied_name)
        else:
            copies[inode] = shutil.copy2(name, copied_name)

    shutil.copytree(source, target, symlinks=True, copy_function=copy)


def kill_at_each_call(
    folder: Path, scenario: Scenario, concerns: Concerns
) -> Iterator[tuple[Site, bool]]:
    """Yield what is left after each kill, and at last after no kill before the return."""
    calls = int(Site(folder / "count", scenario.name).play(0, concerns).output)
    assert calls or concerns is changes
    for kill_at in range(1, calls + 2):
        site = Site(folder / str(kill_at), scenario.name)
        returned = bool(site.play(kill_at, concerns).output)
        assert returned == (kill_at > calls)
        yield site, returned


def check_books(site: Site, queue: Queue) -> None:
    assert site.find_faults() == {}
    assert audit.find_residue(queue.folder) == []
    # A killed drop has left nothing by which its traces could be found.
    assert site.name.startswith("drop") or audit.find_traces(queue.folder) == []
    assert "leased" not in {state for state, _, _ in audit.list_tasks(queue.folder)}


def check_dead_letters_can_come_back(site: Site, queue: Queue, clock: ManualClock) -> None:
    """Check that each dead letter can be redriven and is delivered, whatever was left."""
    dead = list(queue.dead_letters())
    assert queue.redrive() == len(dead)
    work(queue, clock)
    queue.operator.sweep(0)
    for view in dead:
        if view.id != view.key:  # readable
            assert [v.state.value for v in queue.find(view.id)] == ["completed"]
    check_books(site, queue)


@pytest.mark.requirement("R001-033", "R001-034", "R001-046")
@every_scenario
def test_a_kill_at_any_call_leaves_all_or_nothing(fast_path: Path, scenario: Scenario) -> None:
    for site, returned in kill_at_each_call(fast_path, scenario, all_calls):
        clock = later()
        assert site.find_faults() == {}
        queue, done = site.recover(clock)
        check_books(site, queue)
        for message_id, after in scenario.after.items():
            allowed = {after} if returned else {after, scenario.before[message_id]}
            assert find_fate(queue, message_id, done) in allowed
        if returned and scenario.checkpoint is not None:
            assert done["a"][1] == scenario.checkpoint
        check_dead_letters_can_come_back(site, queue, clock)


DEDUPED = [s for s in SCENARIOS if s.options.get("dedupe") and not s.tears]
every_deduped = pytest.mark.parametrize("scenario", DEDUPED, ids=lambda s: s.name)


@every_deduped
def test_after_a_kill_a_push_of_the_same_id_is_neither_swallowed_nor_doubled(
    fast_path: Path, scenario: Scenario
) -> None:
    """A producer pushes again at once, to be sure, before any sweep."""
    for site, _ in kill_at_each_call(fast_path, scenario, changes):
        clock = later()
        for check_due_at in (float("inf"), 0.0):  # without the check of records, then with it
            pusher = site.ground(clock).queue()
            pusher._housekeeping._id_check_at = check_due_at
            pusher.push(make_message("a"))
            tasks = audit.list_tasks(pusher.folder)
            assert len([state for state, _, _ in tasks if state != "failed"]) == 1
        queue, _ = site.recover(clock)
        states = sorted(view.state.value for view in queue.find("a"))
        assert states in (["completed"], ["completed", "failed"])
        check_books(site, queue)


@every_deduped
def test_after_a_kill_a_dead_letter_can_be_redriven_at_once(
    fast_path: Path, scenario: Scenario
) -> None:
    for site, _ in kill_at_each_call(fast_path, scenario, changes):
        clock = later()
        queue = site.ground(clock).queue()
        dead = list(queue.dead_letters())
        assert queue.redrive() == len(dead)
        site.recover(clock)
        assert list(queue.dead_letters()) == []


@every_deduped
def test_after_a_kill_the_id_of_a_dropped_letter_is_free(
    fast_path: Path, scenario: Scenario
) -> None:
    for site, _ in kill_at_each_call(fast_path, scenario, changes):
        queue = site.ground(later()).queue()
        # The check of records would repair what this test looks for.
        queue._housekeeping._id_check_at = float("inf")
        if queue.drop("a"):
            queue.push(make_message("a"))
            assert [view.state.value for view in queue.find("a")] == ["pending"]


@pytest.mark.nightly
@every_scenario
def test_a_kill_of_the_recovery_too_loses_nothing(fast_path: Path, scenario: Scenario) -> None:
    """The recovery starts from a copy of what the first kill left, to need one kill less."""
    for number, (killed, _) in enumerate(kill_at_each_call(fast_path, scenario, changes), 1):
        again_at = 1 + number % ONE_IN
        while crash_recovery(killed, fast_path / f"{number}-{again_at}", again_at):
            again_at += ONE_IN


def crash_recovery(killed: Site, folder: Path, kill_at: int) -> bool:
    """Crash the recovery of a copy; return False if it has fewer calls than that."""
    copy_with_links(killed.folder, folder)
    site, scenario = Site(folder, killed.name), killed.scenario
    was_killed = site.crash_recovery(kill_at)
    clock = later()
    clock.advance(LATER_SECONDS)
    assert site.find_faults() == {}
    queue, done = site.recover(clock)
    check_books(site, queue)
    for message_id, after in scenario.after.items():
        ends = {after.ends, scenario.before[message_id].ends}
        assert find_fate(queue, message_id, done).ends in ends
    check_dead_letters_can_come_back(site, queue, clock)
    return was_killed
