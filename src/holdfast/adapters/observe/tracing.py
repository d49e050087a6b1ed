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
from typing import Any

from holdfast.adapters.observe.otel_api import TraceContextTextMapPropagator, trace
from holdfast.adapters.observe.otel_api import context as context_api
from holdfast.conversations import events as cv
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.events import Event
from holdfast.core.queue.manager import QueueManager
from holdfast.core.queue.message import QueueMessage, attach_headers, get_headers, get_lease
from holdfast.core.tracing import NoteOutcome
from holdfast.core.worker.outcome import Reject, Retry
from holdfast.jobs import events as jv

_SETTLE_VERBS = ("ack", "nack", "release", "dead_letter")
_MAX_JOBS = 1000  # whose context is kept: a job that ends elsewhere is never removed

_propagator = TraceContextTextMapPropagator()

Attributes = dict[str, str | int]


class _ReceivedHeaders(dict[str, str]):
    """The headers of a message that is being processed, with the span of the attempt."""

    __slots__ = ("span",)
    span: trace.Span


class _AttemptSpan:
    """The span of one attempt, as a context manager: it is current inside the block."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def __enter__(self) -> NoteOutcome:
        self._token = context_api.attach(trace.set_span_in_context(self._span))
        return self._note_outcome

    def __exit__(self, *_: object) -> None:
        context_api.detach(self._token)
        self._span.end()

    def _note_outcome(self, outcome: object) -> None:
        """Mark a failed attempt. The text is Holdfast's own, or the name of a type."""
        if isinstance(outcome, Retry | Reject):
            error = outcome.exception
            kind = type(outcome if error is None else error).__name__
            _mark_error(self._span, kind, outcome.log_reason)


