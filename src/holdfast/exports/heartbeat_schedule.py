"""When each job gets its heartbeat: an interval after the last one, sooner after a failure.

    accepted at t ─▶ t + 30 ─┬─ accepted ─▶ 30 s after it was sent
                             └─ failed ───▶ again after 2, 4, 8 and 8 s, then at t + 60

Of heartbeats that are due together, those of the jobs that Step Functions heard of longest ago
come first. So if it refuses some because of its quota, no job is refused again and again. A
refused heartbeat of another process's job is not retried, because others send it, too.

A job is either scheduled or handed out for sending. So two heartbeats of the same job are
never sent at the same time, however slow the first one is.
"""

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from math import inf
from random import Random

from holdfast.exports.model import ExportJob, TaskToken
from holdfast.lease.renewal_schedule import NOT_SCHEDULED, DeadlineHeap

# In units of 2 s for intervals of 30 s and more. Because of the last retry, a job whose
# HeartbeatSeconds is twice the interval survives an outage of 20 s, wherever in the interval
# the outage begins.
_RETRY_UNITS = (1, 2, 4, 4)
_MAX_SENT_AT_ONCE = 100  # new jobs whose heartbeats may be sent all at once
_MAX_SENT_PER_SECOND = 500  # what Step Functions accepts without throttling, by its quotas


def compute_retry_delay(failures: int, interval_seconds: float) -> float:
    """Return how soon to retry: after 2, 4, 8 and 8 s, or less for short intervals.

    After these retries it is infinity, so the heartbeat waits for its next interval.
    """
    if failures > len(_RETRY_UNITS):
        return inf
    return min(2.0, interval_seconds / 15) * _RETRY_UNITS[failures - 1]


@dataclass(eq=False, slots=True)
class Heartbeat:
    """One job of the schedule, with the time of its next heartbeat."""

    job: ExportJob
    due_at: float = NOT_SCHEDULED
    failures: int = 0  # consecutive, since `failing_since`
    failing_since: float = -inf
    accepted_at: float = -inf  # when the last accepted heartbeat of this process was sent
    refused_token: TaskToken | None = None  # found closed by the last heartbeat
    beat_again: bool = False  # another one was requested while this one was in flight
    wanted: bool = True
    result: Future[bool] | None = None  # while it is in flight: whether it was sent

    @property
    def key(self) -> str:
        """The job's id."""
        return self.job.job_id

    @property
    def live(self) -> bool:
        """Whether it is scheduled or in flight. One in flight may be wanted again."""
        return self.wanted or self.result is not None


