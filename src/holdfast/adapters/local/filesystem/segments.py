"""pending/ is cut into segments: folders of about two thousand tasks, named by time.

A flat folder never shrinks on ext4, and every poll would walk the holes of all it ever
held. With segments a worker reads one listing and consumes it, whatever the backlog.

    pending/1763237639123-9f2c01ab-0/    tasks due from 1763237639123 on, by one producer
    pending/1763237639123-9f2c01ab-1s/   sealed: published whole, nothing will be added
"""

from random import Random

from holdfast.adapters.local.filesystem import names
from holdfast.adapters.local.filesystem.directory import QueueDirectory
from holdfast.adapters.local.filesystem.names import TaskName
from holdfast.adapters.local.filesystem.server_clock import ServerClock

FULL = 2000  # tasks
OPEN_MS = 2000  # how long one producer fills a segment; also the width for delayed tasks
REMOVE_AFTER_MS = 10_000  # empty segments older than this have no producer any more
RELIST_MS = 2000
COMPANY = 8  # with competitors about, start in one of this many oldest segments
LOSSES = 4  # lost races before the listing is too stale to go on with


class _Open:
    __slots__ = ("count", "path", "start_ms", "until_ms")

    def __init__(self, path: str, start_ms: int) -> None:
        self.path, self.start_ms, self.until_ms = path, start_ms, start_ms + OPEN_MS
        self.count = 0

    def is_open(self, now_ms: int) -> bool:
        return self.start_ms <= now_ms < self.until_ms


class SegmentWriter:
    """Where a producer puts its next task. Not shared between threads."""

    def __init__(self, tree: QueueDirectory, token: str) -> None:
        self._tree, self._token = tree, token
        self._sequence = 0
        self._now: _Open | None = None
        self._later: dict[int, _Open] = {}

    def path(self, due_ms: int, now_ms: int) -> str:
        """The segment for a task due then; makes it if need be."""
        if due_ms <= now_ms:
            segment = self._now
            # A clock set back would hide what goes to a segment of the time before.
            if segment is None or segment.count >= FULL or not segment.is_open(now_ms):
                segment = self._now = self._open(now_ms)
        else:
            segment = self._for_later(due_ms - due_ms % OPEN_MS, now_ms)
        segment.count += 1
        return segment.path

    def _for_later(self, start_ms: int, now_ms: int) -> _Open:
        segment = self._later.get(start_ms)
        if segment is None or segment.count >= FULL:
            self._later = {ms: s for ms, s in self._later.items() if s.until_ms > now_ms}
            segment = self._later[start_ms] = self._open(start_ms)
        return segment

    def sealed(self, due_ms: int, now_ms: int) -> str:
        """The name of a new segment that its producer will publish as a whole."""
        start_ms = now_ms if due_ms <= now_ms else due_ms - due_ms % OPEN_MS
        return f"{self._name(start_ms)}s"

    def _open(self, start_ms: int) -> _Open:
        path = f"pending/{self._name(start_ms)}"
        self._tree.refuse_links("tmp", "pending")
        self._tree.make(path)
        return _Open(path, start_ms)

    def _name(self, start_ms: int) -> str:
        self._sequence += 1
        return f"{start_ms:013d}-{self._token}-{self._sequence}"


class SegmentReader:
    """What a worker may claim next. Not shared between threads."""

    def __init__(self, tree: QueueDirectory, timeline: ServerClock, random: Random) -> None:
        self._tree, self._timeline, self._random = tree, timeline, random
        self.folder = ""  # where the tasks below are
        self._tasks: list[tuple[int, str, TaskName]] = []  # by due time, last is next
        self._segments: list[str] = []  # last is oldest
        self._listed_ms = 0
        self._losses = 0
        self._company = self._lost_lately = False

    def next(self) -> tuple[int, str, TaskName] | None:
        """Due time and name of a task in `folder`, and what it is once claimed; or None.

        It may be gone by the time it is claimed. What is listed was due then already, so
        only a new listing looks at the clock.
        """
        if not self._tasks:
            self._refill(self._timeline.wall_ms())
        return self._tasks.pop() if self._tasks else None

    def lost_race(self) -> None:
        """Somebody else took it: go elsewhere, and look again after a few times."""
        self._losses += 1
        self._company = self._lost_lately = True
        if self._losses >= LOSSES:
            self._tasks.clear()
        elif len(self._tasks) > 1:
            cut = self._random.randrange(len(self._tasks))
            self._tasks = self._tasks[cut:] + self._tasks[:cut]

    def _refill(self, now_ms: int) -> None:
        """Read segments, oldest first, until one has tasks that are due."""
        relisted = False
        while not self._tasks:
            if not self._segments or now_ms - self._listed_ms > RELIST_MS:
                if relisted:
                    return
                self._relist(now_ms)
                relisted = True
            if self._segments:
                self._read(self._pick(), now_ms)

    def _relist(self, now_ms: int) -> None:
        started = f"{now_ms:013d}~"  # sorts behind every segment that starts by now
        found = [s for s in self._tree.list_fixed("pending") if s < started]
        self._segments = sorted(filter(names.SEGMENT.fullmatch, found), reverse=True)
        self._listed_ms = now_ms
        self._company, self._lost_lately = self._lost_lately, False

    def _pick(self) -> str:
        if not self._company:
            return self._segments.pop()
        behind = self._random.randrange(min(COMPANY, len(self._segments)))
        return self._segments.pop(-1 - behind)

    def _read(self, segment: str, now_ms: int) -> None:
        self.folder = f"pending/{segment}"
        self._losses = 0
        if not self._tree.can_use(self.folder):
            return  # another user closed it: other work goes on, and doctor tells of it
        found = self._tree.list(self.folder)
        if not found and (segment[-1] == "s" or int(segment[:13]) < now_ms - REMOVE_AFTER_MS):
            self._tree.remove_folder(self.folder)
        matches = filter(None, map(names.PENDING.fullmatch, found))
        self._tasks = [
            (due, m[0], names.task(m).claimed())
            for m in matches
            if (due := int(m[4])) <= now_ms
        ]
        self._tasks.sort(reverse=True)
