"""Claiming: take the next task that is due, or take over one whose lease has ended."""

import re
from dataclasses import dataclass, field
from math import ceil, inf
from random import Random
from threading import Lock

from holdfast.errors import LeaseLost
from holdfast.queues.files import layout
from holdfast.queues.files.directory import QueueDirectory
from holdfast.queues.files.layout import TaskName
from holdfast.queues.files.workers import LeaseWatch, ServerClock, WorkerCard, WorkerRegistry

# How often leased/ is scanned for leases that ran out: often enough for short leases, and
# rarely enough that a thousand idle workers do not overload a file server.
SCAN_LEASE_FRACTION = 0.25
MAX_SCAN_INTERVAL_SECONDS = 0.5
REMOVE_AFTER_MS = 10_000  # producers no longer add to segments older than this
RELIST_MS = 2000
# With competitors, a worker starts in one of this many oldest segments.
MAX_SEGMENT_CHOICES = 8
MAX_LOST_RACES = 4  # after this many lost races the listing is too old to continue with
TAKEN_AWAY = "another worker took the message over, or an operator cancelled it"


@dataclass(slots=True, eq=False)
class Claim:
    """The receipt of a claim: the path that the claimed task has now."""

    task: TaskName
    worker_id: str
    name: str  # of the task and its worker, the part that no renewal changes
    path: str
    claimed_ms: int
    taken_over_from: str | None
    # A renewal changes the path. A thread that settles must not read the path in the middle of
    # that: it would take its own renewal for a takeover.
    lock: Lock = field(default_factory=Lock)
    closed: bool = False
    saved: bool = False  # whether this attempt saved a checkpoint

    def renew(self, directory: QueueDirectory, asked_ms: int, lease_ms: int) -> bool:
        """Let the lease count from `asked_ms`; return False if the task was taken over."""
        with self.lock:
            if self.closed:
                return True  # it was settled after the keeper decided to renew it
            renewed_after_ms = asked_ms - self.claimed_ms
            path = f"leased/{self.name}~{self.claimed_ms}+{renewed_after_ms}+{lease_ms}.json"
            if renewed := directory.rename(self.path, path):
                self.path = path
            return renewed

    def settle(self, directory: QueueDirectory, target: str) -> LeaseLost | None:
        """Move the task to `target`, or return LeaseLost if it was taken away.

        The call can be repeated, because the task has moved already if a failed sync
        interrupted the settlement.
        """
        with self.lock:
            if self.closed:
                is_same = _get_state_folder(self.path) == _get_state_folder(target)
                return None if is_same else make_lease_lost()
            # The folder of the target may have to be made, or made again.
            if not (directory.rename(self.path, target) or directory.move(self.path, target)):
                return make_lease_lost()
            self.path, self.closed = target, True
        return None


def _get_state_folder(path: str) -> str:
    return path.partition("/")[0]


def make_lease_lost() -> LeaseLost:
    """Return the error of a claim whose task was taken away."""
    return LeaseLost(f"the lease is gone: {TAKEN_AWAY}")


ListedTask = tuple[int, str, TaskName, str]
"""The due time of a task, its name in its folder, and its form and stem once claimed."""


def _parse_claimed(match: re.Match[str]) -> tuple[TaskName, str]:
    """Return what a matched task becomes with one more claim, and the stem of its new name.

    The last fence that a name can carry is its own successor. Such a task is only
    dead-lettered, and its name must stay one that operators' commands can read.
    """
    key, fence_text, refunds_text = match.group("key", "fence", "refunds")
    fence = min(int(fence_text) + 1, layout.LAST_FENCE)
    if not refunds_text:
        return TaskName(key, fence, 0), f"{key}~{fence}"
    task = TaskName(key, fence, int(refunds_text))
    return task, task.stem


