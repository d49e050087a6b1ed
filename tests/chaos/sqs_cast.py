"""Those who act on SQS: workers as anybody would run them, and a pusher."""

import os
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Thread

from chaos.ledger import Entry, Ledger
from chaos.sqs_server import Server
from holdfast.adapters.aws.sqs import SQSQueue
from holdfast.core.backoff import Backoff
from holdfast.core.clock import SYSTEM_CLOCK
from holdfast.core.events import Completed, Event
from holdfast.core.queue.message import AnyMessage
from holdfast.core.worker.context import Context
from holdfast.core.worker.worker import Worker

LEASE_SECONDS = 3.0
LONG_SECONDS = 1.3 * LEASE_SECONDS  # must be renewed, or it is worked on twice
CONCURRENCY = 8
MAX_ATTEMPTS = 100  # kills are charged, and nothing here may end as a dead letter
ENOUGH_WAITING = 300
_STEP_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class SqsPlace:
    """Where a round is played."""

    root: Path
    server: Server
    url: str

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.root / "ledger")

    @property
    def stop(self) -> Path:
        return self.root / "stop"

    def queue(self) -> SQSQueue[AnyMessage]:
        return SQSQueue(
            self.url,
            AnyMessage,
            lease_seconds=LEASE_SECONDS,
            max_attempts=MAX_ATTEMPTS,
            backoff=Backoff(first_seconds=0.1, max_seconds=1.0),
        )


class SqsWorker:
    """Says when it begins, until when it trusts its lease, and when it has done."""

    def __init__(self, place: SqsPlace, seed: int) -> None:
        self._place, self._random, self._ledger = place, Random(seed), place.ledger
        self._name = str(os.getpid())

    def run(self) -> None:
        queue = self._place.queue()
        queue.events.subscribe(self._note_completed)
        worker = Worker(queue, self._handle, concurrency=CONCURRENCY)
        Thread(target=self._stop_when_told, args=(worker,), daemon=True).start()
        worker.run()

    def _handle(self, message: AnyMessage, ctx: Context) -> None:
        self._note("held", ctx, SYSTEM_CLOCK.monotonic())
        self._note("trusts", ctx, trusted := ctx.deadline)
        until = SYSTEM_CLOCK.monotonic() + self._how_long(message)
        while (now := SYSTEM_CLOCK.monotonic()) < until and not ctx.lost.is_set():
            SYSTEM_CLOCK.sleep(min(_STEP_SECONDS, until - now))
            if ctx.deadline != trusted:
                self._note("trusts", ctx, trusted := ctx.deadline)
        finished = now >= until and not ctx.lost.is_set()
        self._note("let-go", ctx, min(SYSTEM_CLOCK.monotonic(), ctx.deadline))
        if finished:
            self._note("done", ctx, SYSTEM_CLOCK.monotonic())

    def _how_long(self, message: AnyMessage) -> float:
        if message.id.startswith("long"):
            return LONG_SECONDS
        return self._random.uniform(0.0, 0.2)

    def _note(self, what: str, ctx: Context, at: float) -> None:
        self._ledger.add(Entry(what, ctx.message_id, "-", ctx.fence, self._name, at))

    def _note_completed(self, event: Event) -> None:
        if isinstance(event, Completed):
            self._ledger.add(Entry("acked", event.message_id, "-", event.attempt, self._name))

    def _stop_when_told(self, worker: Worker[AnyMessage]) -> None:
        while not self._place.stop.exists():
            SYSTEM_CLOCK.sleep(0.1)
        worker.stop()


def push_all(place: SqsPlace, seed: int, messages: int) -> None:
    """Little by little: a server with thousands waiting is slow at every call."""
    random, queue, ledger = Random(seed), place.queue(), place.ledger
    for first in range(0, messages, 50):
        numbers = range(first, min(first + 50, messages))
        ids = [f"{random.choice(KINDS)}-{number}" for number in numbers]
        queue.push_many([AnyMessage(id=i, text="x" * 200) for i in ids])
        for message_id in ids:
            ledger.add(Entry("pushed", message_id))
        while place.server.counts().waiting > ENOUGH_WAITING:
            SYSTEM_CLOCK.sleep(0.05)


KINDS = ("plain",) * 60 + ("long",)
