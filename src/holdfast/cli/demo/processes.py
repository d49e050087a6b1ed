"""The demo's processes, which run `holdfast` and report events in their logs."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, Self

EventHandler = Callable[["DemoProcess", dict[str, Any]], None]

_EXIT_TIMEOUT_SECONDS = 15.0
# The user's own settings must not change the demo, and the demo must not use credentials.
_USER_PREFIXES = ("HOLDFAST_", "STEP_FUNCTIONS_", "AWS_")
_NO_AWS = {
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}


class DemoProcess(subprocess.Popen[str]):
    """A process of the demo, with the counts of its events and its outcome."""

    def __init__(
        self, number: int, command: list[str], env: dict[str, str], folder: Path
    ) -> None:
        self.number = number
        self.outcome = ""  # how it ended, while it runs empty
        self.killed = False
        self.counts: Counter[str] = Counter()
        self.last_output: deque[str] = deque(maxlen=5)
        # It has its own session, because the demo handles Ctrl-C and ends its processes.
        super().__init__(
            command,
            env=env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @property
    def is_alive(self) -> bool:
        """Return whether the process is running."""
        return self.poll() is None

    def read_log(self, handle: EventHandler) -> None:
        """Read the log to its end and handle each event. It runs in its own thread."""
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

    def wait_or_kill(self, exit_timeout_seconds: float) -> None:
        """Wait for the process to end, and kill it after the timeout."""
        try:
            self.wait(exit_timeout_seconds)
        except subprocess.TimeoutExpired:
            super().kill()
            self.wait()
        self.outcome = self.outcome or "drained and ended"


class DemoProcesses:
    """Several processes, all of which have ended when the `with` block is left."""

    def __init__(self, folder: Path, env: dict[str, str], handle: EventHandler) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(_USER_PREFIXES)}
        self._env = {**inherited, **_NO_AWS, **env}
        self._folder, self._handle = folder, handle
        self.started: list[DemoProcess] = []
        self._readers: list[Thread] = []

    def start(self, arguments: Sequence[str], module: str = "holdfast.cli") -> DemoProcess:
        """Start a process of `holdfast`, or of another module, with these arguments."""
        command = [sys.executable, "-m", module, *arguments]
        process = DemoProcess(len(self.started) + 1, command, self._env, self._folder)
        self.started.append(process)
        reader = Thread(target=process.read_log, args=(self._handle,), daemon=True)
        reader.start()
        self._readers.append(reader)
        return process

    @property
    def last_output(self) -> str:
        """Return the last process's output, which shows why no process is left."""
        return [*self.started[-1].last_output, "it wrote nothing"][0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes. Ctrl-C is ignored, so that no process is left behind."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for process in self.started:
                process.send_signal(signal.SIGTERM)
            for process in self.started:
                process.wait_or_kill(_EXIT_TIMEOUT_SECONDS)
            for reader in self._readers:
                reader.join(_EXIT_TIMEOUT_SECONDS)
        finally:
            signal.signal(signal.SIGINT, before)
