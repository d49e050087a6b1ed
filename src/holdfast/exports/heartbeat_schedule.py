"""When each job gets its heartbeat: the rules of time, and the schedule that keeps them.

    one interval   ├─ offsets of the jobs ─────┼─ room for retries ─────────┤
                   ▲ cycle: the store is listed    ▲ cycle                   ▲ cycle

Each job has a fixed offset in the first half of every interval, computed from its id. So
heartbeats are spread, and a heartbeat that fails can be retried before the next one.

If Step Functions refuses heartbeats because of its quota, the jobs that it heard of longest ago
come first, so that no job is refused again and again:

    job of this process    refused: retried. Heard of in the last interval: skips one heartbeat
    job of another one     refused: waits for its next offset, because others send it, too. Its
                           offset differs from process to process, so each begins elsewhere

A job is either scheduled or handed out for sending. So two heartbeats of the same job are
never sent at the same time, however slow the first one is.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from math import floor, inf
from threading import Event

from holdfast.exports.model import ExportJob, TaskToken
from holdfast.lease.renewal_schedule import NOT_SCHEDULED, DeadlineHeap

# In units of 2 s for intervals of 30 s and more. Because of the last retry, a job whose
# HeartbeatSeconds is twice the interval survives an outage of 20 s, wherever in the interval
# the outage begins.
_RETRY_UNITS = (1, 2, 4, 4)
_MAX_SENT_AT_ONCE = 100  # new jobs whose heartbeats may be sent all at once
_MAX_SENT_PER_SECOND = 500  # what Step Functions accepts without throttling, by its quotas


@dataclass(frozen=True, slots=True)
class HeartbeatTiming:
    """The rules of time, as pure functions. All times are monotonic."""

    interval_seconds: float
    began_at: float
    process_id: str = ""
    can_skip: bool = False  # whether a token survives a gap of two intervals

    def compute_offset(self, job_id: str, *, received: bool = True) -> float:
        """Return the job's offset in seconds, always the same and in the first half.

        If the job was received by another process, it is different in each process.
        """
        name = job_id if received else f"{self.process_id} {job_id}"
        digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest) / 2**64 * self.interval_seconds / 2

    def compute_next_at(self, offset_seconds: float, now: float) -> float:
        """Return the first time after `now` with that offset, at most an interval away.

        After a freeze of many intervals this is still one time, not many.
        """
        first = self.began_at + offset_seconds
        past = floor((now - first) / self.interval_seconds) + 1
        at = first + past * self.interval_seconds
        return at if at > now else at + self.interval_seconds

    def compute_retry_at(self, failures: int, now: float) -> float:
        """Return when to retry: after 2, 4, 8 and 8 s, or less for short intervals.

        After these retries it is infinity, so the heartbeat waits for its offset.
        """
        if failures > len(_RETRY_UNITS):
            return inf
        return now + min(2.0, self.interval_seconds / 15) * _RETRY_UNITS[failures - 1]

    def compute_first_delay(self, offset_seconds: float, new_jobs: int) -> float:
        """Return how soon to send the first heartbeat of one of `new_jobs` new jobs.

        It is unknown when the last heartbeat of such a job was sent, so it should be sent
        at once. But thousands at once, after a start, would be throttled and sent even
        later.
        """
        if new_jobs <= _MAX_SENT_AT_ONCE:
            return 0.0
        return offset_seconds * min(
            1.0, new_jobs / _MAX_SENT_PER_SECOND / (self.interval_seconds / 2)
        )


@dataclass(eq=False, slots=True)
class HeartbeatCycle:
    """A triggered cycle. Its caller waits until every heartbeat that was handed out is back."""

    ended: Event = field(default_factory=Event)
    sent: int = 0
    in_flight: int = 0


@dataclass(eq=False, slots=True)
class ScheduledHeartbeat:
    """One job of the schedule, with the time of its next heartbeat."""

    job: ExportJob
    offset_seconds: float
    due_at: float = NOT_SCHEDULED
    failures: int = 0  # consecutive, since its offset
    accepted_at: float = -inf  # when the last accepted heartbeat of this process was sent
    refused_token: TaskToken | None = None  # found closed by the last heartbeat
    beat_again: bool = False  # another one was requested while this one was in flight
    live: bool = True  # False once it was dropped, even if it is in flight
    cycles: list[HeartbeatCycle] = field(default_factory=list)  # that wait until it is back

    @property
    def key(self) -> str:
        """The job's id."""
        return self.job.job_id


