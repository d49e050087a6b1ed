"""Deliveries that no handler can get: newer than the code, malformed, or out of attempts.

A message that is newer than the code waits for newer code without using up its attempts.

A standard queue's message waits as a new copy, which SQS counts from 0. In a FIFO queue a
copy would go to the end of its group, so the message waits where it is: it stays hidden and
is received again after each wait. SQS counts those receives, and they cannot be undone:

    receive 1 ─ 1 min ─ receive 2 ─ 2 min ─ receive 3 ─ 4 min ─ receive 4 ─ …

Each wait is twice as long as the one before. So a deployment of an hour costs six receives, and
afterwards the message is hidden for no longer than the deployment took. The queue's own
redrive policy counts those receives: a maxReceiveCount of 6 is enough for half an hour, one
of 10 for eight hours.

The newer code cannot see which receives were waits. But waits take time, so the time since
the first receive says how many there can have been. That many are not counted as attempts.
"""

from collections.abc import Callable, Mapping

from holdfast import events as ev
from holdfast.errors import HoldfastError, NewerSchema
from holdfast.events import Events
from holdfast.queue.states import SettleResult
from holdfast.queues.sqs.dead_letters import SQSDeadLetters
from holdfast.queues.sqs.queue_client import QueueClient, Receipt
from holdfast.queues.sqs.sending import get_assigned_id, send_copy

NEWER_SCHEMA_DELAY_SECONDS = 30
FIRST_WAIT_SECONDS = 60
_MAX_WAIT_SECONDS = 6 * 3600  # SQS hides a message for twice as long at most
_MAX_DOUBLINGS = 16


class UnhandledDeliveries:
    """Settles deliveries that no handler can get.

    An error is only reported as an event, because one bad message must not affect the others
    that were received with it.
    """

    def __init__(
        self, client: QueueClient, dead: SQSDeadLetters, name: str, events: Events
    ) -> None:
        self._client, self._dead = client, dead
        self._name, self._events = name, events

    def wait_for_newer_code(self, receipt: Receipt, error: NewerSchema) -> SettleResult:
        """Give the message back, so that a newer worker gets it after a while."""
        self._try(lambda: self._postpone(receipt))
        message_id = error.message_id or get_assigned_id(receipt)
        self._events.emit(
            ev.SchemaTooNew(self._name, message_id, receipt.receives, error.version)
        )
        return SettleResult.GIVEN_BACK

    def _postpone(self, receipt: Receipt) -> None:
        """Send the message again with a delay, so that the wait uses up no attempts.

        A FIFO queue would lose its order by that, so there the message waits where it is.
        """
        if self._client.address.fifo:
            self._client.set_visibility([receipt], compute_wait_seconds(receipt.receives))
            return
        send_copy(self._client, receipt, DelaySeconds=NEWER_SCHEMA_DELAY_SECONDS)
        self._client.delete([receipt])

    def reject(
        self, receipt: Receipt, message_id: str, attempts: int, log_reason: str, why: str
    ) -> SettleResult:
        """Dead-letter a message. Only `log_reason` is logged, not `why`."""

        def dead_letter() -> None:
            self._dead.send_copy(receipt, f"{log_reason}: {why}", None, attempts)
            self._client.delete([receipt])
            self._events.emit(
                ev.DeadLettered(self._name, message_id, attempts, reason=log_reason)
            )

        return SettleResult.DEAD_LETTERED if self._try(dead_letter) else SettleResult.ABANDONED

    def _try(self, action: Callable[[], None]) -> bool:
        """Run the action and return whether it succeeded."""
        try:
            action()
        except HoldfastError as error:
            self._events.emit(ev.PollFailed(self._name, str(error)))
            return False
        return True


def compute_wait_seconds(receives: int) -> int:
    """Return how long a message waits after so many receives."""
    doublings = min(receives - 1, _MAX_DOUBLINGS)
    return min(FIRST_WAIT_SECONDS << doublings, _MAX_WAIT_SECONDS)


def count_possible_waits(seconds: float) -> int:
    """Return how many waits there can have been in `seconds` since the first receive.

    Each is assumed to have taken half its time, because this process's clock may differ
    from that of SQS.
    """
    waits = 0
    while seconds >= (needed := compute_wait_seconds(waits + 1) / 2):
        seconds -= needed
        waits += 1
    return waits


def compute_first_receive_age(system: Mapping[str, str], now: float) -> float:
    """Return the seconds since SQS first delivered the message, or 0.0 if it is unknown."""
    first = system.get("ApproximateFirstReceiveTimestamp")
    return 0.0 if first is None else now - int(first) / 1000
