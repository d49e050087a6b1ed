"""How the demo looks: a live picture on a terminal, plain lines elsewhere."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from holdfast.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from rich.console import RenderableType

_REMEMBERED = 9  # lines of the story in the picture
_REPORT_SECONDS = 3.0  # between two lines of progress


class Scene(Protocol):
    """How things stand, told in both ways."""

    def line(self) -> str: ...

    def picture(self) -> "Sequence[RenderableType]": ...


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the books: what, how many, and why that is right."""

    what: str
    count: int
    why: str = ""
    wrong: bool = False


class Account(Protocol):
    """The books of an act, as they are read out."""

    @property
    def balance(self) -> bool: ...

    def rows(self) -> Sequence[Row]: ...

    def definition(self) -> str:
        """What the words of the books mean."""


class DemoScreen(Protocol):
    """Where one act is played."""

    def tell(self, text: str) -> None:
        """A turn of the story."""

    def draw(self, scene: Scene) -> None:
        """How things stand."""

    def close(self, books: Account) -> None:
        """The end: the books."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


def stage(stream: TextIO, title: str) -> DemoScreen:
    return Live(stream, title) if stream.isatty() else Plain(stream, title)


def verdict(books: Account) -> str:
    return "The books balance." if books.balance else "THE BOOKS DO NOT BALANCE."


class Plain:
    """A line now and then."""

    def __init__(self, stream: TextIO, title: str) -> None:
        self._stream, self._title = stream, title
        self._started = SYSTEM_CLOCK.monotonic()
        self._report_at = 0.0

    def tell(self, text: str) -> None:
        self._write(f"{SYSTEM_CLOCK.monotonic() - self._started:5.1f} s  {text}")

    def draw(self, scene: Scene) -> None:
        if (now := SYSTEM_CLOCK.monotonic()) >= self._report_at:
            self._report_at = now + _REPORT_SECONDS
            self.tell(scene.line())

    def close(self, books: Account) -> None:
        self._write("")
        wide = max(len(row.what) for row in books.rows()) + 1
        for row in books.rows():
            self._write(f"{row.what:<{wide}}{row.count:>6}  {row.why}".rstrip())
        self._write(f"{verdict(books)} {books.definition()}\n")

    def _write(self, line: str) -> None:
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def __enter__(self) -> Self:
        self._write(self._title)
        return self

    def __exit__(self, *_: object) -> None: ...


class Live:
    """The scene and the last turns of the story, redrawn in place."""

    def __init__(self, stream: TextIO, title: str) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self._title = title
        self._console: Console = Console(file=stream, highlight=False)
        self._live = RichLive(console=self._console, auto_refresh=False)
        self._started = SYSTEM_CLOCK.monotonic()
        self._story: deque[str] = deque(maxlen=_REMEMBERED)

    def tell(self, text: str) -> None:
        self._story.append(f"{self._elapsed():5.1f} s  {text}")

    def _elapsed(self) -> float:
        return SYSTEM_CLOCK.monotonic() - self._started

    def draw(self, scene: Scene) -> None:
        self._live.update(self._picture(scene), refresh=True)

    def _picture(self, scene: Scene) -> "RenderableType":
        from rich.console import Group
        from rich.text import Text

        story = [Text(line, no_wrap=True, overflow="ellipsis") for line in list(self._story)]
        story += [Text("")] * (_REMEMBERED - len(story))  # a picture that does not jump
        title = Text.assemble((f"{self._title}  ", "bold"), (f"{self._elapsed():.0f} s", "dim"))
        return Group(title, *scene.picture(), Text(""), *story)

    def close(self, books: Account) -> None:
        from rich import box
        from rich.table import Column, Table
        from rich.text import Text

        table = Table("", Column(justify="right"), "", box=box.SIMPLE, show_header=False)
        for row in books.rows():
            style = "bold red" if row.wrong else "bold" if row.count else "bold green"
            count = Text(f"{row.count:,}", style=style)
            table.add_row(Text(row.what), count, Text(row.why, style="dim"))
        self._console.print(table)
        style = "bold green" if books.balance else "bold red"
        self._console.print(Text(verdict(books), style=style))
        self._console.print(Text(f"{books.definition()}\n", style="dim"))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
