"""Watch a queue for people, at a cost that does not grow with the number of viewers.

    viewer ─┐
    viewer ─┼─▶ Reading.get ──▶ the last value, at once
    viewer ─┘        └─ if it is old: one thread reads again

A read that takes long is repeated less often, so that reading takes at most `MAX_SHARE` of a
core, however many messages the queue has and however many people look at it.
"""

import logging
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from math import inf
from threading import Condition, Lock, Thread
from typing import Any, Generic, TypeVar

from holdfast.errors import HoldfastError
from holdfast.lease.clock import SYSTEM_CLOCK, Clock, to_utc
from holdfast.queue.info import (
    Holder,
    MessageInfo,
    MessagePage,
    MessageState,
    QueueStats,
    QueueWorker,
    contains_text,
)
from holdfast.queue.manager import QueueManager

T = TypeVar("T")
S = TypeVar("S", bound=Any)  # it has `close`

MAX_SHARE = 0.02  # of a core
MINUTES = 60
MAX_LEASES = 100
QUIET_SECONDS = 30.0  # workers mark themselves as seen every ten seconds
_MIN_SECONDS = 1.0  # between two reads
_MAX_LIVE_SECONDS = 2.0  # a page of leases is read fast, and is useless if it is old
_SAMPLE_SECONDS = 15.0
_AT_RISK = 1 / 3  # of the lease: the keeper renews well before
_MINUTES_OF_RATE = 5
_log = logging.getLogger("holdfast")


class Reading(Generic[T]):
    """A value that is read again when it is old. Safe for threads."""

    def __init__(
        self,
        read: Callable[[], T],
        clock: Clock,
        min_seconds: float = _MIN_SECONDS,
        max_seconds: float = inf,
    ) -> None:
        self._read, self._clock = read, clock
        self._min_seconds, self._max_seconds = min_seconds, max_seconds
        self._condition = Condition(Lock())
        self._value: T | None = None
        self._due_at = 0.0
        self._is_reading = False

    def get(self, wait_seconds: float = 0.0) -> T | None:
        """Return the last value, or None if there is none yet.

        If the value is old, a thread reads a new one, for which this waits so long at most.
        """
        with self._condition:
            if not self._is_reading and self._clock.monotonic() >= self._due_at:
                self._is_reading = True
                Thread(target=self._refresh, name="holdfast-watch", daemon=True).start()
            if wait_seconds > 0:
                self._condition.wait_for(lambda: not self._is_reading, wait_seconds)
            return self._value

    def expire(self) -> None:
        """Read again at the next `get`, because an operator changed something."""
        with self._condition:
            self._due_at = 0.0

    def _refresh(self) -> None:
        began_at = self._clock.monotonic()
        value = self._value
        try:
            value = self._read()
        except Exception:
            _log.exception("a queue could not be watched")
        ended_at = self._clock.monotonic()
        is_first = self._value is None  # it also opened the queue, and says nothing of others
        took = 0.0 if is_first else ended_at - began_at
        pause = min(max(self._min_seconds, took * (1 / MAX_SHARE - 1)), self._max_seconds)
        with self._condition:
            self._value, self._is_reading, self._due_at = value, False, ended_at + pause
            self._condition.notify_all()


class LazyStore(Generic[S]):
    """A queue or store that is opened with the first read, and again until that succeeds.

    So it may be created after the console was started. Safe for threads.
    """

    def __init__(self, open_store: Callable[[], S]) -> None:
        self._open, self._lock = open_store, Lock()
        self.opened: S | None = None

    def get(self) -> S:
        """Return the open store. Raises HoldfastError if it cannot be opened."""
        with self._lock:
            if self.opened is None:
                self.opened = self._open()
            return self.opened

    def close(self) -> None:
        """Close the store. Reads that come later open it again."""
        with self._lock:
            store, self.opened = self.opened, None
        if store is not None:
            store.close()


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """The counts of a queue, or the problem that keeps it from being read.

    `completed` holds the completions of each of the last minutes, and None if the queue does
    not keep their times.
    """

    at: datetime
    stats: QueueStats | None = None
    completed: Sequence[int] | None = None
    problem: str = ""

    @property
    def per_minute(self) -> float | None:
        """The completions per minute, over the last minutes."""
        if self.completed is None:
            return None
        return sum(self.completed[-_MINUTES_OF_RATE:]) / _MINUTES_OF_RATE


