"""The workers of a queue, their clocks, and whether a lease of one of them has ended.

Deadlines in names are milliseconds on the writer's timeline: its monotonic clock (which
never jumps and counts suspend) plus an offset to the file server's clock, measured once.

The token in a leased file's name leads to the card of its worker. A worker that shares this
process's monotonic clock has deadlines that can be compared. Any other lease is watched: a
renewal changes a lease's name, and no name is used twice. So if a name has not changed for the
full length of the lease, measured on this process's monotonic clock, the lease was not renewed
in that time, whatever clock its holder uses.

    first seen here           the full length of the lease later
    ──────┬───────────────────────────────┬──────────▶ our monotonic clock
      holder asked before this        its trust ended before this
"""

import errno
import os
import re
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from math import ceil
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, FiniteFloat

from holdfast.lease.clock import Clock, to_utc
from holdfast.queue.info import QueueWorker
from holdfast.queues.files import layout
from holdfast.queues.files.directory import QueueDirectory
from holdfast.version import read_version

SEEN_INTERVAL_SECONDS = 10.0
PROBE = "workers/.clock"
# A local disk stamps files from this host's clock, only coarser. Clocks that differ by less
# than this count as the same clock.
SAME_CLOCK_SECONDS = 0.1
# Processes with one monotonic clock measure about the same offset. If the offsets differ by
# more, the machine is a clone, or a clock was set between the two measurements.
SAME_OFFSET_SECONDS = 0.25
# A process may be paused while it measures. A measurement that took longer is repeated.
MAX_MEASUREMENT_SECONDS = 0.1
MAX_MEASUREMENTS = 5


def read_boot_id() -> str:
    """Return an id that all processes share since this machine started; empty if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def read_time_namespace() -> str:
    """Return the identity of our time namespace; empty where the kernel has none.

    The offsets belong to it, because the number of a namespace that ended is used again.
    """
    try:
        offsets = Path("/proc/self/timens_offsets").read_text().split()
        return " ".join([os.readlink("/proc/self/ns/time"), *offsets])
    except OSError:
        return ""


def read_server_time(directory: QueueDirectory) -> float:
    """Return the file server's time, from the stamp that it puts on a file written now."""
    if directory.fs.server_time is not None:
        return directory.fs.server_time()
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with directory.open_file(PROBE, flags) as fd:
        directory.fs.utime(fd)
        return directory.fs.stat(fd).st_mtime


class ClockMeasurement(NamedTuple):
    """The file server's clock, relative to our wall clock and to our monotonic clock."""

    duration_seconds: float
    skew: float
    offset: float


class ServerClock:
    """This process's reading of the file server's clock."""

    def __init__(self, directory: QueueDirectory, clock: Clock) -> None:
        self._directory, self.clock = directory, clock
        self.boot_id, self.time_namespace = read_boot_id(), read_time_namespace()
        self.offset = self._measure().offset

    def _measure(self) -> ClockMeasurement:
        """Measure until one measurement is quick, a few times at most; keep the quickest."""
        try:
            best = self._measure_once()
            for _ in range(MAX_MEASUREMENTS - 1):
                if best.duration_seconds <= MAX_MEASUREMENT_SECONDS:
                    break
                best = min(best, self._measure_once())
        except OSError:  # for example read-only: good enough to inspect; a write will raise
            best = ClockMeasurement(0.0, 0.0, self.clock.time() - self.clock.monotonic())
        self._skew = 0.0 if abs(best.skew) < SAME_CLOCK_SECONDS else best.skew
        return best

    def _measure_once(self) -> ClockMeasurement:
        """Read both own clocks before and after the server's, and use their middle.

        A pause shifts the result by at most half of its duration, and it shows in
        `duration_seconds`.
        """
        began, wall_began = self.clock.monotonic(), self.clock.time()
        server = read_server_time(self._directory)
        wall_ended, ended = self.clock.time(), self.clock.monotonic()
        return ClockMeasurement(
            duration_seconds=ended - began,
            skew=server - (wall_began + wall_ended) / 2,
            offset=server - (began + ended) / 2,
        )

    def to_stamp_ms(self, now: float) -> int:
        """Convert a monotonic time to the form in names, rounded up in the holder's favour."""
        return ceil((now + self.offset) * 1000)

    def read_wall_ms(self) -> int:
        """Return the wall time for due times, on which producers and workers must agree."""
        return int((self.clock.time() + self._skew) * 1000)

    def measure_server_ms(self) -> int:
        """Measure the file server's time. Wall times follow this measurement from now on."""
        offset = self._measure().offset
        return int((self.clock.monotonic() + offset) * 1000)


class WorkerCard(BaseModel):
    """The contents of workers/<token>.json, checked because other users may write it."""

    model_config = ConfigDict(frozen=True, strict=True)

    token: str
    host: str
    pid: int
    boot_id: str
    time_namespace: str = ""  # earlier releases did not write it
    clock_offset: FiniteFloat
    started: str
    version: str = ""  # earlier releases did not write it

    @property
    def worker_id(self) -> str:
        """The worker's id in texts: host, process id and token."""
        return f"{self.host}-{self.pid}-{self.token}"


