"""SimulatedSqs: the service that a test makes, inspects and breaks."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from threading import RLock
from types import SimpleNamespace
from typing import Any

from botocore import xform_name
from botocore.exceptions import ParamValidationError
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator

from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.testing.sqs.errors import ServiceError, make_response_metadata, sqs_error
from holdfast.testing.sqs.faults import CallFailure, Fault, Faults, RefusedEntries
from holdfast.testing.sqs.message import IdSource
from holdfast.testing.sqs.message_calls import (
    ReceiptCalls,
    ReceiveCalls,
    StaleHandles,
    check_send_batch,
    send_message,
)
from holdfast.testing.sqs.queue import SimulatedQueue
from holdfast.testing.sqs.registry import REGION, QueueRegistry, Response

MAX_ENTRIES = 10

_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")


@cache
def _service_model() -> Any:
    """Load AWS's description of SQS, which botocore ships."""
    return ServiceModel(Loader().load_service_model("sqs", "service-2"), "sqs")


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One request, whether it reached the service or not."""

    operation: str
    """As AWS writes it: `DeleteMessageBatch`."""
    queue: str
    """The queue's name; empty for a call that names none."""
    entries: int
    """The number of entries of a batch; 1 for any other call."""
    at_seconds: float
    """On the clock's monotonic time."""


class CallLog(list[RecordedCall]):
    """All calls in order, so that a test can count what a design costs.

    A test may read it while threads make calls, and clear it to count from there.
    """

    def select(self, *operations: str) -> list[RecordedCall]:
        """Return the calls of these operations, or all calls if none is named."""
        return [call for call in self if not operations or call.operation in operations]

    def count(self, *operations: str) -> int:  # type: ignore[override]
        """Count the calls, which AWS charges for."""
        return len(self.select(*operations))

    def entries(self, *operations: str) -> int:
        """Count the messages of those calls; each entry of a batch is one."""
        return sum(call.entries for call in self.select(*operations))


class SimulatedSqsClient:
    """A client with the methods, arguments, responses and exceptions of boto3's.

    botocore itself checks the arguments against AWS's own description of the service, so a
    wrong type or name fails as it does with AWS. The client does not retry. Each call is one
    request, as with `total_max_attempts=1`.
    """

    def __init__(self, service: "SimulatedSqs", read_timeout_seconds: float) -> None:
        endpoint = f"https://sqs.{REGION}.amazonaws.com"
        self.meta = SimpleNamespace(region_name=REGION, endpoint_url=endpoint)
        self.read_timeout_seconds = read_timeout_seconds
        self._service = service

    def close(self) -> None:
        """Do nothing, because no connection is open."""

    def __getattr__(self, name: str) -> Callable[..., Response]:
        """Return the method of an operation that the simulation has."""
        for operation in self._service.operations:
            if xform_name(operation) == name:
                return partial(self._call, operation)
        raise AttributeError(f"the simulated client has no method {name!r}")

    def _call(self, operation: str, /, **request: Any) -> Response:
        shape = _service_model().operation_model(operation).input_shape
        report = ParamValidator().validate(request, shape)
        if report.has_errors():
            raise ParamValidationError(report=report.generate_report())
        return self._service.call(operation, request, self)


