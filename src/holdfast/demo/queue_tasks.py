"""The tasks of the queue act, some of which misbehave on purpose.

Each effect is a line in an effect log, with the fence of its attempt. So the report shows
what was really done, without trusting the queue.
"""

from typing import Literal

from holdfast.demo.effect_log import open_effects
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.queue.message import QueueMessage
from holdfast.worker.context import Context
from holdfast.worker.outcome import Reject

_STEPS = {"quick": 1, "long": 8}
_STEP_SECONDS = 0.25
_FOREVER_SECONDS = 3600.0

Habit = Literal["quick", "long", "flaky", "hangs", "poison"]


class DemoTask(QueueMessage):
    """The seed's enrichment message, with how its handler behaves."""

    domain: str
    company_slug: str
    campaign_name: str = "demo"
    habit: Habit = "quick"


HANGING_TASK = "company-002"  # its handler hangs in the first attempt


def make_tasks(count: int) -> list[DemoTask]:
    """Return mostly normal tasks, a few long ones, and the misbehaving ones early on."""
    habits: dict[int, Habit] = {2: "hangs", 5: "poison", 8: "flaky", 20: "flaky"}
    habits |= {number: "long" for number in range(3, count, 12) if number not in habits}
    return [_make_task(number, habits.get(number, "quick")) for number in range(count)]


def _make_task(number: int, habit: Habit) -> DemoTask:
    slug = f"company-{number:03}"
    top = "invalid" if habit == "poison" else "example"
    return DemoTask(id=slug, domain=f"{slug}.{top}", company_slug=slug, habit=habit)


def enrich(task: DemoTask, ctx: Context) -> Reject | None:
    """Enrich a company step by step and record the effect. `holdfast work` runs this."""
    first_attempt = ctx.attempt == 1
    match task.habit:
        case "poison":
            return Reject(f"{task.domain} cannot have a website")
        case "hangs" if first_attempt:
            SYSTEM_CLOCK.sleep(_FOREVER_SECONDS)  # without a beat, so the watchdog ends it
        case "flaky" if first_attempt:
            raise TimeoutError(f"{task.domain} did not answer")
    steps = _STEPS.get(task.habit, 1)
    for step in range(ctx.checkpoint or 0, steps):
        SYSTEM_CLOCK.sleep(_STEP_SECONDS)
        ctx.beat(progress=(step + 1) / steps, checkpoint=step + 1 if steps > 1 else None)
    ctx.raise_if_lost()
    open_effects().record(id=task.id, attempt=ctx.attempt, fence=ctx.fence)
    return None
