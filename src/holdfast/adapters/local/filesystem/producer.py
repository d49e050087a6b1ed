"""Producing: write the whole file aside, then give it its place in one step."""

import itertools
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock

from holdfast.adapters.local.filesystem import ids, names
from holdfast.adapters.local.filesystem.ids import Ids
from holdfast.adapters.local.filesystem.segments import SegmentWriter
from holdfast.adapters.local.filesystem.timeline import Timeline
from holdfast.adapters.local.filesystem.tree import Tree
from holdfast.core.errors import QueueUnavailable


class Producer:
    """One process's way of pushing. Shared by its threads, not by its forks."""

    def __init__(self, tree: Tree, timeline: Timeline, ids: Ids, *, durable: bool) -> None:
        self._tree, self._timeline, self._ids, self._durable = tree, timeline, ids, durable
        self._nonce = secrets.randbits(40)
        self._count = itertools.count()
        self._segments = SegmentWriter(tree, secrets.token_hex(4))
        self._lock = Lock()

    def new_key(self, id_hash: str) -> str:
        """Keys of one producer sort by push order: equal due times stay in order too."""
        return f"{(self._nonce + next(self._count)) & 0xFF_FFFF_FFFF:010x}{id_hash[:8]}"

    def push(self, id_hash: str, body: bytes, delay_seconds: float) -> None:
        key = self.new_key(id_hash)
        try:
            self._tree.write(f"tmp/{key}", body)
            self._publish(key, self.place(f"{key}~0", delay_seconds))
        except BaseException:
            self._unstage([key])
            raise

    def push_batch(self, batch: Sequence[tuple[str, bytes]], delay_seconds: float) -> None:
        """All are written (and synced) before the first is published."""
        keys = [self.new_key(id_hash) for id_hash, _ in batch]
        try:
            for key, (_, body) in zip(keys, batch, strict=True):
                self._tree.write(f"tmp/{key}", body)
            if self._durable:
                self._tree.sync(*(f"tmp/{key}" for key in keys))
            targets = [self.place(f"{key}~0", delay_seconds) for key in keys]
            for key, target in zip(keys, targets, strict=True):
                self._publish(key, target)
        except BaseException:
            self._unstage(keys)
            raise
        self.sync_places(targets)

    def push_once(self, id_hash: str, body: bytes, delay_seconds: float) -> bool:
        """False when a task of this id is alive: see ids.py."""
        with self._ids.turn(id_hash):
            if self._ids.alive(id_hash):
                return False
            self._ids.free(id_hash)
            self._tree.write(ids.path(id_hash), body)
            if self._durable:
                self._tree.sync(ids.path(id_hash), "ids")
            target = self.place(f"{self.new_key(id_hash)}~0", delay_seconds)
            self._tree.publish_link(ids.path(id_hash), target)
            self.sync_places([target])
            return True

    def place(self, stem: str, delay_seconds: float) -> str:
        """A path in pending/ for a task that is due after the delay."""
        now_ms = self._timeline.wall_ms()
        due_ms = now_ms + int(delay_seconds * 1000) if delay_seconds > 0 else now_ms
        with self._lock:
            segment = self._segments.path(due_ms, now_ms)
        return names.pending_path(segment, stem, due_ms)

    def sync_places(self, targets: Sequence[str]) -> None:
        if self._durable:
            self._tree.sync(*{os.path.dirname(target) for target in targets}, "pending")

    def _publish(self, key: str, target: str) -> None:
        if not self._tree.move(f"tmp/{key}", target):
            raise QueueUnavailable(
                f"queue {str(self._tree.folder)!r}: tmp/ was emptied while a push was "
                "writing there: push again"
            )

    def _unstage(self, keys: Sequence[str]) -> None:
        for key in keys:
            with suppress(OSError):
                self._tree.remove(f"tmp/{key}")
