"""One heartbeat: sent, timed, told, and never anything but an answer."""

from dataclasses import dataclass
from enum import Enum

from holdfast.core.clock import Clock
from holdfast.core.events import Events
from holdfast.jobs.errors import TokenClosed
from holdfast.jobs.events import HeartbeatFailed, HeartbeatSent
from holdfast.jobs.model import ExportJob
from holdfast.jobs.ports import StepFunctions


class Answer(Enum):
    TAKEN = "taken"
    FAILED = "failed"  # worth another try
    CLOSED = "closed"  # nobody waits for this token


@dataclass(frozen=True, slots=True)
class Beat:
    answer: Answer
    code: str = ""


class Heart:
    """Sends beats. Writes nothing: whether a job moves is not for a heartbeat to say."""

    def __init__(self, step_functions: StepFunctions, events: Events, clock: Clock) -> None:
        self._step_functions = step_functions
        self._events = events
        self._clock = clock

    def beat(self, job: ExportJob) -> Beat:
        """Never raises an Exception. One event for each beat, whatever ends it."""
        began_at = self._clock.monotonic()
        beat = Beat(Answer.FAILED, "Cancelled")  # until something better is known
        try:
            beat = self._send(job)
        finally:
            # Here, so that what is cancelled at shutdown is counted too: otherwise the
            # beats sent would not be those that succeeded and those that failed.
            self._tell(job, beat, self._clock.monotonic() - began_at)
        return beat

    def _send(self, job: ExportJob) -> Beat:
        try:
            assert job.task_token is not None  # others are never on the agenda
            self._step_functions.send_task_heartbeat(job.task_token)
        except TokenClosed as error:
            return Beat(Answer.CLOSED, error.code)
        except Exception as error:  # whatever it is: the job goes on, and the next beat comes
            return Beat(Answer.FAILED, getattr(error, "code", "") or type(error).__name__)
        return Beat(Answer.TAKEN)

    def _tell(self, job: ExportJob, beat: Beat, seconds: float) -> None:
        if not self._events.listening:
            return
        if beat.answer is not Answer.TAKEN:
            self._events.emit(HeartbeatFailed(job.job_id, beat.code, seconds))
            return
        state = job.state
        self._events.emit(
            HeartbeatSent(
                job.job_id, state.completed_tasks, state.total_tasks, state.percent, seconds
            )
        )
