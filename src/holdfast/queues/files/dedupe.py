"""Dedupe: an id that is pending, leased or completed is not pushed twice.

    ids/<hash>           record: a symlink, never followed, whose text is the key of the push
    ids/dead-<key>       mark: the task is in failed/, or is about to be moved there
    ids/redrive-<key>    mark: the task is about to be moved back from failed/
    ids/.turn-<xx>       id lock: held by the process that decides about ids of this shard

    push           write tmp/<key>, then the record, then move tmp/<key> to pending/
    dead-letter    make the mark, move the task to failed/, remove the record
    redrive        rename the mark, make the record again, move the task to pending/, then
                   remove the mark
    purge          move the task to tmp/<key>, remove the record, then tmp/<key>

A process may be killed between any two of these steps. So an id is taken if it has a record,
unless tmp/<key> exists (the task was not published, or is being purged), and unless a mark
exists and failed/ holds the key. Link counts and inode numbers are not used, because backups
and overlays change them.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from holdfast.errors import QueueUnavailable
from holdfast.queues.files import layout
from holdfast.queues.files.directory import QueueDirectory
from holdfast.queues.files.layout import TaskName

ID_LOCK_TIMEOUT_SECONDS = (
    10.0  # a lock is held for a few file operations; if it lasts longer, its holder is frozen
)
_FIRST_PAUSE_SECONDS = 0.001
_MAX_PAUSE_SECONDS = 0.05
# A task that moves while the folders are listed can be missed. It is not missed three times
# in a row, because it would have to move back and forth between the same listings each time.
LISTING_PASSES = 3


class IdLockBusy(QueueUnavailable):
    """Another process did not release an id lock in time."""


class DedupeIndex:
    """The records and marks of the ids of one queue. Shared by threads."""

    def __init__(self, directory: QueueDirectory) -> None:
        self._directory = directory

    # -- id locks

    @contextmanager
    def lock_id(
        self, id_hash: str, wait_seconds: float = ID_LOCK_TIMEOUT_SECONDS
    ) -> Iterator[None]:
        """Lock an id, so that only this process decides about it. Raises IdLockBusy.

        The first two characters of the hash name the lock. The hash part of a key begins
        with the same characters.
        """
        path = _format_lock_path(id_hash)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._directory.refuse_links("ids")
        with self._directory.open_file(path, flags) as fd:
            try:
                self._lock(fd, path, wait_seconds)
                yield
            finally:
                with suppress(OSError):  # a fork of this process may keep the descriptor open
                    self._directory.fs.flock(fd, fcntl.LOCK_UN)

    def _lock(self, fd: int, path: str, wait_seconds: float) -> None:
        clock = self._directory.fs.lock_clock
        give_up_at = clock.monotonic() + wait_seconds
        pause = _FIRST_PAUSE_SECONDS
        while not self._try_lock(fd):
            if clock.monotonic() >= give_up_at:
                raise IdLockBusy(
                    f"queue {str(self._directory.folder)!r}: another process holds {path!r} "
                    "and does not release it: end that process, which may be frozen "
                    f"(`fuser {path}` in the queue's folder names it), then try again"
                )
            clock.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    def _try_lock(self, fd: int) -> bool:
        try:
            self._directory.fs.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    # -- reading; a decision that is based on it needs the id lock

    def is_in_use(self) -> bool:
        """Return whether a message was ever pushed here with dedupe."""
        return bool(self._directory.list("ids"))

    def list_hashes(self) -> Iterator[str]:
        """List the hashes of all ids that have a record."""
        return (name for name in self._directory.list("ids") if layout.ID_HASH.fullmatch(name))

    def group_by_tail(self) -> dict[str, list[str]]:
        """Group the hashes of all ids that have a record by the end of their keys."""
        tails: dict[str, list[str]] = {}
        for id_hash in self.list_hashes():
            tails.setdefault(id_hash[:8], []).append(id_hash)
        return tails

    def read_key(self, id_hash: str) -> str | None:
        """Return the key that the id's record names, or None if it has no record.

        Something else in the place of a record counts as none.
        """
        try:
            text = self._directory.fs.readlink(_format_path(id_hash), dir_fd=self._directory.fd)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.EINVAL:  # not a symlink
                return None
            raise
        is_key = layout.KEY.fullmatch(text) and layout.has_hash(text, id_hash)
        return text if is_key else None

    def is_taken(self, id_hash: str) -> bool:
        """With the id lock: return whether a task of this id exists that is not dead."""
        key = self.read_key(id_hash)
        if key is None or self._directory.exists(f"tmp/{key}"):
            return False
        is_marked = any(map(self._directory.exists, _format_mark_paths(key)))
        return not (is_marked and self.find_dead({key}))

    def find_dead(self, keys: set[str]) -> dict[str, str]:
        """Find the dead letters of these keys; return their paths by key."""
        return {
            name[:18]: f"failed/{name}"
            for name in self._directory.list("failed")
            if name[:18] in keys and layout.FAILED.fullmatch(name)
        }

    def list_live_keys(self) -> Iterator[str]:
        """List the keys of all tasks except dead letters, in the order in which tasks move.

        pending/ is listed again at the end, because a nack moves a task back there.
        """
        for state in ("pending", "leased", "completed", "pending"):
            folders = [state]
            if state != "leased":
                folders = [f"{state}/{name}" for name in self._directory.list(state)]
            for folder in folders:
                yield from (name[:18] for name in self._directory.list(folder))

    # -- records

    def record(self, id_hash: str, key: str) -> None:
        """With the id lock: make the id belong to this key from now on."""
        path = _format_path(id_hash)
        if not self._make_link(key, path):
            self.free(id_hash, self.read_key(id_hash))
            if not self._make_link(key, path):
                raise QueueUnavailable(
                    f"queue {str(self._directory.folder)!r}: {path!r} is in the way and is not "
                    "a file that can be replaced: move it out of the queue, then try again"
                )
        self._sync()

    def free(self, id_hash: str, key: str | None) -> bool:
        """With the id lock: let this id be pushed again; its record names `key`."""
        freed = self._directory.remove(_format_path(id_hash))
        if key:
            self.remove_marks(key)
        return freed

    def free_if_owned_by(self, id_hash: str, key: str) -> None:
        """With the id lock: free the id if it belongs to this key."""
        if self.read_key(id_hash) == key:
            self.free(id_hash, key)

    def withdraw(self, id_hash: str, key: str, path: str) -> bool:
        """With the id lock: remove a task and free its id; False if the task is missing.

        One rename makes it a push that was never published, so a kill after that neither
        blocks the id nor leaves a task whose id is free.
        """
        aside = f"tmp/{key}"
        if not self._directory.rename(path, aside):
            return False
        self.free_if_owned_by(id_hash, key)
        return self._directory.remove(aside)

    def _make_link(self, key: str, path: str) -> bool:
        """Make a record or a mark of this key; False if something exists at the path."""
        try:
            self._directory.fs.symlink(key, path, dir_fd=self._directory.fd)
        except FileExistsError:
            return False
        return True

    def _sync(self) -> None:
        if self._directory.durable:
            self._directory.sync("ids")

    # -- dead letters

    def mark(self, key: str, message_id: str) -> str | None:
        """Mark a task before it moves to failed/, if a record names it.

        Returns the id's hash, or None if no record names the task. Marking twice has the
        same effect as once. The id lock is not needed, because a mark alone changes nothing.
        """
        id_hash = self.find_hash(key, message_id)
        if id_hash is not None:
            dead_mark, _ = _format_mark_paths(key)
            self._make_link(key, dead_mark)
            self._sync()
        return id_hash

    def remove_redrive_mark(self, key: str) -> None:
        """With the id lock: remove the mark of a redrive after the dead letter moved back.

        The task may be dead again by now. A new mark of that stays.
        """
        self._directory.remove(_format_mark_paths(key)[1])

    def remove_marks(self, key: str) -> bool:
        """Remove all marks of a task; return whether it had one."""
        removed = [self._directory.remove(path) for path in _format_mark_paths(key)]
        return any(removed)

    def find_hash(self, key: str, message_id: str) -> str | None:
        """Return the hash of the id whose record names this key, or None.

        A task that cannot be read has its key in place of its id. Then its record is
        searched for.
        """
        candidates = [layout.hash_id(message_id)]
        if not layout.has_hash(key, candidates[0]):
            is_in_use = self._directory.exists(_format_lock_path(key[10:]))
            candidates = self.group_by_tail().get(key[10:], []) if is_in_use else []
        return next((each for each in candidates if self.read_key(each) == key), None)

    def free_dead_letter(self, id_hash: str, key: str, path: str) -> bool:
        """With the id lock: free the id of a dead letter; return whether it was freed.

        The id is not freed if the dead letter was redriven meanwhile (then `path` is gone)
        or if its id was pushed again. Its mark stays for a redrive.
        """
        is_owner = self._directory.exists(path) and self.read_key(id_hash) == key
        return is_owner and self._directory.remove(_format_path(id_hash))

    def reclaim_id(self, id_hash: str, task: TaskName) -> bool:
        """With the id lock: give a dead letter its id again, before it moves back.

        Returns False if another task has the id, or if the dead letter is gone.
        """
        owner = self.read_key(id_hash)
        if owner == task.key and not self._directory.exists(task.failed_path):
            return False  # it was redriven already
        if owner not in (None, task.key) and self.is_taken(id_hash):
            return False
        dead_mark, mark_path = _format_mark_paths(task.key)
        if not self._directory.rename(dead_mark, mark_path):
            self._make_link(task.key, mark_path)
        if owner == task.key:
            self._sync()
        else:
            self.record(id_hash, task.key)
        return True


def _format_mark_paths(key: str) -> tuple[str, str]:
    """Return the paths of both marks of a task, see above: dead, and about to move back."""
    return f"ids/dead-{key}", f"ids/redrive-{key}"


def _format_path(id_hash: str) -> str:
    return f"ids/{id_hash}"


def _format_lock_path(id_hash: str) -> str:
    return f"ids/.turn-{id_hash[:2]}"
