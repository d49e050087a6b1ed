"""The handler of job messages: the job's message is held as long as the job runs here.

So a job has the lease of its message. When this process dies, the message comes back
within one lease and another process goes on with what the store says is not done.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from holdfast.core.errors import LeaseLost
from holdfast.core.queue.message import AnyMessage
from holdfast.core.worker.context import Context
from holdfast.core.worker.handler import Result
from holdfast.core.worker.outcome import Done, GiveBack, Reject, Retry
from holdfast.jobs.errors import (
    CallbackRefused,
    CallbackUnclear,
    InvalidJob,
    JobNotFound,
    StoreUnavailable,
    TokenClosed,
)
from holdfast.jobs.model import ExportJob, JobError
from holdfast.jobs.ports import StepFunctions
from holdfast.jobs.request import JobRequest, token_in
from holdfast.jobs.runner import JobRunner
from holdfast.jobs.tracker import JobTracker

# SQS ends a lease twelve hours after the receive; that much before, the message is given
# back and taken again, and the job goes on.
_HAND_OVER_SECONDS = 120.0
_PASSING = (StoreUnavailable, CallbackRefused, CallbackUnclear)


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
        """`max_attempts` as the queue has it: the last one leaves no job waiting."""
        self._runner = runner
        self._tracker = tracker
        self._step_functions = step_functions
        self._max_attempts = max_attempts

    def __call__(self, message: AnyMessage, ctx: Context) -> Result:
        data = message.model_extra or {}
        try:
            request = JobRequest.read(data)
        except InvalidJob as problem:
            return self._refused(data, problem)
        try:
            return self._handled(request, ctx)
        except InvalidJob as problem:
            return Reject(str(problem), log_reason="the job cannot be worked on here")
        except _PASSING as error:
            if ctx.attempt >= self._max_attempts:
                self._give_up(request, error)
            return Retry(reason=str(error), log_reason=type(error).__name__)
        except Exception as error:
            if ctx.attempt >= self._max_attempts:
                self._give_up(request, error)
            raise

    def _handled(self, request: JobRequest, ctx: Context) -> Result:
        def leave() -> bool:
            return ctx.stopping.is_set() or ctx.max_seconds_left < _HAND_OVER_SECONDS

        job = self._runner.run(request, lost=ctx.lost, leave=leave, moved=_beating(ctx))
        if job.terminal:
            return Done()
        return GiveBack() if leave() else Retry(reason="the job goes on elsewhere")

    def _refused(self, data: Mapping[str, Any], problem: InvalidJob) -> Result:
        """Nobody can work on it, so whoever waits behind its token is told, then it is
        kept for a person."""
        token = token_in(data)
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
        """The message is about to be a dead letter: the job must not wait for it."""
        why = JobError("JobAbandoned", f"its last attempt failed: {type(error).__name__}")
        with suppress(JobNotFound, *_PASSING):
            self._tracker.fail(request.job_id, why)


def _beating(ctx: Context) -> Callable[[ExportJob], None]:
    def moved(job: ExportJob) -> None:
        with suppress(LeaseLost):  # the runner looks for itself
            ctx.beat(progress=job.state.percent_processed / 100)

    return moved
