"""The port of tracing. Without it nothing is traced, and nothing costs time."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

NoteOutcome = Callable[[object], None]


class Tracing(Protocol):
    """Shows what happens to messages as spans."""

    def processing(self, message: Any) -> AbstractContextManager[NoteOutcome]:
        """Return the span of one attempt, which is current inside the block.

        Call what it yields with the attempt's outcome.
        """
