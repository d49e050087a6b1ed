"""What the acts of the demo share: their processes, their story, and their waiting."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from holdfast.cli.demo.processes import DemoProcess, DemoProcesses
from holdfast.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from rich.console import RenderableType

    from holdfast.cli.demo.screen import DemoReport, DemoScreen

POLL_SECONDS = 0.1
ALL = 10**9  # more than any act has


class DemoStopped(Exception):
    """The act cannot continue. Its report shows what is missing."""


class Act(ABC):
    """One act in one folder. A subclass has the steps, the view and the report.

    `story` has a sentence for each event in the logs of the processes that is told.
    """

    noun: ClassVar[str] = "worker"
    story: ClassVar[Mapping[str, str]] = {}
    timeout_seconds: ClassVar[float]

    def __init__(self, folder: Path, screen: "DemoScreen", env: dict[str, str]) -> None:
        self.folder, self.screen = folder, screen
        self.processes = DemoProcesses(folder, env, self._handle_event)
        self.killed_at = SYSTEM_CLOCK.monotonic()
        self._deadline = self.killed_at + self.timeout_seconds

    @abstractmethod
    def run(self) -> "DemoReport":
        """Run the act and return its report."""

    @abstractmethod
    def run_steps(self) -> None:
        """Run the steps of the act. Raises DemoStopped if it cannot continue."""

    @abstractmethod
    def format_line(self) -> str:
        """Return the current state as one line."""

    @abstractmethod
    def render(self) -> "Sequence[RenderableType]":
        """Return the current state as rich draws it."""

    def run_processes(self) -> None:
        """Run the steps, and end all processes."""
        with self.processes, suppress(DemoStopped):
            self.run_steps()
        self.screen.draw(self)

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition. Raises DemoStopped if it can no longer be met in time."""
        while not condition():
            self.observe()
            self.screen.draw(self)
            if not any(process.is_alive for process in self.processes.started):
                self.stop(f"no {self.noun} is left: {self.processes.last_output}")
            if SYSTEM_CLOCK.monotonic() > self._deadline:
                self.stop("timeout; stopping the demo")
            SYSTEM_CLOCK.sleep(POLL_SECONDS)

    def observe(self) -> None:  # noqa: B027  # most acts have nothing to look for
        """Look for what can be seen only while the act runs. It is called at each poll."""

    def stop(self, reason: str) -> NoReturn:
        """Report why the act cannot continue. Raises DemoStopped."""
        self.screen.report(reason)
        raise DemoStopped

    def start(self, arguments: Sequence[str], module: str = "holdfast.cli") -> DemoProcess:
        """Start a process and report it."""
        process = self.processes.start(arguments, module)
        self.screen.report(f"starting {self.noun} {process.number} (pid {process.pid})")
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

    def describe_event(self, process: DemoProcess, event: dict[str, Any]) -> str | None:
        """Return the sentence for an event, or None if it is not told."""
        sentence = self.story.get(event["event"])
        return sentence and sentence.format_map(event)
