"""A Lambda entry point for SQS batches: `lambda_handler = sqs_batch(handle)`.

    Lambda ─▶ extend all ─▶ handle, each under renewal ─▶ settle ─▶ stop renewing ─▶ answer

    record                          what SQS is told              in batchItemFailures
    ──────────────────────────────  ────────────────────────────  ────────────────────
    done                            nothing: Lambda deletes it,   no
                                    and until then it is renewed
    Retry, an exception             visible after the backoff     yes
    Reject, attempts used up        moved to the dead letters     no
    malformed                       moved to the dead letters     no
    newer than the code             visible in a while            yes
    not started, no time left       visible at once               yes
    behind a failed one (FIFO)      visible at once               yes
    lost, or refused at the start   nothing: it is not ours       yes
    cut off at the end              nothing: its lease runs out   yes

Those behind a failed one are given back after it: SQS hands out nothing of a group while
one of it is hidden, and then begins with the oldest. So they can be visible at once.
"""

import logging
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic

from holdfast.bootstrap import event_source
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import ConfigError, HoldfastError
from holdfast.core.events import Events
from holdfast.core.queue.message import M
from holdfast.core.worker.handler import Handler, handler_kind, message_model
from holdfast.lambdas.deadlines import plan_deadlines, seconds_left
from holdfast.lambdas.event import BatchResponse, SqsRecord, deliveries, response
from holdfast.lambdas.invocation import BatchOptions, Invocation

if TYPE_CHECKING:
    from holdfast.bootstrap import SQSQueue

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
    **settings: Any,
) -> EntryPoint:
    """A function for Lambda that has each message of a batch handled and reports the rest.

    The event source mapping must have `ReportBatchItemFailures`: without it Lambda takes
    every batch for done, and deletes what failed.

    handler          `(message, ctx)` as for a Worker, plain or async
    model            the message type; by default that of the handler's first parameter
    queue            its URL, or an SQSQueue with settings and events of its own; by
                     default that of the event source
    concurrency      how many messages are handled at once, each in a thread
    reserve_seconds  how long before the function's end no record is started any more.
                     Half of it is left to what runs; then that is cut off and reported
    timeout_seconds  the longest a handler may take; none is started with less left
    settings         `lease_seconds`, `max_attempts`, `on_nack`, `dead_letters` as for
                     open_queue; HOLDFAST_LEASE_SECONDS and so on apply

    Raises ConfigError for what could never work. The entry point raises ValueError for an
    event that has no SQS records, and nothing else: whatever goes wrong, what is not
    surely done is among the failures.
    """
    handler_kind(handler)
    if queue is not None and not isinstance(queue, str) and (settings or events):
        raise ConfigError("this queue has settings and events of its own: set them there")
    _check_above_zero(concurrency=concurrency, reserve_seconds=reserve_seconds)
    _check_above_zero(timeout_seconds=timeout_seconds)
    open_source: Callable[[str], SQSQueue[M]] = event_source(
        model or message_model(handler),  # type: ignore[arg-type]  # what M is without one
        answer_seconds=reserve_seconds / 4,  # one that hangs must not cost the answer
        clock=clock,
        events=events,
        **settings,
    )
    terms = BatchOptions(handler, concurrency, reserve_seconds, timeout_seconds, clock)
    return _Batches(_Source(queue, open_source), terms)


def _check_above_zero(**settings: float | None) -> None:
    for name, value in settings.items():
        if value is not None and not value > 0:
            raise ConfigError(f"{name} must be above 0, not {value}")


class _Source(Generic[M]):
    """The queues of the event sources, opened once: making a client costs a cold start."""

    def __init__(
        self,
        queue: "SQSQueue[M] | str | None",
        open_source: "Callable[[str], SQSQueue[M]]",
    ) -> None:
        self._queue, self._open = queue, open_source
        self._opened: dict[str, SQSQueue[M]] = {}
        self._opening = Lock()

    def of(self, delivery: SqsRecord) -> "SQSQueue[M]":
        if self._queue is not None and not isinstance(self._queue, str):
            return self._queue
        where = self._queue or delivery.source_arn
        with self._opening:
            if where not in self._opened:
                self._opened[where] = self._open(where)
            return self._opened[where]


class _Batches(Generic[M]):
    """The entry point: one call, one invocation. Nothing of it outlives the call."""

    def __init__(self, source: _Source[M], terms: BatchOptions) -> None:
        self._source, self._terms = source, terms

    def __call__(self, event: Any, context: Any) -> BatchResponse:
        now, left = self._terms.clock.monotonic(), seconds_left(context)
        batch = deliveries(event)
        settled: set[str] = set()
        try:
            if batch:
                times = plan_deadlines(
                    now, left, self._terms.reserve_seconds, self._terms.timeout_seconds
                )
                queue = self._source.of(batch[0])
                settled = Invocation(queue, batch, self._terms, times).run()
        # Lambda would take an exception for the failure of all, the dead-lettered included.
        except Exception as error:
            # Only our own errors are known to carry no receipt and no body in their text.
            told = error if isinstance(error, HoldfastError) else type(error).__name__
            _log.error("batch_failed records=%d error=%s", len(batch), told)
        return response(one.id for one in batch if one.id not in settled)
