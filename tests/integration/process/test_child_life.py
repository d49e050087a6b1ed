"""The life of one supervised child, with a real process and a clock that the test moves."""

import os
import pickle
import signal
from collections.abc import Callable, Iterator
from math import inf

import pytest

from holdfast.process.child_process import ChildProcess, ChildState
from holdfast.process.frames import BrokenFrame, Program
from holdfast.process.liveness import LivenessLimits
from holdfast.testing.clock import ManualClock
from support.waiting import wait_until
from support.workers.running import members

Start = Callable[[str], ChildProcess]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def start(clock: ManualClock) -> Iterator[Start]:
    children: list[ChildProcess] = []

    def start_child(what: str) -> ChildProcess:
        program = Program("support.workers.child_programs", pickle.dumps(what), {})
        children.append(ChildProcess(program, LivenessLimits(pulse_seconds=30.0), clock))
        return children[-1]

    yield start_child
    for child in children:
        child.end()
        if child.state is not ChildState.GONE:
            step_until(child, ChildState.GONE)
        assert not members(child.pid)


def step_until(child: ChildProcess, state: ChildState) -> list[bytes]:
    """Step the child until it is in that state, and return its frames."""
    frames: list[bytes] = []

    def is_reached() -> bool:
        child.step(lambda number, frame: frames.append(frame))
        return child.state is state

    wait_until(is_reached)
    return frames


def step(child: ChildProcess) -> ChildState:
    child.step(lambda number, frame: None)
    return child.state


def test_a_child_that_is_never_ready_is_killed(start: Start, clock: ManualClock) -> None:
    child = start("never ready")
    clock.advance(119.0)
    assert step(child) is ChildState.STARTING
    clock.advance(1.0)
    assert step(child) is not ChildState.STARTING
    step_until(child, ChildState.GONE)
    assert (child.reason, child.poll_exit()) == ("not ready after 120 s", "SIGKILL")


def test_a_child_that_cannot_load_its_code_says_why(start: Start) -> None:
    child = start("cannot load")
    step_until(child, ChildState.GONE)
    assert child.broken == ("LookupError", "no such module")


def test_a_child_that_is_gone_touches_no_file_that_got_the_number_of_its_pipe(
    start: Start,
) -> None:
    child = start("echoes")
    step_until(child, ChildState.READY)
    child.end()
    step_until(child, ChildState.GONE)
    pipes = [os.pipe() for _ in range(4)]  # the lowest free numbers
    try:
        for read_fd, write_fd in pipes:
            os.set_blocking(read_fd, False)
            os.write(write_fd, b"of another")
        assert step(child) is ChildState.GONE
        child.send_control(b"record")
        assert [os.read(read_fd, 99) for read_fd, _ in pipes] == [b"of another"] * 4
    finally:
        for fd in (fd for pipe in pipes for fd in pipe):
            os.close(fd)


def test_a_silent_child_writes_its_stacks_and_ends_within_the_grace(
    start: Start, clock: ManualClock
) -> None:
    child = start("echoes")
    step_until(child, ChildState.READY)
    clock.advance(29.0)
    assert step(child) is ChildState.READY
    os.kill(child.pid, signal.SIGSTOP)  # so that it gets all signals at once
    clock.advance(1.0)
    assert step(child) is ChildState.LEAVING
    os.kill(child.pid, signal.SIGCONT)
    wait_until(lambda: step(child) and child.stacks)
    clock.advance(0.1)  # the dump is complete, so SIGTERM follows
    step_until(child, ChildState.GONE)
    silent = "the worker process did not answer for 30 s"
    assert (child.reason, child.poll_exit()) == (silent, "SIGTERM")
    assert "in serve" in child.stacks


@pytest.mark.parametrize("what", ["stubborn", "lingers"])
def test_a_child_that_does_not_leave_is_killed_after_the_grace(
    start: Start, clock: ManualClock, what: str
) -> None:
    child = start(what)
    step_until(child, ChildState.READY)
    if what == "stubborn":
        child.terminate("enough")
        clock.advance(1.0)  # for its stacks
    else:
        child.leave()
    clock.advance(1.9)
    assert step(child) is ChildState.LEAVING
    clock.advance(0.1)
    assert step(child) is not ChildState.LEAVING
    step_until(child, ChildState.GONE)
    assert child.poll_exit() == "SIGKILL"
    assert child.reason == ("enough" if what == "stubborn" else "did not end within 2 s")


def test_a_child_that_gets_no_more_commands_ends_by_itself(start: Start) -> None:
    child = start("echoes")
    step_until(child, ChildState.READY)
    child.frames.send(7, b"last")
    child.leave()
    assert step_until(child, ChildState.GONE) == [b"last"]
    assert (child.reason, child.poll_exit()) == (None, "exit code 0")


def test_a_child_is_silent_only_if_it_sends_nothing_while_it_should(
    start: Start, clock: ManualClock
) -> None:
    child = start("echoes")
    step_until(child, ChildState.READY)
    clock.advance(3600.0)
    child.extend_timeout(inf)  # it was idle
    assert step(child) is ChildState.READY
    clock.advance(29.0)
    child.frames.send(1, b"hello")
    frames: list[bytes] = []
    wait_until(lambda: child.step(lambda number, frame: frames.append(frame)) or frames)
    clock.advance(29.0)
    assert step(child) is ChildState.READY
    clock.advance(1.0)
    assert step(child) is ChildState.LEAVING


def test_no_frame_is_trusted_after_an_invalid_one(start: Start) -> None:
    child = start("echoes")
    step_until(child, ChildState.READY)
    frames: list[bytes] = []

    def refuse_first(number: int, frame: bytes) -> None:
        frames.append(frame)
        if number == 1:
            raise BrokenFrame("it is the first")

    child.frames.buffer(1, b"one")
    child.frames.buffer(2, b"two")
    child.frames.flush()
    wait_until(lambda: child.step(refuse_first) or child.state is ChildState.GONE)
    assert frames == [b"one"]
    assert child.reason == "its process sent an invalid frame: it is the first"
