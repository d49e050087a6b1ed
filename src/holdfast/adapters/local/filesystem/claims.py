"""Claiming: the next task that is due, or one whose holder's time is over."""

import re
from random import Random
from threading import Lock

from holdfast.adapters.local.filesystem import names
from holdfast.adapters.local.filesystem.names import Task
from holdfast.adapters.local.filesystem.segments import SegmentReader
from holdfast.adapters.local.filesystem.timeline import Timeline
from holdfast.adapters.local.filesystem.tree import Tree
from holdfast.adapters.local.filesystem.workers import WorkerCard, Workers
from holdfast.core.clock import Clock

# How often leased/ is looked through for leases that ran out: often enough for short
# leases, rarely enough that a thousand idle workers do not wear out a file server.
LOOK_SHARE = 0.25
LOOK_SECONDS = 0.5


class Hold:
    """The receipt of a claim: the name our task has now."""

    __slots__ = (
        "asked_at",
        "claimed_ms",
        "closed",
        "lock",
        "name",
        "saved",
        "stolen_from",
        "task",
        "worker",
    )

    def __init__(
        self,
        task: Task,
        worker: str,
        name: str,
        claimed_ms: int,
        asked_at: float,
        stolen_from: str | None,
    ) -> None:
        self.task = task
        self.worker = worker
        self.name = name
        self.claimed_ms = claimed_ms
        self.asked_at = asked_at
        self.stolen_from = stolen_from
        # A renewal changes the name. Whoever settles must not read it half-way: it would
        # take its own renewal for a thief.
        self.lock = Lock()
        self.closed = False
        self.saved = False  # a checkpoint

    @property
    def path(self) -> str:
        return f"leased/{self.name}"


class Claims:
    """One worker's way of claiming. Not shared between threads."""

    def __init__(
        self,
        tree: Tree,
        timeline: Timeline,
        workers: Workers,
        clock: Clock,
        random: Random,
        lease_seconds: float,
    ) -> None:
        self._tree, self._timeline, self._workers, self._clock = tree, timeline, workers, clock
        self._held_ms = int(lease_seconds * 1000)
        self._reader = SegmentReader(tree, random)
        self._overdue: list[re.Match[str]] = []
        self._look_every = min(LOOK_SECONDS, lease_seconds * LOOK_SHARE)
        self._look_at = 0.0
        self.me: WorkerCard = workers.enrol()

    def next(self) -> Hold | None:
        """Take one, overdue ones first: they have waited longest."""
        return self._steal() or self._claim()

    def _claim(self) -> Hold | None:
        while (waiting := self._reader.next(self._timeline.wall_ms())) is not None:
            match = names.PENDING.fullmatch(waiting.name)
            if match and (
                hold := self._take(
                    f"pending/{waiting.segment}/{waiting.name}", names.task(match)
                )
            ):
                return hold
            self._reader.lost_race()
        return None

    def _steal(self) -> Hold | None:
        if (now := self._clock.monotonic()) >= self._look_at:
            self._look_at = now + self._look_every
            self._workers.seen(self.me, now)
            self._overdue = [m for m in self._leased() if self._is_overdue(m)]
        while self._overdue:
            match = self._overdue.pop()
            if hold := self._take(f"leased/{match[0]}", names.task(match), match[4]):
                return hold
        return None

    def _leased(self) -> list[re.Match[str]]:
        return list(filter(None, map(names.LEASED.fullmatch, self._tree.list("leased"))))

    def _is_overdue(self, match: re.Match[str]) -> bool:
        return self._workers.expired(match[4], int(match[5]) + int(match[6]))

    def _take(self, source: str, task: Task, stolen_from: str | None = None) -> Hold | None:
        asked_at = self._clock.monotonic()
        claimed_ms = self._timeline.lease_ms()
        mine = Task(task.key, task.fence + 1, task.refunds)
        name = names.leased_name(mine, self.me.token, claimed_ms, self._held_ms)
        if not self._tree.rename(source, f"leased/{name}"):
            return None
        return Hold(mine, self.me.token, name, claimed_ms, asked_at, stolen_from)
