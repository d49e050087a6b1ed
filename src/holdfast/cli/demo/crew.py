"""The demo's processes: real ones that run `holdfast`, and what they report."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any, Self

Report = Callable[["WorkerHandle", dict[str, Any]], None]

_GRACE_SECONDS = 15.0
# What a person has set up for their own work must not change the play, nor may the play
# ask anybody for credentials.
_THEIRS = ("HOLDFAST_", "STEP_FUNCTIONS_", "AWS_")
_NO_AWS = {
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}


class WorkerHandle:
    """One process that works."""

    def __init__(
        self, number: int, command: list[str], env: dict[str, str], folder: Path
    ) -> None:
        self.number = number
        self.fate = ""  # what became of it
        self.killed = False
        self.counts: Counter[str] = Counter()
        self.last_words: deque[str] = deque(maxlen=5)
        # In a session of its own: Ctrl-C is for the demo, which ends its workers itself.
        self._process = subprocess.Popen(
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
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def listen(self, report: Report) -> None:
        """Read its log to the end; in a thread of its own."""
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                try:
                    event = json.loads(line)
                except ValueError:
                    self.last_words.append(line.strip())
                    continue
                self.counts[event["event"]] += 1
                report(self, event)

    def send(self, number: signal.Signals) -> None:
        if self.alive:  # the id is ours until we have seen it end
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Afterwards it is dead: nothing that it does is still under way."""
        self.send(signal.SIGKILL)
        self.killed = True
        self._process.wait()

    def end(self, grace_seconds: float) -> None:
        """It was told to; past the grace it is made to."""
        try:
            self._process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            self._process.wait()
        self.fate = self.fate or "drained and gone"


class WorkerProcesses:
    """Several hands; all are gone when the `with` block is left, however it is left."""

    def __init__(self, folder: Path, env: dict[str, str], report: Report) -> None:
        theirs = {k: v for k, v in os.environ.items() if not k.startswith(_THEIRS)}
        self._env = {**theirs, **_NO_AWS, **env}
        self._folder, self._report = folder, report
        self.hands: list[WorkerHandle] = []
        self._listeners: list[Thread] = []

    def hire(self, arguments: Sequence[str], module: str = "holdfast.cli") -> WorkerHandle:
        """A new process of `holdfast`, or of a module of ours, with these arguments."""
        command = [sys.executable, "-m", module, *arguments]
        hand = WorkerHandle(len(self.hands) + 1, command, self._env, self._folder)
        self.hands.append(hand)
        listener = Thread(target=hand.listen, args=(self._report,), daemon=True)
        listener.start()
        self._listeners.append(listener)
        return hand

    @property
    def last_words(self) -> str:
        """Why nobody is left."""
        return [*self.hands[-1].last_words, "it left no word"][0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nobody may interrupt this: a process left behind would be somebody's riddle."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for hand in self.hands:
                hand.send(signal.SIGTERM)
            for hand in self.hands:
                hand.end(_GRACE_SECONDS)
            for listener in self._listeners:
                listener.join(_GRACE_SECONDS)
        finally:
            signal.signal(signal.SIGINT, before)
