"""The effects of handlers, as lines that survive a kill.

So a report shows what was really done, whatever a queue or a store says.
"""

import json
import os
from pathlib import Path
from typing import Any


class EffectLog:
    """A file of effects that several processes append to."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def record(self, **effect: Any) -> None:
        """Append an effect in one write, so that lines of several processes do not mix."""
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, f"{json.dumps(effect)}\n".encode())
        finally:
            os.close(fd)

    def read(self) -> list[dict[str, Any]]:
        """Return all effects, without an incomplete last line."""
        if not self._path.exists():
            return []
        *complete, _ = self._path.read_text().split("\n")
        return [json.loads(line) for line in complete]
