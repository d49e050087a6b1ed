"""Traces for OpenTelemetry (`pip install 'holdfast[otel]'`): all spans and their attributes.

They follow the semantic conventions for messaging:

    span                 kind       when
    ───────────────────  ─────────  ────────────────────────────────────────────────────────────
    send <queue>         producer   push of one message, whose context the message carries
    create <queue>       producer   each message of push_many, likewise
    send <queue>         client     push_many, with links to these
    receive <queue>      client     poll, with links to the messages that it brought
    process <queue>      consumer   one attempt; it is current in the handler
    ack <queue>, …       client     settle: ack, nack, release or dead_letter; child of process
    task                 internal   one task of a job, with a link to the attempt at the job
    callback             client     the callback of a job, child of the attempt at the job
    write reply          client     of a conversation, child of the attempt at its trigger
    send reply           producer   likewise

Only the API is used. An application without a tracer provider records nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.conversations import events as cv
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import ConfigError
from holdfast.core.events import Event
from holdfast.core.queue.manager import QueueManager
from holdfast.core.queue.message import QueueMessage, attach_headers, get_headers, get_lease
from holdfast.core.tracing import NoteOutcome
from holdfast.core.worker.outcome import Reject, Retry
from holdfast.jobs import events as jv

try:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    raise ConfigError(
        "OpenTelemetry needs opentelemetry-api, which is not installed: "
        "pip install 'holdfast[otel]'"
    ) from None

if TYPE_CHECKING:
    from opentelemetry.context import Context

_SETTLE_VERBS = ("ack", "nack", "release", "dead_letter")
_MAX_JOBS = 1000  # whose context is kept: a job that ends elsewhere is never removed

_propagator = TraceContextTextMapPropagator()

Attributes = dict[str, str | int]


class _ReceivedHeaders(dict[str, str]):
    """The headers of a message that is being processed, with the span of the attempt."""

    __slots__ = ("span",)
    span: trace.Span


class OpenTelemetryTracing:
    """Shows messages, jobs and conversations as spans.

    `trace_queue` traces the messages of a queue. As a subscriber of events it adds the spans
    of jobs and conversations. By default an attempt has a link to the span that created its
    message; with `parent=True` it is a child of it. `provider` defaults to the global one.
    """

    def __init__(
        self,
        *,
        parent: bool = False,
        provider: "trace.TracerProvider | None" = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._parent = parent
        self._clock = clock
        self._tracer = (provider or trace.get_tracer_provider()).get_tracer("holdfast")
        self._is_sending: ContextVar[bool] = ContextVar("holdfast_is_sending", default=False)
        self._jobs: dict[str, trace.SpanContext] = {}

    # -- messages

    def trace_queue(self, queue: QueueManager[Any]) -> None:
        """Trace the calls of this queue, and the attempts of its workers. Once is enough."""
        if queue.tracing is not None:
            return
        queue.tracing = self
        # The queue's own methods are replaced, so that an untraced queue has no hook at all.
        wrappers: dict[str, Callable[..., Any]] = {
            "_push": partial(self._send_one, queue, queue._push),
            "push_many": partial(self._send_many, queue, queue.push_many),
            "poll": partial(self._receive, queue, queue.poll),
        }
        for verb in _SETTLE_VERBS:
            wrappers[verb] = partial(self._settle, queue, verb, getattr(queue, verb))
        for name, wrapper in wrappers.items():
            setattr(queue, name, wrapper)

    def _send_one(
        self,
        queue: QueueManager[Any],
        push: Callable[..., str],
        message: QueueMessage,
        delay_seconds: float,
    ) -> str:
        attributes = _describe(queue, "send", "send", message.id)
        with (
            self._mark_sending(),
            self._tracer.start_as_current_span(
                f"send {queue.name}", kind=trace.SpanKind.PRODUCER, attributes=attributes
            ),
        ):
            _inject(message)
            return push(message, delay_seconds)

    def _send_many(
        self,
        queue: QueueManager[Any],
        push_many: Callable[..., list[str]],
        messages: Iterable[QueueMessage],
        *,
        delay_seconds: float = 0.0,
    ) -> list[str]:
        if self._is_sending.get():  # `push` of one message, which has its span
            return push_many(messages, delay_seconds=delay_seconds)
        messages = list(messages)
        links = [trace.Link(self._create(queue, message)) for message in messages]
        attributes = _describe(queue, "send", "send")
        attributes["messaging.batch.message_count"] = len(messages)
        with (
            self._mark_sending(),
            self._tracer.start_as_current_span(
                f"send {queue.name}",
                kind=trace.SpanKind.CLIENT,
                attributes=attributes,
                links=links,
            ),
        ):
            return push_many(messages, delay_seconds=delay_seconds)

    @contextmanager
    def _mark_sending(self) -> Iterator[None]:
        token = self._is_sending.set(True)
        try:
            yield
        finally:
            self._is_sending.reset(token)

    def _create(self, queue: QueueManager[Any], message: QueueMessage) -> trace.SpanContext:
        span = self._tracer.start_span(
            f"create {queue.name}",
            kind=trace.SpanKind.PRODUCER,
            attributes=_describe(queue, "create", "create", message.id),
        )
        _inject(message, trace.set_span_in_context(span))
        span.end()
        return span.get_span_context()

    def _receive(
        self, queue: QueueManager[Any], poll: Callable[..., list[Any]], *args: Any, **named: Any
    ) -> list[Any]:
        """Poll, and show what came. An empty poll has no span, because idle workers poll."""
        started_ns = self._read_ns()
        messages = poll(*args, **named)
        if messages:
            attributes = _describe(queue, "receive", "receive")
            attributes["messaging.batch.message_count"] = len(messages)
            self._tracer.start_span(
                f"receive {queue.name}",
                kind=trace.SpanKind.CLIENT,
                attributes=attributes,
                links=[link for message in messages for link in _make_links(message)],
                start_time=started_ns,
            ).end()
        return messages

    @contextmanager
    def processing(
        self, queue: QueueManager[Any], message: QueueMessage
    ) -> Iterator[NoteOutcome]:
        """Return the span of one attempt, which is current inside the block."""
        attributes = _describe(queue, "process", "process", message.id)
        attributes["holdfast.attempt"] = get_lease(message).attempt
        headers = get_headers(message)
        is_child = self._parent and headers is not None
        span = self._tracer.start_span(
            f"process {queue.name}",
            context=_propagator.extract(headers) if is_child else None,
            kind=trace.SpanKind.CONSUMER,
            attributes=attributes,
            links=() if is_child else _make_links(message),
        )
        received = _ReceivedHeaders(headers or {})
        received.span = span
        attach_headers(message, received)
        with trace.use_span(
            span, end_on_exit=True, record_exception=False, set_status_on_exception=False
        ):
            yield partial(_note_outcome, span)

    def _settle(
        self,
        queue: QueueManager[Any],
        verb: str,
        settle: Callable[..., None],
        message: QueueMessage,
        *args: Any,
        **named: Any,
    ) -> None:
        span = getattr(get_headers(message), "span", None)
        if span is not None and not span.is_recording() and not _is_sampled(span):
            settle(message, *args, **named)  # its attempt was not sampled
            return
        with self._tracer.start_as_current_span(
            f"{verb} {queue.name}",
            context=None if span is None else trace.set_span_in_context(span),
            kind=trace.SpanKind.CLIENT,
            attributes=_describe(queue, verb, "settle", message.id),
        ):
            settle(message, *args, **named)

    # -- jobs and conversations

    def __call__(self, event: Event) -> None:
        match event:
            case jv.JobStarted(job_id) | jv.JobResumed(job_id):
                self._keep_job(job_id, trace.get_current_span().get_span_context())
            case jv.TaskCompleted(job_id, task_id) | jv.TaskFailed(job_id, task_id):
                self._show_task(event, job_id, task_id)
            case jv.CallbackSent(job_id) | jv.CallbackFailed(job_id):
                self._show_callback(event, job_id)
            case jv.JobFinished(job_id):
                self._jobs.pop(job_id, None)
            case cv.ReplyWritten(seconds=seconds):
                self._show_step("write reply", seconds)
            case cv.ReplySent():
                self._show_step("send reply", 0.0)

    def _keep_job(self, job_id: str, context: trace.SpanContext) -> None:
        if context.is_valid:
            self._jobs[job_id] = context
            if len(self._jobs) > _MAX_JOBS:
                del self._jobs[next(iter(self._jobs))]

    def _show_task(self, event: Event, job_id: str, task_id: str) -> None:
        if (job := self._jobs.get(job_id)) is None:
            return
        attributes = {"holdfast.job.id": job_id, "holdfast.task.id": task_id}
        links = [trace.Link(job)]
        span = self._tracer.start_span("task", attributes=attributes, links=links)
        if isinstance(event, jv.TaskFailed):
            _mark_error(span, event.code)
        span.end()

    def _show_callback(self, event: Event, job_id: str) -> None:
        if (job := self._jobs.get(job_id)) is None:
            return
        span = self._tracer.start_span(
            "callback",
            context=trace.set_span_in_context(trace.NonRecordingSpan(job)),
            kind=trace.SpanKind.CLIENT,
            attributes={"holdfast.job.id": job_id},
        )
        if isinstance(event, jv.CallbackFailed):
            _mark_error(span, event.code)
        span.end()

    def _show_step(self, name: str, seconds: float) -> None:
        """Show a step of the attempt that is current, unless there is none."""
        if trace.get_current_span().get_span_context().is_valid:
            started_ns = self._read_ns() - int(seconds * 1e9)
            self._tracer.start_span(
                name, kind=trace.SpanKind.CLIENT, start_time=started_ns
            ).end()

    def _read_ns(self) -> int:
        return int(self._clock.time() * 1e9)


def _describe(
    queue: QueueManager[Any], name: str, kind: str, message_id: str | None = None
) -> Attributes:
    attributes: Attributes = {
        "messaging.system": queue.messaging_system,
        "messaging.destination.name": queue.name,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }
    if message_id is not None:
        attributes["messaging.message.id"] = message_id
    return attributes


def _inject(message: QueueMessage, context: "Context | None" = None) -> None:
    headers: dict[str, str] = {}
    _propagator.inject(headers, context)
    if headers:
        attach_headers(message, headers)


def _make_links(message: QueueMessage) -> list[trace.Link]:
    headers: Mapping[str, str] | None = get_headers(message)
    if headers is None:
        return []
    context = trace.get_current_span(_propagator.extract(headers)).get_span_context()
    return [trace.Link(context)] if context.is_valid else []


def _is_sampled(span: trace.Span) -> bool:
    return span.get_span_context().trace_flags.sampled


def _note_outcome(span: trace.Span, outcome: object) -> None:
    """Mark the span of a failed attempt. The text is Holdfast's own, or a type's name."""
    if isinstance(outcome, Retry | Reject):
        error = outcome.exception
        _mark_error(
            span,
            type(outcome if error is None else error).__name__,
            outcome.log_reason,
        )


def _mark_error(span: trace.Span, error_type: str, text: str | None = None) -> None:
    span.set_attribute("error.type", error_type)
    span.set_status(trace.StatusCode.ERROR, text)
