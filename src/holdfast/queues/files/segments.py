"""Segments: pending/ is divided into folders of about two thousand tasks, named by time.

A flat folder never shrinks on ext4, so every poll would walk the holes of all files that it
ever held. With segments a worker reads one listing and consumes it, whatever the backlog.

    pending/1763237639123-9f2c01ab-0/    tasks of one producer, due when they came, from then on
    pending/1763237639123-9f2c01ab-1s/   sealed: published complete, nothing will be added
    pending/1763237640000-9f2c01ab-2/    delayed tasks: the time is a multiple of 2000

Tasks that were due when they came are due whatever the clock says. If the clock was ahead
then, their segment seems to begin in the future, and is read first, because it is older than
the step of the clock.
"""

from dataclasses import dataclass
from math import inf
from random import Random

from holdfast.queues.files import layout
from holdfast.queues.files.directory import QueueDirectory
from holdfast.queues.files.layout import TaskName
from holdfast.queues.files.server_clock import ServerClock

MAX_SEGMENT_TASKS = 2000
OPEN_MS = 2000  # how long one producer fills a segment; also the width for delayed tasks
REMOVE_AFTER_MS = 10_000  # producers no longer add to segments older than this
RELIST_MS = 2000
# With competitors, a worker starts in one of this many oldest segments.
MAX_SEGMENT_CHOICES = 8
MAX_LOST_RACES = 4  # after this many lost races the listing is too old to continue with


def is_due_when_pushed(segment: str) -> bool:
    """Return whether the tasks of a segment were due when they came, see above."""
    return int(segment[:13]) % OPEN_MS != 0


ListedTask = tuple[int, str, TaskName, str]
"""The due time of a task, its name in its folder, and its form and stem once claimed."""


@dataclass(slots=True)
class _OpenSegment:
    path: str
    start_ms: int
    count: int = 0


class SegmentWriter:
    """Chooses the segment of a producer's next task. Not shared between threads."""

    def __init__(self, directory: QueueDirectory, token: str) -> None:
        self._directory, self._token = directory, token
        self._sequence = 0
        self._now: _OpenSegment | None = None
        self._later: dict[int, _OpenSegment] = {}

    def choose_segment(self, due_ms: int, now_ms: int) -> str:
        """Return the segment for a task that is due then, and make it if it is missing."""
        if due_ms <= now_ms:
            segment = self._now
            # If the clock was set back, a task in a segment of the earlier time would come
            # before older ones.
            if (
                segment is None
                or segment.count >= MAX_SEGMENT_TASKS
                or not segment.start_ms <= now_ms < segment.start_ms + OPEN_MS
            ):
                segment = self._now = self._open(_begin_at_once(now_ms))
        else:
            segment = self._open_later(due_ms - due_ms % OPEN_MS, now_ms)
        segment.count += 1
        return segment.path

    def _open_later(self, start_ms: int, now_ms: int) -> _OpenSegment:
        segment = self._later.get(start_ms)
        if segment is None or segment.count >= MAX_SEGMENT_TASKS:
            self._later = {ms: s for ms, s in self._later.items() if ms + OPEN_MS > now_ms}
            segment = self._later[start_ms] = self._open(start_ms)
        return segment

    def name_sealed_segment(self, due_ms: int, now_ms: int) -> str:
        """Return the name of a new segment that its producer will publish in one step."""
        start_ms = _begin_at_once(now_ms) if due_ms <= now_ms else due_ms - due_ms % OPEN_MS
        return f"{self._name(start_ms)}s"

    def _open(self, start_ms: int) -> _OpenSegment:
        path = f"pending/{self._name(start_ms)}"
        self._directory.refuse_links("tmp", "pending")
        self._directory.make_folder(path)
        return _OpenSegment(path, start_ms)

    def _name(self, start_ms: int) -> str:
        self._sequence += 1
        return f"{start_ms:013d}-{self._token}-{self._sequence}"


def _begin_at_once(now_ms: int) -> int:
    return now_ms if now_ms % OPEN_MS else now_ms - 1  # a multiple would mean delayed tasks


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

    def note_lost_race(self) -> None:
        """Note that another worker claimed the task first.

        The next task is from another position, and after a few losses from a new listing.
        """
        self._losses += 1
        self._has_competitors = self._has_lost_races = True
        if self._losses >= MAX_LOST_RACES:
            self.tasks.clear()
        elif len(self.tasks) > 1:
            cut = self._random.randrange(len(self.tasks))
            self.tasks = self.tasks[cut:] + self.tasks[:cut]

    def refill(self) -> bool:
        """Read segments, oldest first, until one has tasks that are due; False if none has.

        Tasks were due when they were listed, so only a new listing reads the clock.
        """
        now_ms = self._server_clock.read_wall_ms()
        relisted = False
        while not self.tasks:
            if not self._segments or now_ms - self._listed_ms > RELIST_MS:
                if relisted:
                    return False
                self._relist(now_ms)
                relisted = True
            if self._segments:
                self._read(self._pick(), now_ms)
        return True

    def _relist(self, now_ms: int) -> None:
        started = f"{now_ms:013d}~"  # sorts behind every segment that starts by now
        listed = filter(layout.SEGMENT.fullmatch, self._directory.list_required("pending"))
        segments = sorted(listed, reverse=True)
        ahead = [s for s in segments if s > started and is_due_when_pushed(s)]
        self._segments = [s for s in segments if s < started] + ahead
        self._listed_ms = now_ms
        self._has_competitors, self._has_lost_races = self._has_lost_races, False

    def _pick(self) -> str:
        if not self._has_competitors:
            return self._segments.pop()
        behind = self._random.randrange(min(MAX_SEGMENT_CHOICES, len(self._segments)))
        return self._segments.pop(-1 - behind)

    def _read(self, segment: str, now_ms: int) -> None:
        self.folder = f"pending/{segment}"
        self._losses = 0
        if not self._directory.can_use(self.folder):
            return  # another user closed it: other work continues, and doctor reports it
        listed = self._directory.list(self.folder)
        age_ms = abs(now_ms - int(segment[:13]))
        if not listed and (segment[-1] == "s" or age_ms > REMOVE_AFTER_MS):
            self._directory.remove_folder(self.folder)
        latest_ms = inf if is_due_when_pushed(segment) else now_ms
        matches = filter(None, map(layout.PENDING.fullmatch, listed))
        self.tasks = [
            (due_ms, match[0], *layout.parse_claimed(match))
            for match in matches
            if (due_ms := int(match["due_ms"])) <= latest_ms
        ]
        self.tasks.sort(reverse=True)
