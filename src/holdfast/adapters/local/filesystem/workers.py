"""The registry of workers: who stands behind the token in a leased file's name."""

import errno
import os
import re
import secrets
import socket
from contextlib import suppress
from datetime import datetime

from pydantic import BaseModel, ConfigDict, FiniteFloat

from holdfast.adapters.local.filesystem import names
from holdfast.adapters.local.filesystem.directory import QueueDirectory
from holdfast.adapters.local.filesystem.server_clock import SAME_OFFSET_SECONDS, ServerClock
from holdfast.core.clock import utc

SEEN_SECONDS = 10.0


class WorkerCard(BaseModel):
    """What workers/<token>.json says. Others could write there, so it is checked."""

    model_config = ConfigDict(frozen=True, strict=True)

    token: str
    host: str
    pid: int
    boot_id: str
    time_namespace: str = ""  # earlier releases did not write it
    clock_offset: FiniteFloat
    started: str

    @property
    def worker_id(self) -> str:
        return f"{self.host}-{self.pid}-{self.token}"


class WorkerRegistry:
    """Cards are written once and never change, so they are read once."""

    def __init__(self, tree: QueueDirectory, timeline: ServerClock) -> None:
        self._tree, self._timeline = tree, timeline
        self._known: dict[str, WorkerCard | None] = {}
        self._offsets: dict[str, float | None] = {}
        self._seen_at = 0.0

    def enrol(self) -> WorkerCard:
        """A new card, with a token nobody has."""
        while True:
            card = WorkerCard(
                token=secrets.token_hex(3),
                host=socket.gethostname(),
                pid=os.getpid(),
                boot_id=self._timeline.boot_id,
                time_namespace=self._timeline.time_namespace,
                clock_offset=self._timeline.offset,
                started=utc(self._timeline.wall_ms() / 1000).isoformat(),
            )
            if self._publish(card):
                return card

    def _publish(self, card: WorkerCard) -> bool:
        body = card.model_dump_json().encode()
        temporary = f"tmp/{card.token}-{secrets.token_hex(8)}"
        place = f"workers/{card.token}.json"
        try:
            self._tree.write(temporary, body)
            self._tree.link(temporary, place)
        except FileExistsError:
            return False
        except OSError as error:
            # On a full disk the work can still be done, which only moves files, and so
            # can the purge that makes room. Without a card a lease counts as another
            # host's, which is judged more patiently.
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return not self._tree.exists(place)
        finally:
            self._tree.discard(temporary)
        return True

    def seen(self, me: WorkerCard, now: float) -> None:
        """Show that this worker is about: its card's time is when it was last seen."""
        if now >= self._seen_at + SEEN_SECONDS:
            self._seen_at = now
            try:
                self._tree.fs.utime(f"workers/{me.token}.json", dir_fd=self._tree.fd)
            except FileNotFoundError:  # swept, or there was no room for it
                with suppress(OSError):
                    self._publish(me)

    def last_seen(self, token: str) -> datetime | None:
        status = self._tree.stat(f"workers/{token}.json")
        return utc(status.st_mtime) if status else None

    def card(self, token: str) -> WorkerCard | None:
        """Return a worker's card, or None if it is gone, may not be read or makes no sense."""
        if token not in self._known:
            self._known[token] = self._read(token)
        return self._known[token]

    def _read(self, token: str) -> WorkerCard | None:
        try:
            body = self._tree.read(f"workers/{token}.json", 1 << 16)
            return WorkerCard.model_validate_json(body)
        except (FileNotFoundError, PermissionError, ValueError):
            return None

    def worker_id(self, token: str) -> str:
        card = self.card(token)
        return card.worker_id if card else token

    def has_ended(self, leased: re.Match[str], now: float) -> bool | None:
        """Tell whether a lease has ended at `now` on our monotonic clock.

        Returns None if its holder does not share that clock: then only watching can tell.
        """
        token = leased["worker"]
        if token not in self._offsets:
            self._offsets[token] = self._shared_offset(self.card(token))
        offset = self._offsets[token]
        return None if offset is None else names.deadline_ms(leased) <= (now + offset) * 1000

    def _shared_offset(self, card: WorkerCard | None) -> float | None:
        """Return the offset of a worker's timeline to our monotonic clock, None if unknown.

        A clone of this machine has the same boot id, so the offsets have to agree, too. The
        clock of a clone may still be behind by the small difference that is tolerated: it
        is taken off, in the holder's favour.
        """
        ours = self._timeline
        if card is None or not ours.boot_id:
            return None
        if (card.boot_id, card.time_namespace) != (ours.boot_id, ours.time_namespace):
            return None
        apart = abs(card.clock_offset - ours.offset)
        return card.clock_offset - apart if apart <= SAME_OFFSET_SECONDS else None
