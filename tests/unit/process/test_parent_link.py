"""A pulse of a child never waits, and never comes between two parts of another frame."""

import os
from collections.abc import Iterator
from threading import Thread

import pytest

from holdfast.process.child_main import ParentLink
from holdfast.process.frames import PULSE, Frames


class Parent:
    """The parent's ends of the pipes."""

    def __init__(self) -> None:
        pipes = [os.pipe() for _ in range(4)]
        commands, messages, control, stacks = pipes
        self.link = ParentLink(commands[0], messages[1], control[0], stacks[1])
        self.frames = Frames(messages[0], commands[1])
        self.messages = messages
        self.control = control[1]
        self.descriptors = [end for pipe in pipes for end in pipe]


@pytest.fixture
def parent() -> Iterator[Parent]:
    parent = Parent()
    yield parent
    for descriptor in parent.descriptors:
        os.close(descriptor)


def pulse() -> tuple[int, bytes]:
    return 7, b"+"


def skips_pulse(link: ParentLink) -> bool:
    """Return whether the link returns at once and without a pulse."""
    made: list[int] = []

    def make_pulse() -> None:
        made.append(1)

    thread = Thread(target=link.send_pulse, args=(make_pulse,), daemon=True)
    thread.start()
    thread.join(20.0)
    return not thread.is_alive() and not made


def test_a_pulse_has_the_number_of_its_attempt(parent: Parent) -> None:
    parent.link.send_pulse(pulse)
    parent.link.send_pulse(lambda: None)
    parent.link.send(8, b"next")
    assert [parent.frames.read(), parent.frames.read()] == [(7, PULSE + b"+"), (8, b"next")]


def test_a_pulse_does_not_wait_for_a_parent_that_does_not_read(parent: Parent) -> None:
    """Otherwise the thread of the pulse would not notice that the lease ran out."""
    os.set_blocking(parent.messages[1], False)
    try:
        while True:
            os.write(parent.messages[1], b"x")
    except BlockingIOError:
        os.set_blocking(parent.messages[1], True)
    assert skips_pulse(parent.link)


def test_a_pulse_does_not_wait_for_another_thread_that_sends(parent: Parent) -> None:
    sender = Thread(target=parent.link.send, args=(1, b"x" * 1_000_000), daemon=True)
    sender.start()
    while not parent.link._sending.locked():
        pass
    assert skips_pulse(parent.link)
    assert parent.frames.read() == (1, b"x" * 1_000_000)
    sender.join()


def test_control_records_are_read_until_the_parent_closes_the_pipe(parent: Parent) -> None:
    assert parent.link.wait_control(0.0) == b""
    os.write(parent.control, b"record")
    assert parent.link.wait_control(10.0) == b"record"
    parent.descriptors.remove(parent.control)
    os.close(parent.control)
    assert parent.link.wait_control(10.0) is None
