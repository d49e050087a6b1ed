"""Spans of jobs, for OpenTelemetry:

task        internal   one task of a job, with a link to the attempt at the job
callback    client     the callback of a job, child of the attempt at the job
"""

from typing import Any

from opentelemetry import trace

from holdfast.events import Event
from holdfast.exports import events as ev
from holdfast.lease.clock import Clock
from holdfast.telemetry.opentelemetry import mark_error

_MAX_JOBS = 1000  # whose context is kept: a job that ends elsewhere is never removed


class JobSpans:
    """A subscriber that shows the tasks and callbacks of jobs whose attempts are traced."""

    def __init__(self, tracer: trace.Tracer, clock: Clock) -> None:
        self._tracer = tracer
        self._jobs: dict[str, trace.SpanContext] = {}

    def __call__(self, event: Event) -> None:
        match event:
            case ev.JobStarted(job_id) | ev.JobResumed(job_id):
                self._keep_job(job_id, trace.get_current_span().get_span_context())
            case ev.TaskCompleted() | ev.TaskFailed():
                self._show_task(event)
            case ev.CallbackSent() | ev.CallbackFailed():
                self._show_callback(event)
            case ev.JobFinished(job_id):
                self._jobs.pop(job_id, None)

    def _keep_job(self, job_id: str, context: trace.SpanContext) -> None:
        if context.is_valid:
            self._jobs[job_id] = context
            if len(self._jobs) > _MAX_JOBS:
                del self._jobs[next(iter(self._jobs))]

    def _show_task(self, event: ev.TaskCompleted | ev.TaskFailed) -> None:
        if (job := self._jobs.get(event.job_id)) is not None:
            attributes = {"holdfast.job.id": event.job_id, "holdfast.task.id": event.task_id}
            self._show("task", event, attributes=attributes, links=[trace.Link(job)])

    def _show_callback(self, event: ev.CallbackSent | ev.CallbackFailed) -> None:
        if (job := self._jobs.get(event.job_id)) is not None:
            self._show(
                "callback",
                event,
                context=trace.set_span_in_context(trace.NonRecordingSpan(job)),
                kind=trace.SpanKind.CLIENT,
                attributes={"holdfast.job.id": event.job_id},
            )

    def _show(self, name: str, event: Event, **options: Any) -> None:
        span = self._tracer.start_span(name, **options)
        if isinstance(event, ev.TaskFailed | ev.CallbackFailed):
            mark_error(span, event.code)
        span.end()
