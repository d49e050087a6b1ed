"""The effects of handlers, as lines that survive a kill.

So a report shows what was really done, whatever a queue or a store says.
"""

import json
import os
from pathlib import Path
from typing import Any

EFFECTS_VARIABLE = "HOLDFAST_DEMO_LEDGER"  # where a process of the demo records its effects


class EffectLog:
    """A file of effects that several processes append to."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def record(self, **effect: Any) -> None:
        """Append an effect in one write, so that lines of several processes do not mix."""
        with self.path.open("ab", buffering=0) as file:
            file.write(f"{json.dumps(effect)}\n".encode())

    def read(self) -> list[dict[str, Any]]:
        """Return all effects, without an incomplete last line."""
        if not self.path.exists():
            return []
        *complete, _ = self.path.read_text().split("\n")
        return [json.loads(line) for line in complete]


def open_effects() -> EffectLog:
    """Return the log of the act that started this process."""
    return EffectLog(os.environ[EFFECTS_VARIABLE])
