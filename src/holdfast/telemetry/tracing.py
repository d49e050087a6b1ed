"""Traces for OpenTelemetry (`pip install 'holdfast[otel]'`): all spans and their attributes.

They follow the semantic conventions for messaging:

    span                 kind       when
    ───────────────────  ─────────  ────────────────────────────────────────────────────────────
    send <queue>         producer   push of one message, whose context the message carries
    create <queue>       producer   each message of push_many, likewise
    send <queue>         client     push_many, with links to these
    receive <queue>      client     poll, with links to the messages that it brought
    process <queue>      consumer   one attempt, child of receive; it is current in the handler
    ack <queue>, …       client     settle: ack, nack, release or dead_letter; child of process
    task                 internal   one task of a job, with a link to the attempt at the job
    callback             client     the callback of a job, child of the attempt at the job
    write reply          client     of a conversation, child of the attempt at its trigger
    send reply           producer   likewise

Only the API is used. An application without a tracer provider records nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from threading import Event as StopEvent
from typing import Any

from holdfast.adapters.observe.otel_api import TraceContextTextMapPropagator, trace
from holdfast.adapters.observe.otel_api import context as context_api
from holdfast.conversations import events as cv
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.events import Event
from holdfast.core.lease.lease import RELEASED
from holdfast.core.queue.manager import QueueManager
from holdfast.core.queue.message import (
    QueueMessage,
    attach_headers,
    attach_trace,
    get_headers,
    get_lease,
    get_trace,
)
from holdfast.core.tracing import NoteOutcome
from holdfast.core.worker.outcome import Reject, Retry
from holdfast.jobs import events as jv

_SETTLE_VERBS = ("ack", "nack", "release", "dead_letter")
_OPERATIONS = {name: name for name in ("send", "create", "receive", "process")}
_OPERATIONS |= dict.fromkeys(_SETTLE_VERBS, "settle")
_MAX_JOBS = 1000  # whose context is kept: a job that ends elsewhere is never removed

_MAX_DRAWS = 64
_MAX_DRAWN_NS = 100_000_000  # a sampler may decide otherwise later

_propagator = TraceContextTextMapPropagator()

Attributes = dict[str, str | int]


class _Trace:
    """A span and its context. A polled message has that of its poll, then of its attempt."""

    __slots__ = ("context", "is_recorded", "span")

    def __init__(self, span: trace.Span) -> None:
        self.span = span
        self.context = trace.set_span_in_context(span)
        self.is_recorded = span.is_recording()


class _CurrentSpan:
    """Makes a span current inside a block and ends it. An exception is shown by its type."""

    __slots__ = ("_token", "_trace")

    def __init__(self, trace: _Trace) -> None:
        self._trace = trace

    def __enter__(self) -> NoteOutcome:
        self._token = context_api.attach(self._trace.context)
        return self._note_outcome if self._trace.is_recorded else _ignore_outcome

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        context_api.detach(self._token)
        if self._trace.is_recorded:
            if kind is not None:
                _mark_error(self._trace.span, kind.__name__)
            self._trace.span.end()

    def _note_outcome(self, outcome: object) -> None:
        """Mark a failed attempt. The text is Holdfast's own, or the name of a type."""
        if isinstance(outcome, Retry | Reject):
            error = outcome.exception
            kind = type(outcome if error is None else error).__name__
            _mark_error(self._trace.span, kind, outcome.log_reason)


def _ignore_outcome(outcome: object) -> None:
    """Note nothing, because the attempt is not recorded."""


