"""A disk that is full, read-only, forbidden or gone: a clear error, nothing lost, no hang.

Each verb is refused at each call that the fault concerns, one after the other. It raises
QueueUnavailable with a remedy, unless it did its work without that call. When the fault is
over, the verb can be repeated, and the audit finds no faults.
"""

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from interleaved_queue import ENDS_IN, VERBS

from holdfast.errors import LeaseLost, NotLeased, QueueUnavailable
from holdfast.queue.manager import MessageState
from support.files import audit
from support.files.queue_folder import LEASE, Ground, drain, make_message
from support.files.scenarios import SCENARIOS, Fate, Scenario, find_fate, work
from support.files.watched import CONCERNS, RefusingFs

WAY_OUT = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EROFS: "mount it writable",
    errno.EACCES: "holdfast doctor",
    errno.EIO: "Input/output error",
}
QUIET = (
    "claim",
    "take over",
    "take over from another host",
    "watch another host",
    "extend",
    "dead-letter the used up",
    "dead-letter the torn",
    "dead-letter the torn with dedupe",
    "give back the newer",
)
"""Scenarios whose verb polls or renews: they are repeated by polling again, later."""

every_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
every_fault = pytest.mark.parametrize("fault", CONCERNS, ids=errno.errorcode.get)
three_faults = pytest.mark.parametrize(
    "fault", [errno.ENOSPC, errno.EROFS, errno.EIO], ids=errno.errorcode.get
)


class Play:
    """One scenario, refused at one call."""

    def __init__(self, folder: Path, scenario: Scenario, fault: int, at: int) -> None:
        self.scenario, self.fault = scenario, fault
        self.ground = Ground(folder, max_attempts=10, **scenario.options)
        self.fs = RefusingFs(self.ground.clock.time, fault, at=at)
        self.queue = self.ground.queue(self.fs)
        self.prepared = scenario.prepare(self.ground, self.queue)
        self.error: BaseException | None = None

    def act(self) -> bool:
        """Act; return whether the call that is refused was reached."""
        self.fs.refusing = True
        try:
            self.scenario.act(self.queue, self.prepared)
        except BaseException as error:
            self.error = error
        self.fs.refusing = False
        return self.fs.count >= (self.fs._at or 0)

    def act_again(self) -> None:
        if self.error is not None:
            self.ground.clock.advance(0.5)  # into another millisecond, for other names
            self.scenario.act(self.queue, self.prepared)

    def fates(self) -> dict[str, Fate]:
        """Return what happens to each id much later, with a new worker."""
        self.ground.clock.advance(2_000)
        queue = self.ground.queue()
        done = work(queue, self.ground.clock)
        return {i: find_fate(queue, i, done) for i in self.scenario.after}


def plays(folder: Path, scenario: Scenario, fault: int) -> Iterator[Play]:
    """Yield plays that are refused at the first call, the second, and so on to the last."""
    for at in range(1, 200):
        play = Play(folder / str(at), scenario, fault, at)
        if not play.act():
            return
        yield play
    raise AssertionError("there is no end to the calls")


@every_fault
@every_scenario
def test_a_refused_verb_says_why_and_what_to_do(
    fast_path: Path, scenario: Scenario, fault: int
) -> None:
    for play in plays(fast_path, scenario, fault):
        if play.error is not None:
            assert isinstance(play.error, (QueueUnavailable, TimeoutError)), repr(play.error)
            assert WAY_OUT[fault] in str(play.error)


@three_faults
@every_scenario
def test_a_refused_verb_loses_nothing(fast_path: Path, scenario: Scenario, fault: int) -> None:
    for play in plays(fast_path, scenario, fault):
        allowed = {i: {scenario.before[i], after} for i, after in scenario.after.items()}
        for message_id, fate_ in play.fates().items():
            assert fate_ in allowed[message_id]


@pytest.mark.parametrize("name", ["push", "push later", "push_many", "push with dedupe"])
@three_faults
def test_a_refused_push_pushed_nothing(fast_path: Path, name: str, fault: int) -> None:
    [scenario] = [s for s in SCENARIOS if s.name == name]
    for play in plays(fast_path, scenario, fault):
        if play.error is not None:
            assert play.queue.stats().ready + play.queue.stats().delayed == 0
            if fault == errno.ENOSPC:  # everything that can be removed is removed
                assert list((play.queue.folder / "tmp").iterdir()) == []
            play.ground.clock.advance(LEASE)
            play.queue.operator.sweep(0)
            assert audit.find_residue(play.queue.folder) == []


@pytest.mark.parametrize("name", ["push", "push later", "push_many", "push with dedupe"])
def test_a_push_whose_sync_was_refused_pushed_nothing(fast_path: Path, name: str) -> None:
    [scenario] = [s for s in SCENARIOS if s.name == name]
    durable = replace(scenario, options={**scenario.options, "durability": "power"})
    for play in plays(fast_path, durable, errno.EIO):
        if play.error is not None:
            assert play.queue.stats().ready + play.queue.stats().delayed == 0


