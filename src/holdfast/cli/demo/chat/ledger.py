"""What the writer and the sender did, in their own words: lines that survive a kill.

So the books can tell what was really asked and really sent, whatever the store says.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Deed = Literal["asked", "written", "held", "sent"]


@dataclass(frozen=True, slots=True)
class EffectEntry:
    deed: Deed
    text: str = ""


class EffectLog:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "chat-deeds.jsonl"

    def note(self, deed: Deed, text: str = "") -> None:
        """One line in one write: appends of several processes do not mix."""
        line = json.dumps({"deed": deed, "text": text})
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, f"{line}\n".encode())
        finally:
            os.close(fd)

    def entries(self) -> list[EffectEntry]:
        if not self._path.exists():
            return []
        *whole, _ = self._path.read_text().split("\n")  # the last one may still be growing
        return [EffectEntry(**json.loads(line)) for line in whole]

    def texts(self, deed: Deed) -> list[str]:
        return [entry.text for entry in self.entries() if entry.deed == deed]
