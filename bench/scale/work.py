"""The model of the work queue: producers, an SQS queue, and Fargate tasks that run `work`.

Every message and every task is simulated. Leases are the package's `Lease`, and the ones that
live long enough to be renewed are held by its own `LeaseKeeper`, on virtual time. A short
handler's lease is a number, because the keeper would not act on it before it is released.

    sent ─▶ visible ─▶ held by a worker ─▶ deleted: counted once
              ▲              │  └─ nack, lost, killed ─▶ hidden until its time ─┐
              └──────────────┴───────────────────────────────────────────────────┘
                             └─ last attempt ─▶ dead letter ─▶ redriven by an operator
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from math import ceil, inf, pi, sin

from bench.scale.deployment import Deployment
from bench.scale.engine import Histogram, Simulation, Usage
from bench.scale.faults import DAY, Health
from bench.scale.scaling import Scaler
from holdfast.events import Events
from holdfast.lease.keeper import LeaseKeeper
from holdfast.lease.lease import RENEWED, Lease, Renewal, Unanswered
from holdfast.lease.renewal_schedule import _EARLY_FRACTION
from holdfast.worker.fetcher import _ERROR_BACKOFF
from holdfast.worker.settle import _RETRY_BACKOFF

_RECEIVE_TRIES = 4  # of `make_retrying_client`
_REDRIVE_PER_SECOND = 500  # what SQS moves at most
_CHECK_SECONDS = 10.0  # of ECS, between two looks at a service
_SWING = 0.6  # of the load in a day


def swing(now: float) -> float:
    """Return the load at this time of the day, in means: 0.4 at night, 1.6 at the peak."""
    return 1.0 + _SWING * sin(2 * pi * (now / DAY - 0.25))


class Message:
    """A message. `holder` is the worker that has it, and `receives` its fence."""

    __slots__ = (
        "counted", "deadline", "fails", "holder", "lease", "receives", "seconds", "sent_at",
        "visible_at",
    )  # fmt: skip

    def __init__(self, sent_at: float, seconds: float, fails: int = 0) -> None:
        self.sent_at, self.seconds = sent_at, seconds
        self.fails = fails  # attempts that fail in any case
        self.receives = 0
        self.holder: Worker | None = None
        self.lease: Lease | None = None
        self.deadline = self.visible_at = 0.0
        self.counted = False


class WorkQueue:
    """A standard SQS queue."""

    def __init__(self, simulation: Simulation, usage: Usage, name: str) -> None:
        self._simulation, self._usage, self._name = simulation, usage, name
        self.visible: deque[Message] = deque()
        self.hidden: set[Message] = set()  # they wait, and no worker has them
        self.polls: deque[tuple[Worker, int]] = deque()
        self.in_flight = 0
        self.is_down = False

    def put(self, message: Message) -> None:
        """Make a message visible, and give it to a poll that waits."""
        polls = self.polls
        while polls and not self.is_down:
            worker, number = polls[0]
            if worker.is_waiting(number):
                if worker.ready_at > self._simulation.now:
                    worker.take_when_ready(number)
                    break
                polls.popleft()
                worker.deliver([message])
                return
            polls.popleft()
        self.visible.append(message)
        self._usage.note_level(f"{self._name}.backlog", len(self.visible))

    def take(self, limit: int) -> list[Message]:
        """Hand out visible messages."""
        visible = self.visible
        return [visible.popleft() for _ in range(min(limit, len(visible)))]

    def hide(self, message: Message, until: float) -> None:
        """Make the message visible at that time, unless it is settled before."""
        message.holder, message.lease = None, None
        self.hidden.add(message)
        self._simulation.at(until, self._come_back, message, message.receives)

    def _come_back(self, message: Message, receives: int) -> None:
        if message in self.hidden and message.receives == receives:
            self.hidden.discard(message)
            self.in_flight -= 1
            self.put(message)


class Worker:
    """One Fargate task: slots, a poll for those that are free, a keeper and an ack batcher."""

    renew_batch = 10
    name = "work"

    def __init__(self, model: "WorkModel", slots: int) -> None:
        self._model, self._queue = model, model.queue
        self._simulation, self._usage = model.simulation, model.usage
        self.alive, self.free = True, slots
        self.held: dict[Message, None] = {}  # in order, so that a run can be repeated
        self._keeper: LeaseKeeper | None = None
        self._keeper_at = inf
        self._acks: list[Message] = []
        self._polling = self._waiting = False
        self._poll_number = self._poll_failures = 0
        self._asked_at = 0.0
        self._timer_runs = self._takes_soon = False
        self.ready_at = 0.0
        self.stopping = False

    # -- polling

    def poll(self) -> None:
        """Ask for as many messages as slots are free, with one long poll at a time."""
        if self._polling or not self.free or not self.alive or self.stopping:
            return
        model, now = self._model, self._simulation.now
        self._polling, self._asked_at = True, now
        self._poll_number += 1
        errors = model.health.sqs_errors
        model.receives.add(now, 1 if not errors else _count_tries(errors, _RECEIVE_TRIES))
        if errors and model.random.random() < errors**_RECEIVE_TRIES:
            self._poll_failures += 1
            delay = _ERROR_BACKOFF.delay(self._poll_failures, model.random)
            self._simulation.after(delay + model.call_seconds, self._poll_again)
            return
        self._poll_failures = 0
        if self._queue.visible:
            self.deliver(self._queue.take(min(self.free, model.deployment.poll_batch)))
            return
        self._waiting = True
        self.ready_at = now + model.deployment.slot_wait_seconds
        self._queue.polls.append((self, self._poll_number))
        if not self._timer_runs:
            self._timer_runs = True
            self._simulation.after(model.deployment.poll_seconds, self._end_poll)

    def _poll_again(self) -> None:
        self._polling = False
        self.poll()

    def take_when_ready(self, number: int) -> None:
        """Take what is visible after the wait for other slots, which comes before a poll."""
        if not self._takes_soon:
            self._takes_soon = True
            self._simulation.at(self.ready_at, self._take, number)

    def _take(self, number: int) -> None:
        self._takes_soon = False
        if self.is_waiting(number) and self._queue.visible and not self._queue.is_down:
            self.deliver(self._queue.take(min(self.free, self._model.deployment.poll_batch)))

    def is_waiting(self, number: int) -> bool:
        """Return whether this poll still waits for a message."""
        return self._waiting and self.alive and number == self._poll_number

    def _end_poll(self) -> None:
        """End an empty poll. One timer serves all polls of the worker."""
        self._timer_runs = False
        if not self._waiting or not self.alive:
            return
        ends_at = self._asked_at + self._model.deployment.poll_seconds
        if self._simulation.now < ends_at - 1e-6:
            self._timer_runs = True
            self._simulation.at(ends_at, self._end_poll)
            return
        self._polling = self._waiting = False
        self.poll()

    def deliver(self, messages: Sequence[Message]) -> None:
        """Begin the work on messages that the poll brought."""
        self._polling = self._waiting = False
        for message in messages:
            self._begin(message)
        model = self._model
        if self._queue.in_flight > model.max_in_flight:
            model.max_in_flight = self._queue.in_flight
        if self.free:
            self.poll()

    def _begin(self, message: Message) -> None:
        model, now = self._model, self._simulation.now
        message.receives += 1
        message.holder = self
        message.deadline = self._asked_at + model.lease_seconds  # from before the call
        message.visible_at = now + model.lease_seconds
        self._queue.in_flight += 1
        if message.receives > model.max_attempts:
            model.dead_letter(message)
            return
        if message.receives == 1:
            model.waits.add(now - message.sent_at)
        self.free -= 1
        self.held[message] = None
        slowness = model.health.slowness
        ends_at = now + message.seconds + 2 * model.call_seconds * slowness
        if ends_at >= self._asked_at + model.renewed_from_seconds:
            self._hold(message)
        self._simulation.at(ends_at, self._finish, message, message.receives)

    # -- leases

    def _hold(self, message: Message) -> None:
        """Let a real keeper renew the lease of a message."""
        keeper = self._keeper
        if keeper is None:
            keeper = self._keeper = LeaseKeeper(self._simulation.clock, Events())
            keeper._random.seed(self._model.random.getrandbits(32))
        lease = message.lease = Lease(
            self, message, message_id="m", attempt=message.receives, fence=message.receives,
            claimed_at=message.deadline - self._model.lease_seconds,
            seconds=self._model.lease_seconds,
        )  # fmt: skip
        keeper.hold(lease)
        lease.on_lost(lambda lost: self._lose(lost.handle))
        self._wake_keeper(lease.deadline - (1 - 1 / 3) * lease.seconds)

    def _wake_keeper(self, at: float) -> None:
        at = max(at, self._simulation.now)
        if at < self._keeper_at:
            self._keeper_at = at
            self._simulation.at(at, self._run_keeper, at)

    def _run_keeper(self, at: float) -> None:
        if at != self._keeper_at or not self.alive or self._keeper is None:
            return
        self._keeper_at = inf
        next_at = self._keeper.tick().next_at
        if next_at is not None:
            self._wake_keeper(next_at)

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        """Extend messages at SQS, as the keeper asks."""
        model = self._model
        model.renewals.add(self._simulation.now)
        errors = model.health.sqs_errors
        if errors and model.random.random() < errors:
            return [Unanswered("SQS does not respond")] * len(leases)
        for lease in leases:
            lease.handle.visible_at = self._simulation.now + seconds
        return [RENEWED] * len(leases)

    def _has(self, message: Message, receives: int) -> bool:
        """Return whether the message is still this worker's, by its own deadline."""
        if message.holder is not self or message.receives != receives:
            return False
        deadline = message.deadline if message.lease is None else message.lease.deadline
        return self._simulation.now < deadline

    def _lose(self, message: Message) -> None:
        """Give up a message whose lease is over; SQS delivers it again."""
        if message.holder is self:
            self._model.lost_leases += 1
            self._model.repeated_seconds += message.seconds
            self._release(message)
            self._queue.hide(message, message.visible_at)
            self.poll()

    def _release(self, message: Message) -> None:
        if message.lease is not None:
            message.lease.release("settled")
            message.lease = None
        self.held.pop(message, None)
        self.free += 1

    # -- settling

    def _finish(self, message: Message, receives: int) -> None:
        if not self.alive or message.holder is not self or message.receives != receives:
            return
        model = self._model
        if receives <= message.fails or model.random.random() < model.health.handler_errors:
            self._nack(message, receives, 1)
        else:
            self._ack(message)

    def _ack(self, message: Message) -> None:
        acks = self._acks
        acks.append(message)
        expected = min(10, len(self.held))
        if len(acks) >= expected:
            self._flush()
        elif len(acks) == 1:
            self._simulation.after(self._model.deployment.gather_seconds, self._flush)

    def _flush(self) -> None:
        acks, self._acks = self._acks, []
        if not acks or not self.alive:
            return
        model = self._model
        model.deletes.add(self._simulation.now)
        errors = model.health.sqs_errors
        if errors and model.random.random() < errors:
            for message in acks:
                self._settle_later(message, message.receives, 1, self._retry_ack)
            return
        for message in acks:
            self._delete(message)
        self.poll()

    def _delete(self, message: Message) -> None:
        if self._has(message, message.receives):
            self._model.count(message)
            self._release(message)
        else:
            self._lose(message)

    def _retry_ack(self, message: Message, receives: int, tries: int) -> None:
        if not self._has(message, receives):
            self._lose(message)
            return
        model = self._model
        model.deletes.add(self._simulation.now)
        if model.random.random() < model.health.sqs_errors:
            self._settle_later(message, receives, tries, self._retry_ack)
        else:
            self._delete(message)
            self.poll()

    def _settle_later(
        self,
        message: Message,
        receives: int,
        tries: int,
        retry: Callable[[Message, int, int], None],
    ) -> None:
        """Try again while the lease lives, as `settle` does. The keeper holds it meanwhile."""
        if message.lease is None:
            self._hold(message)
        delay = _RETRY_BACKOFF.delay(tries, self._model.random)
        self._simulation.after(delay, self._retry_if_held, message, receives, tries + 1, retry)

    def _retry_if_held(
        self,
        message: Message,
        receives: int,
        tries: int,
        retry: Callable[[Message, int, int], None],
    ) -> None:
        if self.alive and message.holder is self and message.receives == receives:
            retry(message, receives, tries)

    def _nack(self, message: Message, receives: int, tries: int) -> None:
        model = self._model
        if not self._has(message, receives):
            self._lose(message)
            return
        model.renewals.add(self._simulation.now)  # ChangeMessageVisibility, too
        if model.health.sqs_errors and model.random.random() < model.health.sqs_errors:
            self._settle_later(message, receives, tries, self._nack)
            return
        self._release(message)
        model.failed_attempts += 1
        if receives >= model.max_attempts:
            model.dead_letter(message)
        else:
            delay = ceil(model.deployment.queue.backoff.delay(receives, model.random))
            self._queue.hide(message, self._simulation.now + delay)
        self.poll()

    # -- the end

    def kill(self) -> None:
        """End without a word. SQS delivers its messages when their visibility ends."""
        self.alive = False
        for message in self.held:
            if message.holder is self:
                self._model.repeated_seconds += message.seconds / 2
                self._queue.hide(message, message.visible_at)
        self.held.clear()


