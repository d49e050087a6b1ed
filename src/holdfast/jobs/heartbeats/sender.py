"""One heartbeat: sent, timed, told, and never anything but an answer."""

from dataclasses import dataclass, replace
from enum import Enum

from holdfast.core.clock import Clock
from holdfast.core.events import Events
from holdfast.jobs.errors import TokenClosed
from holdfast.jobs.events import HeartbeatFailed, HeartbeatSent
from holdfast.jobs.model import ExportJob
from holdfast.jobs.ports import StepFunctions


class HeartbeatAnswer(Enum):
    TAKEN = "taken"
    FAILED = "failed"  # worth another try
    CLOSED = "closed"  # nobody waits for this token


@dataclass(frozen=True, slots=True)
class HeartbeatCall:
    answer: HeartbeatAnswer
    code: str = ""
    seconds: float = 0.0


class HeartbeatSender:
    """Sends beats. Writes nothing: whether a job moves is not for a heartbeat to say."""

    def __init__(self, step_functions: StepFunctions, events: Events, clock: Clock) -> None:
        self._step_functions = step_functions
        self._events = events
        self._clock = clock

    def beat(self, job: ExportJob) -> HeartbeatCall:
        """Never raises an Exception. One event for each beat, whatever ends it; but none for
        a CLOSED one: whether that is a failure only the job's row can say. See `tell`."""
        began_at = self._clock.monotonic()
        beat = HeartbeatCall(
            HeartbeatAnswer.FAILED, "Cancelled"
        )  # until something better is known
        try:
            beat = self._send(job)
        finally:
            # Here, so that what is cancelled at shutdown is counted too: otherwise the
            # beats sent would not be those that succeeded and those that failed.
            beat = replace(beat, seconds=self._clock.monotonic() - began_at)
            if beat.answer is not HeartbeatAnswer.CLOSED:
                self.tell(job, beat)
        return beat

    def _send(self, job: ExportJob) -> HeartbeatCall:
        try:
            assert job.task_token is not None  # others are never on the agenda
            self._step_functions.send_task_heartbeat(job.task_token)
        except TokenClosed as error:
            return HeartbeatCall(HeartbeatAnswer.CLOSED, error.code)
        except Exception as error:  # whatever it is: the job goes on, and the next beat comes
            return HeartbeatCall(
                HeartbeatAnswer.FAILED, getattr(error, "code", "") or type(error).__name__
            )
        return HeartbeatCall(HeartbeatAnswer.TAKEN)

    def tell(self, job: ExportJob, beat: HeartbeatCall) -> None:
        """Emit the event of a beat: logs and metrics know of no other."""
        if not self._events.listening:
            return
        if beat.answer is not HeartbeatAnswer.TAKEN:
            self._events.emit(HeartbeatFailed(job.job_id, beat.code, beat.seconds))
            return
        state = job.state
        done, total = state.completed_tasks, state.total_tasks
        self._events.emit(HeartbeatSent(job.job_id, done, total, state.percent, beat.seconds))
