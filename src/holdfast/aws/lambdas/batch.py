"""A Lambda entry point for SQS batches: `lambda_handler = sqs_batch(handle)`.

    Lambda ─▶ extend all ─▶ handle, each under renewal ─▶ settle ─▶ stop renewing ─▶ return

    record                          call to SQS                   in batchItemFailures
    ──────────────────────────────  ────────────────────────────  ────────────────────
    done                            none; renewed until Lambda    no
                                    deletes it
    Retry, an exception             visible after the backoff     yes
    Reject, attempts used up        moved to the dead letters     no
    malformed                       moved to the dead letters     no
    newer than the code             visible after a delay         yes
    not started, no time left       visible at once               yes
    behind a failed one (FIFO)      visible at once               yes
    lost, or refused at the start   none; another holder has it   yes
    cut off at the end              none; its lease expires       yes

Records behind a failed one are released after it. SQS delivers no message of a group while an
earlier one is hidden, and then begins with the oldest. So they can be visible at once.
"""

import logging
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, Unpack

from holdfast.aws.lambdas.invocation import BatchOptions, Invocation, SqsRecord, plan_deadlines
from holdfast.errors import ConfigError, HoldfastError
from holdfast.events import Events, OnError
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.queue.message import M
from holdfast.queues.opening import make_queue_opener
from holdfast.queues.settings import QueueOptions
from holdfast.worker.handler import (
    Handler,
    check_message_type,
    find_message_model,
    inspect_handler,
)

if TYPE_CHECKING:
    from holdfast.queues.opening import SQSQueue

BatchResponse = dict[str, list[dict[str, str]]]
EntryPoint = Callable[[Any, Any], BatchResponse]

_log = logging.getLogger("holdfast")


def sqs_batch(
    handler: Handler,
    model: type[M] | None = None,
    *,
    queue: "SQSQueue[M] | str | None" = None,
    concurrency: int = 1,
    reserve_seconds: float = 5.0,
    timeout_seconds: float | None = None,
    clock: Clock = SYSTEM_CLOCK,
    events: Events | None = None,
    on_error: OnError | None = None,
    **settings: Unpack[QueueOptions],
) -> EntryPoint:
    """Return a Lambda function that handles each message of a batch and reports failures.

    The event source mapping must have `ReportBatchItemFailures`. Without it Lambda treats
    every batch as done, and deletes messages that failed.

    handler          `(message, ctx)` as for a Worker, plain or async
    model            the message type; by default the type of the handler's first parameter
    queue            its URL, or an SQSQueue with its own settings and events; by default
                     the queue of the event source
    concurrency      how many messages are handled at once, each in a thread
    reserve_seconds  how long before the function's end no further record is started.
                     Running handlers have half of it; then they are cut off and reported
    timeout_seconds  the maximum for one handler; none is started with less time left
    on_error         called with the exception of each failed attempt, and its event
    settings         `lease_seconds`, `max_attempts`, `backoff`, `on_nack`, `dead_letters`
                     as for open_queue; HOLDFAST_LEASE_SECONDS and so on apply

    Raises ConfigError for settings that can never work. The entry point raises ValueError for
    an event without SQS records, and nothing else. After any other error, every record that
    is not certainly done is among the failures.
    """
    inspect_handler(handler)
    check_message_type(handler, model)
    if queue is not None and not isinstance(queue, str) and (settings or events):
        raise ConfigError("this queue has settings and events of its own: set them there")
    _check_above_zero(concurrency=concurrency, reserve_seconds=reserve_seconds)
    _check_above_zero(timeout_seconds=timeout_seconds)
    open_source: Callable[[str], SQSQueue[M]] = make_queue_opener(
        model or find_message_model(handler),  # type: ignore[arg-type]  # M is unbound without a model
        answer_seconds=reserve_seconds / 4,  # a call that hangs must not delay the response
        clock=clock,
        events=events,
        **settings,
    )
    options = BatchOptions(
        handler, concurrency, reserve_seconds, timeout_seconds, clock, on_error
    )
    return _BatchEntryPoint(queue, open_source, options)


