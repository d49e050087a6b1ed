"""The roles of the SQS soak test, ordinary workers and a pusher, and its accounting."""

import os
from collections import Counter
from dataclasses import dataclass
from random import Random

from chaos.events import Entry, EventAccounting, LoggedFolder, find_repeated
from chaos.rounds import SECONDS
from holdfast.events import Completed, Event
from holdfast.lease.backoff import Backoff
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.queue.message import AnyMessage
from holdfast.queues.sqs import SQSQueue
from holdfast.worker.runner import Context
from holdfast.worker.worker import Worker

LEASE_SECONDS = 3.0 if SECONDS else 2.0
LONG_SECONDS = 1.3 * LEASE_SECONDS  # without renewal it would be handled twice
CONCURRENCY = 8
MAX_ATTEMPTS = 100  # kills count as attempts, and no message may be dead-lettered here
MAX_WAITING = 300
_STEP_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class SqsWorkspace(LoggedFolder):
    """The folder and the queue of one round."""

    url: str

    def count_waiting(self) -> int:
        """Return how many messages the server has not deleted."""
        return self.event_log.count("sent") - self.event_log.count("deleted")

    def queue(self) -> SQSQueue[AnyMessage]:
        """Open the queue."""
        return SQSQueue(
            self.url,
            AnyMessage,
            lease_seconds=LEASE_SECONDS,
            max_attempts=MAX_ATTEMPTS,
            backoff=Backoff(first_seconds=0.1, max_seconds=1.0),
        )


class SqsWorker:
    """A worker that records when it begins, until when it trusts its lease, and
    when it ends.
    """

    def __init__(self, workspace: SqsWorkspace, seed: int) -> None:
        self._workspace, self._random = workspace, Random(seed)
        self._event_log = workspace.event_log
        self._name = str(os.getpid())

    def run(self) -> None:
        """Handle messages until the round ends."""
        queue = self._workspace.queue()
        queue.events.subscribe(self._note_completed)
        worker = Worker(queue, self._handle, concurrency=CONCURRENCY)
        self._workspace.run_until_stopped(worker)

    def _handle(self, message: AnyMessage, ctx: Context) -> None:
        self._note("held", ctx, SYSTEM_CLOCK.monotonic())
        self._note("trusts", ctx, trusted := ctx.deadline)
        until = SYSTEM_CLOCK.monotonic() + self._choose_seconds(message)
        while (now := SYSTEM_CLOCK.monotonic()) < until and not ctx.lost.is_set():
            SYSTEM_CLOCK.sleep(min(_STEP_SECONDS, until - now))
            if ctx.deadline != trusted:
                self._note("trusts", ctx, trusted := ctx.deadline)
        finished = now >= until and not ctx.lost.is_set()
        self._note("let-go", ctx, min(SYSTEM_CLOCK.monotonic(), ctx.deadline))
        if finished:
            self._note("done", ctx, SYSTEM_CLOCK.monotonic())

    def _choose_seconds(self, message: AnyMessage) -> float:
        if message.id.startswith("long"):
            return LONG_SECONDS
        return self._random.uniform(0.0, 0.2)

    def _note(self, what: str, ctx: Context, at: float) -> None:
        self._event_log.add(Entry(what, ctx.message_id, "-", ctx.fence, self._name, at))

    def _note_completed(self, event: Event) -> None:
        if isinstance(event, Completed):
            self._event_log.add(
                Entry("acked", event.message_id, "-", event.attempt, self._name)
            )


def push_messages(workspace: SqsWorkspace, seed: int, messages: int) -> None:
    """Push messages in small steps, because a server with thousands of messages is slow."""
    random, queue, event_log = Random(seed), workspace.queue(), workspace.event_log
    for first in range(0, messages, 50):
        numbers = range(first, min(first + 50, messages))
        ids = [f"{random.choice(KINDS)}-{number}" for number in numbers]
        queue.push_many([AnyMessage(id=message_id, text="x" * 200) for message_id in ids])
        event_log.add(*(Entry("pushed", message_id) for message_id in ids))
        while workspace.count_waiting() > MAX_WAITING:
            SYSTEM_CLOCK.sleep(0.05)


KINDS = ("plain",) * 60 + ("long",)


# -- accounting


class SqsAccounting(EventAccounting):
    """The events of one round, of its workers and of the server."""

    def find_lost(self) -> list[str]:
        """Return messages that were pushed but never completed."""
        completed = set(self.list_ids("done"))
        return [pushed for pushed in self.list_ids("pushed") if pushed not in completed]

    def find_not_deleted_once(self) -> list[str]:
        """Return messages that the server did not delete exactly once."""
        deleted = Counter(self.list_ids("deleted"))
        return [sent for sent in self.list_ids("sent") if deleted[sent] != 1]

    def find_acked_twice(self) -> list[str]:
        """Return messages that two workers believe to have completed."""
        return find_repeated(self.list_ids("acked"))

    def find_acked_undone(self) -> list[Entry]:
        """Return acks by an attempt that had not completed the message."""
        done = {entry.hold for entry in self.select("done")}
        return [entry for entry in self.select("acked") if entry.hold not in done]

    def count_taken_over(self) -> int:
        """Return how many messages another worker completed."""
        return sum(entry.fence > 1 for entry in self.select("done"))

    def format_summary(self) -> str:
        """Return the totals in one line."""
        counts = Counter(entry.what for entry in self.entries)
        return (
            f"pushed {counts['pushed']}, done {counts['done']}, acked {counts['acked']}, "
            f"deleted {counts['deleted']}, taken over {self.count_taken_over()}, "
            f"receives {counts['received']}, deletes repeated {counts['repeated']}, "
            f"stale {counts['stale']}"
        )
