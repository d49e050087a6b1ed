"""SIGKILL before every file system call of every verb; then a new worker and an audit.

After each kill, nothing that was pushed is lost, the verb has happened or has not, the task
is in one place, all visible files are complete, dead letters have reasons, the attempts are
right, and a sweep leaves no residue.
"""

from pathlib import Path

import pytest

from holdfast.testing.clock import ManualClock
from support.files import audit
from support.files.crash_site import LATER_SECONDS, Site, later
from support.files.queue_folder import Queue, make_message
from support.files.scenarios import SCENARIOS, Scenario

ONE_IN = 2  # crashes of the recovery that are tried for each crash of the verb

every_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)


def faults(site: Site, folder: Path) -> dict[str, list[str]]:
    """Find faults, except the file that the scenario itself tore."""
    faults_found = audit.find_faults(folder)
    if site.scenario.tears:
        faults_found.pop("unreadable", None)
    return faults_found


def check_books(site: Site, queue: Queue) -> None:
    assert faults(site, queue.folder) == {}
    assert audit.find_residue(queue.folder) == []
    # A killed drop has left nothing by which its traces could be found.
    assert site.scenario.name.startswith("drop") or audit.find_traces(queue.folder) == []
    assert "leased" not in {state for state, _, _ in audit.list_tasks(queue.folder)}


def check_dead_letters_can_come_back(site: Site, queue: Queue, clock: ManualClock) -> None:
    """Check that each dead letter can be redriven and is delivered, whatever was left."""
    dead = list(queue.dead_letters())
    assert queue.redrive() == len(dead)
    site.work(queue, clock)
    for view in dead:
        if view.id != view.key:  # readable
            assert [v.state.value for v in queue.find(view.id)] == ["completed"]
    check_books(site, queue)


@pytest.mark.requirement("R001-033", "R001-034", "R001-046")
@every_scenario
def test_a_kill_at_any_call_leaves_all_or_nothing(fast_path: Path, scenario: Scenario) -> None:
    calls = int(Site(fast_path / "count", scenario).play(None).output)
    assert calls >= 1
    for kill_at in range(1, calls + 2):
        site = Site(fast_path / str(kill_at), scenario)
        returned = bool(site.play(kill_at).output)
        assert returned == (kill_at > calls)
        check_recovered(site, returned)


def check_recovered(site: Site, returned: bool) -> None:
    clock, scenario = later(), site.scenario
    assert faults(site, site.ground(clock).folder) == {}
    queue = site.recover(clock)
    check_books(site, queue)
    for message_id, after in scenario.after.items():
        allowed = {after} if returned else {after, scenario.before[message_id]}
        assert site.fate(message_id, queue) in allowed
    if returned and scenario.checkpoint is not None:
        assert site.checkpoints["a"] == scenario.checkpoint
    check_dead_letters_can_come_back(site, queue, clock)


DEDUPED = [s for s in SCENARIOS if s.options.get("dedupe") and not s.tears]


@pytest.mark.parametrize("scenario", DEDUPED, ids=lambda s: s.name)
def test_after_a_kill_a_push_of_the_same_id_is_neither_swallowed_nor_doubled(
    fast_path: Path, scenario: Scenario
) -> None:
    """A producer pushes again at once, to be sure, before any sweep."""
    calls = int(Site(fast_path / "count", scenario).play(None, changes_only=True).output)
    for kill_at in range(1, calls + 2):
        site, clock = Site(fast_path / str(kill_at), scenario), later()
        site.play(kill_at, changes_only=True)
        for check_due_at in (float("inf"), 0.0):  # without the check of records, then with it
            pusher = site.ground(clock).queue()
            pusher._producer._record_check._due_at = check_due_at
            pusher.push(make_message("a"))
            live = [
                state for state, _, _ in audit.list_tasks(pusher.folder) if state != "failed"
            ]
            assert len(live) == 1
        queue = site.recover(clock)
        states = sorted(view.state.value for view in queue.find("a"))
        assert states in (["completed"], ["completed", "failed"])
        check_books(site, queue)


@pytest.mark.parametrize("scenario", DEDUPED, ids=lambda s: s.name)
def test_after_a_kill_a_dead_letter_can_be_redriven_at_once(
    fast_path: Path, scenario: Scenario
) -> None:
    calls = int(Site(fast_path / "count", scenario).play(None, changes_only=True).output)
    for kill_at in range(1, calls + 2):
        site, clock = Site(fast_path / str(kill_at), scenario), later()
        site.play(kill_at, changes_only=True)
        queue = site.ground(clock).queue()
        dead = list(queue.dead_letters())
        assert queue.redrive() == len(dead)
        site.recover(clock)
        assert list(queue.dead_letters()) == []


@pytest.mark.parametrize("scenario", DEDUPED, ids=lambda s: s.name)
def test_after_a_kill_the_id_of_a_dropped_letter_is_free(
    fast_path: Path, scenario: Scenario
) -> None:
    calls = int(Site(fast_path / "count", scenario).play(None, changes_only=True).output)
    for kill_at in range(1, calls + 2):
        site, clock = Site(fast_path / str(kill_at), scenario), later()
        site.play(kill_at, changes_only=True)
        queue = site.ground(clock).queue()
        # The check of records would repair what this test looks for.
        queue._producer._record_check._due_at = float("inf")
        if queue.drop("a"):
            queue.push(make_message("a"))
            assert [view.state.value for view in queue.find("a")] == ["pending"]


@pytest.mark.nightly
@every_scenario
def test_a_kill_of_the_recovery_too_loses_nothing(fast_path: Path, scenario: Scenario) -> None:
    """The recovery starts from a copy of what the first kill left, to need one kill less."""
    calls = int(Site(fast_path / "count", scenario).play(None, changes_only=True).output)
    for kill_at in range(1, calls + 2):
        killed = Site(fast_path / str(kill_at), scenario)
        killed.play(kill_at, changes_only=True)
        again_at = 1 + kill_at % ONE_IN
        while crash_recovery(killed.copy(fast_path / f"{kill_at}-{again_at}"), again_at):
            again_at += ONE_IN


def crash_recovery(site: Site, kill_at: int) -> bool:
    """Crash the recovery; return False if it has fewer calls than that."""
    killed = site.crash_recovery(kill_at)
    clock = later()
    clock.advance(LATER_SECONDS)
    assert faults(site, site.ground(clock).folder) == {}
    queue = site.recover(clock)
    check_books(site, queue)
    for message_id, ends in site.ends_in().items():
        assert site.fate(message_id, queue).ends in ends
    check_dead_letters_can_come_back(site, queue, clock)
    return killed