def _check_above_zero(**settings: float | None) -> None:
    for name, value in settings.items():
        if value is not None and not value > 0:
            raise ConfigError(f"{name} must be above 0, not {value}")


class _BatchEntryPoint(Generic[M]):
    """The entry point. Each call is one invocation, and keeps only the queues it opened."""

    def __init__(
        self,
        queue: "SQSQueue[M] | str | None",
        open_source: "Callable[[str], SQSQueue[M]]",
        options: BatchOptions,
    ) -> None:
        self._queue, self._open, self._options = queue, open_source, options
        self._opened: dict[str, SQSQueue[M]] = {}  # each once, because making a client is slow
        self._opening = Lock()

    def __call__(self, event: Any, context: Any) -> BatchResponse:
        now, left = self._options.clock.monotonic(), seconds_left(context)
        batch = parse_records(event)
        settled: set[str] = set()
        try:
            if batch:
                times = plan_deadlines(
                    now, left, self._options.reserve_seconds, self._options.timeout_seconds
                )
                queue = self._get_queue(batch[0])
                settled = Invocation(queue, batch, self._options, times).run()
        # Lambda would treat an exception as the failure of all records, including those that
        # were dead-lettered.
        except Exception as error:
            _log.error("batch_failed records=%d error=%s", len(batch), log_safe_error(error))
        return report_failures(record.id for record in batch if record.id not in settled)

    def _get_queue(self, record: SqsRecord) -> "SQSQueue[M]":
        """Return the queue of the event source, or the one that was configured."""
        if self._queue is not None and not isinstance(self._queue, str):
            return self._queue
        address = self._queue or record.source_arn
        with self._opening:
            if address not in self._opened:
                self._opened[address] = self._open(address)
            return self._opened[address]


# -- what Lambda passes, and the response it expects


def parse_records(event: Any) -> list[SqsRecord]:
    """Return the records in order. If a message occurs twice, its last delivery counts.

    Raises ValueError if this is not an event of an SQS event source.
    """
    records = event.get("Records") if isinstance(event, Mapping) else None
    if not isinstance(records, Sequence) or isinstance(records, str):
        raise ValueError("not an SQS event: it has no list of Records")
    return list({record.id: record for record in map(_parse_record, records)}.values())


def _parse_record(record: Any) -> SqsRecord:
    message_id = record.get("messageId") if isinstance(record, Mapping) else None
    if not isinstance(message_id, str) or not message_id:
        raise ValueError("not an SQS event: a record has no messageId")
    attributes = record.get("attributes") or {}
    raw = {
        "MessageId": message_id,
        "ReceiptHandle": record.get("receiptHandle") or "",
        "Body": record.get("body") or "",
        "Attributes": attributes,
        "MessageAttributes": {
            name: _convert_attribute(value)
            for name, value in (record.get("messageAttributes") or {}).items()
        },
    }
    group = str(attributes.get("MessageGroupId", ""))
    return SqsRecord(message_id, group, str(record.get("eventSourceARN", "")), raw)


def _convert_attribute(attribute: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a sender's attribute to the names of SQS; Lambda encodes bytes as base64."""
    value: dict[str, Any] = {"DataType": attribute.get("dataType", "String")}
    if attribute.get("stringValue") is not None:
        value["StringValue"] = attribute["stringValue"]
    if attribute.get("binaryValue") is not None:
        value["BinaryValue"] = b64decode(attribute["binaryValue"])
    return value


def report_failures(failed: Iterable[str]) -> BatchResponse:
    """Return the response for Lambda, which deletes every message not named in it."""
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}


def seconds_left(context: Any) -> float:
    """Return the time left of the invocation, or infinity without a Lambda context."""
    get_remaining = getattr(context, "get_remaining_time_in_millis", None)
    return inf if get_remaining is None else float(get_remaining()) / 1000


def log_safe_error(error: Exception) -> Any:
    """Return what a log may show of an error.

    Only the texts of HoldfastError are certain to contain no receipt, body or number.
    """
    return error if isinstance(error, HoldfastError) else type(error).__name__
