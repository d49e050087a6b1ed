"""Producing: write the complete file in tmp/, then move it to its place in one step."""

import itertools
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock

from holdfast.errors import QueueUnavailable
from holdfast.queues.files.dedupe import DedupeIndex
from holdfast.queues.files.directory import QueueDirectory
from holdfast.queues.files.layout import OPEN_MS
from holdfast.queues.files.workers import ServerClock

MAX_SEGMENT_TASKS = 2000

OutgoingTask = tuple[str, bytes, str | None]
"""The hash of a message's id, its body, and its headers as JSON."""


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
        self._open: dict[int, _OpenSegment] = {}  # by their start; 0 for tasks that are due

    def choose_segment(self, due_ms: int, now_ms: int) -> str:
        """Return the segment for a task that is due then, and make it if it is missing."""
        slot = 0 if due_ms <= now_ms else due_ms - due_ms % OPEN_MS
        segment = self._open.get(slot)
        # If the clock was set back, a task in a segment of the earlier time would come before
        # older ones.
        if (
            segment is None
            or segment.count >= MAX_SEGMENT_TASKS
            or not (slot or segment.start_ms <= now_ms < segment.start_ms + OPEN_MS)
        ):
            segment = self._make(slot, now_ms)
        segment.count += 1
        return segment.path

    def _make(self, slot: int, now_ms: int) -> _OpenSegment:
        start_ms = slot or _begin_at_once(now_ms)
        path = f"pending/{self._name(start_ms)}"
        self._directory.refuse_links("tmp", "pending")
        self._directory.make_folder(path)
        open_ = self._open.items()
        self._open = {ms: s for ms, s in open_ if not ms or ms + OPEN_MS > now_ms}
        segment = self._open[slot] = _OpenSegment(path, start_ms)
        return segment

    def name_sealed_segment(self, due_ms: int, now_ms: int) -> str:
        """Return the name of a new segment that its producer will publish in one step."""
        start_ms = _begin_at_once(now_ms) if due_ms <= now_ms else due_ms - due_ms % OPEN_MS
        return f"{self._name(start_ms)}s"

    def _name(self, start_ms: int) -> str:
        self._sequence += 1
        return f"{start_ms:013d}-{self._token}-{self._sequence}"


def _begin_at_once(now_ms: int) -> int:
    return now_ms if now_ms % OPEN_MS else now_ms - 1  # a multiple would mean delayed tasks


class Producer:
    """Pushes messages for one process. Shared by its threads, but not by its forks."""

    def __init__(
        self,
        directory: QueueDirectory,
        server_clock: ServerClock,
        dedupe: DedupeIndex,
    ) -> None:
        self._directory, self._server_clock, self._dedupe = directory, server_clock, dedupe
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
        key = self.make_key(id_hash)
        target = self.choose_path(f"{key}~0", delay_seconds)
        self._directory.put(target, body, headers, f"tmp/{key}")
        if self._directory.durable:
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
                    # A task that a worker has claimed by then stays, and keeps its id.
                    taken_back = self._dedupe.withdraw(id_hash, key, target)
                    if not taken_back and isinstance(error, QueueUnavailable):
                        self._dedupe.free_if_owned_by(id_hash, key)  # tmp/ was emptied
                raise
            return True

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
