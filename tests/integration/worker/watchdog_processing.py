"""Scripted processing for the watchdog example: failures, slow tasks and process ids."""

import os
import time
from pathlib import Path

from examples.watchdog import Processing, State, Task

SLOW_SECONDS = 4.0  # two renewals of a lease of five seconds, one each third
PIDS = "WATCHDOG_TEST_PIDS"


class Scripted:
    """Task #0 is slow, #1 fails at first, and all others complete at once."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._began = time.monotonic()

    def state(self) -> State:
        if self._task.title == "Task #0" and time.monotonic() < self._began + SLOW_SECONDS:
            return State.IN_PROGRESS
        if self._task.title == "Task #1" and self._task.attempts == 1:
            return State.FAILED
        return State.COMPLETE


def scripted(task: Task) -> Processing:
    with Path(os.environ[PIDS]).open("a") as file:
        file.write(f"{os.getpid()}\n")
    return Scripted(task)


class Broken:
    def state(self) -> State:
        return State.FAILED


def broken(task: Task) -> Processing:
    return Broken()
