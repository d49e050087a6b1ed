"""The effects of the writer and the sender, as lines that survive a kill.

So the report shows what was really written and sent, whatever the store says.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

EffectKind = Literal["asked", "written", "held", "sent"]


@dataclass(frozen=True, slots=True)
class EffectEntry:
    """One effect."""

    kind: EffectKind
    text: str = ""


class EffectLog:
    """A file of effects that several processes append to."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "chat-effects.jsonl"

    def record(self, kind: EffectKind, text: str = "") -> None:
        """Append an effect in one write, so that lines of several processes do not mix."""
        line = json.dumps({"kind": kind, "text": text})
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, f"{line}\n".encode())
        finally:
            os.close(fd)

    def read_entries(self) -> list[EffectEntry]:
        """Return all effects, without an incomplete last line."""
        if not self._path.exists():
            return []
        *complete, _ = self._path.read_text().split("\n")  # the last line may be incomplete
        return [EffectEntry(**json.loads(line)) for line in complete]

    def read_texts(self, kind: EffectKind) -> list[str]:
        """Return the texts of all effects of one kind."""
        return [entry.text for entry in self.read_entries() if entry.kind == kind]
