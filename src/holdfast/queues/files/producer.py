"""Producing: write the complete file in tmp/, then move it to its place in one step."""

import itertools
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock

from holdfast.errors import QueueUnavailable
from holdfast.queues.files.dedupe import DedupeIndex
from holdfast.queues.files.directory import QueueDirectory
from holdfast.queues.files.housekeeping import RecordCheck
from holdfast.queues.files.segments import SegmentWriter
from holdfast.queues.files.server_clock import ServerClock

OutgoingTask = tuple[str, bytes, str | None]
"""The hash of a message's id, its body, and its headers as JSON."""


class Producer:
    """Pushes messages for one process. Shared by its threads, but not by its forks."""

    def __init__(
        self,
        directory: QueueDirectory,
        server_clock: ServerClock,
        dedupe: DedupeIndex,
        record_check: RecordCheck,
    ) -> None:
        self._directory, self._server_clock, self._dedupe = directory, server_clock, dedupe
        self._record_check = record_check
        self._nonce = secrets.randbits(40)
        self._count = itertools.count()
        self._segments = SegmentWriter(directory, secrets.token_hex(4))
        self._lock = Lock()

    def make_key(self, id_hash: str) -> str:
        """Make the key of a new push.

        Keys of one producer sort by push order, so equal due times stay in order too.
        """
        return f"{(self._nonce + next(self._count)) & 0xFF_FFFF_FFFF:010x}{id_hash[:8]}"

    def push(
        self, id_hash: str, body: bytes, delay_seconds: float, headers: str | None = None
    ) -> None:
        """Push one message. If it raises, the message was not pushed."""
        directory = self._directory
        key = self.make_key(id_hash)
        aside = f"tmp/{key}"
        target = self.choose_path(f"{key}~0", delay_seconds)
        try:
            directory.write(aside, body, headers)
            if directory.durable:
                directory.sync(aside)
            if not directory.rename(aside, target):
                directory.publish(aside, target)  # its segment may have to be made again
        except BaseException:
            directory.discard(aside)
            raise
        if directory.durable:
            self._sync_or_take_back(os.path.dirname(target), [target])

    def push_batch(self, batch: Sequence[OutgoingTask], delay_seconds: float) -> None:
        """Push all messages or none, as a segment that one rename publishes."""
        now_ms = self._server_clock.read_wall_ms()
        due_ms = now_ms + int(delay_seconds * 1000) if delay_seconds > 0 else now_ms
        with self._lock:
            segment = self._segments.name_sealed_segment(due_ms, now_ms)
        aside = f"tmp/{segment}"
        paths = [f"{aside}/{self.make_key(id_hash)}~0~{due_ms}.json" for id_hash, *_ in batch]
        try:
            self._directory.refuse_links("tmp", "pending")
            self._directory.mkdir(aside)
            for path, (_, body, headers) in zip(paths, batch, strict=True):
                self._directory.write(path, body, headers)
            if self._directory.durable:
                self._directory.sync(*paths)
                self._directory.sync(aside)
            self._directory.publish(aside, f"pending/{segment}")
        except BaseException:
            for path in paths:
                self._directory.discard(path)
            with suppress(OSError):
                self._directory.remove_folder(aside)
            raise
        if self._directory.durable:
            published = [path.replace("tmp/", "pending/", 1) for path in paths]
            self._sync_or_take_back("pending", published)

    def push_once(
        self, id_hash: str, body: bytes, delay_seconds: float, headers: str | None = None
    ) -> bool:
        """Push one message unless its id is taken, see dedupe.py. Return whether it was."""
        pushed = self._push_unless_alive(id_hash, body, delay_seconds, headers)
        # Without the id lock, because the check takes the locks of other ids.
        if not pushed and self._record_check.run_if_due():
            pushed = self._push_unless_alive(id_hash, body, delay_seconds, headers)
        return pushed

    def _push_unless_alive(
        self, id_hash: str, body: bytes, delay_seconds: float, headers: str | None
    ) -> bool:
        with self._dedupe.lock_id(id_hash):
            if self._dedupe.is_taken(id_hash):
                return False
            key = self.make_key(id_hash)
            aside, target = f"tmp/{key}", self.choose_path(f"{key}~0", delay_seconds)
            try:
                self._directory.write(aside, body, headers)
                if self._directory.durable:
                    self._directory.sync(aside, "tmp")
                self._dedupe.record(id_hash, key)
                self._directory.publish(aside, target)
                self.sync_parent(target)
            except BaseException as error:
                with suppress(OSError):
                    self._take_back(id_hash, key, target, error)
                raise
            return True

    def _take_back(self, id_hash: str, key: str, target: str, error: BaseException) -> None:
        """With the id lock: remove a push that raises, and free its id.

        A task that a worker has claimed by then stays, and keeps its id.
        """
        taken_back = self._dedupe.withdraw(id_hash, key, target)
        if not taken_back and isinstance(error, QueueUnavailable):  # tmp/ was emptied
            self._dedupe.free_if_owned_by(id_hash, key)

    def choose_path(self, stem: str, delay_seconds: float) -> str:
        """Choose a path in pending/ for a task that is due after the delay."""
        now_ms = self._server_clock.read_wall_ms()
        due_ms = now_ms + int(delay_seconds * 1000) if delay_seconds > 0 else now_ms
        with self._lock:
            segment = self._segments.choose_segment(due_ms, now_ms)
        return f"{segment}/{stem}~{due_ms}.json"

    def sync_parent(self, target: str) -> None:
        """Sync the folder that holds this path, if the queue is durable."""
        if self._directory.durable:
            self._directory.sync(os.path.dirname(target))

    def _sync_or_take_back(self, folder: str, targets: Sequence[str]) -> None:
        """Sync the folder, or remove the pushed tasks if that fails.

        A push that raises must have pushed nothing. Otherwise its caller would push again,
        and the queue would hold two tasks. A task that a worker has claimed by then cannot
        be removed.
        """
        try:
            self._directory.sync(folder)
        except BaseException:
            for target in targets:
                self._directory.discard(target)
            raise
