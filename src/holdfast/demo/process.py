"""A process of the demo, which runs `holdfast` and reports events in its log."""

import json
import os
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

EventHandler = Callable[["DemoProcess", dict[str, Any]], None]

_EXIT_TIMEOUT_SECONDS = 15.0
# The user's own settings must not change the demo, and the demo must not use credentials.
_USER_PREFIXES = ("HOLDFAST_", "STEP_FUNCTIONS_", "AWS_")
_NO_AWS = {
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}


def make_environment() -> dict[str, str]:
    """Return the environment of the demo's processes, to which an act adds its settings."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(_USER_PREFIXES)}
    return {**inherited, **_NO_AWS}


class DemoProcess(subprocess.Popen[str]):
    """A process of the demo, with the counts of its events and its outcome.

    `command` is a module and its arguments. `handle` is called for each event in the log, in
    a thread of its own.
    """

    def __init__(
        self,
        number: int,
        command: Sequence[str],
        env: dict[str, str],
        folder: Path,
        handle: EventHandler,
    ) -> None:
        self.number = number
        self.outcome = ""  # how it ended, while it runs empty
        self.killed = False
        self.counts: Counter[str] = Counter()
        self.last_output: deque[str] = deque(maxlen=5)
        # It has its own session, because the demo handles Ctrl-C and ends its processes.
        super().__init__(
            [sys.executable, "-m", *command],
            env=env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._reader = Thread(target=self._read_log, args=(handle,), daemon=True)
        self._reader.start()

    @property
    def is_alive(self) -> bool:
        """Return whether the process is running."""
        return self.poll() is None

    def _read_log(self, handle: EventHandler) -> None:
        assert self.stderr is not None
        with self.stderr as lines:
            for line in lines:
                try:
                    event = json.loads(line)
                except ValueError:
                    self.last_output.append(line.strip())
                    continue
                self.counts[event["event"]] += 1
                handle(self, event)

    def kill(self) -> None:
        """Kill the process and wait until it is gone."""
        super().kill()
        self.killed = True
        self.wait()

    def wait_or_kill(self) -> None:
        """Wait until the process has ended and its log is read. Kill it after a timeout."""
        try:
            self.wait(_EXIT_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            super().kill()
            self.wait()
        self._reader.join(_EXIT_TIMEOUT_SECONDS)
        self.outcome = self.outcome or "drained and ended"