@dataclass(frozen=True, slots=True)
class LiveLeases:
    """The leases and the workers of a queue. Each is None if the queue cannot tell.

    The leases that end first are among them, in the order of their claims, so that a renewal
    moves no row of a list.
    """

    at: datetime
    leases: Sequence[MessageInfo] | None = None
    workers: Sequence[QueueWorker] | None = None
    has_more_leases: bool = False
    problem: str = ""


class Activity(Enum):
    """Whether workers work on a queue."""

    WORKING = "working"
    IDLE = "idle"
    NO_WORKER = "no worker is polling"
    UNKNOWN = "unknown"


class LeaseHealth(Enum):
    """How sure it is that a lease is renewed."""

    HELD = "held"
    STALLED = "stalled"  # it is renewed, but its handler has not beaten for a whole lease
    AT_RISK = "at risk"  # it should have been renewed by now
    EXPIRED = "expired"  # the next worker that polls takes the message over


def judge_lease(holder: Holder, now: datetime) -> LeaseHealth:
    """Return the health of a lease at `now`, the time when the queue was read.

    A later time would call every lease endangered that was renewed since.
    """
    left = (holder.expires_at - now).total_seconds()
    if left <= 0:
        return LeaseHealth.EXPIRED
    if holder.lease_seconds is None:
        return LeaseHealth.HELD
    if left < holder.lease_seconds * _AT_RISK:
        return LeaseHealth.AT_RISK
    # Beats are written with renewals, of which there are several in a lease.
    since = (now - holder.beat_at).total_seconds() if holder.beat_at else 0.0
    return LeaseHealth.STALLED if since > holder.lease_seconds else LeaseHealth.HELD


def is_polling(worker: QueueWorker, now: datetime) -> bool:
    """Return whether a worker was seen lately."""
    seen = worker.last_seen
    return seen is not None and (now - seen).total_seconds() < QUIET_SECONDS


