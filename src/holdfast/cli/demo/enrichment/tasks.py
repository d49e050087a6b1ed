"""The tasks of the queue scenario, some of which misbehave on purpose.

Each effect is a line in an effect log, with the fence of its attempt. So the report shows
what was really done, without trusting the queue.
"""

import json
import os
from typing import Literal

from holdfast.core.clock import SYSTEM_CLOCK
from holdfast.core.queue.message import QueueMessage
from holdfast.core.worker.context import Context
from holdfast.core.worker.outcome import Reject

EFFECTS_VARIABLE = "HOLDFAST_DEMO_LEDGER"
_STEPS = {"quick": 1, "long": 8}
_STEP_SECONDS = 0.25

Habit = Literal["quick", "long", "flaky", "hangs", "poison"]


class DemoTask(QueueMessage):
    """The seed's enrichment message, with how its handler behaves."""

    domain: str
    company_slug: str
    campaign_name: str = "demo"
    habit: Habit = "quick"


def make_tasks(count: int) -> list[DemoTask]:
    """Return mostly normal tasks, a few long ones, and the misbehaving ones early on."""
    habits: dict[int, Habit] = {_HANGING: "hangs", 5: "poison", 8: "flaky", 20: "flaky"}
    habits |= {number: "long" for number in range(3, count, 12) if number not in habits}
    return [_make_task(number, habits.get(number, "quick")) for number in range(count)]


def _make_slug(number: int) -> str:
    return f"company-{number:03}"


_HANGING = 2
HANGING_TASK = _make_slug(_HANGING)  # its handler hangs in the first attempt


def _make_task(number: int, habit: Habit) -> DemoTask:
    slug = _make_slug(number)
    top = "invalid" if habit == "poison" else "example"
    return DemoTask(id=slug, domain=f"{slug}.{top}", company_slug=slug, habit=habit)


def enrich(task: DemoTask, ctx: Context) -> Reject | None:
    """Enrich a company step by step and record the effect. `holdfast work` runs this."""
    first_attempt = ctx.attempt == 1
    match task.habit:
        case "poison":
            return Reject(f"{task.domain} cannot have a website")
        case "hangs" if first_attempt:
            _hang()
        case "flaky" if first_attempt:
            raise TimeoutError(f"{task.domain} did not answer")
    steps = _STEPS.get(task.habit, 1)
    for step in range(ctx.checkpoint or 0, steps):
        SYSTEM_CLOCK.sleep(_STEP_SECONDS)
        ctx.beat(progress=(step + 1) / steps, checkpoint=step + 1 if steps > 1 else None)
    ctx.raise_if_lost()
    record_effect(os.environ[EFFECTS_VARIABLE], task.id, ctx.attempt, ctx.fence)
    return None


def _hang() -> None:
    """Sleep forever without a beat, until the watchdog ends this process."""
    while True:
        SYSTEM_CLOCK.sleep(3600.0)


def record_effect(path: str, task_id: str, attempt: int, fence: int) -> None:
    """Append an effect in one write, so that lines of several processes do not mix."""
    line = json.dumps({"id": task_id, "attempt": attempt, "fence": fence})
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, f"{line}\n".encode())
    finally:
        os.close(fd)