class QueueTracing:
    """Shows the calls of one queue, and the attempts at its messages, as spans.

    What is not sampled must cost little, so links are added only to spans that record.
    """

    def __init__(
        self, queue: QueueManager[Any], tracer: trace.Tracer, parent: bool, clock: Clock
    ) -> None:
        self._queue_name = queue.name
        self._tracer = tracer
        self._parent = parent
        self._clock = clock
        self._is_sending: ContextVar[bool] = ContextVar("holdfast_is_sending", default=False)
        self._attributes: Attributes = {
            "messaging.system": queue.messaging_system,
            "messaging.destination.name": queue.name,
        }

    def install(self, queue: QueueManager[Any]) -> None:
        """Replace methods of this queue, so that an untraced queue has no hook at all."""
        queue.tracing = self
        wrappers: dict[str, Callable[..., Any]] = {
            "_push": partial(self._send_one, queue._push),
            "push_many": partial(self._send_many, queue.push_many),
            "poll": partial(self._receive, queue.poll),
        }
        for verb in _SETTLE_VERBS:
            wrappers[verb] = partial(self._settle, verb, getattr(queue, verb))
        for name, wrapper in wrappers.items():
            setattr(queue, name, wrapper)

    # -- producing

    def _send_one(
        self, push: Callable[..., str], message: QueueMessage, delay_seconds: float
    ) -> str:
        with (
            self._mark_sending(),
            self._tracer.start_as_current_span(
                f"send {self._queue_name}",
                kind=trace.SpanKind.PRODUCER,
                attributes=self._describe("send", "send", message.id),
            ),
        ):
            self._inject(message, trace.get_current_span())
            return push(message, delay_seconds)

    def _send_many(
        self,
        push_many: Callable[..., list[str]],
        messages: Iterable[QueueMessage],
        *,
        delay_seconds: float = 0.0,
    ) -> list[str]:
        if self._is_sending.get():  # `push` of one message, which has its span
            return push_many(messages, delay_seconds=delay_seconds)
        messages = list(messages)
        links = [trace.Link(self._create(message)) for message in messages]
        attributes = self._describe("send", "send")
        attributes["messaging.batch.message_count"] = len(messages)
        with (
            self._mark_sending(),
            self._tracer.start_as_current_span(
                f"send {self._queue_name}",
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

    def _create(self, message: QueueMessage) -> trace.SpanContext:
        span = self._tracer.start_span(
            f"create {self._queue_name}",
            kind=trace.SpanKind.PRODUCER,
            attributes=self._describe("create", "create", message.id),
        )
        self._inject(message, span)
        span.end()
        return span.get_span_context()

    def _inject(self, message: QueueMessage, span: trace.Span) -> None:
        """Let the message carry the span's context.

        A link to a span that is not recorded shows nothing. A child must know that its
        parent is not recorded.
        """
        if self._parent or span.get_span_context().trace_flags.sampled:
            headers: dict[str, str] = {}
            _propagator.inject(headers, trace.set_span_in_context(span))
            if headers:
                attach_headers(message, headers)

    # -- consuming

    def _receive(self, poll: Callable[..., list[Any]], *args: Any, **named: Any) -> list[Any]:
        """Poll, and show what came. An empty poll has no span, because idle workers poll."""
        started_ns = _read_ns(self._clock)
        messages = poll(*args, **named)
        if messages:
            attributes = self._describe("receive", "receive")
            attributes["messaging.batch.message_count"] = len(messages)
            span = self._tracer.start_span(
                f"receive {self._queue_name}",
                kind=trace.SpanKind.CLIENT,
                attributes=attributes,
                start_time=started_ns,
            )
            if span.is_recording():
                for message in messages:
                    _add_link(span, message)
            span.end()
        return messages

    def processing(self, message: QueueMessage) -> _AttemptSpan:
        """Return the span of one attempt, which is current inside the block."""
        attributes = self._describe("process", "process", message.id)
        attributes["holdfast.attempt"] = get_lease(message).attempt
        headers = get_headers(message)
        is_child = self._parent and headers is not None
        span = self._tracer.start_span(
            f"process {self._queue_name}",
            context=_propagator.extract(headers or {}) if is_child else None,
            kind=trace.SpanKind.CONSUMER,
            attributes=attributes,
        )
        if not is_child and span.is_recording():
            _add_link(span, message)
        received = _ReceivedHeaders(headers or {})
        received.span = span
        attach_headers(message, received)
        return _AttemptSpan(span)

    def _settle(
        self,
        verb: str,
        settle: Callable[..., None],
        message: QueueMessage,
        *args: Any,
        **named: Any,
    ) -> None:
        span: trace.Span | None = getattr(get_headers(message), "span", None)
        if span is not None and not span.get_span_context().trace_flags.sampled:
            settle(message, *args, **named)
            return
        with self._tracer.start_as_current_span(
            f"{verb} {self._queue_name}",
            context=None if span is None else trace.set_span_in_context(span),
            kind=trace.SpanKind.CLIENT,
            attributes=self._describe(verb, "settle", message.id),
        ):
            settle(message, *args, **named)

    def _describe(self, name: str, kind: str, message_id: str | None = None) -> Attributes:
        attributes = {
            **self._attributes,
            "messaging.operation.name": name,
            "messaging.operation.type": kind,
        }
        if message_id is not None:
            attributes["messaging.message.id"] = message_id
        return attributes


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
        self._jobs: dict[str, trace.SpanContext] = {}

    def trace_queue(self, queue: QueueManager[Any]) -> None:
        """Trace the calls of this queue, and the attempts of its workers. Once is enough."""
        if queue.tracing is None:
            QueueTracing(queue, self._tracer, self._parent, self._clock).install(queue)

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
            started_ns = _read_ns(self._clock) - int(seconds * 1e9)
            self._tracer.start_span(
                name, kind=trace.SpanKind.CLIENT, start_time=started_ns
            ).end()


def _read_ns(clock: Clock) -> int:
    return int(clock.time() * 1e9)


def _add_link(span: trace.Span, message: QueueMessage) -> None:
    """Link a span to the span that created the message, if the message carries it."""
    headers: Mapping[str, str] | None = get_headers(message)
    if headers is not None:
        context = trace.get_current_span(_propagator.extract(headers)).get_span_context()
        if context.is_valid:
            span.add_link(context)


def _mark_error(span: trace.Span, error_type: str, text: str | None = None) -> None:
    span.set_attribute("error.type", error_type)
    span.set_status(trace.StatusCode.ERROR, text)
