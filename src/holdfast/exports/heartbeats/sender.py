"""Send one heartbeat, measure it, and return its result."""

from dataclasses import dataclass

from holdfast.events import Events
from holdfast.exports.errors import CallbackRefused, TokenClosed
from holdfast.exports.events import HeartbeatFailed, HeartbeatSent
from holdfast.exports.model import ExportJob
from holdfast.exports.ports import StepFunctions
from holdfast.lease.clock import Clock


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    """The response to one heartbeat, and how long the call took.

    `code` is the service's error code, or None if the heartbeat was accepted.
    """

    code: str | None
    is_closed: bool  # Step Functions no longer waits for this token
    is_refused: bool  # Step Functions refused the call, probably because of its quota
    seconds: float


class HeartbeatSender:
    """Sends heartbeats. It writes nothing, because a heartbeat is not progress of the job."""

    def __init__(self, step_functions: StepFunctions, events: Events, clock: Clock) -> None:
        self._step_functions = step_functions
        self._events = events
        self._clock = clock

    def send(self, job: ExportJob) -> HeartbeatResult:
        """Send a heartbeat and return its result. Never raises an Exception.

        Emits one event for each heartbeat, however it ends, unless the token is closed. Only
        the job's row can tell whether that is a failure, so the caller decides whether to
        call `emit_event`.
        """
        began_at = self._clock.monotonic()
        code: str | None = "Cancelled"  # unless the call returns
        is_closed = is_refused = False
        try:
            assert job.task_token is not None  # jobs without a token are never scheduled
            self._step_functions.send_task_heartbeat(job.task_token)
            code = None
        except TokenClosed as error:
            code, is_closed = error.code, True
        except Exception as error:  # the job goes on, and the next heartbeat tries again
            code = getattr(error, "code", "") or type(error).__name__
            is_refused = isinstance(error, CallbackRefused)
        finally:
            # In `finally`, so that a heartbeat that is cancelled at shutdown is counted, too.
            # Otherwise the accepted and the failed heartbeats would not add up to all sent.
            seconds = self._clock.monotonic() - began_at
            result = HeartbeatResult(code, is_closed, is_refused, seconds)
            if not is_closed:
                self.emit_event(job, result)
        return result

    def emit_event(self, job: ExportJob, result: HeartbeatResult) -> None:
        """Emit the heartbeat's event, from which logs and metrics are made."""
        if not self._events.has_subscribers:
            return
        if result.code is not None:
            self._events.emit(HeartbeatFailed(job.job_id, result.code, result.seconds))
            return
        state = job.state
        done, total = state.completed_tasks, state.total_tasks
        self._events.emit(HeartbeatSent(job.job_id, done, total, state.percent, result.seconds))
