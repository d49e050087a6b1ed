"""What a contender can do, and what is known of each."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


class Contender(Protocol):
    """One queue, opened in one folder by one process, driven through its public API."""

    def fill(self, count: int) -> None:
        """Put `count` payloads in, before the measuring."""

    def payload(self, number: int) -> Any:
        """What `push` takes, made before the clock starts."""

    def push(self, payload: Any) -> None: ...

    def claim(self) -> Any | None:
        """Take one, payload read; None when there is none."""

    def done(self, claimed: Any) -> None: ...

    def identity(self, claimed: Any) -> str:
        """Which payload it is, to find what was delivered twice."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Card:
    """A contender and the facts that make its figures comparable."""

    name: str
    open: Callable[[Path], Contender]
    redelivers: str  # what becomes of work whose worker was killed
    survives: bool  # the work is still there, by itself or by a call
    syncs: str  # what a commit reaches: "kernel" or "disk"
    api: str
    one_file: bool = False  # a database: filled once, copied for each measurement


def card_named(name: str) -> Card:
    from bench.bare import BARE
    from bench.holdfast import BATCHED, HOLDFAST, PREBUILT
    from bench.peers import PEERS

    cards = (BARE, HOLDFAST, PREBUILT, BATCHED, *PEERS)
    return next(card for card in cards if card.name == name)
