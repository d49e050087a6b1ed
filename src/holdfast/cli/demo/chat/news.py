"""What the workers report of themselves, and the turns of the story that follow from it."""

from collections.abc import Callable
from typing import Any

from holdfast.cli.demo.crew import WorkerHandle
from holdfast.core.clock import SYSTEM_CLOCK


class ChatEventFeed:
    """Hears events, in a thread of each worker."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self.killed_at = SYSTEM_CLOCK.monotonic()
        self.taken_over = 0  # replies found prepared

    def __call__(self, hand: WorkerHandle, event: dict[str, Any]) -> None:
        if said := self._said(event):
            self._tell(f"worker {hand.number}: {said}")

    def _said(self, event: dict[str, Any]) -> str | None:
        match event:
            case {"event": "lock_taken_over", "outbox": state}:
                self.taken_over += state == "prepared"
                after = SYSTEM_CLOCK.monotonic() - self.killed_at
                return f"has the lock, {after:.1f} s after the kill; the reply is {state}"
            case {"event": "lock_busy", "own": True}:
                return "has the trigger, but the lock is still the dead worker's"
            case {"event": "lock_busy"}:
                return "the late one's trigger comes, but somebody has the lock: acked"
            case {"event": "batch_begun", "fragments": 1}:
                return "takes 1 message as a batch"
            case {"event": "batch_begun", "fragments": count}:
                return f"takes {count} messages as one batch"
            case {"event": "reply_written"}:
                return "the reply is written, and noted as prepared"
            case {"event": "reply_sent"}:
                return "the reply is sent"
            case {"event": "turn_finished"}:
                return "messages and reply are in the history, in one write"
            case {"event": "nothing_staged"}:
                return "its trigger finds nothing that was not answered before"
            case {"event": "batch_parked" | "dead_lettered", "reason": reason}:
                return f"{event['event'].replace('_', ' ')}: {reason}"
            case {"event": "batch_failed" | "sent_not_recorded", "error": error}:
                return f"{event['event'].replace('_', ' ')}: {error}"
        return None