def judge_activity(live: LiveLeases | None) -> Activity:
    """Return whether workers work on the queue, are idle, or are missing.

    A worker whose slots are all busy does not poll, but it renews its leases.
    """
    if live is None or live.problem or live.workers is None:
        return Activity.UNKNOWN
    holders = [message.holder for message in live.leases or () if message.holder]
    if any(judge_lease(holder, live.at) is not LeaseHealth.EXPIRED for holder in holders):
        return Activity.WORKING
    if any(is_polling(worker, live.at) for worker in live.workers):
        return Activity.IDLE
    return Activity.NO_WORKER


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue as it is shown now. `slug` names it in the addresses of the console."""

    slug: str
    name: str
    counts: QueueCounts | None
    live: LiveLeases | None
    depths: Sequence[tuple[datetime, int]] = ()

    @property
    def problem(self) -> str:
        """Why the queue cannot be read, or an empty text."""
        return (self.counts.problem if self.counts else "") or (
            self.live.problem if self.live else ""
        )

    @property
    def activity(self) -> Activity:
        """Whether workers work on the queue."""
        return judge_activity(self.live)

    @property
    def failed(self) -> int | None:
        """The number of dead letters, or None if it is not known yet."""
        return self.counts.stats.failed if self.counts and self.counts.stats else None

    @property
    def workers(self) -> list[QueueWorker]:
        """The workers, those that poll first, in an order that a poll does not change."""
        live = self.live
        if live is None:
            return []
        return sorted(
            live.workers or (),
            key=lambda worker: (not is_polling(worker, live.at), worker.worker_id),
        )

    @property
    def depths_since(self) -> datetime | None:
        """When the line of the depth begins, or None if it covers the whole hour.

        No queue keeps how deep it was, so the line begins with the console.
        """
        if not self.depths or self.counts is None:
            return None
        first = self.depths[0][0]
        is_whole = self.counts.at - first > timedelta(minutes=MINUTES - 1)
        return None if is_whole else first

    def count_held(self, worker_id: str = "") -> tuple[int, int]:
        """Return how many leases, of a worker or of all, are held, and how many ended."""
        if self.live is None:
            return 0, 0
        holders = [message.holder for message in self.live.leases or () if message.holder]
        ended = [
            judge_lease(holder, self.live.at) is LeaseHealth.EXPIRED
            for holder in holders
            if worker_id in ("", holder.worker_id)
        ]
        return len(ended) - sum(ended), sum(ended)


class QueueWatch:
    """One queue that people look at, in the console or in a live view."""

    def __init__(
        self,
        name: str,
        open_queue: Callable[[], QueueManager[Any]],
        clock: Clock = SYSTEM_CLOCK,
        slug: str = "",
    ) -> None:
        self.name, self.slug, self.clock = name, slug, clock
        self._queue = LazyStore(open_queue)
        self.get_queue = self._queue.get
        self.counts: Reading[QueueCounts] = Reading(self._read_counts, clock)
        self.live: Reading[LiveLeases] = Reading(
            self._read_live, clock, max_seconds=_MAX_LIVE_SECONDS
        )
        self._depths: deque[tuple[datetime, int]] = deque(
            maxlen=int(MINUTES * 60 / _SAMPLE_SECONDS)
        )

    def view(self, wait_seconds: float) -> QueueView:
        """Return what is known, after a wait for what is being read."""
        late_at = self.clock.monotonic() + wait_seconds
        self.counts.get()
        live = self.live.get(wait_seconds)
        counts = self.counts.get(late_at - self.clock.monotonic())
        return QueueView(self.slug, self.name, counts, live, list(self._depths))

    def can(self, *capabilities: str) -> bool:
        """Return whether the queue is open and has these capabilities."""
        queue = self._queue.opened
        return queue is not None and queue.capabilities.issuperset(capabilities)

    def expire(self) -> None:
        """Read everything again, because an operator changed something."""
        self.counts.expire()
        self.live.expire()

    def close(self) -> None:
        """Close the queue. Reads that come later open it again."""
        self._queue.close()

    def _now(self) -> datetime:
        return to_utc(self.clock.time())

    def _read_counts(self) -> QueueCounts:
        try:
            queue = self.get_queue()
            stats = queue.stats()
            can_count = "completions" in queue.capabilities
            completed = queue.count_completed(MINUTES) if can_count else None
        except (HoldfastError, OSError) as error:
            return QueueCounts(self._now(), problem=str(error))
        counts = QueueCounts(self._now(), stats, completed)
        self._note_depth(counts.at, stats.ready + stats.delayed + stats.leased)
        return counts

    def _note_depth(self, at: datetime, depth: int) -> None:
        last = self._depths[-1][0] if self._depths else None
        if last is None or (at - last).total_seconds() >= _SAMPLE_SECONDS:
            self._depths.append((at, depth))

    def _read_live(self) -> LiveLeases:
        try:
            queue = self.get_queue()
            able = queue.capabilities
            page = MessagePage(())
            if "peek" in able:
                page = queue.browse(MessageState.LEASED, limit=MAX_LEASES)
            workers = queue.workers() if "workers" in able else None
        except (HoldfastError, OSError) as error:
            return LiveLeases(self._now(), problem=str(error))
        leases = sorted(page.messages, key=_get_claim_order) if "peek" in able else None
        return LiveLeases(self._now(), leases, workers, page.after is not None)


def _get_claim_order(message: MessageInfo) -> tuple[float, str]:
    claimed_at = message.holder.timestamp.timestamp() if message.holder else 0.0
    return claimed_at, message.key


# -- dead letters: those with a text, with a kind of reason, or with a field of their body.
# Reasons name hosts, ids and numbers. Without these, the reasons of one fault are the same.

MAX_SCANNED = 5_000  # dead letters that are grouped by their reasons
_PAGE = 200
_BATCH = 500
_MAX_SEARCHED = 100_000
_MAX_KIND_LENGTH = 160
_VARIABLE = re.compile(r"""'[^']*'|"[^"]*"|\S*[0-9]\S*""")
_GAPS = re.compile(r"…(?:[\s:,]*…)+")


def simplify_reason(reason: str | None) -> str:
    """Return a reason without what differs between messages of the same fault."""
    text = _VARIABLE.sub("…", " ".join((reason or "").split()))
    return _GAPS.sub("…", text)[:_MAX_KIND_LENGTH]


@dataclass(frozen=True, slots=True)
class ReasonKinds:
    """Reasons without their variable parts, the most frequent first, and their counts."""

    kinds: Sequence[tuple[str, int]]
    scanned: int
    is_complete: bool


