"""Those who act: workers, pushers and a reader, each in a process of its own."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from chaos.hazards import Hazard
from chaos.ledger import Entry, Ledger
from fs import audit
from fs.ground import note
from holdfast.adapters.local.filesystem import FilesystemQueue
from holdfast.core.backoff import Backoff
from holdfast.core.clock import SYSTEM_CLOCK
from holdfast.core.errors import LeaseLost, QueueUnavailable
from holdfast.core.lease.keeper import LeaseKeeper
from holdfast.core.queue.message import AnyMessage, lease_of

LEASE_SECONDS = 0.5
MAX_ATTEMPTS = 12
BATCH = 3


@dataclass(frozen=True, slots=True)
class Place:
    """Where a round is played, and under which hazard."""

    root: Path
    queue_root: Path
    hazard: Hazard

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.root / "ledger")

    @property
    def stop(self) -> Path:
        return self.root / "stop"

    def queue(self) -> FilesystemQueue[Any]:
        while True:
            try:
                return self._open()
            except QueueUnavailable:  # the disk failed just then
                SYSTEM_CLOCK.sleep(0.01)

    def _open(self) -> FilesystemQueue[Any]:
        return FilesystemQueue(
            self.queue_root,
            AnyMessage,
            lease_seconds=LEASE_SECONDS,
            max_attempts=MAX_ATTEMPTS,
            backoff=Backoff(first_seconds=0.05, max_seconds=0.1),
            dedupe=self.hazard.dedupe,
            **self.hazard.options(),
        )


# -- workers


class ChaosWorker:
    """Polls a few, holds them all, does one after the other.

    One in three is stubborn: it goes on after its lease is lost, as a handler might that
    never looks. What it does then must bounce off.
    """

    def __init__(self, place: Place, seed: int) -> None:
        self._place, self._random = place, Random(seed)
        self._queue, self._ledger = place.queue(), place.ledger
        self._name = str(os.getpid())
        self._stubborn = self._random.random() < 1 / 3

    def run(self) -> None:
        keeper = LeaseKeeper()
        keeper.start()
        while not self._place.stop.exists():
            messages = self._poll()
            for message in messages:
                keeper.hold(lease_of(message))
                self._note("held", message, SYSTEM_CLOCK.monotonic())
            for message in messages:
                self._handle(message)
        keeper.stop()

    def _poll(self) -> list[Any]:
        try:
            return self._queue.poll(self._random.randint(1, BATCH), wait_seconds=0.2)
        except QueueUnavailable:  # the disk failed: a worker waits and tries again
            return []

    def _handle(self, message: Any) -> None:
        lease = lease_of(message)
        if message.id.startswith("killer"):
            os.kill(os.getpid(), signal.SIGKILL)
        SYSTEM_CLOCK.sleep(self._how_long(message))
        if lease.live or self._stubborn:
            self._note("effect", message)
        self._note("let-go", message, min(SYSTEM_CLOCK.monotonic(), lease.deadline))
        try:
            self._settle(message)
        except (LeaseLost, QueueUnavailable):
            self._note("refused", message)

    def _how_long(self, message: Any) -> float:
        return (
            LEASE_SECONDS * 1.5
            if message.id.startswith("long")
            else self._random.uniform(0, 0.01)
        )

    def _settle(self, message: Any) -> None:
        if message.id.startswith("bad"):
            self._queue.dead_letter(message, "bad on purpose")
            self._note("buried", message)
        elif message.id.startswith("flaky") and message.attempts == 1:
            self._queue.nack(message)
            self._note("nacked", message)
        elif message.id.startswith("shy") and lease_of(message).fence == 1:
            self._queue.release(message)
            self._note("released", message)
        else:
            self._queue.ack(message)
            self._note("acked", message)

    def _note(self, what: str, message: Any, at: float = 0.0) -> None:
        lease = lease_of(message)
        key = lease.handle.task.key
        shared = self._place.hazard.shared_time(at)
        self._ledger.add(Entry(what, message.id, key, lease.fence, self._name, shared))


# -- pushers

KINDS = ("plain",) * 40 + ("flaky",) * 3 + ("shy",) * 2 + ("bad",) * 2 + ("long",)


def push_some(place: Place, seed: int, tasks: int) -> None:
    """One at a time or a few together, saying so before and after.

    In a queue with dedupe, ids that were pushed before are pushed again and again.
    """
    random, queue, ledger = Random(seed), place.queue(), place.ledger
    left, pushed = tasks, [i for i in _pushed(ledger) if not i.startswith("killer")]
    while left > 0 and not place.stop.exists():
        size = min(left, random.choice((1, 1, 1, 5, 20)))
        ids = [f"{random.choice(KINDS)}-{os.getpid()}-{left - n}" for n in range(size)]
        for message_id in ids:
            ledger.add(Entry("pushing", message_id))
        left -= size
        if place.hazard.dedupe:
            ids += random.sample(pushed, min(len(pushed), size))
        try:
            queue.push_many([note(i, text="x" * 200) for i in ids])
        except QueueUnavailable:
            continue  # the disk failed: pushed or not, nothing was promised
        pushed += ids
        for message_id in ids:
            ledger.add(Entry("pushed", message_id))
        SYSTEM_CLOCK.sleep(random.uniform(0, 0.01) * size)


def _pushed(ledger: Ledger) -> list[str]:
    return [entry.message_id for entry in ledger.entries() if entry.what == "pushed"]


def push_killers(place: Place, number: int) -> None:
    """Tasks that kill whoever takes them up."""
    for i in range(number):
        place.queue().push(note(f"killer-{i}"))
        place.ledger.add(Entry("pushed", f"killer-{i}"))


# -- the reader


def read_on(place: Place) -> None:
    """I-FQ-8, all the while: whatever is in sight is whole and has a name we know."""
    folder = place.queue().folder
    while not place.stop.exists():
        for problem in (*audit.unreadable(folder), *audit.strangers(folder)):
            place.ledger.add(Entry("violation", problem.replace(" ", "_")))
        place.ledger.add(Entry("read"))
        SYSTEM_CLOCK.sleep(0.05)
