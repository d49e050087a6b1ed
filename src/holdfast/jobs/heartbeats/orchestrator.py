"""The heartbeat orchestrator: keeps Step Functions waiting for every job that moves.

    loop ──┬─ each interval ─▶ census ─┬─▶ agenda          which jobs are active
           │                           ├─▶ stalled          (own thread)
           │                           └─▶ each_cycle       (own thread)
           └─ what is due ───▶ beaters ─┬─ taken ──▶ agenda, at its next place
              (up to 32 threads)        ├─ failed ─▶ agenda, in 2, 4, 8, 8 s
                                        └─ closed ─▶ token_closed (own thread) ─▶ agenda

The loop itself waits for nobody: a slow store, a slow reconciler or a job whose beat hangs
costs no other job its beat. Any number of orchestrators may run at once; heartbeats can be
sent twice without harm, and when one ends the others go on.
"""

import logging
from collections.abc import Callable
from enum import Enum
from functools import partial
from threading import Event, Lock, Thread, current_thread

from holdfast.core.checks import CheckLevel
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.events import Events
from holdfast.jobs import events as ev
from holdfast.jobs.heartbeats.active_jobs import (
    ActiveJobList,
    ActiveJobReader,
    list_active_jobs,
)
from holdfast.jobs.heartbeats.cycle import HeartbeatCycle
from holdfast.jobs.heartbeats.interval import check_heartbeat_settings, check_interval
from holdfast.jobs.heartbeats.schedule import (
    HeartbeatSchedule,
    HeartbeatTiming,
    ScheduledHeartbeat,
)
from holdfast.jobs.heartbeats.sender import HeartbeatAnswer, HeartbeatCall, HeartbeatSender
from holdfast.jobs.heartbeats.thread_pool import ThreadPool, close_all
from holdfast.jobs.model import ExportJob
from holdfast.jobs.ports import StepFunctions
from holdfast.jobs.stall import StallRule

_log = logging.getLogger("holdfast")

# A wait does not count while the machine is suspended, the clock does: look now and then.
_MAX_WAIT_SECONDS = 1.0


class _Phase(Enum):
    NEW = "new"
    DISABLED = "disabled"  # started, and told not to run
    RUNNING = "running"
    STOPPED = "stopped"


