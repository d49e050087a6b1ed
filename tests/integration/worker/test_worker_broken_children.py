"""A child process that sends invalid data is killed, and its message is retried."""

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import broken_children
import pytest

from holdfast.errors import HandlerNotFound
from holdfast.events import ChildKilled
from holdfast.lease.clock import SystemClock
from holdfast.process.frames import MAX_FRAME_BYTES
from holdfast.queue.message import AnyMessage
from holdfast.worker import child_wire
from holdfast.worker.worker import Worker
from support.workers.notes import Notes
from support.workers.running import TestQueue, run_until_empty

MAX_PIPE_BYTES = 64 * 1024
INVALID = "its process sent an invalid frame"


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


class BusyMachine(SystemClock):
    """The system's clock, which a test moves ahead as if the machine were busy."""

    skipped_seconds = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.skipped_seconds


class SlowQueue(TestQueue):
    """A queue on which every request of a child takes half a second."""

    saves = 0

    def __init__(self) -> None:
        self.machine = BusyMachine()
        super().__init__(lease_seconds=3600.0, clock=self.machine)

    def save_checkpoint(self, message: AnyMessage, checkpoint: Any) -> None:
        self.saves += 1
        self.machine.skipped_seconds += 0.5


def run(notes: Notes, what: str, queue: TestQueue | None = None, **settings: Any) -> TestQueue:
    """Give `first` to a broken child; `second` is an ordinary message after it."""
    queue = TestQueue() if queue is None else queue
    fields = settings.pop("fields", {})
    queue.push_ids("first", what=what, notes=str(notes.path), **fields)
    queue.push_ids("second", what="finish", notes=str(notes.path))
    settings = {"kill_grace_seconds": 1.0} | settings
    report = run_until_empty(Worker(queue, broken_children.do, isolation="process", **settings))
    assert report.completed == 2
    assert report.dead_lettered == report.abandoned == 0
    return queue


def assert_killed_and_retried(queue: TestQueue, notes: Notes) -> None:
    [failed] = queue.find("first")[0].past
    assert failed.reason.startswith(INVALID)
    [killed] = queue.seen.of(ChildKilled)
    assert killed.message_id == "first"
    assert killed.reason == failed.reason
    assert len(set(notes.values("pid"))) == 2  # replaced once
    assert sorted(notes.values("finished")) == ["first", "second"]
    assert not queue.find("second")[0].past


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\0",  # an empty frame
        b"\0\0\0\3abc",  # shorter than any frame
        b"\0\0\0\x0cabcdefghijkl",  # of another attempt
        struct.pack("!I", MAX_FRAME_BYTES + 1),
        b"\xff\xff\xff\xff",
        b"Traceback (most recent call last):",  # a print to the wrong descriptor
    ],
)
def test_invalid_bytes_kill_the_child_and_the_message_is_retried(
    notes: Notes, data: bytes
) -> None:
    queue = run(notes, "raw", fields={"data": data.hex()})
    assert_killed_and_retried(queue, notes)


INVALID_FRAMES = [
    "?",  # of an unknown kind
    "r",  # READY in the middle of the work
    "bno such module",  # it loaded the model long ago
    "lx",
    "s",
    "s{",
    "s" + "[" * 200_000,
    "o{",
    'o["retry", NaN, "", null, "", false]',
    "o" + "[" * 200_000,
]

# Each takes a real child. The tests of frames refuse the same in every run, without one.
MORE_INVALID_FRAMES = [
    "sNaN",
    "s" + "9" * 5000,
    "onull",
    "o7",
    "o[]",
    'o["retry"]',
    'o["done", null, "", null, "", false]',
    'o["done", 1, 2]',
    'o["done", NaN, ""]',
    'o["retry", "soon", "", null, "", false]',
    'o["retry", true, "", null, "", false]',
    'o["retry", 1e999, "", null, "", false]',
    'o["retry", 1e300, "", null, "", false]',
    f'o["retry", 1{"0" * 400}, "", null, "", false]',
    'o["retry", null, {"a": 1}, null, "", false]',
    'o["retry", null, "", ["detail"], "", false]',
    'o["retry", null, "", null, null, false]',
    'o["retry", null, "", null, "", 1]',
    'o["retry", null, "", null, ""]',
    'o[["retry"], null, "", null, "", false]',
    'o["reject", null, null, null, "", false]',
    'o["reject", null, "", 5, "", false]',
    'o["give back", 5, "", null, "", false]',
]


@pytest.mark.parametrize(
    "data",
    [
        *INVALID_FRAMES,
        *(pytest.param(frame, marks=pytest.mark.nightly) for frame in MORE_INVALID_FRAMES),
    ],
)
def test_an_invalid_frame_kills_the_child_and_the_message_is_retried(
    notes: Notes, data: str
) -> None:
    queue = run(notes, "frame", fields={"data": data})
    assert_killed_and_retried(queue, notes)


def test_an_endless_frame_is_refused_by_its_length_and_costs_no_memory(
    notes: Notes,
) -> None:
    tracemalloc.start()
    try:
        queue = run(notes, "endless_frame")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 << 20 < broken_children.FLOOD_BYTES
    assert_killed_and_retried(queue, notes)


def test_endless_requests_are_ended_by_their_bytes_and_cost_no_memory(notes: Notes) -> None:
    queue = SlowQueue()
    tracemalloc.start()
    try:
        run(notes, "endless_requests", queue)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 << 20
    assert queue.saves * len(child_wire.pack_response()) < MAX_PIPE_BYTES
    assert_killed_and_retried(queue, notes)


def test_an_invalid_pulse_kills_the_child(notes: Notes) -> None:
    assert_killed_and_retried(run(notes, "invalid_pulse"), notes)


def test_endless_stack_dumps_are_shortened_and_the_message_is_retried(notes: Notes) -> None:
    queue = run(notes, "endless_stacks", stall_seconds=0.5)
    [failed] = queue.find("first")[0].past
    assert failed.reason == "stalled: no beat for 0.5 s"
    assert len(failed.detail or "") < 1 << 20


@pytest.mark.parametrize("what", ["outcome_twice", "outcome_and_more"])
def test_a_frame_after_the_outcome_is_never_taken_for_one_of_the_next_message(
    notes: Notes, what: str
) -> None:
    queue = run(notes, what)
    assert sorted(notes.values("finished")) == ["first", "second"]  # both were worked on
    assert len(set(notes.values("pid"))) == 2  # the broken child is not reused
    for message_id in ("first", "second"):  # neither attempt failed
        assert not queue.find(message_id)[0].past


def test_an_outcome_of_another_attempt_settles_nothing(notes: Notes) -> None:
    assert_killed_and_retried(run(notes, "outcome_of_another_attempt"), notes)


def test_a_child_that_sends_garbage_while_starting_ends_the_run_and_costs_no_attempt() -> None:
    queue = TestQueue()
    queue.push_ids("m")
    with pytest.raises(HandlerNotFound, match="its process sent an invalid frame"):
        run_until_empty(Worker(queue, broken_children.GarbageAtStart(), isolation="process"))
    assert queue.find("m")[0].attempts == 0
