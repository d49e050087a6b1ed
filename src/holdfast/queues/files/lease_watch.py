"""Watching the leases whose deadlines cannot be compared with this process's clock.

A renewal changes a lease's name, and no name is used twice. So if a name has not changed for
the full length of the lease, measured on this process's monotonic clock, the lease was not
renewed in that time, whatever clock its holder uses.

    first seen here           the full length of the lease later
    ──────┬───────────────────────────────┬──────────▶ our monotonic clock
      holder asked before this        its trust ended before this

A process that lives for less time than a lease would never take one over. So the processes
of a host share their observations in `workers/.watched-<host>`. If two of them write at once
and an entry is lost, that only delays a takeover.
"""

import hashlib
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from heapq import nsmallest

from pydantic import BaseModel, ConfigDict, NonNegativeFloat

from holdfast.queues.files.directory import QueueDirectory
from holdfast.queues.files.server_clock import SAME_OFFSET_SECONDS, ServerClock

# NTP slews a clock by up to 500 ppm, so the clocks of two hosts differ by up to this.
CLOCK_RATE = 1.001
# Two renewals within one millisecond may give a lease the same name.
NAME_GRAIN_MS = 1
# How often a long-lived process shares its observations. Its own do not depend on that.
SHARE_INTERVAL_SECONDS = 10.0
MAX_SHARED = 10_000
MAX_SHARED_BYTES = MAX_SHARED * 200


class Observations(BaseModel):
    """The contents of workers/.watched-<host>, checked because other users may write it."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    clock_offset: float
    first_seen: dict[str, NonNegativeFloat]


class LeaseWatch:
    """The times since which the leases of other hosts have had their names.

    Not shared between threads.
    """

    def __init__(self, directory: QueueDirectory, server_clock: ServerClock) -> None:
        self._directory, self._server_clock = directory, server_clock
        host = _hash_identity(server_clock.boot_id, server_clock.time_namespace)
        self._path = f"workers/.watched-{host}"
        self._first_seen: dict[str, float] = {}
        self._shared: set[str] = set()
        self._share_at = 0.0

    def find_unchanged(
        self, leased: Sequence[re.Match[str]], now: float
    ) -> list[re.Match[str]]:
        """Return the leases whose name did not change for their full length.

        `leased` are all leases to watch, and `now` is from before they were listed. A new
        name counts from after the listing, because the lease may still have been renewed
        before that.
        """
        known, seen_at = self._first_seen, self._server_clock.clock.monotonic()
        self._first_seen = {lease[0]: known.get(lease[0], seen_at) for lease in leased}
        if now >= self._share_at and not self._first_seen.keys() <= self._shared:
            self._share_at = now + SHARE_INTERVAL_SECONDS
            self._share()
        return [
            lease
            for lease in leased
            if now >= self._first_seen[lease[0]] + _parse_length_seconds(lease)
        ]

    def _share(self) -> None:
        """Merge the observations of other processes of this host, and write the new ones."""
        if not self._server_clock.boot_id:
            return  # it is unknown which processes share this clock
        stored = self._read()
        for name in self._first_seen.keys() & stored.keys():
            self._first_seen[name] = min(self._first_seen[name], stored[name])
        if not self._first_seen.keys() <= stored.keys():
            self._write()
        self._shared = set(self._first_seen)

    def _read(self) -> dict[str, float]:
        """Return names with the time they were first seen, shifted in the holder's favour."""
        try:
            body = self._directory.read(self._path, MAX_SHARED_BYTES)
            stored = Observations.model_validate_json(body)
        except (OSError, ValueError):
            return {}
        apart = abs(stored.clock_offset - self._server_clock.offset)
        if apart > SAME_OFFSET_SECONDS:
            return {}  # written by a clone of this machine, or before a clock was set
        return {name: seen_at + apart for name, seen_at in stored.first_seen.items()}

    def _write(self) -> None:
        oldest = nsmallest(MAX_SHARED, self._first_seen, key=self._first_seen.__getitem__)
        observations = Observations(
            clock_offset=self._server_clock.offset,
            first_seen={name: self._first_seen[name] for name in oldest},
        )
        aside = f"tmp/{secrets.token_hex(8)}"
        try:
            self._directory.write(aside, observations.model_dump_json().encode())
            self._directory.rename(aside, self._path)
        except OSError:  # for example a full disk: the next process has to start from zero
            with suppress(OSError):
                self._directory.remove(aside)


def _parse_length_seconds(leased: re.Match[str]) -> float:
    return (int(leased["lease_ms"]) * CLOCK_RATE + NAME_GRAIN_MS) / 1000


def _hash_identity(*identity: str) -> str:
    return hashlib.blake2b(" ".join(identity).encode(), digest_size=8).hexdigest()
