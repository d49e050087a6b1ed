"""DeleteMessage and ChangeMessageVisibility, alone and in batches.

A receipt becomes stale when its message becomes visible again or is received again. AWS does
not promise what happens with a stale receipt. All three of these happen:

    strict      the call is refused
    ignored     the call succeeds without an effect
    effective   the call still deletes or hides the message, even if another receiver has it

FIFO queues always refuse.
"""

from typing import Any, Literal

from holdfast.core.clock import Clock
from holdfast.testing.sqs.batch import Response, check_batch, run_each_entry
from holdfast.testing.sqs.errors import (
    ServiceError,
    expired_handle_error,
    invalid_handle_error,
    message_gone_error,
    not_in_flight_error,
    out_of_range_error,
)
from holdfast.testing.sqs.message import StoredMessage
from holdfast.testing.sqs.queue import SimulatedQueue, SimulatedReceipt
from holdfast.testing.sqs.receiving import MAX_VISIBILITY_SECONDS
from holdfast.testing.sqs.registry import QueueRegistry

StaleHandles = Literal["strict", "ignored", "effective"]


class VisibilityCalls:
    """The operations that take a receipt. The caller must hold the service's lock."""

    def __init__(
        self, registry: QueueRegistry, clock: Clock, stale_handles: StaleHandles
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._stale_handles = stale_handles

    def delete(self, region: str, params: dict[str, Any]) -> Response:
        """Handle DeleteMessage."""
        return self._delete(self._registry.find(region, params["QueueUrl"]), params)

    def delete_batch(self, region: str, params: dict[str, Any]) -> Response:
        """Handle DeleteMessageBatch."""
        queue, entries = self._registry.find(region, params["QueueUrl"]), params["Entries"]
        check_batch(entries, "DeleteMessageBatchRequestEntry")
        return run_each_entry(entries, lambda entry: self._delete(queue, entry))

    def change(self, region: str, params: dict[str, Any]) -> Response:
        """Handle ChangeMessageVisibility."""
        return self._change(self._registry.find(region, params["QueueUrl"]), params)

    def change_batch(self, region: str, params: dict[str, Any]) -> Response:
        """Handle ChangeMessageVisibilityBatch."""
        queue, entries = self._registry.find(region, params["QueueUrl"]), params["Entries"]
        check_batch(entries, "ChangeMessageVisibilityBatchRequestEntry")
        return run_each_entry(entries, lambda entry: self._change(queue, entry))

    def _delete(self, queue: SimulatedQueue, entry: dict[str, Any]) -> Response:
        receipt = self._find_receipt(queue, entry)
        message = queue.message_of(receipt)
        # Deleting a message that is gone already succeeds.
        if message is not None and self._has_effect(
            queue, message, receipt, invalid_handle_error()
        ):
            queue.delete(receipt)
        return {}

    def _change(self, queue: SimulatedQueue, entry: dict[str, Any]) -> Response:
        seconds = entry.get("VisibilityTimeout", queue.settings.visibility_seconds)
        if not 0 <= seconds <= MAX_VISIBILITY_SECONDS:
            raise out_of_range_error(
                "VisibilityTimeout", seconds, f"Must be between 0 and {MAX_VISIBILITY_SECONDS}."
            )
        receipt = self._find_receipt(queue, entry)
        message = queue.message_of(receipt)
        if message is None:
            raise message_gone_error()
        is_latest = message.handle == receipt.handle
        refusal = not_in_flight_error() if is_latest else invalid_handle_error()
        if self._has_effect(queue, message, receipt, refusal):
            queue.hide(receipt, self._compute_visible_at(message, seconds))
        return {}

    def _compute_visible_at(self, message: StoredMessage, seconds: int) -> float:
        """Return when the message is visible again; refuse more than twelve hours in all."""
        until = self._clock.monotonic() + seconds
        if until - message.received_at > MAX_VISIBILITY_SECONDS:
            raise out_of_range_error(
                "VisibilityTimeout",
                seconds,
                "Total VisibilityTimeout for the message is beyond the limit "
                f"[{MAX_VISIBILITY_SECONDS} seconds]",
            )
        return until

    def _find_receipt(self, queue: SimulatedQueue, entry: dict[str, Any]) -> SimulatedReceipt:
        queue.settle(self._clock.monotonic())
        receipt = queue.receipt(entry["ReceiptHandle"])
        if receipt is None:
            raise invalid_handle_error()
        return receipt

    def _has_effect(
        self,
        queue: SimulatedQueue,
        message: StoredMessage,
        receipt: SimulatedReceipt,
        refusal: ServiceError,
    ) -> bool:
        """Return whether this receipt has an effect. Raises if it is stale and refused."""
        is_visible = message.visible_at <= self._clock.monotonic()
        if not is_visible and message.handle == receipt.handle:
            return True
        if queue.settings.is_fifo:
            raise expired_handle_error()
        if self._stale_handles == "strict":
            raise refusal
        return self._stale_handles == "effective"
