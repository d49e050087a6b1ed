"""The tasks of the queue act, some of which misbehave on purpose.

Each effect is a line in a file, with the attempt that made it. So the report shows what was
really done, without trusting the queue.
"""

import json
import time
from pathlib import Path
from typing import Literal

from holdfast import Context, QueueMessage, Reject

EFFECTS = "effects.jsonl"  # in the folder of the demo, where its processes run
STEP_SECONDS = 0.25
FOREVER_SECONDS = 3600.0
HANGING_TASK = "company-002"  # its handler hangs in the first attempt

Habit = Literal["quick", "long", "flaky", "hangs", "poison"]
HABITS: dict[int, Habit] = {2: "hangs", 5: "poison", 8: "flaky", 20: "flaky"}


class DemoTask(QueueMessage):
    """A company to enrich, and how its handler behaves."""

    domain: str
    habit: Habit


def make_tasks(count: int) -> list[DemoTask]:
    """Return mostly normal tasks, a few long ones, and the misbehaving ones early on."""
    long: dict[int, Habit] = dict.fromkeys(range(3, count, 12), "long")
    habits = long | HABITS
    names = [f"company-{number:03}" for number in range(count)]
    return [
        DemoTask(id=name, domain=f"{name}.example", habit=habits.get(number, "quick"))
        for number, name in enumerate(names)
    ]


def enrich(task: DemoTask, ctx: Context) -> Reject | None:
    """Enrich a company step by step and record the effect. `holdfast work` runs this."""
    if task.habit == "poison":
        return Reject(f"{task.domain} cannot have a website")
    if task.habit == "hangs" and ctx.attempt == 1:
        time.sleep(FOREVER_SECONDS)  # without a beat, so the watchdog ends it
    if task.habit == "flaky" and ctx.attempt == 1:
        raise TimeoutError(f"{task.domain} did not answer")
    steps = 8 if task.habit == "long" else 1
    for step in range(ctx.checkpoint or 0, steps):
        time.sleep(STEP_SECONDS)
        ctx.beat(progress=(step + 1) / steps, checkpoint=step + 1 if steps > 1 else None)
    ctx.raise_if_lost()
    # One write, so that the lines of several processes do not mix.
    with Path(EFFECTS).open("ab", buffering=0) as file:
        file.write(f"{json.dumps({'id': task.id, 'attempt': ctx.attempt})}\n".encode())
    return None
