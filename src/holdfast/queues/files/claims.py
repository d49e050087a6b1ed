"""Claiming: take the next task that is due, or take over one whose lease has ended."""

import re
from dataclasses import dataclass, field
from math import ceil
from random import Random
from threading import Lock

from holdfast.errors import LeaseLost
from holdfast.queues.files import layout
from holdfast.queues.files.directory import QueueDirectory
from holdfast.queues.files.layout import TaskName
from holdfast.queues.files.segments import SegmentReader
from holdfast.queues.files.server_clock import ServerClock
from holdfast.queues.files.workers import LeaseWatch, WorkerCard, WorkerRegistry

# How often leased/ is scanned for leases that ran out: often enough for short leases, and
# rarely enough that a thousand idle workers do not overload a file server.
SCAN_LEASE_FRACTION = 0.25
MAX_SCAN_INTERVAL_SECONDS = 0.5
TAKEN_AWAY = "another worker took the message over, or an operator cancelled it"


@dataclass(slots=True, eq=False)
class Claim:
    """The receipt of a claim: the path that the claimed task has now."""

    task: TaskName
    worker: str
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
        self._watch = LeaseWatch(directory, server_clock)
        self._reader = SegmentReader(directory, server_clock, random)
        self._overdue: list[re.Match[str]] = []
        self._scan_interval_seconds = min(
            MAX_SCAN_INTERVAL_SECONDS, lease_seconds * SCAN_LEASE_FRACTION
        )
        self._scan_at = 0.0
        self.me: WorkerCard = workers.register()
        self._token = self.me.token

    def claim_next(self, now: float) -> Claim | None:
        """Claim one task, or return None if none can be claimed.

        Tasks whose lease ended come first, because they have waited longest. `now` is the
        monotonic time from before this call. The lease is trusted from there on.
        """
        if now >= self._scan_at:
            self._scan_leases(now)
        while self._overdue:
            late = self._overdue.pop()
            source, (task, stem) = f"leased/{late[0]}", layout.parse_claimed(late)
            try:
                if claim := self._try_claim(source, task, stem, now, late["worker"]):
                    return claim
            except PermissionError:  # in a sticky folder only its own user may move a file
                if not self._directory.can_use("leased"):
                    raise
        reader = self._reader
        while reader.tasks or reader.refill():
            _, name, task, stem = reader.tasks.pop()
            if claim := self._try_claim(f"{reader.folder}/{name}", task, stem, now):
                return claim
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
        return Claim(task, self._token, name, path, claimed_ms, taken_over_from)
