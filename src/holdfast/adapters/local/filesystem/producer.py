"""Producing: write the whole file aside, then give it its place in one step."""

import itertools
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock

from holdfast.adapters.local.filesystem import names
from holdfast.adapters.local.filesystem.dedupe import DedupeIndex
from holdfast.adapters.local.filesystem.directory import QueueDirectory
from holdfast.adapters.local.filesystem.record_check import RecordCheck
from holdfast.adapters.local.filesystem.segments import SegmentWriter
from holdfast.adapters.local.filesystem.server_clock import ServerClock
from holdfast.core.errors import QueueUnavailable


class Producer:
    """One process's way of pushing. Shared by its threads, not by its forks."""

    def __init__(
        self,
        tree: QueueDirectory,
        timeline: ServerClock,
        ids: DedupeIndex,
        record_check: RecordCheck,
    ) -> None:
        self._tree, self._timeline, self._ids = tree, timeline, ids
        self._record_check = record_check
        self._nonce = secrets.randbits(40)
        self._count = itertools.count()
        self._segments = SegmentWriter(tree, secrets.token_hex(4))
        self._lock = Lock()

    def new_key(self, id_hash: str) -> str:
        """Keys of one producer sort by push order: equal due times stay in order too."""
        return f"{(self._nonce + next(self._count)) & 0xFF_FFFF_FFFF:010x}{id_hash[:8]}"

    def push(self, id_hash: str, body: bytes, delay_seconds: float) -> None:
        key = self.new_key(id_hash)
        aside = f"tmp/{key}"
        target = self.place(f"{key}~0", delay_seconds)
        try:
            self._tree.write(aside, body)
            if self._tree.durable:
                self._tree.sync(aside)
            self._tree.publish(aside, target)
        except BaseException:
            self._unstage(aside)
            raise
        if self._tree.durable:
            self._sync_or_take_back(os.path.dirname(target), [target])

    def push_batch(self, batch: Sequence[tuple[str, bytes]], delay_seconds: float) -> None:
        """All or none: written aside as a segment, which one rename publishes."""
        now_ms, due_ms = self._times(delay_seconds)
        with self._lock:
            segment = self._segments.sealed(due_ms, now_ms)
        aside = f"tmp/{segment}"
        stems = [f"{self.new_key(id_hash)}~0" for id_hash, _ in batch]
        paths = [names.pending_path(aside, stem, due_ms) for stem in stems]
        try:
            self._tree.refuse_links("tmp", "pending")
            self._tree.mkdir(aside)
            for path, (_, body) in zip(paths, batch, strict=True):
                self._tree.write(path, body)
            if self._tree.durable:
                self._tree.sync(*paths)
                self._tree.sync(aside)
            self._tree.publish(aside, f"pending/{segment}")
        except BaseException:
            self._unstage(*paths)
            with suppress(OSError):
                self._tree.remove_folder(aside)
            raise
        if self._tree.durable:
            published = [path.replace("tmp/", "pending/", 1) for path in paths]
            self._sync_or_take_back("pending", published)

    def push_once(self, id_hash: str, body: bytes, delay_seconds: float) -> bool:
        """False when a task of this id is alive: see ids.py."""
        pushed = self._push_unless_alive(id_hash, body, delay_seconds)
        # Outside the turn, as the check takes the turns of others.
        if not pushed and self._record_check.run_if_due():
            pushed = self._push_unless_alive(id_hash, body, delay_seconds)
        return pushed

    def _push_unless_alive(self, id_hash: str, body: bytes, delay_seconds: float) -> bool:
        with self._ids.turn(id_hash):
            if self._ids.alive(id_hash):
                return False
            key = self.new_key(id_hash)
            aside, target = f"tmp/{key}", self.place(f"{key}~0", delay_seconds)
            try:
                self._tree.write(aside, body)
                if self._tree.durable:
                    self._tree.sync(aside, "tmp")
                self._ids.record(id_hash, key)
                self._tree.publish(aside, target)
                self.sync_places([target])
            except BaseException as error:
                with suppress(OSError):
                    self._take_back(id_hash, key, target, error)
                raise
            return True

    def _take_back(self, id_hash: str, key: str, target: str, error: BaseException) -> None:
        """Within the turn: a push that raises has pushed nothing, and its id is free. (What a
        worker has claimed by then is its own, and keeps the id.)
        """
        taken_back = self._ids.withdraw(id_hash, key, target)
        if not taken_back and isinstance(error, QueueUnavailable):  # tmp/ was emptied
            self._ids.free_if(id_hash, key)

    def place(self, stem: str, delay_seconds: float) -> str:
        """A path in pending/ for a task that is due after the delay."""
        now_ms, due_ms = self._times(delay_seconds)
        with self._lock:
            segment = self._segments.path(due_ms, now_ms)
        return names.pending_path(segment, stem, due_ms)

    def _times(self, delay_seconds: float) -> tuple[int, int]:
        now_ms = self._timeline.wall_ms()
        return now_ms, now_ms + int(delay_seconds * 1000) if delay_seconds > 0 else now_ms

    def sync_places(self, targets: Sequence[str]) -> None:
        if self._tree.durable:
            self._tree.sync(*{os.path.dirname(target) for target in targets})

    def _sync_or_take_back(self, folder: str, targets: Sequence[str]) -> None:
        """A push that raises has pushed nothing: it would be pushed again, and be two.
        (What a worker has claimed by then is its own, and cannot be taken back.)
        """
        try:
            self._tree.sync(folder)
        except BaseException:
            self._unstage(*targets)
            raise

    def _unstage(self, *aside: str) -> None:
        for path in aside:
            with suppress(OSError):
                self._tree.remove(path)
