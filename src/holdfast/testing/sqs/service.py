"""SimulatedSqs: the service that a test makes, inspects and breaks."""

from collections.abc import Callable
from threading import RLock
from typing import Any

from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.testing.sqs.batch import Response, make_batch_response
from holdfast.testing.sqs.calls import CallLog, RecordedCall
from holdfast.testing.sqs.client import SimulatedSqsClient
from holdfast.testing.sqs.errors import ServiceError, make_response_metadata
from holdfast.testing.sqs.faults import CallFailure, Fault, Faults, RefusedEntries
from holdfast.testing.sqs.ids import IdSource
from holdfast.testing.sqs.moves import MessageMoves
from holdfast.testing.sqs.receiving import ReceiveCalls
from holdfast.testing.sqs.registry import QueueRegistry
from holdfast.testing.sqs.sending import SendCalls
from holdfast.testing.sqs.visibility import StaleHandles, VisibilityCalls

MAX_IN_FLIGHT = 120_000

Operation = Callable[[str, dict[str, Any]], Response]


class SimulatedSqs:
    """A simulation of SQS in this process. Threads may share it.

        sqs = SimulatedSqs(clock)
        client = sqs.client()
        url = client.create_queue(QueueName="letters")["QueueUrl"]
        sqs.faults.fail("SendMessage", code="RequestThrottled", times=3)
        ...
        assert sqs.calls.count("SendMessage") == 4

    Visibility, delays, retention, long polls and move tasks all follow `clock`.
    `stale_handles` says what happens to stale receipts (see visibility.py); code should work
    in all three modes. The same `seed` gives the same ids.
    """

    def __init__(
        self,
        clock: Clock = SYSTEM_CLOCK,
        *,
        stale_handles: StaleHandles = "strict",
        seed: int = 0,
        in_flight_limit: int = MAX_IN_FLIGHT,
    ) -> None:
        if stale_handles not in ("strict", "ignored", "effective"):
            raise ValueError(
                "stale_handles must be 'strict', 'ignored' or 'effective', "
                f"not {stale_handles!r}"
            )
        self.clock = clock
        self.calls = CallLog()
        self._lock = RLock()
        self._ids = IdSource(seed)
        self._registry = QueueRegistry(clock, self._ids)
        self._moves = MessageMoves(self._registry, clock, self._ids)
        self._visibility = VisibilityCalls(self._registry, clock, stale_handles)
        self._operations = self._all_operations(in_flight_limit)
        self.faults = Faults(clock, self._operations)

    def client(
        self, region_name: str = "us-east-1", *, read_timeout_seconds: float = 60.0
    ) -> SimulatedSqsClient:
        """Make a client like boto3's. It sees the queues of its region."""
        return SimulatedSqsClient(self, region_name, read_timeout_seconds)

    def duplicate(self, queue_name: str, message_id: str | None = None) -> int:
        """Let the next receive deliver an in-flight message a second time.

        A standard queue does that sometimes. Without an id this applies to all messages in
        flight. Returns their number. The first receipt is stale after the second delivery.
        """
        with self._lock:
            queue = self._registry.find_by_name(queue_name)
            return queue.mark_for_redelivery(message_id, self.clock.monotonic())

    # -- for the clients

    def call(
        self, operation: str, request: dict[str, Any], client: SimulatedSqsClient
    ) -> Response:
        """Serve one request, with the fault that is scripted for it."""
        self._record(operation, request)
        endpoint, timeout = client.meta.endpoint_url, client.read_timeout_seconds
        self.faults.wait_while_frozen(endpoint, timeout)
        fault = self.faults.take_fault(operation)
        try:
            response = self._respond(operation, request, client.meta.region_name, fault)
        except ServiceError as refusal:
            raise refusal.as_client_error(operation, self._request_id()) from None
        self.faults.delay_or_lose_reply(fault, endpoint, timeout)
        return {**response, "ResponseMetadata": make_response_metadata(200, self._request_id())}

    def _record(self, operation: str, request: dict[str, Any]) -> None:
        queue = str(request.get("QueueUrl") or request.get("QueueName") or "").rsplit("/", 1)[
            -1
        ]
        entries = len(request["Entries"]) if operation.endswith("Batch") else 1
        self.calls.record(RecordedCall(operation, queue, entries, self.clock.monotonic()))

    def _respond(
        self, operation: str, request: dict[str, Any], region: str, fault: Fault | None
    ) -> Response:
        match fault:
            case CallFailure(error):
                raise error
            case RefusedEntries():
                return self._perform_partly(fault, operation, request, region)
            case _:
                return self._perform(operation, region, request)

    def _perform_partly(
        self, fault: RefusedEntries, operation: str, request: dict[str, Any], region: str
    ) -> Response:
        entries = list(enumerate(request["Entries"]))
        refused = [e["Id"] for position, e in entries if position in fault.positions]
        remaining = [e for position, e in entries if position not in fault.positions]
        response = (
            self._perform(operation, region, {**request, "Entries": remaining})
            if remaining
            else {}
        )
        failed = [fault.refusal.as_failed_entry(entry_id) for entry_id in refused]
        return make_batch_response(
            response.get("Successful", []), response.get("Failed", []) + failed
        )

    def _perform(self, operation: str, region: str, request: dict[str, Any]) -> Response:
        perform = self._operations[operation]
        if operation == "ReceiveMessage":
            return perform(region, request)  # it may wait, so it takes the lock itself
        with self._lock:
            self._moves.move_due()
            return perform(region, request)

    def _request_id(self) -> str:
        with self._lock:
            return self._ids.make_uuid()

    def _all_operations(self, in_flight_limit: int) -> dict[str, Operation]:
        registry, visibility, moves = self._registry, self._visibility, self._moves
        sending = SendCalls(registry, self.clock, self._ids)
        receiving = ReceiveCalls(registry, moves, self.clock, self._lock, in_flight_limit)
        return {
            "ChangeMessageVisibility": visibility.change,
            "ChangeMessageVisibilityBatch": visibility.change_batch,
            "CreateQueue": registry.create,
            "DeleteMessage": visibility.delete,
            "DeleteMessageBatch": visibility.delete_batch,
            "DeleteQueue": registry.delete,
            "GetQueueAttributes": registry.get_attributes,
            "GetQueueUrl": registry.get_url,
            "ListDeadLetterSourceQueues": registry.list_sources,
            "ListMessageMoveTasks": moves.list_tasks,
            "ListQueues": registry.list_all,
            "PurgeQueue": registry.purge,
            "ReceiveMessage": receiving.receive,
            "SendMessage": sending.send,
            "SendMessageBatch": sending.send_batch,
            "SetQueueAttributes": registry.set_attributes,
            "StartMessageMoveTask": moves.start,
        }
