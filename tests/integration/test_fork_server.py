"""What a fork of the small process does wrong fails the test that sent it there."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.files.crash import Ending, die
from support.fork_server import SmallChild, run_in_small_child


def say_and_die(say: Callable[[str], None]) -> None:
    say(f"{os.getpid()}")
    die()


def fail(say: Callable[[str], None]) -> None:
    raise RuntimeError("one of its checks failed")


def hang(say: Callable[[str], None]) -> None:
    say(f"{os.getpid()}")
    time.sleep(60)


def stop(say: Callable[[str], None]) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    say("continued")


def test_each_play_has_its_own_process_and_can_be_killed() -> None:
    endings = [run_in_small_child(say_and_die) for _ in range(2)]
    assert [ending.killed for ending in endings] == [True, True]
    assert len({ending.output for ending in endings} - {str(os.getpid())}) == 2


def test_an_error_in_the_child_fails_the_test_with_its_traceback() -> None:
    with pytest.raises(AssertionError, match="RuntimeError: one of its checks failed"):
        run_in_small_child(fail)
    assert run_in_small_child(bool) == Ending(False, "")  # the server goes on


def test_others_run_while_a_child_is_stopped() -> None:
    child = SmallChild(stop)
    assert child.wait_for_stop() is None
    assert run_in_small_child(say_and_die).killed
    os.kill(child.pid, signal.SIGCONT)
    assert child.wait_for_stop() == Ending(False, "continued")


def test_a_child_that_hangs_fails_the_test_and_is_killed() -> None:
    with pytest.raises(AssertionError, match="the child hangs") as raised:
        run_in_small_child(hang, 1.0)
    [pid] = [word for word in str(raised.value).split("'") if word.isdigit()]
    assert not Path(f"/proc/{pid}").exists()
