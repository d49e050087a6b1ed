"""One queue: its attributes, the messages that wait, those in flight, and their order.

    sent -> (delayed) -> ready -> in flight -> deleted
                           ^          |
                           +----------+  its visibility expired, or was set to 0

A message is hidden until `visible_at`, for any reason. The heaps only say which message to
check next. The message's own record decides, so entries of earlier states are harmless.
"""

import heapq
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from threading import Event

from holdfast.lease.clock import Clock
from holdfast.testing.sqs.errors import out_of_range_error
from holdfast.testing.sqs.message import IdSource, StoredMessage

DEDUPLICATION_SECONDS = 300.0

_DEFAULTS = {
    "DelaySeconds": "0",
    "MaximumMessageSize": "1048576",
    "MessageRetentionPeriod": "345600",
    "ReceiveMessageWaitTimeSeconds": "0",
    "SqsManagedSseEnabled": "true",
    "VisibilityTimeout": "30",
}


@dataclass(frozen=True, slots=True)
class RedrivePolicy:
    """The target of messages that were received too often."""

    target_arn: str
    max_receives: int


@dataclass(frozen=True, slots=True)
class QueueAttributes:
    """Attributes as strings, the form that AWS accepts and returns."""

    texts: Mapping[str, str]

    @classmethod
    def of(cls, attributes: Mapping[str, str]) -> "QueueAttributes":
        """Return the attributes of a new queue, with the defaults filled in."""
        return cls(_DEFAULTS).changed(attributes)

    def changed(self, attributes: Mapping[str, str]) -> "QueueAttributes":
        """Return the attributes with these changes; an empty string removes an attribute.

        Neither names nor values are checked, except those of a redrive policy.
        """
        texts = {**self.texts, **attributes}
        after = QueueAttributes({name: value for name, value in texts.items() if value != ""})
        after.redrive  # noqa: B018  # refuses a policy that cannot be read
        return after

    def get_number(self, name: str) -> int:
        """Return an attribute that has a range, such as VisibilityTimeout."""
        return int(self.texts[name])

    @property
    def is_fifo(self) -> bool:
        """Whether it is a FIFO queue."""
        return self.texts.get("FifoQueue") == "true"

    @property
    def redrive(self) -> RedrivePolicy | None:
        """The redrive policy, or None. Raises ServiceError if it cannot be read."""
        text = self.texts.get("RedrivePolicy") or "{}"
        try:
            if not (policy := json.loads(text)):
                return None
            target, count = policy["deadLetterTargetArn"], int(policy["maxReceiveCount"])
        except (ValueError, TypeError, KeyError):
            raise out_of_range_error(
                "RedrivePolicy", text, "It must name deadLetterTargetArn and maxReceiveCount."
            ) from None
        if not 1 <= count <= 1000:
            raise out_of_range_error(
                "RedrivePolicy", text, "Invalid value for maxReceiveCount."
            )
        return RedrivePolicy(str(target), count)


