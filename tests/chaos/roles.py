"""The roles of the chaos tests of local queues: workers, pushers and a reader, each in a
process.
"""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from chaos.events import Entry, LoggedFolder
from chaos.hazards import Hazard
from chaos.kinds import Kind
from holdfast.errors import LeaseLost, QueueUnavailable
from holdfast.lease.backoff import Backoff
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.lease.keeper import LeaseKeeper
from holdfast.queue.manager import QueueManager
from holdfast.queue.message import get_lease
from support.files.queue_folder import make_message

LEASE_SECONDS = 0.5
MAX_ATTEMPTS = 12
BATCH = 3


@dataclass(frozen=True, slots=True)
class Workspace(LoggedFolder):
    """The folders of one round, its kind of queue and its hazard."""

    queue_root: Path
    kind: Kind
    hazard: Hazard

    def queue(self) -> QueueManager[Any]:
        """Open the queue, and retry while the disk fails."""
        while True:
            try:
                return self._open()
            except QueueUnavailable:  # the disk failed at this moment
                SYSTEM_CLOCK.sleep(0.01)

    def _open(self) -> QueueManager[Any]:
        return self.kind.open(
            self.queue_root,
            lease_seconds=LEASE_SECONDS,
            max_attempts=MAX_ATTEMPTS,
            backoff=Backoff(first_seconds=0.05, max_seconds=0.1),
            dedupe=self.hazard.dedupe,
            **self.hazard.options(),
        )


# -- workers


class ChaosWorker:
    """A worker that polls a few messages, holds them all, and handles one after the other.

    One in three workers is stubborn. It continues after its lease is lost, as a handler might
    that never checks. Whatever it does then must be refused.
    """

    def __init__(self, workspace: Workspace, seed: int) -> None:
        self._workspace, self._random = workspace, Random(seed)
        self._queue, self._event_log = workspace.queue(), workspace.event_log
        self._name = str(os.getpid())
        self._stubborn = self._random.random() < 1 / 3

    def run(self) -> None:
        """Handle messages until the round ends."""
        keeper = LeaseKeeper()
        keeper.start()
        while not self._workspace.stop.exists():
            messages = self._poll()
            for message in messages:
                keeper.hold(get_lease(message))
                self._note("held", message, SYSTEM_CLOCK.monotonic())
            for message in messages:
                self._handle(message)
        keeper.stop()

    def _poll(self) -> list[Any]:
        try:
            return self._queue.poll(self._random.randint(1, BATCH), wait_seconds=0.2)
        except QueueUnavailable:  # the disk failed, so the worker waits and tries again
            return []

    def _handle(self, message: Any) -> None:
        lease = get_lease(message)
        if message.id.startswith("killer"):
            os.kill(os.getpid(), signal.SIGKILL)
        SYSTEM_CLOCK.sleep(self._choose_seconds(message))
        if lease.live or self._stubborn:
            self._note("effect", message)
        self._note("let-go", message, min(SYSTEM_CLOCK.monotonic(), lease.deadline))
        try:
            self._settle(message)
        except (LeaseLost, QueueUnavailable):
            lease.lose("it could not be settled")  # otherwise the keeper would renew it forever
            self._note("refused", message)

    def _choose_seconds(self, message: Any) -> float:
        is_long = message.id.startswith("long")
        return LEASE_SECONDS * 1.5 if is_long else self._random.uniform(0, 0.01)

    def _settle(self, message: Any) -> None:
        if message.id.startswith("bad"):
            self._queue.dead_letter(message, "bad on purpose")
            self._note("dead-lettered", message)
        elif message.id.startswith("flaky") and message.attempts == 1:
            self._queue.nack(message)
            self._note("nacked", message)
        elif message.id.startswith("shy") and get_lease(message).fence == 1:
            self._queue.release(message)
            self._note("released", message)
        else:
            self._queue.ack(message)
            self._note("acked", message)

    def _note(self, what: str, message: Any, at: float = 0.0) -> None:
        lease = get_lease(message)
        key = self._workspace.kind.get_key(lease)
        shared = self._workspace.hazard.shared_time(at)
        self._event_log.add(Entry(what, message.id, key, lease.fence, self._name, shared))


# -- pushers

KINDS = ("plain",) * 40 + ("flaky",) * 3 + ("shy",) * 2 + ("bad",) * 2 + ("long",)


def push_tasks(workspace: Workspace, seed: int, tasks: int) -> None:
    """Push tasks, one or a few at a time, and record each afterwards.

    In a queue with dedupe, ids that were pushed before are pushed again and again.
    """
    random, queue, event_log = Random(seed), workspace.queue(), workspace.event_log
    left, known = tasks, (e.message_id for e in event_log.entries() if e.what == "pushed")
    pushed = [message_id for message_id in known if not message_id.startswith("killer")]
    while left > 0 and not workspace.stop.exists():
        size = min(left, random.choice((1, 1, 1, 5, 20)))
        ids = [
            f"{random.choice(KINDS)}-{os.getpid()}-{left - offset}" for offset in range(size)
        ]
        left -= size
        if workspace.hazard.dedupe:
            ids += random.sample(pushed, min(len(pushed), size))
        try:
            queue.push_many([make_message(message_id, text="x" * 200) for message_id in ids])
        except QueueUnavailable:
            # the disk failed, so nothing was promised, whether they were pushed or not
            continue
        pushed += ids
        event_log.add(*(Entry("pushed", message_id) for message_id in ids))
        SYSTEM_CLOCK.sleep(random.uniform(0, 0.01) * size)


def push_killers(workspace: Workspace, number: int) -> None:
    """Push tasks that kill every worker that handles them."""
    for i in range(number):
        workspace.queue().push(make_message(f"killer-{i}"))
        workspace.event_log.add(Entry("pushed", f"killer-{i}"))


# -- the reader


def read_until_stopped(workspace: Workspace) -> None:
    """Check all the time that a reader sees nothing that is incomplete."""
    while not workspace.stop.exists():
        for problem in workspace.kind.find_violations(workspace.queue_root):
            workspace.event_log.add(Entry("violation", problem.replace(" ", "_")))
        workspace.event_log.add(Entry("read"))
        SYSTEM_CLOCK.sleep(0.05)
