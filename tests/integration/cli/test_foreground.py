"""The foreground runner: what signals do to work that does not end."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event

import pytest

from holdfast.cli.foreground import ForegroundRunner
from holdfast.cli.live_view import LiveStatus
from support.cli.commands import clean_env

_MAX_SECONDS = 60.0

_PROGRAM = """
from threading import Event
from holdfast.cli.foreground import ForegroundRunner
from holdfast.cli.live_view import LiveStatus

never = Event()

def run():
    print("ready", flush=True)
    never.wait()

ForegroundRunner(run, lambda: None, lambda: None, lambda: 7, 90.0).run(LiveStatus())
"""


def test_the_third_signal_ends_a_process_whose_work_does_not_stop(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", _PROGRAM],
        cwd=tmp_path,
        env=clean_env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        texts = []
        for _ in range(2):
            process.send_signal(signal.SIGTERM)
            texts.append(process.stderr.readline())
        process.send_signal(signal.SIGTERM)
        assert process.wait(_MAX_SECONDS) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.communicate()
    assert texts == [
        "draining: 7 running, up to 1 min 30 s; Ctrl-C again stops now\n",
        "stopping now: giving back 7 running\n",
    ]


def test_the_first_signal_drains_and_the_second_stops_now() -> None:
    drained, stopped = Event(), Event()

    def run() -> str:
        os.kill(os.getpid(), signal.SIGINT)
        assert drained.wait(_MAX_SECONDS)
        assert not stopped.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopped.wait(_MAX_SECONDS)
        return "result"

    runner = ForegroundRunner(run, drained.set, stopped.set, lambda: 0, 1.0)
    before = signal.getsignal(signal.SIGINT)
    assert runner.run(LiveStatus()) == "result"
    assert (runner.first_signal, runner.stopped_now_by) == (signal.SIGINT, signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_of_the_work_is_raised_in_the_main_thread() -> None:
    def fail() -> None:
        raise ValueError("boom")

    runner = ForegroundRunner(fail, lambda: None, lambda: None, lambda: 0, 1.0)
    with pytest.raises(ValueError, match="boom"):
        runner.run(LiveStatus())
