"""The interface of contenders, and the facts about each."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


class Contender(Protocol):
    """A queue that one process has opened in a folder, used through its public API."""

    def fill(self, count: int) -> None:
        """Push `count` payloads before the measurement."""

    def payload(self, number: int) -> Any:
        """Return an argument for `push`, made before the clock starts."""

    def push(self, payload: Any) -> None:
        """Push a payload."""

    def claim(self) -> Any | None:
        """Claim a message and read its payload; None if there is none."""

    def done(self, claimed: Any) -> None:
        """Complete a claimed message."""

    def identity(self, claimed: Any) -> str:
        """Return which payload it is, to find duplicates."""

    def close(self) -> None:
        """Close the queue."""


@dataclass(frozen=True, slots=True)
class Card:
    """A contender and the facts that make its figures comparable."""

    name: str
    open: Callable[[Path], Contender]
    redelivers: str  # how a killed worker's message is redelivered
    survives: bool  # whether a killed worker's message is kept
    syncs: str  # what a commit reaches: "kernel" or "disk"
    api: str
    one_file: bool = False  # a database, which is filled once and copied for each measurement
    batch: int = 1  # messages in a payload and in a claim


def card_named(name: str) -> Card:
    """Return the card of that name."""
    from bench.bare import BARE
    from bench.holdfast import FILES, SQLITE
    from bench.peers import PEERS
    from bench.raw_sqlite import RAW

    cards = (BARE, *FILES, *SQLITE, *RAW, *PEERS)
    return next(card for card in cards if card.name == name)
