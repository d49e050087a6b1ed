"""One queue: its attributes, the messages that wait, those in flight, and their order.

    sent -> (delayed) -> ready -> in flight -> deleted
                           ^          |
                           +----------+  its visibility expired, or was set to 0

A message is hidden until `visible_at`, for any reason: it is delayed if it has no receipt
handle yet, and in flight otherwise. Messages are kept in the order in which they were added.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
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
        self._messages: dict[int, StoredMessage] = {}  # by number, oldest first
        self.receipts: dict[str, int] = {}
        """The number of the message that each receipt handle stands for."""
        # FIFO: the first message with a deduplication id, and until when it counts
        self._sent: dict[str, tuple[StoredMessage, float]] = {}
        self._numbers = 0
        self._oldest_sent_at = inf  # or earlier, if that message is gone
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
        now = self._remove_old()
        hidden = [message for message in self._messages.values() if message.visible_at > now]
        in_flight = sum(message.handle != "" for message in hidden)
        return {
            "ApproximateNumberOfMessages": str(len(self._messages) - len(hidden)),
            "ApproximateNumberOfMessagesDelayed": str(len(hidden) - in_flight),
            "ApproximateNumberOfMessagesNotVisible": str(in_flight),
            "QueueArn": self.arn,
        }

    # -- adding

    def add(self, message: StoredMessage) -> StoredMessage:
        """Store the message at the end of the queue, and return it as stored."""
        number = self._numbers = self._numbers + 1
        if self.settings.is_fifo:
            message = replace(message, sequence_number=f"{number:020d}")
        self._messages[number] = message
        self._oldest_sent_at = min(self._oldest_sent_at, message.sent_at)
        self.wake()
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

        Returns the messages that were delivered, and those that were removed. A group of a
        FIFO queue is delivered in order, so a hidden message holds back those after it.
        """
        now = self._remove_old()
        delivered: list[StoredMessage] = []
        exhausted: list[int] = []
        held_groups = set[str]()
        for number, message in self._messages.items():
            if len(delivered) == limit:
                break
            if message.group_id in held_groups:
                continue
            if message.visible_at > now and not message.is_doubled:
                if self.settings.is_fifo:
                    held_groups.add(message.group_id)
            elif message.receives >= max_receives:
                exhausted.append(number)
            else:
                delivered.append(self._deliver(number, now, now + visibility_seconds))
        return delivered, [self._messages.pop(number) for number in exhausted]

    def _deliver(self, number: int, now: float, until: float) -> StoredMessage:
        handle = self._ids.make_handle()
        message = self._messages[number].received(handle, now, self.wall_ms, until)
        self._messages[number] = message
        self.receipts[handle] = number
        self.wake()
        return message

    # -- by number

    def get(self, number: int) -> StoredMessage | None:
        """Return the message, or None if it was deleted, purged or moved, or is too old."""
        self._remove_old()
        return self._messages.get(number)

    def delete(self, number: int) -> None:
        """Delete the message."""
        del self._messages[number]
        self.wake()  # the next message of its group may be deliverable

    def hide(self, number: int, until: float) -> None:
        """Hide the message until then."""
        self._messages[number] = replace(self._messages[number], visible_at=until)
        self.wake()

    # -- all messages

    def _remove_old(self) -> float:
        """Remove the messages that are too old, and return the time."""
        now = self.now
        sent_before = now - self.settings.get_number("MessageRetentionPeriod")
        if self._oldest_sent_at <= sent_before:
            self._messages = {
                number: message
                for number, message in self._messages.items()
                if message.sent_at > sent_before
            }
            ages = (message.sent_at for message in self._messages.values())
            self._oldest_sent_at = min(ages, default=inf)
        return now

    def next_change_at(self) -> float:
        """Return when the next hidden message becomes visible."""
        now = self.now
        hidden = (m.visible_at for m in self._messages.values() if m.visible_at > now)
        return min(hidden, default=inf)

    def mark_for_redelivery(self, message_id: str | None) -> int:
        """Make messages in flight deliverable once more, and return their number."""
        now = self._remove_old()
        doubled = [
            number
            for number, message in self._messages.items()
            if message.visible_at > now and message.handle
            if message_id in (None, message.message_id)
        ]
        for number in doubled:
            self._messages[number] = replace(self._messages[number], is_doubled=True)
        self.wake()
        return len(doubled)

    def clear(self) -> None:
        """Remove all messages and deduplication ids."""
        self._messages.clear()
        self._sent.clear()

    def wake(self) -> None:
        """Let long polls check the queue again."""
        for waiter in self.waiters:
            waiter.set()
