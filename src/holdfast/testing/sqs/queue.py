"""One queue: what waits, what is in flight, and whose turn it is.

    sent -> (delayed) -> ready -> in flight -> deleted
                           ^          |
                           +----------+  its visibility ran out, or was set to 0

A message is hidden until `visible_at`, whatever the reason. The heaps only say where to
look next: a message's own record decides, so an entry left over from an earlier state
does no harm.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from threading import Event

from holdfast.testing.sqs.attributes import QueueAttributes
from holdfast.testing.sqs.ids import IdSource
from holdfast.testing.sqs.message import StoredMessage

DEDUPLICATION_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class SimulatedReceipt:
    """What a receipt handle stands for."""

    handle: str
    number: int


@dataclass(slots=True)
class ReceiveResult:
    """What one receive found."""

    delivered: list[StoredMessage] = field(default_factory=list)
    exhausted: list[StoredMessage] = field(default_factory=list)  # received too often


@dataclass(frozen=True, slots=True)
class DedupeEntry:
    """A deduplication id's memory of the message that had it first."""

    message: StoredMessage
    until: float


class SimulatedQueue:
    """Not thread-safe by itself: the service calls it under its lock."""

    def __init__(
        self, name: str, region: str, account: str, settings: QueueAttributes, mint: IdSource
    ) -> None:
        self.name = name
        self.arn = f"arn:aws:sqs:{region}:{account}:{name}"
        self.url = f"https://sqs.{region}.amazonaws.com/{account}/{name}"
        self.settings = settings
        self.waiters: set[Event] = set()
        self._mint = mint
        self._messages: dict[int, StoredMessage] = {}
        self._receipts: dict[str, SimulatedReceipt] = {}
        self._ready: list[int] = []
        self._hidden: list[tuple[float, int]] = []
        self._ages: list[tuple[float, int]] = []
        self._in_flight: set[int] = set()
        self._groups: dict[str, dict[int, None]] = {}  # FIFO: each group's line
        self._sent: dict[tuple[str, str], DedupeEntry] = {}
        self._numbers = 0

    # -- putting in

    def add(self, message: StoredMessage) -> StoredMessage:
        """Store it at the end of the line; what was stored."""
        number = self._numbers = self._numbers + 1
        if self.settings.is_fifo:
            message = replace(message, sequence_number=f"{number:020d}")
            self._groups.setdefault(message.group_id, {})[number] = None
        self._messages[number] = message
        heapq.heappush(self._ages, (message.sent_at, number))
        self._hide(number, message)
        return message

    def sent_before(self, message: StoredMessage, now: float) -> StoredMessage | None:
        """The one that took this deduplication id in the last five minutes."""
        sent = self._sent.get(self._deduplication_key(message))
        return sent.message if sent and sent.until > now else None

    def remember_sent(self, message: StoredMessage, now: float) -> None:
        until = now + DEDUPLICATION_SECONDS
        self._sent[self._deduplication_key(message)] = DedupeEntry(message, until)

    def _deduplication_key(self, message: StoredMessage) -> tuple[str, str]:
        group = message.group_id if self.settings.dedupes_by_group else ""
        return group, message.deduplication_id

    # -- taking out

    def take(
        self,
        limit: int,
        visibility_seconds: float,
        max_receives: float,
        now: float,
        wall_ms: int,
    ) -> ReceiveResult:
        """Deliver up to `limit`; those already received `max_receives` times leave."""
        self.settle(now)
        taken, numbers, passed_over = ReceiveResult(), set[int](), []
        while self._ready and len(taken.delivered) < limit:
            number = heapq.heappop(self._ready)
            if number in numbers or not self._is_deliverable(number, now):
                continue
            if not self._is_its_turn(number, numbers):
                passed_over.append(number)
            elif self._messages[number].receives >= max_receives:
                taken.exhausted.append(self._remove(number))
            else:
                numbers.add(number)
                until = now + visibility_seconds
                taken.delivered.append(self._deliver(number, now, wall_ms, until))
        for number in passed_over:
            heapq.heappush(self._ready, number)
        return taken

    def _is_deliverable(self, number: int, now: float) -> bool:
        message = self._messages.get(number)
        return message is not None and (message.is_doubled or message.visible_at <= now)

    def _is_its_turn(self, number: int, taken: set[int]) -> bool:
        """FIFO: all before it in its group are gone, or go out in this same receive."""
        if not self.settings.is_fifo:
            return True
        line = self._groups[self._messages[number].group_id]
        return next(waiting for waiting in line if waiting not in taken) == number

    def _deliver(self, number: int, now: float, wall_ms: int, until: float) -> StoredMessage:
        handle = self._mint.handle()
        message = self._messages[number].received(handle, now, wall_ms, until)
        self._messages[number] = message
        self._receipts[handle] = SimulatedReceipt(handle, number)
        self._in_flight.add(number)
        self._hide(number, message)
        return message

    # -- by receipt

    def receipt(self, handle: str) -> SimulatedReceipt | None:
        """None for a handle this queue never gave."""
        return self._receipts.get(handle)

    def message_of(self, receipt: SimulatedReceipt) -> StoredMessage | None:
        """None when it is gone: deleted, purged, too old or moved away."""
        return self._messages.get(receipt.number)

    def delete(self, receipt: SimulatedReceipt) -> None:
        self._remove(receipt.number)
        self.wake()  # its group may go on

    def hide(self, receipt: SimulatedReceipt, until: float) -> None:
        """Set when the message is visible again."""
        message = replace(self._messages[receipt.number], visible_at=until)
        self._messages[receipt.number] = message
        self._in_flight.add(receipt.number)
        self._hide(receipt.number, message)

    # -- all of them

    def settle(self, now: float) -> None:
        """Let time have its effect: too old is gone, no longer hidden is ready."""
        while self._ages and self._ages[0][0] + self.settings.retention_seconds <= now:
            _, number = heapq.heappop(self._ages)
            if number in self._messages:
                self._remove(number)
        while self._hidden and self._hidden[0][0] <= now:
            until, number = heapq.heappop(self._hidden)
            if number in self._messages and self._messages[number].visible_at == until:
                self._in_flight.discard(number)
                heapq.heappush(self._ready, number)

    def next_change_at(self) -> float:
        """When a hidden message may become visible, at the earliest."""
        return self._hidden[0][0] if self._hidden else float("inf")

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def ready_messages(self, now: float) -> Iterator[tuple[int, StoredMessage]]:
        self.settle(now)
        for number, message in sorted(self._messages.items()):
            if message.visible_at <= now:
                yield number, message

    def counts(self, now: float) -> dict[str, str]:
        ready = sum(1 for _ in self.ready_messages(now))
        delayed = len(self._messages) - ready - self.in_flight
        return {
            "ApproximateNumberOfMessages": str(ready),
            "ApproximateNumberOfMessagesDelayed": str(delayed),
            "ApproximateNumberOfMessagesNotVisible": str(self.in_flight),
        }

    def double(self, message_id: str | None, now: float) -> int:
        """Make messages in flight deliverable once more; how many."""
        self.settle(now)
        doubled = [
            number
            for number in sorted(self._in_flight)
            if message_id in (None, self._messages[number].message_id)
        ]
        for number in doubled:
            self._messages[number] = replace(self._messages[number], is_doubled=True)
            heapq.heappush(self._ready, number)
        self.wake()
        return len(doubled)

    def pop(self, number: int) -> StoredMessage:
        """Take a message away without delivering it."""
        return self._remove(number)

    def clear(self) -> None:
        for number in list(self._messages):
            self._remove(number)
        self._sent.clear()

    def wake(self) -> None:
        """Make those in a long poll look again."""
        for waiter in self.waiters:
            waiter.set()

    def _hide(self, number: int, message: StoredMessage) -> None:
        heapq.heappush(self._hidden, (message.visible_at, number))
        self.wake()

    def _remove(self, number: int) -> StoredMessage:
        message = self._messages.pop(number)
        self._in_flight.discard(number)
        if self.settings.is_fifo:
            line = self._groups[message.group_id]
            del line[number]
            if not line:
                del self._groups[message.group_id]
        return message
