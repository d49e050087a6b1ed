"""When to beat which job: the rules, and the agenda that keeps them.

    one interval   ├─ places of the jobs ──────┼─ room for retries ─────────┤
                   ▲ cycle: the store is listed                             ▲ next cycle

Each job has a place of its own in the first half of every interval, by its id. So beats
are spread, the gap between two of a job's is the interval whoever sends them, and a beat
that fails at its place can be tried again before the next.

A job is on the agenda, or handed out and not back yet. That is what makes a second beat
of the same job at the same time impossible, however slow the first is.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from itertools import count
from math import floor, inf
from threading import Lock

from holdfast.jobs.heartbeats.cycle import HeartbeatCycle
from holdfast.jobs.model import ExportJob

# Of 2 s, for intervals of 30 s and more. The last is what lets a job whose HeartbeatSeconds
# is twice the interval live through an outage of 20 s, wherever in the interval it begins.
_RETRY_UNITS = (1, 2, 4, 4)
_FEW = 100  # jobs that may be beaten all at once
_FOUND_PER_SECOND = 500  # what Step Functions takes without throttling, by its quotas
_SMALL = 1024  # heap entries that are never worth a sweep
_OUT = -inf  # the due time of what is handed out


@dataclass(frozen=True, slots=True)
class HeartbeatTiming:
    """The rules of time: values in, values out. All times are monotonic."""

    interval_seconds: float
    began_at: float

    def place_seconds(self, job_id: str) -> float:
        """Where in the interval the job is beaten: always the same, in its first half."""
        digest = blake2b(job_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest) / 2**64 * self.interval_seconds / 2

    def next_place(self, place_seconds: float, now: float) -> float:
        """The first time of that place after `now`: at most an interval away. After a
        freeze of many intervals it is one time, not many."""
        first = self.began_at + place_seconds
        past = floor((now - first) / self.interval_seconds) + 1
        at = first + past * self.interval_seconds
        return at if at > now else at + self.interval_seconds

    def retry_at(self, failures: int, now: float) -> float:
        """After 2, 4, 8 and 8 s, less for short intervals; then not until its place."""
        if failures > len(_RETRY_UNITS):
            return inf
        return now + min(2.0, self.interval_seconds / 15) * _RETRY_UNITS[failures - 1]

    def found_seconds(self, place_seconds: float, found: int) -> float:
        """How soon to beat a job that was just found, one of `found`.

        Nobody knows when it was last beaten, so: as soon as can be. But thousands at once,
        after a start, would be throttled and beaten later still.
        """
        if found <= _FEW:
            return 0.0
        return place_seconds * min(1.0, found / _FOUND_PER_SECOND / (self.interval_seconds / 2))


class ScheduledHeartbeat:
    """One job on the agenda."""

    __slots__ = (
        "again",
        "due_at",
        "failures",
        "forgotten",
        "job",
        "place_seconds",
        "received_at",
        "rounds",
    )

    def __init__(self, job: ExportJob, place_seconds: float) -> None:
        self.job = job
        self.place_seconds = place_seconds
        self.due_at = inf
        self.failures = 0  # in a row, since its place
        self.received_at = inf  # here: it stays whatever a listing says; inf: elsewhere
        self.again = False  # asked for while it was handed out
        self.forgotten = False
        self.rounds: list[HeartbeatCycle] = []  # that wait until it is back


class HeartbeatSchedule:
    """Which job is beaten when. Safe to share between threads."""

    def __init__(self, rhythm: HeartbeatTiming) -> None:
        self._rhythm = rhythm
        self._pulses: dict[str, ScheduledHeartbeat] = {}
        self._gone: dict[str, float] = {}  # forgotten ones, until the listing agrees
        self._heap: list[tuple[float, int, ScheduledHeartbeat]] = []
        self._numbers = count()
        self._out: dict[str, ScheduledHeartbeat] = {}  # handed out, forgotten ones too
        self._lock = Lock()

    # -- what to beat

    def receive(self, job: ExportJob, now: float, *, beat: bool = True) -> None:
        """The job is worked on here: beat it now, and on until it is forgotten."""
        with self._lock:
            self._gone.pop(job.job_id, None)
            pulse = self._pulses.get(job.job_id)
            if pulse is None:
                pulse = self._add(job)
            pulse.job, pulse.received_at = _newer(pulse.job, job), now
            if pulse.due_at == _OUT:
                # The beat under way may be of an older token: this one needs its own.
                pulse.again = beat
            else:
                self._put(pulse, now if beat else self._place(pulse, now))

    def forget(self, job_id: str, now: float) -> None:
        """Not beaten any more, even if a listing that is behind still has it."""
        with self._lock:
            self._gone[job_id] = now
            self._drop(job_id)

    def listed(self, jobs: Iterable[ExportJob], *, asked_at: float, now: float) -> None:
        """What the store says is to be beaten; asked for at `asked_at`.

        What was only known from an earlier listing and is not in this one is dropped.
        """
        with self._lock:
            active = {job.job_id: job for job in jobs}
            self._gone = {
                job_id: at
                for job_id, at in self._gone.items()
                if job_id in active or at >= asked_at
            }
            for job_id in [k for k, p in self._pulses.items() if k not in active]:
                if self._pulses[job_id].received_at == inf:
                    self._drop(job_id)
            found = [job for job in active.values() if not self._knows(job)]
            for job in found:
                self._find(job, len(found), now)
            self._sweep()

    def hold_back(self, job_ids: Iterable[str]) -> None:
        """Do not beat these, local or not, until a listing brings them again."""
        with self._lock:
            for job_id in job_ids:
                self._drop(job_id)

    def received_before(self, at: float) -> list[str]:
        """The jobs that were received here before that."""
        with self._lock:
            return [k for k, pulse in self._pulses.items() if pulse.received_at < at]

    # -- handing out

    def take(self, now: float) -> list[ScheduledHeartbeat]:
        """Hand out what is due, the longest due first. Bring each back."""
        with self._lock:
            return self._take(now)

    def take_all(self, cycle: HeartbeatCycle) -> list[ScheduledHeartbeat]:
        """Hand out everything. The round waits for these, and for those that are out."""
        with self._lock:
            taken = self._take(inf)
            for pulse in self._out.values():
                cycle.join()
                pulse.rounds.append(cycle)
            return taken

    def bring_back(
        self, pulse: ScheduledHeartbeat, now: float, *, sent: bool, failed: bool
    ) -> float:
        """When it is due again; infinity when it was forgotten meanwhile."""
        with self._lock:
            del self._out[pulse.job.job_id]
            for cycle in pulse.rounds:
                cycle.leave(sent=sent)
            pulse.rounds.clear()
            if not pulse.forgotten:
                self._put(pulse, self._due_again(pulse, now, failed))
            return inf if pulse.forgotten else pulse.due_at

    def first_at(self) -> float:
        """When the next beat is due; infinity when there is none."""
        with self._lock:
            return self._first_at()

    def __len__(self) -> int:
        return len(self._pulses)

    # -- under the lock

    def _take(self, until: float) -> list[ScheduledHeartbeat]:
        taken = []
        while self._first_at() <= until and self._heap:
            pulse = heappop(self._heap)[2]
            pulse.due_at = _OUT
            self._out[pulse.job.job_id] = pulse
            taken.append(pulse)
        return taken

    def _due_again(self, pulse: ScheduledHeartbeat, now: float, failed: bool) -> float:
        if pulse.again:
            pulse.again, pulse.failures = False, 0
            return now
        pulse.failures = pulse.failures + 1 if failed else 0
        place = self._place(pulse, now)
        retry = self._rhythm.retry_at(pulse.failures, now) if failed else inf
        if retry < place:
            return retry
        pulse.failures = 0
        return place

    def _knows(self, job: ExportJob) -> bool:
        """True when it is beaten already, or must not be; takes in what is new of it."""
        if job.job_id in self._gone:
            return True
        if (pulse := self._pulses.get(job.job_id)) is None:
            return False
        pulse.job = _newer(pulse.job, job)
        return True

    def _find(self, job: ExportJob, found: int, now: float) -> None:
        pulse = self._add(job)
        if pulse.due_at != _OUT:
            self._put(pulse, now + self._rhythm.found_seconds(pulse.place_seconds, found))

    def _add(self, job: ExportJob) -> ScheduledHeartbeat:
        """One that is still handed out goes on: another would be beaten beside it."""
        pulse = self._out.get(job.job_id)
        if pulse is None:
            pulse = ScheduledHeartbeat(job, self._rhythm.place_seconds(job.job_id))
        pulse.job, pulse.forgotten = job, False
        self._pulses[job.job_id] = pulse
        return pulse

    def _drop(self, job_id: str) -> None:
        if (pulse := self._pulses.pop(job_id, None)) is not None:
            pulse.forgotten = True

    def _place(self, pulse: ScheduledHeartbeat, now: float) -> float:
        return self._rhythm.next_place(pulse.place_seconds, now)

    def _put(self, pulse: ScheduledHeartbeat, due_at: float) -> None:
        pulse.due_at = due_at
        heappush(self._heap, (due_at, next(self._numbers), pulse))

    def _first_at(self) -> float:
        while self._heap and _outdated(self._heap[0]):
            heappop(self._heap)
        return self._heap[0][0] if self._heap else inf

    def _sweep(self) -> None:
        """Outdated entries are few, unless many jobs end early in an interval."""
        if len(self._heap) > max(_SMALL, 2 * len(self._pulses)):
            self._heap = [entry for entry in self._heap if not _outdated(entry)]
            heapify(self._heap)


def _outdated(entry: tuple[float, int, ScheduledHeartbeat]) -> bool:
    due_at, _, pulse = entry
    return pulse.forgotten or pulse.due_at != due_at


def _newer(known: ExportJob, told: ExportJob) -> ExportJob:
    """A listing may be behind: the token that a job was given last stays."""
    return known if told.token_generation < known.token_generation else told
