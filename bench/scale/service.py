"""The model of an SQS queue and of the Fargate service that works on it.

    sent ─▶ visible ─▶ held by a task ─▶ counted once
              ▲              │  └─ failed, lost, killed ─▶ hidden until its time ─┐
              └──────────────┴─────────────────────────────────────────────────────┘
                             └─ last attempt ─▶ dead letter

A unit of work is held under a fence, which changes whenever a task gets it or loses it. An
event that carries an old fence is ignored, as the package's writes are.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from math import ceil, inf, pi, sin
from typing import Any, Generic, TypeVar

from bench.scale.deployment import Deployment, Service
from bench.scale.engine import Histogram, Simulation, Usage
from bench.scale.faults import DAY, Health
from bench.scale.latencies import LATENCIES

LONG_SHARE = 0.01  # of the handlers, which take 30 to 300 s
MESSAGE_SECONDS = 2.7  # mean, for the size of the service
_REDRIVE_PER_SECOND = 500  # what SQS moves at most
_CHECK_SECONDS = 10.0  # of ECS, between two looks at a service
_RETRY_SECONDS = 5.0  # of a worker whose call is not answered
_SWING = 0.6  # of the load in a day
_SCALE_OUT_MINUTES, _SCALE_IN_MINUTES = 3, 15  # of target tracking's own alarms


def swing(now: float) -> float:
    """Return the load at this time of the day, in means: 0.4 at night, 1.6 at the peak."""
    return 1.0 + _SWING * sin(2 * pi * (now / DAY - 0.25))


@dataclass(slots=True)
class World:
    """What all parts of the deployment share."""

    simulation: Simulation
    deployment: Deployment
    health: Health
    usage: Usage


class Part:
    """One part of the deployment: the work queue, the exports or the conversations."""

    def __init__(self, world: World) -> None:
        self.simulation, self.deployment = world.simulation, world.deployment
        self.health, self.usage = world.health, world.usage
        self.random = world.simulation.random
        self.waits = Histogram()
        self.sent = self.counted = self.counted_twice = 0
        self.is_producing = True

    def start(self) -> None:
        """Let work come."""
        raise NotImplementedError

    def iter_waiting(self) -> Iterator[float]:
        """Yield when each unit began that waits."""
        raise NotImplementedError

    def count_open(self) -> int:
        """Return how many units are neither counted nor given up."""
        raise NotImplementedError

    def begin_outage(self) -> None:
        """Let SQS respond no more."""

    def recover(self) -> None:
        """Go on after a failure."""


class Unit:
    """A message or a job. `task` holds it, under `fence`."""

    __slots__ = ("attempts", "began_at", "counted", "fence", "seconds", "sent_at", "task")

    def __init__(self, sent_at: float, seconds: float) -> None:
        self.sent_at, self.seconds = sent_at, seconds  # the work that is not counted yet
        self.attempts = self.fence = 0
        self.task: Task | None = None
        self.began_at = 0.0
        self.counted = False


class Task:
    """One Fargate task."""

    def __init__(self) -> None:
        self.held: dict[Any, None] = {}  # in order, so that a run can be repeated


AnyUnit = TypeVar("AnyUnit", bound=Unit)


class ServiceModel(Part, Generic[AnyUnit]):
    """A queue, and a service that scales by the backlog of each task."""

    renewals_per_call = 1

    def __init__(self, world: World, service: Service, name: str) -> None:
        super().__init__(world)
        self.service, self.name, self.queue = service, name, world.deployment.queue
        self.visible: deque[AnyUnit] = deque()
        self.hidden: dict[AnyUnit, None] = {}  # they wait, and no task has them
        self.tasks: list[Task] = []
        self.desired = service.min_tasks
        self._held = self._starting = 0
        self._above = self._below = 0
        self._changed_at = -inf

    def start_service(self) -> None:
        """Start the tasks."""
        for _ in range(self.desired):
            self.add_task()
        self.simulation.after(_CHECK_SECONDS, self._check)
        self.simulation.after(60.0, self._scale)

    # -- what a subclass decides

    def compute_seconds(self, unit: AnyUnit) -> float:
        """Return how long this attempt takes."""
        raise NotImplementedError

    def finish(self, unit: AnyUnit) -> bool:
        """Return whether the attempt succeeded."""
        raise NotImplementedError

    def can_settle(self, unit: AnyUnit) -> bool:
        """Return whether all services respond that the end of an attempt needs."""
        return self.health.sqs_errors < 1

    def note_interrupted(self, unit: AnyUnit) -> None:
        """Note which work is done again."""

    def dead_letter(self, unit: AnyUnit) -> None:
        """Keep a unit that has used up its attempts."""
        raise NotImplementedError

    # -- the queue

    def send(self, unit: AnyUnit) -> None:
        """Send a unit. While SQS does not respond, its producer keeps it."""
        self.usage.counts["sqs.SendMessage"] += 1
        self.show(unit)

    def show(self, unit: AnyUnit) -> None:
        """Make a unit visible."""
        self.visible.append(unit)
        self.deliver()

    def hide(self, unit: AnyUnit, seconds: float) -> None:
        """Make a unit visible after so many seconds."""
        unit.fence += 1
        self.hidden[unit] = None
        self.simulation.after(seconds, self._come_back, unit, unit.fence)

    def _come_back(self, unit: AnyUnit, fence: int) -> None:
        if unit.fence == fence:
            del self.hidden[unit]
            self.show(unit)

    def deliver(self) -> None:
        """Hand out what is visible to tasks with a free slot."""
        while self.visible and self.health.sqs_errors < 1:
            task = self.find_task()
            if task is None:
                return
            self._claim(self.visible.popleft(), task)

    def find_task(self) -> Task | None:
        """Return a task with a free slot; its long poll gets the message."""
        if self._held >= len(self.tasks) * self.service.concurrency:
            return None
        first = self.random.randrange(len(self.tasks))
        return next(
            task
            for task in chain(self.tasks[first:], self.tasks[:first])
            if len(task.held) < self.service.concurrency
        )

    # -- attempts

    def _claim(self, unit: AnyUnit, task: Task) -> None:
        now = self.simulation.now
        unit.attempts += 1
        unit.fence += 1
        self.usage.counts["sqs.ReceiveMessage"] += 1
        if unit.attempts > self.queue.max_attempts:
            self.dead_letter(unit)
            return
        if unit.fence == 1:
            self.waits.add(now - unit.sent_at)
        unit.began_at, unit.task = now, task
        self.take(unit, task)
        self._held += 1
        self.usage.note_level("sqs.in_flight", self._held + len(self.hidden))
        seconds = self.compute_seconds(unit)
        self.simulation.after(seconds, self._end, unit, unit.fence)

    def take(self, unit: AnyUnit, task: Task) -> None:
        """Let a task hold a unit."""
        task.held[unit] = None

    def release(self, unit: AnyUnit) -> None:
        """Take a unit from its task."""
        assert unit.task is not None
        del unit.task.held[unit]
        unit.task = None
        self._held -= 1
        renewals = int((self.simulation.now - unit.began_at) / (self.queue.lease_seconds / 3))
        calls = renewals / self.renewals_per_call
        self.usage.counts["sqs.ChangeMessageVisibilityBatch"] += calls

    def _end(self, unit: AnyUnit, fence: int) -> None:
        if unit.fence != fence:
            return
        if not self.can_settle(unit):
            self.simulation.after(_RETRY_SECONDS, self._end, unit, fence)
            return
        if self.finish(unit):
            self.release(unit)
            self.usage.counts["sqs.DeleteMessageBatch"] += 1
            self.counted_twice += unit.counted
            self.counted += not unit.counted
            unit.counted = True
        else:
            self.fail(unit)
        self.deliver()

    def fail(self, unit: AnyUnit) -> None:
        """End an attempt that failed."""
        self.release(unit)
        self.usage.counts["sqs.ChangeMessageVisibilityBatch"] += 1
        if unit.attempts >= self.queue.max_attempts:
            self.dead_letter(unit)
        else:
            self.hide(unit, ceil(self.queue.backoff.delay(unit.attempts, self.random)))

    def begin_outage(self) -> None:
        """Let each lease run out whose renewal is not answered in time."""
        for task in self.tasks:
            for unit in task.held:
                self.simulation.after(self._draw_lease(), self._lose, unit, unit.fence)

    def _lose(self, unit: AnyUnit, fence: int) -> None:
        if unit.fence == fence and self.health.sqs_errors >= 1:
            self.usage.marks[f"{self.name}.lost_leases"] += 1
            self._interrupt(unit, 0.0)

    def _interrupt(self, unit: AnyUnit, seconds: float) -> None:
        self.release(unit)
        self.note_interrupted(unit)
        self.hide(unit, seconds)

    def _draw_lease(self) -> float:
        """Return what is left of a lease, which is renewed after a third of it."""
        return self.queue.lease_seconds * self.random.uniform(2 / 3, 1)

    def recover(self) -> None:
        """Let the tasks poll again."""
        self.deliver()

    # -- the service

    def add_task(self) -> None:
        """Add a task."""
        self.tasks.append(Task())
        self.deliver()

    def remove_task(self, task: Task) -> None:
        """Note that a task has ended."""

    def kill(self, share: float) -> None:
        """Kill this share of the tasks with SIGKILL."""
        killed = self.tasks[: ceil(share * len(self.tasks))]
        self.tasks = self.tasks[len(killed) :]
        for task in killed:
            self.remove_task(task)
            for unit in list(task.held):
                self._interrupt(unit, self._draw_lease())

    def _check(self) -> None:
        """Do what ECS does every few seconds, and count what its tasks do meanwhile."""
        running = len(self.tasks)
        if self.health.tasks_start:
            for _ in range(self.desired - running - self._starting):
                self._starting += 1
                self.simulation.after(LATENCIES["fargate.start"], self._finish_start)
        idle = [task for task in self.tasks if not task.held]  # the others are protected
        for task in idle[: max(0, running - self.desired)]:
            self.tasks.remove(task)
            self.remove_task(task)
        self.count_running(_CHECK_SECONDS)
        if self.is_producing or self.count_open():
            self.simulation.after(_CHECK_SECONDS, self._check)

    def _finish_start(self) -> None:
        self._starting -= 1
        self.add_task()

    def count_running(self, seconds: float) -> None:
        """Count what the tasks cost in so many seconds."""
        counts, running = self.usage.counts, len(self.tasks)
        polls = sum(len(task.held) < self.service.concurrency for task in self.tasks)
        counts["sqs.ReceiveMessage"] += polls * seconds / self.deployment.poll_seconds
        counts["fargate.vcpu_hour"] += running * seconds / 3600 * self.service.vcpu
        counts["fargate.gb_hour"] += running * seconds / 3600 * self.service.memory_gb
        storage_gb = max(0.0, self.service.storage_gb - 20)
        counts["fargate.storage_gb_hour"] += running * seconds / 3600 * storage_gb
        self.usage.note_level("fargate.vcpu", running * self.service.vcpu)

    def _scale(self) -> None:
        """Track the target as AWS describes it, with the cooldowns of the template."""
        service, tasks = self.service, max(1, len(self.tasks))
        backlog = len(self.visible) / tasks / service.backlog_per_task
        self._above = self._above + 1 if backlog > 1 else 0
        self._below = self._below + 1 if backlog < 0.9 else 0
        waited = self.simulation.now - self._changed_at
        if self._above >= _SCALE_OUT_MINUTES and waited >= service.scale_out_seconds:
            self._change(max(self.desired, ceil(tasks * backlog)))
        elif self._below >= _SCALE_IN_MINUTES and waited >= service.scale_in_seconds:
            self._change(min(self.desired, ceil(tasks * backlog)))
        if self.is_producing or self.count_open():
            self.simulation.after(60.0, self._scale)

    def _change(self, tasks: int) -> None:
        tasks = max(self.service.min_tasks, min(self.service.max_tasks, tasks))
        if tasks != self.desired:
            self.desired, self._changed_at = tasks, self.simulation.now

    # -- for the report

    def iter_waiting(self) -> Iterator[float]:
        """Yield when each unit was sent that waits."""
        return (unit.sent_at for unit in chain(self.visible, self.hidden))

    def count_open(self) -> int:
        """Return how many units wait or are held."""
        return len(self.visible) + len(self.hidden) + self._held


class WorkModel(ServiceModel[Unit]):
    """Producers, and tasks that run `holdfast work`."""

    def __init__(self, world: World, per_second: float) -> None:
        super().__init__(world, world.deployment.workers, "work")
        self._per_second = per_second
        self.dead: list[Unit] = []

    def start(self) -> None:
        """Start with as many tasks as this time of the day needs, and produce messages."""
        slots = self._per_second * swing(self.simulation.now) * MESSAGE_SECONDS * 1.3
        self.desired = max(self.service.min_tasks, ceil(slots / self.service.concurrency))
        self.start_service()
        self.simulation.after(0.0, self._produce)

    def _produce(self) -> None:
        if not self.is_producing:
            return
        now, random = self.simulation.now, self.random
        is_long = random.random() < LONG_SHARE
        seconds = random.uniform(30.0, 300.0) if is_long else random.lognormvariate(-0.223, 0.7)
        self.sent += 1
        self.send(Unit(now, seconds))
        rate = self._per_second * swing(now)
        self.simulation.after(random.expovariate(rate), self._produce)

    def compute_seconds(self, unit: Unit) -> float:
        """Return the time of the handler, of the receive and of the delete."""
        return unit.seconds + 2 * LATENCIES["sqs"] * self.health.slowness

    def finish(self, unit: Unit) -> bool:
        """Return whether the handler succeeded."""
        return self.random.random() >= self.health.handler_errors

    def dead_letter(self, unit: Unit) -> None:
        """Move a message to the dead letters."""
        self.usage.marks["work.dead"] += 1
        self.usage.counts["sqs.SendMessage"] += 1
        self.usage.counts["sqs.DeleteMessageBatch"] += 1
        self.dead.append(unit)

    def redrive(self) -> None:
        """Move all dead letters back, as fast as SQS does."""
        letters, self.dead = self.dead, []
        for number, unit in enumerate(letters):
            unit.attempts = 0
            self.hide(unit, number / _REDRIVE_PER_SECOND)

    def iter_waiting(self) -> Iterator[float]:
        """Yield when each message was sent that waits, or is dead."""
        return chain(super().iter_waiting(), (unit.sent_at for unit in self.dead))

    def count_open(self) -> int:
        """Return how many messages are not counted."""
        return super().count_open() + len(self.dead)
