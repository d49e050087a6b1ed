"""The harness of the three acts: one queue, some processes, what they tell, and the totals.

An act is a subclass of `Act`. It starts and kills processes in `run_steps`, and in the end it
compares what was asked for with what was really done.
"""

import json
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar, NamedTuple, TextIO
from urllib.parse import quote

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast import AnyMessage, QueueMessage, open_queue

ALL = 10**9  # more than any act has
POLL_SECONDS = 0.1
ACT_TIMEOUT_SECONDS = 150.0
EXIT_TIMEOUT_SECONDS = 15.0
PROGRESS_SECONDS = 3.0  # between two progress lines without a terminal
MAX_LINES = 9  # of the events below the live view
BAR_WIDTH = 60
# The user's own settings must not change the demo, and the demo must not use credentials.
USER_PREFIXES = ("HOLDFAST_", "STEP_FUNCTIONS_", "AWS_")
NO_AWS = dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), os.devnull)
NO_AWS["AWS_EC2_METADATA_DISABLED"] = "true"


def make_environment(**settings: str) -> dict[str, str]:
    """Return the environment of the demo's processes, which find the demo's modules."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(USER_PREFIXES)}
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    return {**inherited, **NO_AWS, "PYTHONPATH": path.rstrip(os.pathsep), **settings}


@dataclass(frozen=True)
class Total:
    """One of an act's totals: its key in JSON, its label, the count, and what it should be."""

    key: str
    label: str
    count: int
    expected: int | None = None  # any number is right
    note: str = ""

    @property
    def is_wrong(self) -> bool:
        """Return whether the count shows a fault."""
        return self.expected is not None and self.count != self.expected


