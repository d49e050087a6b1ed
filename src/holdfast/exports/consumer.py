"""The handler of job messages. It holds the job's message as long as the job runs here.

So a job has the lease of its message. If this process dies, the message is redelivered
within one lease, and another process goes on with the tasks that are not done.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from holdfast.errors import LeaseLost
from holdfast.exports.errors import (
    CallbackRefused,
    CallbackUnclear,
    InvalidJob,
    JobNotFound,
    StoreUnavailable,
    TokenClosed,
)
from holdfast.exports.model import ExportJob, JobError
from holdfast.exports.ports import StepFunctions
from holdfast.exports.request import JobRequest, find_token
from holdfast.exports.runner import JobRunner
from holdfast.exports.tracker import JobTracker
from holdfast.queue.message import AnyMessage
from holdfast.worker.handler import Result
from holdfast.worker.outcome import Done, GiveBack, Reject, Retry
from holdfast.worker.runner import Context

# SQS ends a lease twelve hours after the receive. So long before that, the message is given
# back and received again, and the job goes on.
_HAND_OVER_SECONDS = 120.0
_TRANSIENT_ERRORS = (StoreUnavailable, CallbackRefused, CallbackUnclear)


class ExportJobConsumer:
    """Handles job messages for a worker with threads."""

    def __init__(
        self,
        runner: JobRunner,
        tracker: JobTracker,
        step_functions: StepFunctions | None,
        *,
        max_attempts: int,
    ) -> None:
        """Create a handler; `max_attempts` must be that of the queue.

        It fails the job when its last attempt fails, so that no execution waits for it.
        """
        self._runner = runner
        self._tracker = tracker
        self._step_functions = step_functions
        self._max_attempts = max_attempts

    def __call__(self, message: AnyMessage, ctx: Context) -> Result:
        data = message.model_extra or {}
        try:
            request = JobRequest.parse(data)
        except InvalidJob as problem:
            return self._reject_invalid(data, problem)
        try:
            return self._run_job(request, ctx)
        except InvalidJob as problem:
            return Reject(str(problem), log_reason="the job cannot be worked on here")
        except Exception as error:
            if ctx.attempt >= self._max_attempts:
                self._give_up(request, error)
            if not isinstance(error, _TRANSIENT_ERRORS):
                raise
            return Retry(reason=str(error), log_reason=type(error).__name__)

    def _run_job(self, request: JobRequest, ctx: Context) -> Result:
        def should_leave() -> bool:
            return ctx.stopping.is_set() or ctx.max_seconds_left < _HAND_OVER_SECONDS

        job = self._runner.run(
            request,
            lost=ctx.lost,
            should_leave=should_leave,
            on_progress=_make_beat(ctx),
        )
        if job.terminal:
            return Done()
        return GiveBack() if should_leave() else Retry(reason="the job goes on elsewhere")

    def _reject_invalid(self, data: Mapping[str, Any], problem: InvalidJob) -> Result:
        """Fail the execution that waits for an invalid job, then dead-letter the message."""
        token = find_token(data)
        if token is not None and self._step_functions is not None:
            try:
                with suppress(TokenClosed):
                    self._step_functions.send_task_failure(
                        token, "InvalidJobMessage", str(problem)
                    )
            except (CallbackRefused, CallbackUnclear) as error:
                return Retry(reason=str(error), log_reason=type(error).__name__)
        return Reject(str(problem), log_reason="not a valid job message")

    def _give_up(self, request: JobRequest, error: Exception) -> None:
        """Fail the job of a message that is about to be dead-lettered."""
        job_error = JobError("JobAbandoned", f"its last attempt failed: {type(error).__name__}")
        with suppress(JobNotFound, *_TRANSIENT_ERRORS):
            self._tracker.abandon(request.job_id, request.token, job_error)


def _make_beat(ctx: Context) -> Callable[[ExportJob], None]:
    def beat(job: ExportJob) -> None:
        with suppress(LeaseLost):  # the runner checks `lost` itself
            ctx.beat(progress=job.state.percent_processed / 100)

    return beat
