"""Watching the leases whose deadlines cannot be compared with our clock.

A renewal changes a lease's name, and no name is used twice. So a name that has not changed
for the whole length of the lease, on our own monotonic clock, was not renewed in that time,
whatever clock its holder uses.

    first seen here           the whole length of the lease later
    ──────┬───────────────────────────────┬──────────▶ our monotonic clock
      holder asked before this        its trust ended before this

A process that lives shorter than a lease would never take one over. So the processes of a
host share what they saw in `workers/.watched-<host>`. An entry that is lost, because two of
them write at once, only delays a takeover.
"""

import hashlib
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from heapq import nsmallest

from pydantic import BaseModel, ConfigDict, NonNegativeFloat

from holdfast.adapters.local.filesystem.directory import QueueDirectory
from holdfast.adapters.local.filesystem.server_clock import SAME_OFFSET_SECONDS, ServerClock

# NTP slews a clock by up to 500 ppm, so the clocks of two hosts differ by up to this.
CLOCK_RATE = 1.001
# Two renewals within one millisecond may give a lease the same name.
NAME_GRAIN_MS = 1
# How often a long-lived process shares what it saw. Its own memory does not depend on that.
SHARE_SECONDS = 10.0
MAX_SHARED = 10_000
MAX_BYTES = MAX_SHARED * 200


class Observations(BaseModel):
    """What workers/.watched-<host> says. Others could write there, so it is checked."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    clock_offset: float
    first_seen: dict[str, NonNegativeFloat]


class LeaseWatch:
    """Since when the leases of other hosts have had their names. For one thread."""

    def __init__(self, tree: QueueDirectory, timeline: ServerClock) -> None:
        self._tree, self._timeline = tree, timeline
        self._path = f"workers/.watched-{_digest(timeline.boot_id, timeline.time_namespace)}"
        self._first_seen: dict[str, float] = {}
        self._shared: set[str] = set()
        self._share_at = 0.0

    def find_unchanged(
        self, leased: Sequence[re.Match[str]], now: float
    ) -> list[re.Match[str]]:
        """Return those whose name did not change for their whole length.

        `leased` are all leases to watch, and `now` is from before they were listed. A new
        name counts from after the listing: before it, the lease may still have been renewed.
        """
        known, seen_at = self._first_seen, self._timeline.clock.monotonic()
        self._first_seen = {lease[0]: known.get(lease[0], seen_at) for lease in leased}
        if now >= self._share_at and not self._first_seen.keys() <= self._shared:
            self._share_at = now + SHARE_SECONDS
            self._share()
        return [lease for lease in leased if now >= self._first_seen[lease[0]] + _length(lease)]

    def _share(self) -> None:
        """Learn what other processes of this host saw, and tell them what they did not."""
        if not self._timeline.boot_id:
            return  # which processes share our clock is not known
        stored = self._read()
        for name in self._first_seen.keys() & stored.keys():
            self._first_seen[name] = min(self._first_seen[name], stored[name])
        if not self._first_seen.keys() <= stored.keys():
            self._write()
        self._shared = set(self._first_seen)

    def _read(self) -> dict[str, float]:
        """Return names and since when they are known, on our clock, in the holder's favour."""
        try:
            body = self._tree.read(self._path, MAX_BYTES)
            stored = Observations.model_validate_json(body)
        except (OSError, ValueError):
            return {}
        apart = abs(stored.clock_offset - self._timeline.offset)
        if apart > SAME_OFFSET_SECONDS:
            return {}  # written by a clone of this machine, or before a clock was set
        return {name: seen_at + apart for name, seen_at in stored.first_seen.items()}

    def _write(self) -> None:
        oldest = nsmallest(MAX_SHARED, self._first_seen, key=self._first_seen.__getitem__)
        observations = Observations(
            clock_offset=self._timeline.offset,
            first_seen={name: self._first_seen[name] for name in oldest},
        )
        aside = f"tmp/{secrets.token_hex(8)}"
        try:
            self._tree.write(aside, observations.model_dump_json().encode())
            self._tree.rename(aside, self._path)
        except OSError:  # the disk is full, say: the next process has to start afresh
            with suppress(OSError):
                self._tree.remove(aside)


def _length(leased: re.Match[str]) -> float:
    return (int(leased["lease_ms"]) * CLOCK_RATE + NAME_GRAIN_MS) / 1000


def _digest(*identity: str) -> str:
    return hashlib.blake2b(" ".join(identity).encode(), digest_size=8).hexdigest()
