"""How the demo looks: a live picture on a terminal, plain lines elsewhere."""

from collections import deque
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from holdfast.cli.board import bar, legend
from holdfast.cli.demo.books import DEFINITION, Books
from holdfast.cli.demo.crew import Hand
from holdfast.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from holdfast.core.queue import QueueStats

_REMEMBERED = 9  # lines of the story in the picture
_REPORT_SECONDS = 3.0  # between two lines of progress


class Stage(Protocol):
    def tell(self, text: str) -> None:
        """A turn of the story."""

    def draw(self, stats: "QueueStats", hands: list[Hand]) -> None:
        """How things stand."""

    def close(self, books: Books) -> None:
        """The end: the books."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


def stage(stream: TextIO) -> Stage:
    return Live(stream) if stream.isatty() else Plain(stream)


def rows(books: Books) -> list[tuple[str, int, str]]:
    """The table: what, how many, and why that is right."""
    return [
        ("pushed", books.pushed, ""),
        ("completed", books.completed, ""),
        ("dead-lettered", books.dead_lettered, "rejected for good by its handler, on purpose"),
        ("redelivered", books.redelivered, "after the kill, the hang and the retries"),
        ("lost", books.lost, ""),
        ("done twice", books.done_twice, f"{books.fenced_off} stale effects fenced off"),
    ]


def verdict(books: Books) -> str:
    return "The books balance." if books.balance else "THE BOOKS DO NOT BALANCE."


class Plain:
    """A line now and then."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._started = SYSTEM_CLOCK.monotonic()
        self._report_at = 0.0

    def tell(self, text: str) -> None:
        self._write(f"{SYSTEM_CLOCK.monotonic() - self._started:5.1f} s  {text}")

    def draw(self, stats: "QueueStats", hands: list[Hand]) -> None:
        if (now := SYSTEM_CLOCK.monotonic()) >= self._report_at:
            self._report_at = now + _REPORT_SECONDS
            self.tell(
                f"{stats.completed} completed, {stats.leased} held, "
                f"{stats.ready + stats.delayed} waiting, {stats.failed} dead"
            )

    def close(self, books: Books) -> None:
        self._write("")
        for what, count, why in rows(books):
            self._write(f"{what:<14}{count:>6}  {why}".rstrip())
        self._write(f"{verdict(books)} {DEFINITION}")

    def _write(self, line: str) -> None:
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class Live:
    """Bar, workers and the last turns of the story, redrawn in place."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self._console: Console = Console(file=stream, highlight=False)
        self._live = RichLive(console=self._console, auto_refresh=False)
        self._started = SYSTEM_CLOCK.monotonic()
        self._story: deque[str] = deque(maxlen=_REMEMBERED)

    def tell(self, text: str) -> None:
        self._story.append(f"{self._elapsed():5.1f} s  {text}")

    def _elapsed(self) -> float:
        return SYSTEM_CLOCK.monotonic() - self._started

    def draw(self, stats: "QueueStats", hands: list[Hand]) -> None:
        self._live.update(self._picture(stats, hands), refresh=True)

    def _picture(self, stats: "QueueStats", hands: list[Hand]) -> "RenderableType":
        from rich.console import Group
        from rich.text import Text

        story = [Text(line, no_wrap=True, overflow="ellipsis") for line in self._story]
        story += [Text("")] * (_REMEMBERED - len(story))  # a picture that does not jump
        title = Text.assemble(("holdfast demo  ", "bold"), (f"{self._elapsed():.0f} s", "dim"))
        return Group(
            title, bar(stats), legend(stats), Text(""), _workers(hands), Text(""), *story
        )

    def close(self, books: Books) -> None:
        from rich import box
        from rich.table import Column, Table
        from rich.text import Text

        table = Table("", Column(justify="right"), "", box=box.SIMPLE, show_header=False)
        for what, count, why in rows(books):
            style = "bold green" if not count else "bold"
            style = "bold red" if count and what in ("lost", "done twice") else style
            table.add_row(Text(what), Text(f"{count:,}", style=style), Text(why, style="dim"))
        self._console.print(table)
        style = "bold green" if books.balance else "bold red"
        self._console.print(Text(verdict(books), style=style), Text(DEFINITION, style="dim"))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


def _workers(hands: list[Hand]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table("worker", "pid", "done", "", box=None, pad_edge=False, header_style="dim")
    for hand in hands:
        state = hand.fate or ("at work" if hand.counts else "starting")
        style = "red" if hand.killed else "green"
        fate = Text(state, style=style, no_wrap=True, overflow="ellipsis")
        done = str(hand.counts["completed"])
        table.add_row(str(hand.number), str(hand.pid), done, fate)
    return table