class SegmentReader:
    """Finds the tasks that a worker may claim next. Not shared between threads."""

    def __init__(
        self, directory: QueueDirectory, server_clock: ServerClock, random: Random
    ) -> None:
        self._directory, self._server_clock, self._random = directory, server_clock, random
        self.folder = ""  # the folder of `tasks`
        self.tasks: list[ListedTask] = []
        """The tasks to claim next, by due time; the last is next. A task may be gone."""
        self._segments: list[str] = []  # last is oldest
        self._listed_ms = 0
        self._losses = 0
        self._has_competitors = self._has_lost_races = False
        self.may_list = True
        """Whether pending/ may be listed: once for a batch, and again after a lost race."""

    def note_lost_race(self) -> None:
        """Note that another worker claimed the task first.

        The next task is from another position, and after a few losses from a new listing.
        """
        self._losses += 1
        self._has_competitors = self._has_lost_races = self.may_list = True
        if self._losses >= MAX_LOST_RACES:
            self.tasks.clear()
        elif len(self.tasks) > 1:
            cut = self._random.randrange(len(self.tasks))
            self.tasks = self.tasks[cut:] + self.tasks[:cut]

    def refill(self) -> bool:
        """Read segments, oldest first, until one has tasks that are due; False if none has.

        Tasks were due when they were listed, so only a new listing reads the clock.
        """
        if not (self._segments or self.may_list):
            return False
        now_ms = self._server_clock.read_wall_ms()
        while not self.tasks:
            if not self._segments or now_ms - self._listed_ms > RELIST_MS:
                if self.may_list:
                    self._relist(now_ms)
                if not self._segments:
                    return False
            self._read(self._pick(), now_ms)
        return True

    def _relist(self, now_ms: int) -> None:
        started = f"{now_ms:013d}~"  # sorts behind every segment that starts by now
        listed = filter(layout.SEGMENT.fullmatch, self._directory.list_required("pending"))
        segments = sorted(listed, reverse=True)
        ahead = [s for s in segments if s > started and layout.is_due_when_pushed(s)]
        self._segments = [s for s in segments if s < started] + ahead
        self._listed_ms, self.may_list = now_ms, False
        self._has_competitors, self._has_lost_races = self._has_lost_races, False

    def _pick(self) -> str:
        if not self._has_competitors:
            return self._segments.pop()
        behind = self._random.randrange(min(MAX_SEGMENT_CHOICES, len(self._segments)))
        return self._segments.pop(-1 - behind)

    def _read(self, segment: str, now_ms: int) -> None:
        self.folder = f"pending/{segment}"
        self._losses = 0
        listed = self._directory.list_readable(self.folder)
        start_ms = int(segment[:13])
        is_final = segment[-1] == "s" or abs(now_ms - start_ms) > REMOVE_AFTER_MS
        if not listed and is_final and self._directory.can_use(self.folder):
            self._directory.remove_folder(self.folder)
        latest_ms = inf if start_ms % layout.OPEN_MS else now_ms  # as is_due_when_pushed
        matches = filter(None, map(layout.PENDING.fullmatch, listed))
        self.tasks = [
            (due_ms, match[0], *_parse_claimed(match))
            for match in matches
            if (due_ms := int(match["due_ms"])) <= latest_ms
        ]
        self.tasks.sort(reverse=True)


class Claimer:
    """Claims tasks for one worker. Not shared between threads."""

    def __init__(
        self,
        directory: QueueDirectory,
        server_clock: ServerClock,
        workers: WorkerRegistry,
        random: Random,
        lease_seconds: float,
    ) -> None:
        self._directory, self._workers = directory, workers
        self._clock_offset = server_clock.offset
        self._lease_ms = ceil(lease_seconds * 1000)
        self._watch = LeaseWatch(server_clock.clock)
        self.reader = SegmentReader(directory, server_clock, random)
        self._overdue: list[re.Match[str]] = []
        self._scan_interval_seconds = min(
            MAX_SCAN_INTERVAL_SECONDS, lease_seconds * SCAN_LEASE_FRACTION
        )
        self._scan_at = 0.0
        self.me: WorkerCard = workers.register()
        self._token, self._worker_id = self.me.token, self.me.worker_id

    def claim_next(self, now: float) -> Claim | None:
        """Claim one task, or return None if none can be claimed.

        Tasks whose lease ended come first, because they have waited longest. `now` is the
        monotonic time from before this call. The lease is trusted from there on.
        """
        if now >= self._scan_at:
            self._scan_leases(now)
        while self._overdue:
            late = self._overdue.pop()
            source, (task, stem) = f"leased/{late[0]}", _parse_claimed(late)
            try:
                if claim := self._try_claim(source, task, stem, now, late["worker"]):
                    return claim
            except PermissionError:  # in a sticky folder only its own user may move a file
                if not self._directory.can_use("leased"):
                    raise
        reader = self.reader
        while reader.tasks or reader.refill():
            _, name, task, stem = reader.tasks.pop()
            try:
                if claim := self._try_claim(f"{reader.folder}/{name}", task, stem, now):
                    return claim
            except PermissionError:
                if self._directory.can_use(reader.folder):
                    raise
                # Another user closed it: other work continues, and doctor reports it.
                reader.tasks.clear()
                continue
            # Without leased/ this worker would lose every race, so raise instead.
            self._directory.require_folder("leased")
            reader.note_lost_race()
        return None

    def _scan_leases(self, now: float) -> None:
        self._scan_at = now + self._scan_interval_seconds
        self._workers.mark_seen(self.me, now)
        self._overdue, others = [], []
        for name in self._directory.list_required("leased"):
            if leased := layout.LEASED.fullmatch(name):
                ended = self._workers.has_ended(leased, now)
                if ended is None:
                    others.append(leased)
                elif ended:
                    self._overdue.append(leased)
        if others:
            self._overdue += self._watch.find_unchanged(others, now)

    def _try_claim(
        self,
        source: str,
        task: TaskName,
        stem: str,
        now: float,
        taken_over_from: str | None = None,
    ) -> Claim | None:
        name = f"{stem}~{self._token}"
        claimed_ms = ceil((now + self._clock_offset) * 1000)  # as ServerClock.to_stamp_ms
        path = f"leased/{name}~{claimed_ms}+0+{self._lease_ms}.json"
        if not self._directory.rename(source, path):
            return None
        return Claim(task, self._worker_id, name, path, claimed_ms, taken_over_from)