class HeartbeatSchedule(DeadlineHeap[str, ScheduledHeartbeat]):
    """The jobs by the times of their next heartbeats."""

    def __init__(self, timing: HeartbeatTiming, wake: Callable[[], object]) -> None:
        super().__init__(wake)
        self._timing = timing
        # When this process received the job, which keeps it scheduled until it is forgotten,
        # even if a listing does not have it.
        self._received_at: dict[str, float] = {}
        self._forgotten_at: dict[str, float] = {}  # for one interval
        self._in_flight: dict[str, ScheduledHeartbeat] = {}  # includes dropped ones
        self._refused_until = -inf  # one interval after Step Functions refused a heartbeat

    # -- what to send

    def receive(self, job: ExportJob, now: float, *, beat: bool = True) -> None:
        """Schedule a job of this process: a heartbeat now, and more until it is forgotten.

        If the job was received before, with the same token, its heartbeats only go on.
        """
        with self._lock:
            self._forgotten_at.pop(job.job_id, None)
            known = self._entries.get(job.job_id)
            heartbeat = known or self._add(job)
            is_beaten = known is not None and known.job.task_token == job.task_token
            heartbeat.job = _pick_newer(heartbeat.job, job)
            if job.job_id in self._received_at and is_beaten:
                return
            self._received_at[job.job_id] = now
            heartbeat.offset_seconds = self._timing.compute_offset(job.job_id)
            if job.job_id in self._in_flight:
                # The one in flight may be for an older token, so this token needs its own.
                heartbeat.beat_again = beat
            else:
                due_at = now if beat else self._compute_next_at(heartbeat, now)
                self._put(heartbeat, due_at)

    def forget(self, job_id: str, now: float) -> None:
        """Send no more heartbeats, even if a listing that is behind still has the job.

        After an interval, a listing that has the job is right: the job was given back.
        """
        with self._lock:
            self._forgotten_at[job_id] = now
            self._received_at.pop(job_id, None)
            self._drop([job_id])

    def apply_listing(self, jobs: Iterable[ExportJob], *, asked_at: float, now: float) -> None:
        """Schedule the jobs of a listing whose call began at `asked_at`.

        Jobs that are known only from an earlier listing and not in this one are dropped.
        """
        with self._lock:
            active = {job.job_id: job for job in jobs}
            behind_at = asked_at - self._timing.interval_seconds
            self._forgotten_at = {
                job_id: at for job_id, at in self._forgotten_at.items() if at >= behind_at
            }
            self._drop(
                [
                    job_id
                    for job_id in self._entries
                    if job_id not in active and job_id not in self._received_at
                ]
            )
            new_jobs = [job for job in active.values() if not self._update_known(job)]
            for job in new_jobs:
                self._schedule_new(job, len(new_jobs), now)

    def hold_back(self, job_ids: Iterable[str]) -> None:
        """Send no heartbeats for these jobs until a listing contains them again."""
        with self._lock:
            self._drop(job_ids)

    def drop_token(self, job: ExportJob) -> None:
        """Send no heartbeats for this token of the job, because it is closed.

        A job that has another token by now keeps its heartbeats.
        """
        with self._lock:
            known = self._entries.get(job.job_id)
            if known is not None and known.job.task_token == job.task_token:
                self._drop([job.job_id])

    def list_received(self, before: float = inf) -> list[str]:
        """Return the ids of the jobs that this process received before that time."""
        with self._lock:
            return [job_id for job_id, at in self._received_at.items() if at < before]

    # -- handing out

    def take_due(self, now: float) -> list[ScheduledHeartbeat]:
        """Hand out the due heartbeats, the longest due first. Give each to `reschedule`.

        While Step Functions refuses heartbeats, jobs that it heard of in the last interval
        skip one.
        """
        with self._lock:
            taken = self._take_until(now)
            skipped = [heartbeat for heartbeat in taken if self._can_skip(heartbeat, now)]
            for heartbeat in skipped:
                self.reschedule(heartbeat, now, sent=False, failed=False)
            return [heartbeat for heartbeat in taken if heartbeat.key in self._in_flight]

    def take_all(self, cycle: HeartbeatCycle) -> list[ScheduledHeartbeat]:
        """Hand out all heartbeats. The cycle waits for them and for those in flight."""
        with self._lock:
            taken = self._take_until(inf)
            for heartbeat in self._in_flight.values():
                heartbeat.cycles.append(cycle)
            cycle.in_flight = len(self._in_flight)
            if not cycle.in_flight:
                cycle.ended.set()
            return taken

    def reschedule(
        self,
        heartbeat: ScheduledHeartbeat,
        now: float,
        *,
        sent: bool,
        failed: bool,
        refused: bool = False,
    ) -> None:
        """Take a heartbeat back and schedule the job's next one, unless it was dropped.

        `refused` says that it failed because Step Functions refused it.
        """
        with self._lock:
            del self._in_flight[heartbeat.key]
            if refused:
                self._refused_until = now + self._timing.interval_seconds
                failed = heartbeat.key in self._received_at
            elif sent and not failed:
                heartbeat.accepted_at = now
            for cycle in heartbeat.cycles:
                cycle.sent += sent
                cycle.in_flight -= 1
                if not cycle.in_flight:
                    cycle.ended.set()
            heartbeat.cycles.clear()
            if heartbeat.live:
                self._put(heartbeat, self._compute_due_at(heartbeat, now, failed))

    # -- under the lock

    def _take_until(self, until: float) -> list[ScheduledHeartbeat]:
        taken = []
        while (heartbeat := self.take(until)) is not None:
            self._in_flight[heartbeat.key] = heartbeat
            taken.append(heartbeat)
        return taken

    def _can_skip(self, heartbeat: ScheduledHeartbeat, now: float) -> bool:
        """Return whether the job may wait, for the benefit of jobs that were refused."""
        heard_lately = now - heartbeat.accepted_at < 1.5 * self._timing.interval_seconds
        needs_beat = heartbeat.beat_again or not heard_lately
        return self._timing.can_skip and now < self._refused_until and not needs_beat

    def _compute_due_at(self, heartbeat: ScheduledHeartbeat, now: float, failed: bool) -> float:
        if heartbeat.beat_again:
            heartbeat.beat_again, heartbeat.failures = False, 0
            return now
        heartbeat.failures = heartbeat.failures + 1 if failed else 0
        regular_at = self._compute_next_at(heartbeat, now)
        retry_at = self._timing.compute_retry_at(heartbeat.failures, now) if failed else inf
        if retry_at < regular_at:
            return retry_at
        heartbeat.failures = 0
        return regular_at

    def _update_known(self, job: ExportJob) -> bool:
        """Update a known job, and return whether it is scheduled or must not be."""
        if job.job_id in self._forgotten_at:
            return True
        if (heartbeat := self._entries.get(job.job_id)) is None:
            return False
        heartbeat.job = _pick_newer(heartbeat.job, job)
        return True

    def _schedule_new(self, job: ExportJob, new_jobs: int, now: float) -> None:
        heartbeat = self._add(job)
        if job.job_id not in self._in_flight:
            delay = self._timing.compute_first_delay(heartbeat.offset_seconds, new_jobs)
            self._put(heartbeat, now + delay)

    def _add(self, job: ExportJob) -> ScheduledHeartbeat:
        """Add a job. One in flight is reused, or two would be sent at the same time."""
        heartbeat = self._in_flight.get(job.job_id)
        if heartbeat is None:
            offset = self._timing.compute_offset(
                job.job_id, received=job.job_id in self._received_at
            )
            heartbeat = ScheduledHeartbeat(job, offset)
        heartbeat.job, heartbeat.live = job, True
        self._entries[job.job_id] = heartbeat
        return heartbeat

    def _drop(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            if (heartbeat := self._entries.pop(job_id, None)) is not None:
                heartbeat.live = False

    def _compute_next_at(self, heartbeat: ScheduledHeartbeat, now: float) -> float:
        return self._timing.compute_next_at(heartbeat.offset_seconds, now)


def _pick_newer(known: ExportJob, listed: ExportJob) -> ExportJob:
    """Return the job with the latest token, because a listing may be behind."""
    return known if listed.token_generation < known.token_generation else listed