class Process(subprocess.Popen[str]):
    """A process of the demo. Each line of its log is an event, which is counted and told."""

    number, outcome, last_line = 0, "", ""

    def __init__(
        self, command: Sequence[str], tell: "Tell | None" = None, **places: Any
    ) -> None:
        super().__init__(
            [sys.executable, "-m", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the demo, which ends its processes
            **places,
        )
        self.tell = tell
        self.events: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        self.reader = Thread(target=self._read_log, daemon=True)
        self.reader.start()

    def _read_log(self) -> None:
        assert self.stderr is not None
        for line in self.stderr:
            try:
                event = json.loads(line)
            except ValueError:
                self.last_line = line.strip()
                continue
            self.events[event["event"]].append(event)
            if self.tell:
                self.tell(self, event)

    def end(self) -> None:
        """Wait until the process has ended and its log is read. Kill it after a timeout."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(EXIT_TIMEOUT_SECONDS)
        self.kill()
        self.wait()
        self.reader.join(EXIT_TIMEOUT_SECONDS)
        self.outcome = self.outcome or "drained and ended"


Tell = Callable[[Process, dict[str, Any]], None]


class Stage(NamedTuple):
    """What the acts share."""

    folder: Path
    queue: str  # file or sqlite
    sizes: Mapping[str, int]
    resources: ExitStack  # closed when all acts have ended
    check_interrupted: Callable[[], None]  # raises KeyboardInterrupt after Ctrl-C


class ActStopped(Exception):
    """The act cannot continue. Its totals show what is missing."""


class Act(ABC):
    """One act: what it shows, its queue, its processes, and what is told of them.

    inspect      the command that inspects the kept folder
    web_options  what the web console shows besides the queue, in the folder
    done         the event that the table of processes counts
    story        a sentence for each event of the processes that is told; {takeover} is the
                 time since the kill
    terms        explains the totals
    command      the module and the arguments of the processes
    """

    title = inspect = queue_name = done = terms = ""
    noun = "worker"
    web_options: Sequence[str] = ()
    message: type[QueueMessage] = AnyMessage
    story: ClassVar[Mapping[str, str]] = {}
    command: Sequence[str]
    screen: "Screen"

    def __init__(self, stage: Stage) -> None:
        """Create the queue, so that a console can show it before the act begins."""
        self.stage, self.folder = stage, stage.folder
        self.url = str(self.folder / self.queue_name)
        if stage.queue == "sqlite":
            self.url = f"sqlite:{quote(str(self.folder))}/queues.db/{self.queue_name}"
        queue = open_queue(self.url, self.message, env={})
        self.queue = stage.resources.enter_context(queue)
        self.env = make_environment()
        self.started: list[Process] = []
        self.killed_at = 0.0

    @abstractmethod
    def run_steps(self) -> None:
        """Run the steps of the act. Raises ActStopped if it cannot continue."""

    @abstractmethod
    def list_shares(self) -> Sequence[tuple[str, int, str]]:
        """Return the current state as (name, count, style)."""

    @abstractmethod
    def list_totals(self) -> Sequence[Total]:
        """Compare what was asked for with what was done, after all processes have ended."""

    def run(self, screen: "Screen") -> Sequence[Total]:
        """Run the steps, end all processes, and return the totals."""
        self.screen, self.deadline = screen, time.monotonic() + ACT_TIMEOUT_SECONDS
        with screen.live or nullcontext():
            try:
                self.run_steps()
            except ActStopped as reason:
                screen.report(str(reason))
            finally:
                for process in self.started:
                    process.send_signal(signal.SIGTERM)
                for process in self.started:
                    process.end()
            screen.draw(self)
        return self.list_totals()

    def wait(self, polls: int = 1) -> None:
        """Wait for some polls. Raises KeyboardInterrupt after Ctrl-C."""
        for _ in range(polls):
            self.screen.draw(self)
            time.sleep(POLL_SECONDS)
            self.stage.check_interrupted()

    def wait_until(self, condition: Callable[[], object], polls: int = 1) -> None:
        """Wait until a condition is met at as many polls in a row, or raise ActStopped."""
        met = 0
        while (met := met + 1 if condition() else 0) < polls:
            self.wait()
            if all(process.poll() is not None for process in self.started):
                raise ActStopped(f"no {self.noun} is left: {self.started[-1].last_line}")
            if time.monotonic() > self.deadline:
                raise ActStopped("timeout; stopping the demo")

    def start(self, *arguments: str) -> Process:
        """Start a process with the act's command and these arguments."""
        command = [*self.command, *arguments]
        process = Process(command, self._tell, cwd=self.folder, env=self.env)
        self.started.append(process)
        process.number = len(self.started)
        self.screen.report(f"starting {self.noun} {process.number} (pid {process.pid})")
        return process

    def _tell(self, process: Process, event: dict[str, Any]) -> None:
        if sentence := self.story.get(event["event"]):
            text = sentence.format_map({**event, "takeover": self.describe_takeover()})
            self.screen.report(f"{self.noun} {process.number}: {text}")

    def kill(self, process: Process, describe: Callable[[], str]) -> None:
        """Kill a process, and report what it leaves behind, which is read after its end."""
        process.kill()
        process.wait()
        self.killed_at = time.monotonic()
        process.outcome = f"killed with SIGKILL, {describe()}"
        name = f"{self.noun} {process.number} (pid {process.pid})"
        self.screen.report(f"{name} is {process.outcome}")

    def draw_processes(self) -> Table:
        """Return the table of the processes."""
        table = Table(self.noun, "pid", "done", "", box=None, pad_edge=False)
        for process in self.started:
            state = process.outcome or ("running" if process.events else "starting")
            cells = map(str, (process.number, process.pid, len(process.events[self.done])))
            table.add_row(*cells, Text(state, "red" if "killed" in state else "green"))
        return table

    def count(self, event: str) -> int:
        """Return how often the processes have logged an event."""
        return sum(len(process.events[event]) for process in self.started)

    def describe_takeover(self) -> str:
        """Return how long after the kill another process has taken over."""
        return f"{time.monotonic() - self.killed_at:.1f} s after the kill"


class Screen:
    """Shows an act: its state and last events in place on a terminal, else lines."""

    def __init__(self, stream: TextIO, title: str) -> None:
        self.title, self.started, self.progress_at = title, time.monotonic(), 0.0
        self.console = Console(
            file=stream, highlight=False, markup=False, soft_wrap=not stream.isatty()
        )
        self.lines: deque[str] = deque(maxlen=MAX_LINES)
        self.live = Live(console=self.console, auto_refresh=False) if stream.isatty() else None
        if not self.live:
            self.console.print(title)

    def report(self, text: str) -> None:
        """Show an event with the time. Threads may call this."""
        line = f"{time.monotonic() - self.started:5.1f} s  {text}"
        self.lines.append(line) if self.live else self.console.print(line)

    def draw(self, act: Act) -> None:
        """Redraw the state on a terminal, or write a progress line every few seconds."""
        now, shares = time.monotonic(), act.list_shares()
        if self.live:
            title = Text.assemble((self.title, "bold"), f"  {now - self.started:.0f} s")
            lines = [*map(Text, list(self.lines)), *[Text("")] * MAX_LINES][:MAX_LINES]
            state = Group(title, *draw_shares(shares), "", act.draw_processes(), "", *lines)
            self.live.update(state, refresh=True)
        elif now >= self.progress_at:
            self.progress_at = now + PROGRESS_SECONDS
            self.report(", ".join(f"{count} {name}" for name, count, _ in shares))

    def show_totals(self, totals: Sequence[Total], terms: str) -> None:
        """Show the totals after the act."""
        width = max(len(total.label) for total in totals) + 1
        self.console.print("")
        for total in totals:
            style = "bold red" if total.is_wrong else "bold" if total.count else "bold green"
            line = Text(f"{total.label:<{width}}").append(f"{total.count:>6}", style)
            self.console.print(line.append(f"  {total.note}".rstrip(), "dim"))
        wrong = any(total.is_wrong for total in totals)
        verdict = "THE TOTALS DO NOT MATCH." if wrong else "The totals match."
        self.console.print(verdict, style="bold red" if wrong else "bold green")
        self.console.print(f"{terms}\n", style="dim")


def draw_shares(shares: Sequence[tuple[str, int, str]]) -> list[Text]:
    """Return a bar with the share of each (name, count, style), and a legend."""
    legend, bar = Text(), Text()
    total = sum(count for _, count, _ in shares) or 1
    for name, count, style in shares:
        legend.append(f"{name} ", style).append(f"{count:,}   ")
        bar.append("━" * -(-count * BAR_WIDTH // total), style)  # at least one cell
    return [bar, legend]