class SimulatedSqs:
    """A simulation of SQS in this process. Threads may share it.

        sqs = SimulatedSqs(clock)
        client = sqs.client()
        url = client.create_queue(QueueName="letters")["QueueUrl"]
        sqs.faults.fail("SendMessage", code="RequestThrottled", times=3)
        ...
        assert sqs.calls.count("SendMessage") == 4

    Visibility, delays, retention and long polls follow `clock`.
    `stale_handles` says what happens to stale receipts (see message_calls.py); code should work
    in all three modes. The same `seed` gives the same ids.
    """

    def __init__(
        self,
        clock: Clock = SYSTEM_CLOCK,
        *,
        stale_handles: StaleHandles = "strict",
        seed: int = 0,
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
        self._registry = registry = QueueRegistry(clock, self._ids)
        receiving = ReceiveCalls(registry, clock, self._lock)
        receipts = ReceiptCalls(stale_handles)
        self._receive = receiving.receive
        self._on_service: dict[str, Callable[[dict[str, Any]], Response]] = {
            "CreateQueue": registry.create,
            "GetQueueUrl": registry.get_url,
            "ListQueues": registry.list_all,
        }
        self._on_queue: dict[str, Callable[[SimulatedQueue, dict[str, Any]], Response]] = {
            "ChangeMessageVisibility": receipts.change,
            "DeleteMessage": receipts.delete,
            "DeleteQueue": registry.delete,
            "GetQueueAttributes": registry.get_attributes,
            "PurgeQueue": registry.purge,
            "SendMessage": partial(send_message, self._ids),
            "SetQueueAttributes": registry.set_attributes,
        }
        batches = ("ChangeMessageVisibilityBatch", "DeleteMessageBatch", "SendMessageBatch")
        self.operations = {*self._on_service, *self._on_queue, *batches, "ReceiveMessage"}
        self.faults = Faults(clock, self.operations)

    def client(self, *, read_timeout_seconds: float = 60.0) -> SimulatedSqsClient:
        """Make a client like boto3's."""
        return SimulatedSqsClient(self, read_timeout_seconds)

    def duplicate(self, queue_name: str, message_id: str | None = None) -> int:
        """Let the next receive deliver an in-flight message a second time.

        A standard queue does that sometimes. Without an id this applies to all messages in
        flight. Returns their number. The first receipt is stale after the second delivery.
        """
        with self._lock:
            queue = self._registry.find_by_name(queue_name)
            return queue.mark_for_redelivery(message_id)

    # -- for the clients

    def call(
        self, operation: str, request: dict[str, Any], client: SimulatedSqsClient
    ) -> Response:
        """Serve one request, with the fault that is scripted for it."""
        self._record(operation, request)
        fault = self.faults.take_fault(operation)
        try:
            if isinstance(fault, CallFailure):
                raise fault.error
            response = self._perform(operation, request, fault)
        except ServiceError as refusal:
            raise refusal.as_client_error(operation, self._request_id()) from None
        self.faults.delay_or_lose_reply(
            fault, client.meta.endpoint_url, client.read_timeout_seconds
        )
        return {**response, "ResponseMetadata": make_response_metadata(200, self._request_id())}

    def _record(self, operation: str, request: dict[str, Any]) -> None:
        queue = str(request.get("QueueUrl") or request.get("QueueName") or "")
        entries = len(request["Entries"]) if operation.endswith("Batch") else 1
        now = self.clock.monotonic()
        self.calls.append(RecordedCall(operation, queue.rpartition("/")[2], entries, now))

    def _perform(
        self, operation: str, request: dict[str, Any], fault: Fault | None
    ) -> Response:
        if operation == "ReceiveMessage":
            return self._receive(request)  # it may wait, so it takes the lock itself
        with self._lock:
            if operation in self._on_service:
                return self._on_service[operation](request)
            queue = self._registry.find(request["QueueUrl"])
            if operation in self._on_queue:
                return self._on_queue[operation](queue, request)
            return self._perform_batch(queue, operation, request["Entries"], fault)

    def _perform_batch(
        self,
        queue: SimulatedQueue,
        operation: str,
        entries: list[dict[str, Any]],
        fault: Fault | None,
    ) -> Response:
        """Handle each entry separately, so that one refused entry does not stop the others."""
        _check_batch(entries, f"{operation}RequestEntry")
        if operation == "SendMessageBatch":
            check_send_batch(queue, entries)
        perform = self._on_queue[operation.removesuffix("Batch")]
        response: dict[str, list[Response]] = {"Successful": [], "Failed": []}
        for position, entry in enumerate(entries):
            try:
                if isinstance(fault, RefusedEntries) and position in fault.positions:
                    raise fault.refusal
                response["Successful"].append({"Id": entry["Id"], **perform(queue, entry)})
            except ServiceError as refusal:
                response["Failed"].append(refusal.as_failed_entry(entry["Id"]))
        return {name: ends for name, ends in response.items() if ends}  # AWS omits empty lists

    def _request_id(self) -> str:
        with self._lock:
            return self._ids.make_uuid()


def _check_batch(entries: Sequence[dict[str, Any]], entry_kind: str) -> None:
    """Raise ServiceError for a batch that is empty, too long, or has bad or repeated ids."""
    if not entries:
        raise sqs_error(
            "EmptyBatchRequest", f"There should be at least one {entry_kind} in the request."
        )
    if len(entries) > MAX_ENTRIES:
        raise sqs_error(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are {MAX_ENTRIES}. "
            f"You have sent {len(entries)}.",
        )
    ids = [entry["Id"] for entry in entries]
    if not all(_ENTRY_ID.fullmatch(entry_id) for entry_id in ids):
        raise sqs_error(
            "InvalidBatchEntryId",
            "A batch entry id can only contain alphanumeric characters, hyphens and "
            "underscores. It can be at most 80 letters long.",
        )
    if repeated := next((i for i in ids if ids.count(i) > 1), None):
        raise sqs_error("BatchEntryIdsNotDistinct", f"Id {repeated} repeated.")