def group_reasons(queue: QueueManager[Any], max_kinds: int = 12) -> ReasonKinds:
    """Group the dead letters of a queue, up to a number, by their reasons."""
    counts: Counter[str] = Counter()
    scanned, after = 0, None
    while scanned < MAX_SCANNED:
        page = queue.browse(MessageState.FAILED, after=after, limit=_BATCH)
        counts.update(simplify_reason(message.reason) for message in page.messages)
        scanned, after = scanned + len(page.messages), page.after
        if after is None:
            break
    return ReasonKinds(counts.most_common(max_kinds), scanned, after is None)


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """Which dead letters a person wants to see. Empty texts choose all."""

    text: str = ""  # in the reason or the id
    kind: str = ""  # of the reason, as `simplify_reason` returns it
    field: str = ""  # NAME=VALUE of the body

    @property
    def is_empty(self) -> bool:
        """Whether all dead letters are chosen."""
        return not (self.text or self.kind or self.field)

    def matches(self, message: MessageInfo) -> bool:
        """Return whether a dead letter has the text and the kind of reason."""
        has_text = contains_text(message.reason, self.text) or contains_text(
            message.id, self.text
        )
        return has_text and self.kind in ("", simplify_reason(message.reason))


@dataclass(frozen=True, slots=True)
class DeadPage:
    """Dead letters that were chosen, and where to go on reading, if there are more."""

    messages: Sequence[MessageInfo]
    after: str | None
    is_cut: bool = False  # the search took too long, or there are more than it returns


def read_dead_page(
    queue: QueueManager[Any],
    wanted: DeadFilter,
    *,
    after: str | None = None,
    limit: int = 50,
    is_late: Callable[[], bool] = lambda: False,
) -> DeadPage:
    """Return at least `limit` dead letters that were chosen, if there are as many.

    They come without bodies. It stops when `is_late` returns True, with what it has. Raises
    Unsupported for a field if the queue cannot be searched.
    """
    if wanted.field:
        messages, is_cut = _search(queue, wanted, limit, is_late)
        return DeadPage(messages, None, is_cut)
    chosen: list[MessageInfo] = []
    size = limit if wanted.is_empty else _PAGE
    while True:
        page = queue.browse(MessageState.FAILED, after=after, limit=size)
        chosen += filter(wanted.matches, page.messages)
        after = page.after
        late = is_late()
        if after is None or len(chosen) >= limit or late:
            return DeadPage(chosen, after, is_cut=late and after is not None)


class _Late(Exception):
    """A search took too long."""


def _search(
    queue: QueueManager[Any], wanted: DeadFilter, limit: int, is_late: Callable[[], bool]
) -> tuple[list[MessageInfo], bool]:
    """Return messages with the field, and whether the search was cut short."""

    def stop_late(count: int) -> None:
        if is_late():
            raise _Late

    name, _, value = wanted.field.partition("=")
    chosen: list[MessageInfo] = []
    found = queue.search(
        MessageState.FAILED, where={name: value}, limit=_MAX_SEARCHED, on_progress=stop_late
    )
    with suppress(_Late):
        for message in found:
            if wanted.matches(message):
                chosen.append(replace(message, body=None))
            if len(chosen) > limit:
                return chosen[:limit], True
        return chosen, False
    return chosen, True


def iterate_dead(
    queue: QueueManager[Any], wanted: DeadFilter
) -> Iterator[Sequence[MessageInfo]]:
    """Yield the dead letters that were chosen, in batches that may be removed meanwhile."""
    if "peek" not in queue.capabilities:
        # Reading hides its dead letters and finds them in no order, so all are read once.
        yield list(filter(wanted.matches, queue.dead_letters(_MAX_SEARCHED)))
        return
    limit = _MAX_SEARCHED if wanted.field else _BATCH  # a search has no pages
    page: DeadPage | None = read_dead_page(queue, wanted, limit=limit)
    while page is not None:
        # Read before this batch is removed, because the next one follows its last message.
        following = None
        if page.after is not None:
            following = read_dead_page(queue, wanted, after=page.after, limit=limit)
        for start in range(0, len(page.messages), _BATCH):
            yield page.messages[start : start + _BATCH]
        page = following
