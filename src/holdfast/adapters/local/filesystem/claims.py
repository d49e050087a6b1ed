"""Claiming: the next task that is due, or one whose holder's time is over."""

import re
from math import ceil
from random import Random
from threading import Lock

from holdfast.adapters.local.filesystem import names
from holdfast.adapters.local.filesystem.directory import QueueDirectory
from holdfast.adapters.local.filesystem.lease_watch import LeaseWatch
from holdfast.adapters.local.filesystem.names import TaskName
from holdfast.adapters.local.filesystem.segments import SegmentReader
from holdfast.adapters.local.filesystem.server_clock import ServerClock
from holdfast.adapters.local.filesystem.workers import WorkerCard, WorkerRegistry

# How often leased/ is looked through for leases that ran out: often enough for short
# leases, rarely enough that a thousand idle workers do not wear out a file server.
LOOK_SHARE = 0.25
LOOK_SECONDS = 0.5


class Claim:
    """The receipt of a claim: the path our task has now."""

    __slots__ = (
        "claimed_ms",
        "closed",
        "lock",
        "path",
        "saved",
        "stolen_from",
        "task",
        "worker",
    )

    def __init__(
        self, task: TaskName, worker: str, path: str, claimed_ms: int, stolen_from: str | None
    ) -> None:
        self.task = task
        self.worker = worker
        self.path = path
        self.claimed_ms = claimed_ms
        self.stolen_from = stolen_from
        # A renewal changes the path. Whoever settles must not read it half-way: it would
        # take its own renewal for a thief.
        self.lock = Lock()
        self.closed = False
        self.saved = False  # a checkpoint


class Claimer:
    """One worker's way of claiming. Not shared between threads."""

    def __init__(
        self,
        tree: QueueDirectory,
        timeline: ServerClock,
        workers: WorkerRegistry,
        random: Random,
        lease_seconds: float,
    ) -> None:
        self._tree, self._timeline, self._workers = tree, timeline, workers
        self._lease_ms = ceil(lease_seconds * 1000)
        self._watch = LeaseWatch(tree, timeline)
        self._reader = SegmentReader(tree, timeline, random)
        self._overdue: list[re.Match[str]] = []
        self._look_every = min(LOOK_SECONDS, lease_seconds * LOOK_SHARE)
        self._look_at = 0.0
        self.me: WorkerCard = workers.enrol()
        self._token = self.me.token

    def next(self, now: float) -> Claim | None:
        """Take one, overdue ones first: they have waited longest.

        `now` is the monotonic time from before this call; trust counts from there.
        """
        if now >= self._look_at:
            self._look(now)
        while self._overdue:
            late = self._overdue.pop()
            source, task = f"leased/{late[0]}", names.task(late).claimed()
            try:
                if hold := self._take(source, task, now, stolen_from=late["worker"]):
                    return hold
            except PermissionError:  # in a sticky folder it is its user's alone
                if not self._tree.can_use("leased"):
                    raise
        reader = self._reader
        while (listed := reader.next()) is not None:
            _, name, task = listed
            if hold := self._take(f"{reader.folder}/{name}", task, now):
                return hold
            self._tree.need("leased")  # or no race will ever be won
            reader.lost_race()
        return None

    def _look(self, now: float) -> None:
        self._look_at = now + self._look_every
        self._workers.seen(self.me, now)
        self._overdue, others = [], []
        for name in self._tree.list_fixed("leased"):
            if leased := names.LEASED.fullmatch(name):
                ended = self._workers.has_ended(leased, now)
                if ended is None:
                    others.append(leased)
                elif ended:
                    self._overdue.append(leased)
        self._overdue += self._watch.find_unchanged(others, now)

    def _take(
        self, source: str, task: TaskName, now: float, stolen_from: str | None = None
    ) -> Claim | None:
        token, claimed_ms = self._token, self._timeline.stamp_ms(now)
        path = names.leased_path(task.stem, token, claimed_ms, 0, self._lease_ms)
        if not self._tree.rename(source, path):
            return None
        return Claim(task, token, path, claimed_ms, stolen_from)
