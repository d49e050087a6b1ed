"""The demo's work: enrichment tasks, some of which misbehave on purpose.

Each effect is a line in a ledger, written with the fence of its attempt. That is how the
books can tell, afterwards and without trusting the queue, what was really done.
"""

import json
import os
from typing import Literal

from holdfast.core.clock import SYSTEM_CLOCK
from holdfast.core.queue.message import QueueMessage
from holdfast.core.worker.context import Context
from holdfast.core.worker.outcome import Reject

LEDGER = "HOLDFAST_DEMO_LEDGER"
_STEPS = {"quick": 1, "long": 8}
_STEP_SECONDS = 0.25

Habit = Literal["quick", "long", "flaky", "hangs", "poison"]


class DemoTask(QueueMessage):
    """The seed's enrichment message, and what it will do to its worker."""

    domain: str
    company_slug: str
    campaign_name: str = "demo"
    habit: Habit = "quick"


def cast(count: int) -> list[DemoTask]:
    """Who plays: mostly honest work, a few long ones, and the troublemakers early on."""
    habits: dict[int, Habit] = {_HANGING: "hangs", 5: "poison", 8: "flaky", 20: "flaky"}
    habits |= {number: "long" for number in range(3, count, 12) if number not in habits}
    return [_task(number, habits.get(number, "quick")) for number in range(count)]


def _slug(number: int) -> str:
    return f"company-{number:03}"


_HANGING = 2
HANGS = _slug(_HANGING)  # whose handler hangs the first time


def _task(number: int, habit: Habit) -> DemoTask:
    slug = _slug(number)
    top = "invalid" if habit == "poison" else "example"
    return DemoTask(id=slug, domain=f"{slug}.{top}", company_slug=slug, habit=habit)


def enrich(task: DemoTask, ctx: Context) -> Reject | None:
    """What `holdfast work` runs: look at the website step by step, then note the result."""
    first_time = ctx.attempt == 1
    match task.habit:
        case "poison":
            return Reject(f"{task.domain} can have no website")
        case "hangs" if first_time:
            _hang()
        case "flaky" if first_time:
            raise TimeoutError(f"{task.domain} did not answer")
    steps = _STEPS.get(task.habit, 1)
    for step in range(ctx.checkpoint or 0, steps):
        SYSTEM_CLOCK.sleep(_STEP_SECONDS)
        ctx.beat(progress=(step + 1) / steps, checkpoint=step + 1 if steps > 1 else None)
    ctx.raise_if_lost()
    note_effect(os.environ[LEDGER], task.id, ctx.attempt, ctx.fence)
    return None


def _hang() -> None:
    """No beat, no end: only the watchdog can help."""
    while True:
        SYSTEM_CLOCK.sleep(3600.0)


def note_effect(ledger: str, task_id: str, attempt: int, fence: int) -> None:
    """One line in one write: appends of many processes do not mix."""
    line = json.dumps({"id": task_id, "attempt": attempt, "fence": fence})
    fd = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, f"{line}\n".encode())
    finally:
        os.close(fd)