@pytest.mark.parametrize(
    "scenario", [s for s in SCENARIOS if s.name not in QUIET], ids=lambda s: s.name
)
@three_faults
def test_a_refused_verb_can_be_repeated_when_the_fault_is_over(
    fast_path: Path, scenario: Scenario, fault: int
) -> None:
    for play in plays(fast_path, scenario, fault):
        play.act_again()
        assert play.fates() == dict(scenario.after)


@pytest.mark.parametrize("name", ["ack", "nack", "release", "dead_letter"])
def test_a_verb_whose_sync_was_refused_can_be_repeated(fast_path: Path, name: str) -> None:
    """The task has moved by then. The repeated verb must not take that for a takeover."""
    [scenario] = [s for s in SCENARIOS if s.name == name]
    durable = replace(scenario, options={"durability": "power"})
    for play in plays(fast_path, durable, errno.EIO):
        play.act_again()
        assert play.fates() == dict(scenario.after)


@pytest.mark.parametrize("second", VERBS)
@pytest.mark.parametrize("first", VERBS)
def test_a_verb_whose_sync_was_refused_cannot_be_undone_by_another(
    fast_path: Path, first: str, second: str
) -> None:
    if ENDS_IN[first] == ENDS_IN[second]:
        return  # repeated, with the same visible result
    ground = Ground(fast_path, durability="power")
    fs = RefusingFs(
        ground.clock.time,
        errno.EIO,
        concerns=lambda name, args: name == "fsync" and stat.S_ISDIR(os.fstat(args[0]).st_mode),
    )
    queue = ground.queue(fs)
    queue.push_many([make_message("a"), make_message("b")])
    earlier, message = queue.poll(2)
    VERBS[first](queue, earlier)  # its folder is made, and on the disk
    fs.refusing = True
    with pytest.raises(QueueUnavailable):
        VERBS[first](queue, message)
    fs.refusing = False
    before = [path for _, _, path in audit.list_tasks(ground.folder)]
    with pytest.raises((LeaseLost, NotLeased)):
        VERBS[second](queue, message)
    assert [path for _, _, path in audit.list_tasks(ground.folder)] == before


def test_one_ack_of_many_that_is_refused_does_not_undo_the_others(fast_path: Path) -> None:
    ground = Ground(fast_path)
    fs = RefusingFs(ground.clock.time, errno.ENOSPC, at=2, concerns=lambda n, _: n == "rename")
    queue = ground.queue(fs)
    queue.push_many([make_message("a"), make_message("b"), make_message("c")])
    messages = queue.poll(3)
    fs.refusing = True
    with pytest.raises(QueueUnavailable):
        queue.ack_many(messages)
    fs.refusing = False
    ground.clock.advance(0.5)
    queue.ack_many(messages)
    assert queue.stats().completed == 3


def test_an_ack_that_cannot_tidy_up_is_an_ack(fast_path: Path) -> None:
    ground = Ground(fast_path)
    fs = RefusingFs(ground.clock.time, errno.EIO, concerns=lambda name, _: name == "unlink")
    queue = ground.queue(fs)
    queue.push(make_message("a"))
    [message] = queue.poll()
    queue.save_checkpoint(message, {"page": 1})
    fs.refusing = True
    queue.ack(message)
    assert fs.count == 1


# -- reading continues


@pytest.mark.parametrize("fault", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_operators_can_inspect_a_queue_that_cannot_be_written(
    fast_path: Path, fault: int
) -> None:
    ground = Ground(fast_path)
    ground.queue().push(make_message("a"))
    fs = RefusingFs(ground.clock.time, fault)
    fs.refusing = True
    queue = ground.queue(fs, create=False)
    assert queue.stats().ready == 1
    assert [view.id for view in queue.peek(MessageState.PENDING)] == ["a"]
    assert len(queue.find("a")) == 1
    with pytest.raises(QueueUnavailable, match=WAY_OUT[fault]):
        queue.poll()


def test_a_refused_claim_does_not_lose_the_others(fast_path: Path) -> None:
    ground = Ground(fast_path)
    fs = RefusingFs(ground.clock.time, errno.ENOSPC, at=3, concerns=lambda n, _: n == "rename")
    queue = ground.queue(fs)
    queue.poll()
    queue.push_many([make_message("a"), make_message("b"), make_message("c")])
    fs.refusing = True
    assert [message.id for message in queue.poll(3)] == ["a", "b"]


def test_folders_on_different_filesystems_are_named_as_the_problem(fast_path: Path) -> None:
    ground = Ground(fast_path)
    fs = RefusingFs(ground.clock.time, errno.EXDEV, concerns=lambda n, _: n == "rename")
    queue = ground.queue(fs)
    queue.push(make_message("a"))
    fs.refusing = True
    for act in (queue.poll, lambda: queue.push(make_message("b"))):
        with pytest.raises(QueueUnavailable, match="different filesystems"):
            act()
    fs.refusing = False
    assert drain(queue) == [("a", 1)]
