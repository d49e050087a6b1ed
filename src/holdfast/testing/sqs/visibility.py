"""DeleteMessage and ChangeMessageVisibility, alone and in batches: what a receipt can do.

A receipt goes stale when its message becomes visible again or is received by somebody
else. What AWS does with a stale one is not promised; all three of these happen:

    strict      it is refused
    ignored     the call succeeds, and nothing happens
    effective   it still deletes the message, or hides it, whoever holds it now

FIFO queues always refuse.
"""

from typing import Any, Literal

from holdfast.core.clock import Clock
from holdfast.testing.sqs.batch import Answer, check_batch, each_entry
from holdfast.testing.sqs.errors import (
    ServiceError,
    handle_expired,
    message_gone,
    not_a_handle,
    not_in_flight,
    out_of_range,
)
from holdfast.testing.sqs.message import StoredMessage
from holdfast.testing.sqs.queue import SimulatedQueue, SimulatedReceipt
from holdfast.testing.sqs.receiving import MAX_VISIBILITY_SECONDS
from holdfast.testing.sqs.registry import QueueRegistry

StaleHandles = Literal["strict", "ignored", "effective"]


class VisibilityCalls:
    """Called under the service's lock."""

    def __init__(
        self, registry: QueueRegistry, clock: Clock, stale_handles: StaleHandles
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._stale_handles = stale_handles

    def delete(self, region: str, params: dict[str, Any]) -> Answer:
        return self._delete(self._registry.find(region, params["QueueUrl"]), params)

    def delete_batch(self, region: str, params: dict[str, Any]) -> Answer:
        queue, entries = self._registry.find(region, params["QueueUrl"]), params["Entries"]
        check_batch(entries, "DeleteMessageBatchRequestEntry")
        return each_entry(entries, lambda entry: self._delete(queue, entry))

    def change(self, region: str, params: dict[str, Any]) -> Answer:
        return self._change(self._registry.find(region, params["QueueUrl"]), params)

    def change_batch(self, region: str, params: dict[str, Any]) -> Answer:
        queue, entries = self._registry.find(region, params["QueueUrl"]), params["Entries"]
        check_batch(entries, "ChangeMessageVisibilityBatchRequestEntry")
        return each_entry(entries, lambda entry: self._change(queue, entry))

    def _delete(self, queue: SimulatedQueue, entry: dict[str, Any]) -> Answer:
        receipt = self._receipt(queue, entry)
        message = queue.message_of(receipt)
        # Deleting what is gone already is well.
        if message is not None and self._counts(queue, message, receipt, not_a_handle()):
            queue.delete(receipt)
        return {}

    def _change(self, queue: SimulatedQueue, entry: dict[str, Any]) -> Answer:
        seconds = entry.get("VisibilityTimeout", queue.settings.visibility_seconds)
        if not 0 <= seconds <= MAX_VISIBILITY_SECONDS:
            raise out_of_range(
                "VisibilityTimeout", seconds, f"Must be between 0 and {MAX_VISIBILITY_SECONDS}."
            )
        receipt = self._receipt(queue, entry)
        message = queue.message_of(receipt)
        if message is None:
            raise message_gone()
        is_latest = message.handle == receipt.handle
        refusal = not_in_flight() if is_latest else not_a_handle()
        if self._counts(queue, message, receipt, refusal):
            queue.hide(receipt, self._until(message, seconds))
        return {}

    def _until(self, message: StoredMessage, seconds: int) -> float:
        """Twelve hours from the receive are the end, and asking for more is refused."""
        until = self._clock.monotonic() + seconds
        if until - message.received_at > MAX_VISIBILITY_SECONDS:
            raise out_of_range(
                "VisibilityTimeout",
                seconds,
                "Total VisibilityTimeout for the message is beyond the limit "
                f"[{MAX_VISIBILITY_SECONDS} seconds]",
            )
        return until

    def _receipt(self, queue: SimulatedQueue, entry: dict[str, Any]) -> SimulatedReceipt:
        queue.settle(self._clock.monotonic())
        receipt = queue.receipt(entry["ReceiptHandle"])
        if receipt is None:
            raise not_a_handle()
        return receipt

    def _counts(
        self,
        queue: SimulatedQueue,
        message: StoredMessage,
        receipt: SimulatedReceipt,
        refusal: ServiceError,
    ) -> bool:
        """Has this receipt an effect? Raises when it is stale and that is refused."""
        is_visible = message.visible_at <= self._clock.monotonic()
        if not is_visible and message.handle == receipt.handle:
            return True
        if queue.settings.is_fifo:
            raise handle_expired()
        if self._stale_handles == "strict":
            raise refusal
        return self._stale_handles == "effective"