class SimulatedQueue:
    """One queue. It is not thread-safe; the caller must hold the service's lock."""

    def __init__(
        self,
        name: str,
        region: str,
        account: str,
        settings: QueueAttributes,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self.name = name
        self.arn = f"arn:aws:sqs:{region}:{account}:{name}"
        self.url = f"https://sqs.{region}.amazonaws.com/{account}/{name}"
        self.waiters: set[Event] = set()
        self._clock, self._ids = clock, ids
        self._messages: dict[int, StoredMessage] = {}
        self.receipts: dict[str, int] = {}
        """The number of the message that each receipt handle stands for."""
        self._ready: list[int] = []
        self._hidden: list[tuple[float, int]] = []
        self._ages: list[tuple[float, int]] = []
        self._in_flight: set[int] = set()
        self._groups: dict[str, dict[int, None]] = {}  # FIFO: each group's messages, in order
        # FIFO: the first message with a deduplication id, and until when it counts
        self._sent: dict[str, tuple[StoredMessage, float]] = {}
        self._numbers = 0
        self.configure(settings)

    @property
    def now(self) -> float:
        """The monotonic time, which measures ages and visibility."""
        return self._clock.monotonic()

    @property
    def wall_ms(self) -> int:
        """The wall clock's time, which AWS shows."""
        return int(self._clock.time() * 1000)

    # -- attributes

    def configure(self, settings: QueueAttributes) -> None:
        """Change the attributes that can be set."""
        self.settings = settings
        self.wake()

    def measure(self) -> dict[str, str]:
        """Return the attributes that the queue reports."""
        ready = sum(1 for _ in self.ready_messages())
        delayed = len(self._messages) - ready - self.in_flight
        return {
            "ApproximateNumberOfMessages": str(ready),
            "ApproximateNumberOfMessagesDelayed": str(delayed),
            "ApproximateNumberOfMessagesNotVisible": str(self.in_flight),
            "QueueArn": self.arn,
        }

    # -- adding

    def add(self, message: StoredMessage) -> StoredMessage:
        """Store the message at the end of the queue, and return it as stored."""
        number = self._numbers = self._numbers + 1
        if self.settings.is_fifo:
            message = replace(message, sequence_number=f"{number:020d}")
            self._groups.setdefault(message.group_id, {})[number] = None
        self._messages[number] = message
        heapq.heappush(self._ages, (message.sent_at, number))
        self._hide(number, message)
        return message

    def add_once(self, message: StoredMessage) -> StoredMessage:
        """Store the message, and return it as stored.

        A FIFO queue returns the first message instead that used this deduplication id in the
        last five minutes.
        """
        if not self.settings.is_fifo:
            return self.add(message)
        sent, until = self._sent.get(message.deduplication_id, (message, self.now))
        if until <= self.now:
            sent = self.add(message)
            until = self.now + DEDUPLICATION_SECONDS
            self._sent[message.deduplication_id] = sent, until
        return sent

    # -- receiving

    def take(
        self, limit: int, visibility_seconds: float, max_receives: float
    ) -> tuple[list[StoredMessage], list[StoredMessage]]:
        """Deliver up to `limit` messages, and remove those with `max_receives` receives.

        Returns the messages that were delivered, and those that were removed.
        """
        now = self.settle()
        delivered: list[StoredMessage] = []
        exhausted: list[StoredMessage] = []
        numbers, passed_over = set[int](), []
        while self._ready and len(delivered) < limit:
            number = heapq.heappop(self._ready)
            if number in numbers or not self._is_deliverable(number, now):
                continue
            if not self._is_its_turn(number, numbers):
                passed_over.append(number)
            elif self._messages[number].receives >= max_receives:
                exhausted.append(self.pop(number))
            else:
                numbers.add(number)
                delivered.append(self._deliver(number, now, now + visibility_seconds))
        for number in passed_over:
            heapq.heappush(self._ready, number)
        return delivered, exhausted

    def _is_deliverable(self, number: int, now: float) -> bool:
        message = self._messages.get(number)
        return message is not None and (message.is_doubled or message.visible_at <= now)

    def _is_its_turn(self, number: int, taken: set[int]) -> bool:
        """Return whether a FIFO group has no earlier message left, except in this receive."""
        if not self.settings.is_fifo:
            return True
        group = self._groups[self._messages[number].group_id]
        return next(waiting for waiting in group if waiting not in taken) == number

    def _deliver(self, number: int, now: float, until: float) -> StoredMessage:
        handle = self._ids.make_handle()
        message = self._messages[number].received(handle, now, self.wall_ms, until)
        self._messages[number] = message
        self.receipts[handle] = number
        self._in_flight.add(number)
        self._hide(number, message)
        return message

    # -- by number

    def get(self, number: int) -> StoredMessage | None:
        """Return the message, or None if it was deleted, purged or moved, or is too old."""
        return self._messages.get(number)

    def delete(self, number: int) -> None:
        """Delete the message."""
        self.pop(number)
        self.wake()  # the next message of its group may be deliverable

    def hide(self, number: int, until: float) -> None:
        """Hide the message until then."""
        message = self._messages[number] = replace(self._messages[number], visible_at=until)
        self._in_flight.add(number)
        self._hide(number, message)

    # -- all messages

    def settle(self) -> float:
        """Apply the time, and return it.

        Messages that are too old are removed, and those no longer hidden are shown.
        """
        now = self.now
        retention_seconds = self.settings.get_number("MessageRetentionPeriod")
        while self._ages and self._ages[0][0] + retention_seconds <= now:
            _, number = heapq.heappop(self._ages)
            if number in self._messages:
                self.pop(number)
        while self._hidden and self._hidden[0][0] <= now:
            until, number = heapq.heappop(self._hidden)
            if number in self._messages and self._messages[number].visible_at == until:
                self._in_flight.discard(number)
                heapq.heappush(self._ready, number)
        return now

    def next_change_at(self) -> float:
        """Return when the next hidden message may become visible."""
        return self._hidden[0][0] if self._hidden else float("inf")

    @property
    def in_flight(self) -> int:
        """The number of messages in flight."""
        return len(self._in_flight)

    def ready_messages(self) -> Iterator[tuple[int, StoredMessage]]:
        """Yield the visible messages with their numbers, in order."""
        now = self.settle()
        for number, message in sorted(self._messages.items()):
            if message.visible_at <= now:
                yield number, message

    def mark_for_redelivery(self, message_id: str | None) -> int:
        """Make messages in flight deliverable once more, and return their number."""
        self.settle()
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

    def clear(self) -> None:
        """Remove all messages and deduplication ids."""
        for number in list(self._messages):
            self.pop(number)
        self._sent.clear()

    def wake(self) -> None:
        """Let long polls check the queue again."""
        for waiter in self.waiters:
            waiter.set()

    def _hide(self, number: int, message: StoredMessage) -> None:
        heapq.heappush(self._hidden, (message.visible_at, number))
        self.wake()

    def pop(self, number: int) -> StoredMessage:
        """Remove a message without delivering it, and return it."""
        message = self._messages.pop(number)
        self._in_flight.discard(number)
        if self.settings.is_fifo:
            group = self._groups[message.group_id]
            del group[number]
            if not group:
                del self._groups[message.group_id]
        return message
