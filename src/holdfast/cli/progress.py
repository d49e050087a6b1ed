"""A progress bar for work that turns out to be long; nothing for what is done at once."""

from typing import TYPE_CHECKING, Self

from holdfast.cli.console import is_terminal, terminal
from holdfast.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from rich.progress import Progress

_PATIENCE_SECONDS = 0.5


class Meter:
    """Counts; shows itself on a terminal once half a second has passed."""

    def __init__(self, doing: str, total: int | None = None) -> None:
        self._doing, self._total = doing, total
        self._show_at = SYSTEM_CLOCK.monotonic() + _PATIENCE_SECONDS
        self._bar: Progress | None = None
        self.count = 0

    def advance(self, by: int) -> None:
        self.count += by
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self.count)
        elif is_terminal() and SYSTEM_CLOCK.monotonic() >= self._show_at:
            self._bar = self._show()

    def _show(self) -> "Progress":
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=terminal(stderr=True),
            transient=True,
        )
        bar.add_task(self._doing, total=self._total, completed=self.count)
        bar.start()
        return bar

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
