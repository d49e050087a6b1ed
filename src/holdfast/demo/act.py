"""The runner of an act: its queue, its processes, its story, its waiting and its report.

An act is a subclass that describes itself in class variables and has the steps, the state
to show, and the report.
"""

import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, NoReturn
from urllib.parse import quote

import typer
from rich.console import RenderableType

from holdfast.cli.foreground import handle_signals
from holdfast.demo.effect_log import EFFECTS_VARIABLE, EffectLog
from holdfast.demo.process import DemoProcess, make_environment
from holdfast.demo.screen import DemoReport, DemoScreen
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.queue.message import QueueMessage
from holdfast.queues.opening import open_queue

# A closed terminal ends the demo as cleanly as Ctrl-C does.
END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
POLL_SECONDS = 0.1
ALL = 10**9  # more than any act has


class DemoStopped(Exception):
    """The act cannot continue. Its report shows what is missing."""


@dataclass(frozen=True, slots=True)
class DemoSizes:
    """How much the acts have to do. The fields are options of the command."""

    tasks: Annotated[int, typer.Option(min=30, max=5000, help="Number of tasks.")] = 300
    workers: Annotated[int, typer.Option(min=2, max=16, help="Number of worker processes.")] = 4
    files: Annotated[int, typer.Option(min=30, max=500, help="Number of files.")] = 120


class QueueKind(StrEnum):
    """The kinds of queue that the acts can run on."""

    FILE = "file"
    SQLITE = "sqlite"


class Act(ABC):
    """One act in one folder.

    title      what the act shows, with its sizes
    inspect    the command that inspects the kept folder
    web_options  what the web console shows besides the queue, in the folder
    message    the type of the messages in its queue
    command    the module and the arguments of its processes, with the act's attributes
    story      a sentence for each event in the logs of the processes that is told
    columns    what the table of the processes shows between their pid and their outcome
    resources  are closed after the report
    """

    title: ClassVar[str]
    inspect: ClassVar[str]
    web_options: ClassVar[Sequence[str]] = ()
    queue_name: ClassVar[str]
    message: ClassVar[type[QueueMessage]]
    command: ClassVar[str]
    noun: ClassVar[str] = "worker"
    story: ClassVar[Mapping[str, str]]
    columns: Mapping[str, Callable[[DemoProcess], str]] = MappingProxyType({})
    timeout_seconds: ClassVar[float]

    def __init__(
        self, folder: Path, screen: DemoScreen, sizes: DemoSizes, kind: QueueKind
    ) -> None:
        self.folder, self.screen, self.sizes = folder, screen, sizes
        self.url = self.make_queue_url(folder, kind)
        self.resources = ExitStack()
        self.queue = self.resources.enter_context(open_queue(self.url, self.message, env={}))
        self.effects = EffectLog(folder / f"{Path(self.queue_name).name}-effects.jsonl")
        self.env = {**make_environment(), EFFECTS_VARIABLE: str(self.effects.path)}
        self.started: list[DemoProcess] = []
        self.killed_at = SYSTEM_CLOCK.monotonic()
        self._deadline = self.killed_at + self.timeout_seconds

    @classmethod
    def make_queue_url(cls, folder: Path, kind: QueueKind) -> str:
        """Return the URL of the act's queue in that folder."""
        if kind is QueueKind.SQLITE:
            return f"sqlite:{quote(str(folder))}/queues.db/{cls.queue_name}"
        return str(folder / cls.queue_name)

    @classmethod
    def create(cls, folder: Path, kind: QueueKind) -> None:
        """Create the queue, and the store if there is one. A console shows them at once."""
        open_queue(cls.make_queue_url(folder, kind), cls.message, env={}).close()

    # -- an act has these

    @abstractmethod
    def run_steps(self) -> None:
        """Run the steps of the act. Raises DemoStopped if it cannot continue."""

    @abstractmethod
    def format_line(self) -> str:
        """Return the current state as one line."""

    @abstractmethod
    def render(self) -> Sequence[RenderableType]:
        """Return the current state as rich draws it, without the table of the processes."""

    @abstractmethod
    def make_report(self) -> DemoReport:
        """Return the report, after all processes have ended."""

    def observe(self) -> None:  # noqa: B027  # most acts have nothing to look for
        """Look for what can be seen only while the act runs. It is called at each poll."""

    def describe_event(self, process: DemoProcess, event: dict[str, Any]) -> str | None:
        """Return the sentence for an event, or None if it is not told."""
        sentence = self.story.get(event["event"])
        return sentence and sentence.format_map(event)

    # -- the course

    def run(self) -> DemoReport:
        """Run the steps, end all processes, and return the report."""
        with self.resources, self.screen:
            try:
                with suppress(DemoStopped):
                    self.run_steps()
            finally:
                self._end_processes()
            self.screen.draw(self)
            return self.make_report()

    def _end_processes(self) -> None:
        """End all processes. Signals are ignored, so that none is left behind."""
        with handle_signals(signal.SIG_IGN, *END_SIGNALS):
            for process in self.started:
                process.send_signal(signal.SIGTERM)
            for process in self.started:
                process.wait_or_kill()

    def wait_until(self, condition: Callable[[], object], polls: int = 1) -> None:
        """Wait until a condition is met, at as many polls in a row.

        Raises DemoStopped if it can no longer be met in time.
        """
        met = 0
        while (met := met + 1 if condition() else 0) < polls:
            self.observe()
            self.screen.draw(self)
            if not any(process.is_alive for process in self.started):
                output = [*self.started[-1].last_output, "it wrote nothing"]
                self.stop(f"no {self.noun} is left: {output[0]}")
            if SYSTEM_CLOCK.monotonic() > self._deadline:
                self.stop("timeout; stopping the demo")
            SYSTEM_CLOCK.sleep(POLL_SECONDS)

    def stop(self, reason: str) -> NoReturn:
        """Report why the act cannot continue. Raises DemoStopped."""
        self.screen.report(reason)
        raise DemoStopped

    # -- its processes

    def start(self, *arguments: str, reported: bool = True) -> DemoProcess:
        """Start a process with the act's command and these arguments."""
        number, handle = len(self.started) + 1, self._handle_event
        command = [part.format_map(vars(self)) for part in self.command.split()]
        process = DemoProcess(number, [*command, *arguments], self.env, self.folder, handle)
        self.started.append(process)
        if reported:
            self.screen.report(f"starting {self.noun} {number} (pid {process.pid})")
        return process

    def kill(self, process: DemoProcess, describe: Callable[[], str]) -> None:
        """Kill a process, and report what it leaves behind, which is read after its end."""
        process.kill()
        self.killed_at = SYSTEM_CLOCK.monotonic()
        process.outcome = f"killed with SIGKILL, {describe()}"
        text = f"{self.noun} {process.number} (pid {process.pid}) is {process.outcome}"
        self.screen.report(text)

    @property
    def seconds_since_kill(self) -> float:
        """Return the time since the last kill."""
        return SYSTEM_CLOCK.monotonic() - self.killed_at

    def _handle_event(self, process: DemoProcess, event: dict[str, Any]) -> None:
        """Tell the event. It runs in one thread per process."""
        if text := self.describe_event(process, event):
            self.screen.report(f"{self.noun} {process.number}: {text}")
