"""The queues that are compared: what each must do, the facts about it, and where it is.

Imports are inside the constructors: a measurement's process loads only the queue it measures,
so memory figures are its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bench.payload import body, number_of


class Contender:
    """A queue that one process has opened in a folder, used through its public API.

    By default a payload is bytes of JSON, made before the clock starts.
    """

    def fill(self, count: int) -> None:
        """Push `count` payloads before the measurement."""
        for number in range(count):
            self.push(self.payload(number))

    def payload(self, number: int) -> Any:
        """Return an argument for `push`, made before the clock starts."""
        return body(number)

    def push(self, payload: Any) -> None:
        """Push a payload."""
        raise NotImplementedError

    def claim(self) -> Any | None:
        """Claim a message, or a batch as a list, and read it; None if there is none."""
        raise NotImplementedError

    def done(self, claimed: Any) -> None:
        """Complete what was claimed."""

    def identity(self, claimed: Any) -> str:
        """Return which payload a claimed message is, to find duplicates."""
        return number_of(claimed)

    def close(self) -> None:
        """Close the queue."""


@dataclass(frozen=True, slots=True)
class Card:
    """A contender and the facts that make its figures comparable."""

    name: str
    open: Callable[[Path], Contender]
    redelivers: str = ""  # how a killed worker's message is redelivered
    survives: bool = True  # whether a killed worker's message is kept
    syncs: bool = False  # whether a commit reaches the disk
    one_file: bool = False  # a database, which is filled once and copied for each measurement
    batch: int = 1  # messages in a payload and in a claim


@cache
def get_cards() -> dict[str, Card]:
    """Return all contenders by their names."""
    from bench.own_queues import OWN
    from bench.peers import PEERS

    return {card.name: card for card in (*OWN, *PEERS)}