class QueueTracing:
    """Shows the calls of one queue, and the attempts at its messages, as spans.

    A poll and the attempts at what it brought are one trace. Whether it is sampled is decided
    once, with the poll, so what is not sampled costs one call of the SDK per poll.
    """

    def __init__(
        self, queue: QueueManager[Any], tracer: trace.Tracer, parent: bool, clock: Clock
    ) -> None:
        self._tracer = tracer
        self._parent = parent
        self._clock = clock
        self._drawn: list[_Trace] = []  # spans of later polls, which are not recorded
        self._drawn_ns = 0
        self._draws = 1
        self._is_sending: ContextVar[bool] = ContextVar("holdfast_is_sending", default=False)
        system: Attributes = {
            "messaging.system": queue.messaging_system,
            "messaging.destination.name": queue.name,
        }
        self._names: dict[str, str] = {}
        self._attributes: dict[str, Attributes] = {}
        for operation, operation_type in _OPERATIONS.items():
            self._names[operation] = f"{operation} {queue.name}"
            self._attributes[operation] = {
                **system,
                "messaging.operation.name": operation,
                "messaging.operation.type": operation_type,
            }

    def install(self, queue: QueueManager[Any]) -> None:
        """Replace methods of this queue, so that an untraced queue has no hook at all."""
        queue.tracing = self
        wrappers: dict[str, Callable[..., Any]] = {
            "_push": partial(self._send_one, queue._push),
            "push_many": partial(self._send_many, queue.push_many),
            "poll": self._wrap_poll(queue.poll),
        }
        for verb in _SETTLE_VERBS:
            wrappers[verb] = self._wrap_settle(verb, getattr(queue, verb))
        wrappers["ack_many"] = partial(self._ack_many, queue.ack_many)
        for name, wrapper in wrappers.items():
            setattr(queue, name, wrapper)

    def _start(
        self,
        operation: str,
        kind: trace.SpanKind,
        message_id: str | None = None,
        **options: Any,
    ) -> trace.Span:
        attributes = self._attributes[operation]
        if message_id is not None:
            attributes = {**attributes, "messaging.message.id": message_id}
        return self._tracer.start_span(
            self._names[operation], kind=kind, attributes=attributes, **options
        )

    # -- producing

    def _send_one(
        self, push: Callable[..., str], message: QueueMessage, delay_seconds: float
    ) -> str:
        span = self._start("send", trace.SpanKind.PRODUCER, message.id)
        with self._mark_sending(), _CurrentSpan(_Trace(span)):
            self._inject(message, span)
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
        span = self._start("send", trace.SpanKind.CLIENT, links=links)
        span.set_attribute("messaging.batch.message_count", len(messages))
        with self._mark_sending(), _CurrentSpan(_Trace(span)):
            return push_many(messages, delay_seconds=delay_seconds)

    @contextmanager
    def _mark_sending(self) -> Iterator[None]:
        token = self._is_sending.set(True)
        try:
            yield
        finally:
            self._is_sending.reset(token)

    def _create(self, message: QueueMessage) -> trace.SpanContext:
        span = self._start("create", trace.SpanKind.PRODUCER, message.id)
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

    def _wrap_poll(self, poll: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def receive(
            batch_size: int = 1, *, wait_seconds: float = 0.0, stop: StopEvent | None = None
        ) -> list[Any]:
            """Poll, and show what came. Idle workers poll, so an empty poll has no span."""
            started_ns = _read_ns(self._clock)
            messages = poll(batch_size, wait_seconds=wait_seconds, stop=stop)
            if messages:
                received = self._show_poll(started_ns, messages)
                for message in messages:
                    attach_trace(message, received)
            return messages

        return receive

    def _show_poll(self, started_ns: int, messages: list[Any]) -> _Trace:
        """Return the span of a poll. If it records, the span is shown and ends now.

        While the queue is busy, the sampler is asked for many polls at once, because that
        takes half of the time. The first span that records is that of this poll. Those that
        do not record are for later polls: they have no time, and nothing is shown of them.
        """
        # A poll inside a span of the application belongs to it, and later ones do not.
        is_root = not context_api.get_current()
        is_busy = is_root and started_ns < self._drawn_ns + _MAX_DRAWN_NS
        if is_busy:
            with suppress(IndexError):
                return self._drawn.pop()
        self._draws = min(2 * self._draws, _MAX_DRAWS) if is_busy else 1
        drawn: list[_Trace] = []
        for _ in range(self._draws):
            span = self._start("receive", trace.SpanKind.CLIENT, start_time=started_ns)
            drawn.append(_Trace(span))
            if drawn[-1].is_recorded:
                self._finish_poll(span, messages)
                break
        received = drawn.pop()
        self._drawn, self._drawn_ns = drawn, started_ns
        return received

    def _finish_poll(self, span: trace.Span, messages: list[Any]) -> None:
        span.set_attribute("messaging.batch.message_count", len(messages))
        for message in messages:
            _add_link(span, message)
        span.end()

    def processing(self, message: QueueMessage) -> _CurrentSpan:
        """Return the span of one attempt, which is current inside the block.

        A message whose poll is not recorded keeps the span of the poll, so that the spans of
        its handler are not recorded either.
        """
        received: _Trace | None = get_trace(message)
        headers = get_headers(message) if self._parent else None
        context = None
        if headers is not None:
            context = _propagator.extract(headers)
        elif received is not None:
            context = received.context
            if not received.is_recorded:
                return _CurrentSpan(received)
        span = self._start("process", trace.SpanKind.CONSUMER, message.id, context=context)
        attempt = _Trace(span)
        if attempt.is_recorded:
            span.set_attribute("holdfast.attempt", get_lease(message).attempt)
            if headers is None:
                _add_link(span, message)
        attach_trace(message, attempt)
        return _CurrentSpan(attempt)

    def _wrap_settle(self, verb: str, settle: Callable[..., None]) -> Callable[..., None]:
        def settle_traced(message: QueueMessage, *args: Any, **named: Any) -> None:
            if (span := self._start_settle(verb, message)) is None:
                settle(message, *args, **named)
                return
            with _CurrentSpan(_Trace(span)):
                settle(message, *args, **named)

        return settle_traced

    def _ack_many(
        self, ack_many: Callable[..., None], messages: Sequence[QueueMessage]
    ) -> None:
        """Ack. Each message has its own span, because the span belongs to its attempt.

        The call itself belongs to the first of them.
        """
        spans: list[tuple[QueueMessage, trace.Span]] = []
        for message in messages:
            if (span := self._start_settle("ack", message)) is not None:
                spans.append((message, span))
        if not spans:
            ack_many(messages)
            return
        token = context_api.attach(trace.set_span_in_context(spans[0][1]))
        try:
            ack_many(messages)
        except BaseException as error:
            for message, span in spans:
                if get_lease(message).state is not RELEASED:
                    _mark_error(span, type(error).__name__)
            raise
        finally:
            context_api.detach(token)
            for _, span in spans:
                span.end()

    def _start_settle(self, verb: str, message: QueueMessage) -> trace.Span | None:
        """Start the span of a settle, or return None if the attempt is not recorded."""
        attempt: _Trace | None = get_trace(message)
        if attempt is not None and not attempt.is_recorded:
            return None
        context = None if attempt is None else attempt.context
        return self._start(verb, trace.SpanKind.CLIENT, message.id, context=context)


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