def _count_tries(errors: float, tries: int) -> float:
    """Return the mean number of calls of a client that tries so often."""
    return tries if errors >= 1 else (1 - errors**tries) / (1 - errors)


class WorkModel:
    """The queue, its producers, and a service of workers that scales."""

    def __init__(
        self,
        simulation: Simulation,
        deployment: Deployment,
        health: Health,
        usage: Usage,
        *,
        call_seconds: float,
        start_seconds: float,
        per_second: float,
        draw_seconds: Callable[[], float],
        name: str = "work",
    ) -> None:
        self.simulation, self.deployment, self.health = simulation, deployment, health
        self.usage, self.name, self.random = usage, name, simulation.random
        self.call_seconds, self._start_seconds = call_seconds, start_seconds
        self.lease_seconds = deployment.queue.lease_seconds
        self.max_attempts = deployment.queue.max_attempts
        # A renewal may be requested a little early, to fill a batch.
        self.renewed_from_seconds = self.lease_seconds / 3 * (1 - _EARLY_FRACTION)
        self.queue = WorkQueue(simulation, usage, name)
        self.workers: list[Worker] = []
        self.receives = usage.calls["sqs.ReceiveMessage"]
        self.deletes = usage.calls["sqs.DeleteMessageBatch"]
        self.renewals = usage.calls["sqs.ChangeMessageVisibilityBatch"]
        self.sends = usage.calls["sqs.SendMessage"]
        self.waits = Histogram()
        self.max_in_flight = 0
        self.sent = self.counted = self.counted_twice = 0
        self.dead: list[Message] = []
        self.dead_lettered = self.lost_leases = self.failed_attempts = 0
        self.repeated_seconds = 0.0
        self._unsent: set[Message] = set()
        self._per_second, self._draw_seconds = per_second, draw_seconds
        self._is_producing = True
        self._scaler = Scaler(deployment.workers)
        self._starting = 0

    # -- producers

    def start(self, tasks: int) -> None:
        """Start with so many tasks, and produce messages."""
        for _ in range(tasks):
            self._add_worker()
        self._scaler.desired = tasks
        if self._per_second:
            self.simulation.after(self.random.expovariate(self._per_second), self._produce)
        self.simulation.after(_CHECK_SECONDS, self._check_service)
        self.simulation.after(60.0, self._scale)

    def stop_producing(self) -> None:
        """Send no more messages."""
        self._is_producing = False

    def _produce(self) -> None:
        if not self._is_producing:
            return
        now = self.simulation.now
        self.send(Message(now, self._draw_seconds()))
        rate = self._per_second * swing(now)
        self.simulation.at(now + self.random.expovariate(rate), self._produce)

    def send(self, message: Message) -> None:
        """Send a message. A producer whose call fails keeps it and tries again."""
        errors = self.health.sqs_errors
        self.sends.add(self.simulation.now)
        if errors and self.random.random() < errors**_RECEIVE_TRIES:
            self._unsent.add(message)
            delay = _ERROR_BACKOFF.delay(8, self.random)  # its longest
            self.simulation.after(delay, self.send, message)
            return
        self._unsent.discard(message)
        self.sent += 1
        self.queue.put(message)

    # -- the ends of a message

    def count(self, message: Message) -> None:
        """Count a message that SQS has deleted.

        If SQS has shown it again before, another worker counts it, too.
        """
        is_stale = self.simulation.now > message.visible_at
        self.counted_twice += message.counted or is_stale
        self.counted += not message.counted
        message.counted = True
        message.holder = None
        self.queue.in_flight -= 1

    def dead_letter(self, message: Message) -> None:
        """Move a message to the dead letters."""
        now = self.simulation.now
        self.sends.add(now)
        self.deletes.add(now)
        self.queue.in_flight -= 1
        message.holder = None
        self.dead_lettered += 1
        self.dead.append(message)

    def redrive(self) -> None:
        """Move all dead letters back, as fast as SQS does."""
        letters, self.dead = self.dead, []
        for number, message in enumerate(letters):
            message.receives = 0
            self.queue.hidden.add(message)
            self.simulation.after(number / _REDRIVE_PER_SECOND, self._return_letter, message)

    def _return_letter(self, message: Message) -> None:
        self.queue.hidden.discard(message)
        self.queue.put(message)

    # -- the service

    def _add_worker(self) -> None:
        worker = Worker(self, self.deployment.workers.concurrency)
        self.workers.append(worker)
        worker.poll()

    def kill(self, share: float) -> None:
        """Kill this share of the tasks with SIGKILL."""
        for worker in self.workers[: ceil(share * len(self.workers))]:
            worker.kill()
        self.workers = [worker for worker in self.workers if worker.alive]

    def _check_service(self) -> None:
        service = self._scaler
        running = len(self.workers)
        if self.health.tasks_start:
            for _ in range(service.desired - running - self._starting):
                self._starting += 1
                self.simulation.after(self._start_seconds, self._finish_start)
        for worker in [w for w in self.workers if not w.held][: running - service.desired]:
            worker.stopping = True  # protection ends with its last message
            worker.alive = False
            self.workers.remove(worker)
        self.usage.units["fargate.task_seconds.work"] += _CHECK_SECONDS * running
        self.usage.note_level("work.tasks", running)
        if self._is_producing or self._has_work():
            self.simulation.after(_CHECK_SECONDS, self._check_service)

    def _has_work(self) -> bool:
        return self.queue.in_flight > 0 or any(True for _ in self.iter_waiting())

    def _finish_start(self) -> None:
        self._starting -= 1
        self._add_worker()

    def _scale(self) -> None:
        self._scaler.note(len(self.queue.visible), len(self.workers), self.simulation.now)
        if self._is_producing or self._has_work():
            self.simulation.after(60.0, self._scale)

    # -- for the report

    def iter_waiting(self) -> Iterator[float]:
        """Yield when each message was sent that waits, at SQS, at a producer or as dead."""
        waiting = chain(self.queue.visible, self.queue.hidden, self._unsent, self.dead)
        return (message.sent_at for message in waiting)

    def count_open(self) -> int:
        """Return how many messages are neither counted nor dead."""
        held = sum(len(worker.held) for worker in self.workers)
        return len(self.queue.visible) + len(self.queue.hidden) + held
