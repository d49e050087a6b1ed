"""The registry of workers: who stands behind the token in a leased file's name."""

import errno
import os
import secrets
import socket
from contextlib import suppress
from datetime import datetime

from pydantic import BaseModel, ConfigDict, FiniteFloat

from holdfast.adapters.local.filesystem.timeline import OTHER_HOST_MARGIN_MS, Timeline
from holdfast.adapters.local.filesystem.tree import Tree
from holdfast.core.clock import utc

SEEN_SECONDS = 10.0


class WorkerCard(BaseModel):
    """What workers/<token>.json says. Others could write there, so it is checked."""

    model_config = ConfigDict(frozen=True, strict=True)

    token: str
    host: str
    pid: int
    boot_id: str
    clock_offset: FiniteFloat
    started: str

    @property
    def worker_id(self) -> str:
        return f"{self.host}-{self.pid}-{self.token}"


class Workers:
    """Cards are written once and never change, so they are read once."""

    def __init__(self, tree: Tree, timeline: Timeline) -> None:
        self._tree, self._timeline = tree, timeline
        self._known: dict[str, WorkerCard | None] = {}
        self._seen_at = 0.0

    def enrol(self) -> WorkerCard:
        """A new card, with a token nobody has."""
        while True:
            card = WorkerCard(
                token=secrets.token_hex(3),
                host=socket.gethostname(),
                pid=os.getpid(),
                boot_id=self._timeline.boot_id,
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
        """None when the card is gone or is none."""
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

    def expired(self, worker: str, deadline_ms: int) -> bool:
        """Has this deadline, written on that worker's timeline, passed?"""
        card = self.card(worker)
        if card and card.boot_id and card.boot_id == self._timeline.boot_id:
            shift_ms = (self._timeline.offset - card.clock_offset) * 1000
            return self._timeline.lease_ms() >= deadline_ms + shift_ms
        return self._timeline.server_ms() >= deadline_ms + OTHER_HOST_MARGIN_MS
