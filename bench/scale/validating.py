"""Compare the model with the real worker: the same messages, and the calls by kind.

The real run is a `Worker` with threads on `SimulatedSqs`, in real time. The model gets the same
arrivals, handler times and failures. Both have a short lease, so that some are renewed.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from random import Random
from threading import Thread

from bench.scale.deployment import read_templates
from bench.scale.engine import Simulation, Usage
from bench.scale.faults import Health
from bench.scale.work import Message, WorkModel
from holdfast.events import Completed, Event, Events
from holdfast.lease.backoff import Backoff
from holdfast.queue.message import AnyMessage
from holdfast.queues.sqs.queue import SQSQueue
from holdfast.testing import SimulatedSqs
from holdfast.worker.outcome import Done, Retry
from holdfast.worker.runner import Context
from holdfast.worker.worker import Worker

LEASE_SECONDS = 6.0
OUTAGE = (2.0, 10.0)  # SQS refuses all calls from here to there, longer than a lease
OUTAGE_HANDLERS = (0.5, 0.8, 3.0, 4.0, 5.0, 6.0, 7.0, 11.0)  # seconds; two end before it
SLOTS = 8
_PROBE_SECONDS = 0.005
MARGIN = 0.15  # of the calls of a kind, and a few calls more
FEW_CALLS = 6
OPERATIONS = (
    "SendMessage", "ReceiveMessage", "DeleteMessageBatch", "ChangeMessageVisibilityBatch",
)  # fmt: skip


class DelayProbe:
    """Measures how late threads wake up, because the model must wait as long for others.

    A worker's threads wait for 3 and 5 ms for each other. On a busy machine that takes longer,
    and more messages share a call.
    """

    def __init__(self) -> None:
        self.late_seconds: list[float] = []
        self._is_running = True
        self._thread = Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while self._is_running:
            began = time.monotonic()
            time.sleep(_PROBE_SECONDS)
            self.late_seconds.append(time.monotonic() - began - _PROBE_SECONDS)

    def __enter__(self) -> "DelayProbe":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_running = False
        self._thread.join()

    @property
    def mean_seconds(self) -> float:
        """The mean lateness."""
        return sum(self.late_seconds) / len(self.late_seconds)


@dataclass(frozen=True, slots=True)
class RealRun:
    """What a real worker did: its calls and attempts, and the messages as they were.

    On a busy machine messages are sent later, their handlers take longer, and threads wake up
    late.
    """

    calls: Counter[str]
    arrivals: "list[Arrival]"
    delay_seconds: float


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message: when it is sent, how long its handler takes, how many attempts fail."""

    at: float
    seconds: float
    fails: int


def plan_arrivals(messages: int, per_second: float, seed: int = 1) -> list[Arrival]:
    """Return messages at random times. One in fifty is long, and one in thirty fails once."""
    random, at, arrivals = Random(seed), 0.5, []
    for _ in range(messages):
        at += random.expovariate(per_second)
        seconds = random.uniform(3, 5) if random.random() < 0.02 else random.uniform(0.02, 0.1)
        arrivals.append(Arrival(at, seconds, int(random.random() < 1 / 30)))
    return arrivals


def plan_outage() -> list[Arrival]:
    """Return one message for each slot, which are worked on when SQS fails."""
    return [Arrival(0.5, seconds, 0) for seconds in OUTAGE_HANDLERS]


def run_real(arrivals: Sequence[Arrival], outage: tuple[float, float] | None = None) -> RealRun:
    """Run a real worker on the simulated SQS, in real time."""
    with DelayProbe() as probe:
        calls, seen = _run_worker(arrivals, outage)
    return RealRun(calls, seen, probe.mean_seconds)


