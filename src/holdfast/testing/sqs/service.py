"""SimulatedSqs: what a test makes, looks at and breaks."""

from collections.abc import Callable
from threading import RLock
from typing import Any

from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.testing.sqs.batch import Answer, batch_answer
from holdfast.testing.sqs.calls import CallLog, RecordedCall
from holdfast.testing.sqs.client import SimulatedSqsClient
from holdfast.testing.sqs.errors import ServiceError, answered
from holdfast.testing.sqs.faults import CallFailure, Fault, Faults, RefusedEntries
from holdfast.testing.sqs.ids import IdSource
from holdfast.testing.sqs.moves import MessageMoves
from holdfast.testing.sqs.receiving import ReceiveCalls
from holdfast.testing.sqs.registry import QueueRegistry
from holdfast.testing.sqs.sending import SendCalls
from holdfast.testing.sqs.visibility import StaleHandles, VisibilityCalls

IN_FLIGHT_LIMIT = 120_000

Operation = Callable[[str, dict[str, Any]], Answer]


class SimulatedSqs:
    """An SQS of your own, in this process. Safe to share between threads.

        sqs = SimulatedSqs(clock)
        client = sqs.client()
        url = client.create_queue(QueueName="letters")["QueueUrl"]
        sqs.faults.fail("SendMessage", code="RequestThrottled", times=3)
        ...
        assert sqs.calls.count("SendMessage") == 4

    Time passes only on `clock`: visibility, delays, retention, long polls, move tasks.
    `stale_handles` is what happens to receipts that are no longer good (see holding.py):
    code should be right in all three ways. The same `seed` gives the same ids.
    """

    def __init__(
        self,
        clock: Clock = SYSTEM_CLOCK,
        *,
        stale_handles: StaleHandles = "strict",
        seed: int = 0,
        in_flight_limit: int = IN_FLIGHT_LIMIT,
    ) -> None:
        if stale_handles not in ("strict", "ignored", "effective"):
            raise ValueError(f"stale handles are not {stale_handles!r}")
        self.clock = clock
        self.calls = CallLog()
        self._lock = RLock()
        self._mint = IdSource(seed)
        self._registry = QueueRegistry(clock, self._mint)
        self._moves = MessageMoves(self._registry, clock, self._mint)
        self._holding = VisibilityCalls(self._registry, clock, stale_handles)
        self._operations = self._all_operations(in_flight_limit)
        self.faults = Faults(clock, self._operations)

    def client(
        self, region_name: str = "us-east-1", *, read_timeout_seconds: float = 60.0
    ) -> SimulatedSqsClient:
        """A client as boto3 would make it. It sees the queues of its region."""
        return SimulatedSqsClient(self, region_name, read_timeout_seconds)

    def duplicate(self, queue_name: str, message_id: str | None = None) -> int:
        """Let the next receive deliver a message that is in flight, a second time.

        As a standard queue sometimes does. Of all in flight when no id is given; returns
        how many. Its first receipt is stale once the second is given.
        """
        with self._lock:
            queue = self._registry.by_name(queue_name)
            return queue.double(message_id, self.clock.monotonic())

    # -- for the clients

    def call(
        self, operation: str, params: dict[str, Any], client: SimulatedSqsClient
    ) -> Answer:
        """One request from its sending to its reply, with what is scripted for it."""
        self._note(operation, params)
        endpoint, timeout = client.meta.endpoint_url, client.read_timeout_seconds
        self.faults.let_in(endpoint, timeout)
        fault = self.faults.draw(operation)
        try:
            answer = self._answer(operation, params, client.meta.region_name, fault)
        except ServiceError as refusal:
            raise refusal.as_client_error(operation, self._request_id()) from None
        self.faults.reply(fault, endpoint, timeout)
        return {**answer, "ResponseMetadata": answered(200, self._request_id())}

    def _note(self, operation: str, params: dict[str, Any]) -> None:
        queue = str(params.get("QueueUrl") or params.get("QueueName") or "").rsplit("/", 1)[-1]
        entries = len(params["Entries"]) if operation.endswith("Batch") else 1
        self.calls.note(RecordedCall(operation, queue, entries, self.clock.monotonic()))

    def _answer(
        self, operation: str, params: dict[str, Any], region: str, fault: Fault | None
    ) -> Answer:
        match fault:
            case CallFailure(error):
                raise error
            case RefusedEntries():
                return self._without(fault, operation, params, region)
            case _:
                return self._perform(operation, region, params)

    def _without(
        self, fault: RefusedEntries, operation: str, params: dict[str, Any], region: str
    ) -> Answer:
        entries = list(enumerate(params["Entries"]))
        refused = [e["Id"] for position, e in entries if position in fault.positions]
        left = [e for position, e in entries if position not in fault.positions]
        answer = self._perform(operation, region, {**params, "Entries": left}) if left else {}
        failed = [fault.refusal.as_failed_entry(entry_id) for entry_id in refused]
        return batch_answer(answer.get("Successful", []), answer.get("Failed", []) + failed)

    def _perform(self, operation: str, region: str, params: dict[str, Any]) -> Answer:
        perform = self._operations[operation]
        if operation == "ReceiveMessage":
            return perform(region, params)  # it may wait, and locks for itself
        with self._lock:
            self._moves.progress()
            return perform(region, params)

    def _request_id(self) -> str:
        with self._lock:
            return self._mint.uuid()

    def _all_operations(self, in_flight_limit: int) -> dict[str, Operation]:
        registry, holding, moves = self._registry, self._holding, self._moves
        sending = SendCalls(registry, self.clock, self._mint)
        receiving = ReceiveCalls(registry, moves, self.clock, self._lock, in_flight_limit)
        return {
            "ChangeMessageVisibility": holding.change,
            "ChangeMessageVisibilityBatch": holding.change_batch,
            "CreateQueue": registry.create,
            "DeleteMessage": holding.delete,
            "DeleteMessageBatch": holding.delete_batch,
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