class HeartbeatOrchestrator:
    """Beats each active job that has a token: at once when it is received here, then every
    `interval_seconds`, whoever works on it, until it is terminal or stalled.

    `token_closed(job, code)` is called when nobody waits for a job's token any more, with
    the job as it was beaten. What it raises is logged; it delays no beat.
    A job that does not move is not beaten; the reconciler fails it.
    """

    def __init__(
        self,
        jobs: ActiveJobReader,
        step_functions: StepFunctions,
        *,
        token_closed: Callable[[ExportJob, str], object],
        interval_seconds: float = 30.0,
        enabled: bool = True,
        stall_seconds: float | None = 3600.0,
        heartbeat_timeout_seconds: float | None = None,
        concurrency: int = 32,
        events: Events | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        check_heartbeat_settings(
            interval_seconds, heartbeat_timeout_seconds, stall_seconds, concurrency
        )
        self._jobs = jobs
        self._clock = clock
        self._events = events or Events()
        self._heart = HeartbeatSender(step_functions, self._events, clock)
        self._token_closed = token_closed
        self._interval_seconds = interval_seconds
        self._timeout_seconds = heartbeat_timeout_seconds
        self._enabled = enabled
        self._rule = StallRule(stall_seconds, 2 * interval_seconds, clock)
        self._rhythm = HeartbeatTiming(interval_seconds, clock.monotonic())
        self._agenda = HeartbeatSchedule(self._rhythm)
        self._beaters = ThreadPool("holdfast-heartbeat", concurrency)
        self._census = ThreadPool("holdfast-census")
        self._judges = ThreadPool("holdfast-judge")
        self._crews = (self._census, self._beaters, self._judges)
        self._phase = _Phase.NEW
        self._thread: Thread | None = None
        self._cycle_at = self._rhythm.began_at
        self._looks_at = self._cycle_at  # until when the loop sleeps, unless it is woken
        self._unknown_in_a_row = 0
        self._rounds: set[HeartbeatCycle] = set()
        self._wake = Event()
        self._lock = Lock()

    # -- its life: NEW, RUNNING, STOPPED, each once

    @property
    def running(self) -> bool:
        return self._phase is _Phase.RUNNING

    @property
    def under_way(self) -> int:
        """How many beats, listings and judgements are handed out and not done."""
        return sum(crew.load for crew in self._crews)

    def start(self) -> None:
        """HeartbeatCall in the background. Does nothing when that is so already, or was stopped."""
        with self._lock:
            if self._phase is not _Phase.NEW:
                return
            if self._enabled:
                thread = Thread(target=self._run, name="holdfast-heartbeats", daemon=True)
                thread.start()
                self._thread = thread
            self._phase = _Phase.RUNNING if self._enabled else _Phase.DISABLED
        self._tell_started()

    def stop(self, wait_seconds: float = 10.0) -> None:
        """No new beat after this; waits so long for those under way. The last thing at
        shutdown: while tasks are drained their jobs must be beaten.

        A stopped orchestrator stays so. Stopping again changes nothing.
        """
        with self._lock:
            was, self._phase = self._phase, _Phase.STOPPED
        if was is _Phase.STOPPED:
            return
        if was is _Phase.RUNNING:
            self._events.emit(ev.OrchestratorStopping(self._beaters.load))
        ended = self._end(wait_seconds)
        if not ended:
            _log.warning("heartbeats were still under way after %g s", wait_seconds)
        elif was is _Phase.RUNNING:
            self._events.emit(ev.OrchestratorStopped())

    # -- jobs of this process

    def beat_now(self, job: ExportJob) -> None:
        """The job was received here: beat it at once, in another thread, and from now on,
        though the store's listing may not have it yet."""
        if job.has_task_token() and not job.terminal and self._enabled:
            moves = self._rule.seconds_stalled(job) is None
            self._agenda.receive(job, self._clock.monotonic(), beat=moves)
            self._wake.set()

    def forget(self, job_id: str) -> None:
        """The job is terminal here: no more beats."""
        self._agenda.forget(job_id, self._clock.monotonic())

    def trigger_heartbeat(self) -> int:
        """One whole cycle here and now, started or not: list, judge, beat every job once,
        and all that follows from it. How many beats were sent, taken or not."""
        cycle = HeartbeatCycle()
        with self._lock:
            if self._phase is _Phase.STOPPED:
                return 0
            self._rounds.add(cycle)
        if not self._census.give(partial(self._cycle, cycle)):
            cycle.end()
        cycle.ended.wait()
        self._rounds.discard(cycle)
        return cycle.sent

    # -- the loop

    def tick(self) -> float:
        """One pass: begin a cycle if it is time, hand out the beats that are due. When to
        look again, by the monotonic clock."""
        now = self._clock.monotonic()
        if now >= self._cycle_at:
            self._cycle_at = self._rhythm.next_place(0.0, now)
            if self._census.load == 0:  # else one is under way still: never two
                self._census.give(self._cycle)
        self._hand_out(self._agenda.take(now))
        self._looks_at = min(self._cycle_at, self._agenda.first_at())
        return self._looks_at

    def _run(self) -> None:
        while self._phase is not _Phase.STOPPED:
            self._wake.clear()
            try:
                seconds = self.tick() - self._clock.monotonic()
            except Exception:  # a bug here must not cost every job its heartbeats
                _log.exception("the heartbeat loop failed; it goes on")
                seconds = _MAX_WAIT_SECONDS
            self._clock.wait(self._wake, min(max(0.0, seconds), _MAX_WAIT_SECONDS))

    def _hand_out(self, pulses: list[ScheduledHeartbeat]) -> None:
        for pulse in pulses:
            if not self._beaters.give(partial(self._beat, pulse)):
                self._back(pulse, sent=False, failed=True)

    def _beat(self, pulse: ScheduledHeartbeat) -> None:
        if pulse.forgotten:  # while it waited for its turn
            self._back(pulse, sent=False)
            return
        job = pulse.job
        beat = self._heart.beat(job)
        if beat.answer is not HeartbeatAnswer.CLOSED:
            self._back(pulse, failed=beat.answer is HeartbeatAnswer.FAILED)
        # Judged elsewhere: that reads and writes the store, and beaters are few.
        elif not self._judges.give(partial(self._judge_closed, pulse, job, beat)):
            self._heart.tell(job, beat)
            self._back(pulse)

    def _judge_closed(
        self, pulse: ScheduledHeartbeat, job: ExportJob, beat: HeartbeatCall
    ) -> None:
        try:
            # Before `token_closed`: that fails the job, and would explain every refusal.
            if self._was_lost(job):
                self._heart.tell(job, beat)
            self._token_closed(job, beat.code)
        finally:
            self._back(pulse)

    def _was_lost(self, job: ExportJob) -> bool:
        """Whether the token was closed while its job needed it. A job that was answered a
        moment ago, or has another token by now, explains the refusal by itself."""
        try:
            now = self._jobs.find_by_id(job.job_id)
        except Exception:  # not explained
            return True
        return now is None or now.awaits_answer_to(job.task_token)

    def _back(
        self, pulse: ScheduledHeartbeat, *, sent: bool = True, failed: bool = False
    ) -> None:
        now = self._clock.monotonic()
        if self._agenda.bring_back(pulse, now, sent=sent, failed=failed) < self._looks_at:
            self._wake.set()

    # -- one cycle

    def _cycle(self, cycle: HeartbeatCycle | None = None) -> None:
        try:
            census = self._listed()
            if census is not None:
                self._act_on(census)
            if cycle is not None:
                self._hand_out(self._agenda.take_all(cycle))
        finally:
            self._wake.set()
            if cycle is not None:
                cycle.leave()

    def _listed(self) -> ActiveJobList | None:
        try:
            # A job received in the last interval may not be in the index yet.
            since = self._clock.monotonic() - self._interval_seconds
            expected = self._agenda.received_before(since)
            census = list_active_jobs(self._jobs, self._rule, self._clock, expected)
        except Exception as error:  # beats go on for the jobs known from before
            self._unknown_in_a_row += 1
            self._events.emit(
                ev.ActiveJobsUnknown(type(error).__name__, self._unknown_in_a_row)
            )
            return None
        self._unknown_in_a_row = 0
        return census

    def _act_on(self, census: ActiveJobList) -> None:
        now = self._clock.monotonic()
        self._agenda.listed(census.to_beat, asked_at=census.asked_at, now=now)
        self._agenda.hold_back(census.stalled)
        self._agenda.hold_back(census.ended)
        with_token = sum(job.has_task_token() for job in census.active)
        self._events.emit(ev.ActiveJobs(with_token, len(census.active) - with_token))

    # -- the ends

    def _tell_started(self) -> None:
        if not self._enabled:
            self._events.emit(ev.OrchestratorDisabled())
            return
        self._events.emit(ev.OrchestratorStarted(self._interval_seconds))
        interval, timeout = self._interval_seconds, self._timeout_seconds
        if timeout is not None and check_interval(interval, timeout).level is not CheckLevel.OK:
            self._events.emit(ev.IntervalTight(interval, timeout))

    def _end(self, wait_seconds: float) -> bool:
        """True when nothing is under way any more."""
        self._wake.set()
        for cycle in list(self._rounds):
            cycle.end()
        ended = close_all(self._crews, self._clock, wait_seconds)
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join(wait_seconds)
        return ended