class WorkerRegistry:
    """The cards of all workers. A card never changes once written, so it is read once."""

    def __init__(self, directory: QueueDirectory, server_clock: ServerClock) -> None:
        self._directory, self._server_clock = directory, server_clock
        self._known: dict[str, WorkerCard | None] = {}
        self._offsets: dict[str, float | None] = {}
        self._seen_at = 0.0

    def register(self) -> WorkerCard:
        """Write a new card, with a token that no other worker has."""
        while True:
            card = WorkerCard(
                token=secrets.token_hex(3),
                host=socket.gethostname(),
                pid=os.getpid(),
                boot_id=self._server_clock.boot_id,
                time_namespace=self._server_clock.time_namespace,
                clock_offset=self._server_clock.offset,
                started=to_utc(self._server_clock.read_wall_ms() / 1000).isoformat(),
                version=read_version(),
            )
            if self._publish(card):
                return card

    def _publish(self, card: WorkerCard) -> bool:
        body = card.model_dump_json().encode()
        temporary = f"tmp/{card.token}-{secrets.token_hex(8)}"
        place = f"workers/{card.token}.json"
        try:
            self._directory.write(temporary, body)
            self._directory.link(temporary, place)
        except FileExistsError:
            return False
        except OSError as error:
            # On a full disk a worker can still work, because that only moves files, and so
            # can the purge that frees space. Without a card, a lease counts as a lease of
            # another host, for which takeovers wait longer.
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return not self._directory.exists(place)
        finally:
            self._directory.discard(temporary)
        return True

    def mark_seen(self, me: WorkerCard, now: float) -> None:
        """Show that this worker is running: its card's time is when it was last seen."""
        if now >= self._seen_at + SEEN_INTERVAL_SECONDS:
            self._seen_at = now
            try:
                self._directory.fs.utime(f"workers/{me.token}.json", dir_fd=self._directory.fd)
            except FileNotFoundError:  # it was swept, or the disk had no space for it
                with suppress(OSError):
                    self._publish(me)

    def read_last_seen(self, token: str) -> datetime | None:
        """Return when a worker was last seen, or None without a card."""
        status = self._directory.stat(f"workers/{token}.json")
        return to_utc(status.st_mtime) if status else None

    def get_card(self, token: str) -> WorkerCard | None:
        """Return a worker's card, or None if it is missing, unreadable or malformed."""
        if token not in self._known:
            self._known[token] = self._read(token)
        return self._known[token]

    def _read(self, token: str) -> WorkerCard | None:
        try:
            body = self._directory.read(f"workers/{token}.json", 1 << 16)
            return WorkerCard.model_validate_json(body)
        except (FileNotFoundError, PermissionError, ValueError):
            return None

    def list_workers(self, seen_after: datetime) -> list[QueueWorker]:
        """List the workers that were seen after that time, the newest first."""
        workers = []
        for name in self._directory.list("workers"):
            token = name.removesuffix(".json")
            last_seen = self.read_last_seen(token)
            if (
                last_seen is None
                or last_seen < seen_after
                or not (card := self.get_card(token))
            ):
                continue
            started = _parse_time(card.started)
            workers.append(
                QueueWorker(
                    card.worker_id, card.host, card.pid, last_seen, card.version, started
                )
            )
        return sorted(workers, key=lambda worker: worker.last_seen or seen_after, reverse=True)

    def get_worker_id(self, token: str) -> str:
        """Return a worker's id in texts, which is its token without a card."""
        card = self.get_card(token)
        return card.worker_id if card else token

    def has_ended(self, leased: re.Match[str], now: float) -> bool | None:
        """Return whether a lease has ended at `now` on our monotonic clock.

        Returns None if its holder does not share that clock. Then the lease must be watched.
        """
        token = leased["worker"]
        if token not in self._offsets:
            self._offsets[token] = self._compute_shared_offset(self.get_card(token))
        offset = self._offsets[token]
        return (
            None
            if offset is None
            else layout.parse_deadline_ms(leased) <= (now + offset) * 1000
        )

    def has_probably_ended(self, leased: re.Match[str], now: float) -> bool:
        """Estimate whether a lease has ended, for operators.

        A worker would watch a lease of another host first.
        """
        ended = self.has_ended(leased, now)
        if ended is None:
            return layout.parse_deadline_ms(leased) <= self._server_clock.to_stamp_ms(now)
        return ended

    def _compute_shared_offset(self, card: WorkerCard | None) -> float | None:
        """Return the offset of a worker's timeline to our monotonic clock, None if unknown.

        A clone of this machine has the same boot id, so the offsets must agree, too. The
        clock of a clone may still be behind by the small difference that is tolerated. That
        difference is subtracted, in the holder's favour.
        """
        own = self._server_clock
        if card is None or not own.boot_id:
            return None
        if (card.boot_id, card.time_namespace) != (own.boot_id, own.time_namespace):
            return None
        apart = abs(card.clock_offset - own.offset)
        return card.clock_offset - apart if apart <= SAME_OFFSET_SECONDS else None


def _parse_time(text: str) -> datetime | None:
    """Return the time of a card, which other users may write, or None."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else None


# NTP slews a clock by up to 500 ppm, so the clocks of two hosts differ by up to this.
CLOCK_RATE = 1.001
# Two renewals within one millisecond may give a lease the same name.
NAME_GRAIN_MS = 1


class LeaseWatch:
    """The times since which the leases of other hosts have had their names.

    Not shared between threads.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._first_seen: dict[str, float] = {}

    def find_unchanged(
        self, leased: Sequence[re.Match[str]], now: float
    ) -> list[re.Match[str]]:
        """Return the leases whose name did not change for their full length.

        `leased` are all leases to watch, and `now` is from before they were listed. A new
        name counts from after the listing, because the lease may still have been renewed
        before that.
        """
        known, seen_at = self._first_seen, self._clock.monotonic()
        self._first_seen = {lease[0]: known.get(lease[0], seen_at) for lease in leased}
        return [
            lease
            for lease in leased
            if now >= self._first_seen[lease[0]] + _parse_length_seconds(lease)
        ]


def _parse_length_seconds(leased: re.Match[str]) -> float:
    return (int(leased["lease_ms"]) * CLOCK_RATE + NAME_GRAIN_MS) / 1000