class HeartbeatSchedule(DeadlineHeap[str, Heartbeat]):
    """The jobs by the times of their next heartbeats."""

    def __init__(
        self,
        interval_seconds: float,
        wake: Callable[[], object],
        random: Random | None = None,
    ) -> None:
        super().__init__(wake)
        self._interval_seconds = interval_seconds
        self._random = random or Random()
        # The jobs that this process received. Each stays scheduled until it is forgotten, even
        # if a listing that is behind does not have it.
        self._received: set[str] = set()
        self._forgotten_at: dict[str, float] = {}  # for half an interval

    # -- what to send

    def receive(self, job: ExportJob, now: float, *, beat: bool = True) -> None:
        """Schedule a job of this process: a heartbeat now, and more until it is forgotten.

        If the job was received before, with the same token, its heartbeats only go on.
        """
        with self._lock:
            self._forgotten_at.pop(job.job_id, None)
            known = self._entries.get(job.job_id)
            is_beaten = (
                job.job_id in self._received
                and known is not None
                and known.wanted
                and known.job.task_token == job.task_token
            )
            heartbeat = self._want(job)
            if is_beaten:
                return
            self._received.add(job.job_id)
            if heartbeat.result is not None:
                # The one in flight may be for an older token, so this token needs its own.
                heartbeat.beat_again = beat
            else:
                self._put(heartbeat, now if beat else now + self._interval_seconds)

    def forget(self, job_id: str, now: float) -> None:
        """Send no more heartbeats, even if a listing that is behind still has the job.

        After half an interval, a listing that has the job is right: it was given back.
        """
        with self._lock:
            self._forgotten_at[job_id] = now
            self._received.discard(job_id)
            self._drop(job_id)

    def apply_listing(
        self, jobs: Iterable[ExportJob], listed: Collection[str], *, asked_at: float, now: float
    ) -> None:
        """Schedule these jobs of a listing whose call began at `asked_at`, and no others.

        A job that this process received, and that was not `listed`, stays scheduled.
        """
        with self._lock:
            behind_at = asked_at - self._interval_seconds / 2
            self._forgotten_at = {
                job_id: at for job_id, at in self._forgotten_at.items() if at >= behind_at
            }
            wanted = {job.job_id: job for job in jobs if job.job_id not in self._forgotten_at}
            for job_id in list(self._entries):
                is_kept = job_id in self._received and job_id not in listed
                if job_id not in wanted and not is_kept:
                    self._drop(job_id)
            new_ids = wanted.keys() - self._entries.keys()
            spread_seconds = self._compute_spread(len(new_ids))
            for job_id, job in wanted.items():
                heartbeat = self._want(job)
                if job_id in new_ids:
                    self._put(heartbeat, now + self._random.random() * spread_seconds)

    def _compute_spread(self, new_jobs: int) -> float:
        """Return the time over which to spread the first heartbeats of so many new jobs.

        It is unknown when the last heartbeat of such a job was sent, so it should be sent
        at once. But thousands at once, after a start, would be throttled and sent even
        later.
        """
        if new_jobs <= _MAX_SENT_AT_ONCE:
            return 0.0
        return min(self._interval_seconds / 2, new_jobs / _MAX_SENT_PER_SECOND)

    def drop_token(self, job: ExportJob) -> None:
        """Send no heartbeats for this token of the job, because it is closed.

        A job that has another token by now keeps its heartbeats.
        """
        with self._lock:
            known = self._entries.get(job.job_id)
            if known is not None and known.job.task_token == job.task_token:
                self._drop(job.job_id)

    def list_received(self) -> list[str]:
        """Return the ids of the jobs that this process received."""
        with self._lock:
            return list(self._received)

    # -- handing out

    def take_due(self, now: float) -> list[Heartbeat]:
        """Hand out the due heartbeats in the order to send. Give each to `reschedule`."""
        taken = []
        with self._lock:
            while (heartbeat := self.take(now)) is not None:
                heartbeat.result = Future()
                taken.append(heartbeat)
        return sorted(taken, key=lambda heartbeat: heartbeat.accepted_at)

    def list_in_flight(self) -> list[Future[bool]]:
        """Return the results of the heartbeats that are handed out."""
        with self._lock:
            heartbeats = self._entries.values()
            return [beat.result for beat in heartbeats if beat.result is not None]

    def reschedule(
        self,
        heartbeat: Heartbeat,
        now: float,
        *,
        sent_at: float | None,
        failed: bool,
        refused: bool = False,
    ) -> None:
        """Take a heartbeat back and schedule the job's next one, unless it was dropped.

        `sent_at` is None if it was not sent. `refused` says that it failed because Step
        Functions refused it.
        """
        with self._lock:
            result, heartbeat.result = heartbeat.result, None
            assert result is not None
            result.set_result(sent_at is not None)
            if not heartbeat.wanted:
                self._forget(heartbeat)
            elif heartbeat.beat_again:
                heartbeat.beat_again, heartbeat.failures = False, 0
                self._put(heartbeat, now)
            elif failed and (not refused or heartbeat.key in self._received):
                self._put(heartbeat, self._compute_retry_at(heartbeat, now))
            else:
                heartbeat.failures = 0
                if sent_at is not None and not refused:
                    heartbeat.accepted_at = sent_at
                self._put(heartbeat, (sent_at or now) + self._interval_seconds)

    # -- under the lock

    def _compute_retry_at(self, heartbeat: Heartbeat, now: float) -> float:
        if not heartbeat.failures:
            heartbeat.failing_since = now
        heartbeat.failures += 1
        retry_at = now + compute_retry_delay(heartbeat.failures, self._interval_seconds)
        regular_at = heartbeat.failing_since + self._interval_seconds
        if retry_at < regular_at:
            return retry_at
        heartbeat.failures = 0
        return max(now, regular_at)

    def _want(self, job: ExportJob) -> Heartbeat:
        """Return the job's heartbeat. One in flight is reused, so two are never sent at once.

        It keeps the job with the latest token, because a listing may be behind.
        """
        heartbeat = self._entries.setdefault(job.job_id, Heartbeat(job))
        heartbeat.wanted = True
        if job.token_generation >= heartbeat.job.token_generation:
            heartbeat.job = job
        return heartbeat

    def _drop(self, job_id: str) -> None:
        if (heartbeat := self._entries.get(job_id)) is not None:
            heartbeat.wanted = False
            if heartbeat.result is None:
                del self._entries[job_id]
