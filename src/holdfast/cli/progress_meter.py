"""A progress bar that appears only if the work takes long."""

from typing import TYPE_CHECKING, Self

from holdfast.cli.console import is_terminal, make_console
from holdfast.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from rich.progress import Progress

_SHOW_AFTER_SECONDS = 0.5


class ProgressMeter:
    """A counter that shows a progress bar on a terminal after half a second."""

    def __init__(self, activity: str, total: int | None = None) -> None:
        self._activity, self._total = activity, total
        self._show_at = SYSTEM_CLOCK.monotonic() + _SHOW_AFTER_SECONDS
        self._bar: Progress | None = None
        self.count = 0

    def advance(self, by: int) -> None:
        """Add to the count."""
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
            console=make_console(stderr=True),
            transient=True,
        )
        bar.add_task(self._activity, total=self._total, completed=self.count)
        bar.start()
        return bar

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