def _run_worker(
    arrivals: Sequence[Arrival], outage: tuple[float, float] | None
) -> tuple[Counter[str], list[Arrival]]:
    sqs = SimulatedSqs()
    client = sqs.client()
    dead = client.create_queue(QueueName="dead")["QueueUrl"]
    url = client.create_queue(QueueName="work")["QueueUrl"]
    queue = SQSQueue(
        url, client=client, dead_letters=dead, lease_seconds=LEASE_SECONDS, backoff=Backoff(1.0)
    )
    done: Counter[str] = Counter()
    begun: list[str] = []
    took = [0.0] * len(arrivals)
    sent_at = []

    def handle(message: AnyMessage, ctx: Context) -> Done | Retry:
        begun.append(message.id)
        arrival, begun_at = arrivals[int(message.id)], time.monotonic()
        time.sleep(arrival.seconds)
        took[int(message.id)] = time.monotonic() - begun_at
        if ctx.attempt <= arrival.fails:
            return Retry(reason="the handler failed")
        return Done()

    def note(event: Event) -> None:
        if isinstance(event, Completed):
            done[event.message_id] += 1

    worker = Worker(queue, handle, concurrency=SLOTS, prefetch=0, events=Events(note))
    thread = Thread(target=worker.run, daemon=True)
    thread.start()
    began = time.monotonic()
    for number, arrival in enumerate(arrivals):
        time.sleep(max(0.0, began + arrival.at - time.monotonic()))
        queue.push(AnyMessage(id=str(number)))
        sent_at.append(time.monotonic() - began)
    if outage is not None:
        time.sleep(max(0.0, began + outage[0] - time.monotonic()))
        for operation in OPERATIONS:
            sqs.faults.fail(operation, times=inf)
        time.sleep(outage[1] - outage[0])
        sqs.faults.clear()
    _wait_until(lambda: len(done) == len(arrivals), arrivals[-1].at + 60)
    _wait_until(lambda: not queue.stats().leased, 10)
    worker.stop()
    thread.join(30)
    assert set(done.values()) == {1}, "a message was counted twice"
    calls = Counter({name: sqs.calls.count(name) for name in OPERATIONS})
    calls["attempts"] = len(begun)
    seen = [
        Arrival(at, seconds, arrival.fails)
        for at, seconds, arrival in zip(sent_at, took, arrivals, strict=True)
    ]
    return calls, seen


def _wait_until(is_true: object, seconds: float) -> None:
    give_up_at = time.monotonic() + seconds
    while not is_true():  # type: ignore[operator]
        assert time.monotonic() < give_up_at, "the worker did not finish"
        time.sleep(0.05)


def run_model(real: RealRun, outage: tuple[float, float] | None = None) -> Counter[str]:
    """Run the model with the same messages, and return its calls and attempts."""
    given, arrivals = read_templates(), real.arrivals
    service = replace(given.workers, concurrency=SLOTS, min_tasks=1, max_tasks=1)
    deployment = replace(
        given,
        workers=service,
        queue=given.queue.model_copy(update={"lease_seconds": LEASE_SECONDS}),
        poll_seconds=int(LEASE_SECONDS / 3),
        # Between two polls the threads of receive, of poll and of the next slot wake up.
        slot_wait_seconds=given.slot_wait_seconds + 3 * real.delay_seconds,
        gather_seconds=given.gather_seconds + real.delay_seconds,
    )
    simulation, usage = Simulation(1), Usage()
    model = WorkModel(
        simulation, deployment, Health(handler_errors=0.0), usage,
        call_seconds=0.001, start_seconds=60.0, per_second=0.0, draw_seconds=lambda: 0.0,
    )  # fmt: skip
    model.start(1)
    messages = [Message(a.at, a.seconds, a.fails) for a in arrivals]
    for message in messages:
        simulation.at(message.sent_at, model.send, message)
    simulation.run(arrivals[-1].at)
    if outage is not None:
        simulation.run(outage[0])
        model.health.sqs_errors, model.queue.is_down = 1.0, True
        simulation.run(outage[1])
        model.health.sqs_errors, model.queue.is_down = 0.0, False
    while model.counted < len(arrivals):
        simulation.run(simulation.now + 0.1)
    calls = Counter({name: int(usage.calls[f"sqs.{name}"].total) for name in OPERATIONS})
    calls["attempts"] = sum(message.receives for message in messages)
    return calls


def agree(real: RealRun, model: Counter[str]) -> dict[str, bool]:
    """Return for each kind of call whether the model is within the margin."""
    return {
        name: abs(real.calls[name] - model[name]) <= MARGIN * real.calls[name] + FEW_CALLS
        for name in OPERATIONS
    }
