"""Report the events in the logs of the workers."""

from collections.abc import Callable
from typing import Any

from holdfast.cli.demo.processes import DemoProcess
from holdfast.core.clock import SYSTEM_CLOCK


class ChatEventFeed:
    """Handles events, in one thread per worker."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self.killed_at = SYSTEM_CLOCK.monotonic()
        self.taken_over = 0  # prepared replies that were taken over

    def __call__(self, worker: DemoProcess, event: dict[str, Any]) -> None:
        if text := self._describe(event):
            self._report(f"worker {worker.number}: {text}")

    def _describe(self, event: dict[str, Any]) -> str | None:
        match event:
            case {"event": "lock_taken_over", "outbox": state}:
                self.taken_over += state == "prepared"
                after = SYSTEM_CLOCK.monotonic() - self.killed_at
                return f"has the lock, {after:.1f} s after the kill; the reply is {state}"
            case {"event": "lock_busy", "own": True}:
                return "has the trigger, but the killed worker's lock has not ended yet"
            case {"event": "lock_busy"}:
                return "gets the late message's trigger while the lock is held, and acks it"
            case {"event": "batch_begun", "fragments": 1}:
                return "takes 1 message as a batch"
            case {"event": "batch_begun", "fragments": count}:
                return f"takes {count} messages as one batch"
            case {"event": "reply_written"}:
                return "the reply is written and stored as prepared"
            case {"event": "reply_sent"}:
                return "the reply is sent"
            case {"event": "turn_finished"}:
                return "messages and reply are written to the history in one write"
            case {"event": "nothing_staged"}:
                return "its trigger finds no unanswered message"
            case {"event": "batch_parked" | "dead_lettered", "reason": reason}:
                return f"{event['event'].replace('_', ' ')}: {reason}"
            case {"event": "batch_failed" | "sent_not_recorded", "error": error}:
                return f"{event['event'].replace('_', ' ')}: {error}"
        return None
