"""Dedupe: an id that is pending, leased or completed is not pushed twice.

    ids/<hash>           record: a symlink, never followed, whose text is the key of the push
    ids/dead-<key>       mark: the task is in failed/, or is about to be moved there
    ids/redrive-<key>    mark: the task is about to be moved back from failed/
    ids/.turn-<xx>       locked by the process that decides about ids of this shard

    push           write tmp/<key>, then the record, then move tmp/<key> to pending/
    dead-letter    make the mark, move the task to failed/, remove the record
    redrive        rename the mark, make the record again, move the task to pending/, then
                   remove the mark
    purge          move the task to tmp/<key>, remove the record, then tmp/<key>

A process may be killed between any two of these steps. So an id is taken if it has a record,
unless tmp/<key> exists (it was not published, or is being purged), and unless there is a
mark and failed/ holds the key. Link counts and inode numbers play no part, because backups
and overlays change them.

A mark is a hard link of the record, and becomes the record again: no file is created or
deleted, because creating one takes ext4 up to a millisecond after many were deleted.
"""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from holdfast.adapters.local.filesystem import names
from holdfast.adapters.local.filesystem.directory import QueueDirectory
from holdfast.adapters.local.filesystem.names import TaskName
from holdfast.core.errors import QueueUnavailable

TURN_SECONDS = 10.0  # a turn lasts a few file operations; longer, and its holder is frozen
_FIRST_PAUSE_SECONDS = 0.001
_MAX_PAUSE_SECONDS = 0.05
_UNKNOWN = ""  # the key of what is in the place of a record and is none
# A task that moves while the folders are listed can be missed; three times in a row it is
# not: it would have to move back and forth between the same listings each time.
PASSES = 3


class TurnBusy(QueueUnavailable):
    """Another process did not end its turn in time."""


class WaitBudget:
    """How long one purge, sweep or redrive waits for turns that do not come, all together."""

    def __init__(self, seconds: float = TURN_SECONDS) -> None:
        self.seconds = seconds
        self.left_out = 0
        self._why: TurnBusy | None = None

    def run_out(self, why: TurnBusy) -> None:
        """Note that one piece of work was left out; from now on nothing is waited for."""
        self.seconds, self.left_out, self._why = 0.0, self.left_out + 1, why

    def check(self, done: str) -> None:
        """Raise QueueUnavailable if something was left out."""
        if self._why is not None:
            raise QueueUnavailable(f"{done}, {self.left_out} left: {self._why}")


class DedupeIndex:
    """What is known about the ids of one queue. Shared by threads."""

    def __init__(self, tree: QueueDirectory) -> None:
        self._tree = tree

    # -- turns

    @contextmanager
    def turn(self, id_hash: str, wait_seconds: float = TURN_SECONDS) -> Iterator[None]:
        """Be the only process that decides about this id. Raises TurnBusy.

        The first two characters of the hash name the turn; the end of a key has them, too.
        """
        path = _turn_path(id_hash)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._tree.refuse_links("ids")
        fd = self._tree.open_file(path, flags)
        try:
            self._lock(fd, path, wait_seconds)
            yield
        finally:
            with suppress(OSError):  # a fork of this process may keep the descriptor open
                self._tree.fs.flock(fd, fcntl.LOCK_UN)
            self._tree.fs.close(fd)

    def _lock(self, fd: int, path: str, wait_seconds: float) -> None:
        clock = self._tree.fs.lock_clock
        give_up_at = clock.monotonic() + wait_seconds
        pause = _FIRST_PAUSE_SECONDS
        while not self._try_lock(fd):
            if clock.monotonic() >= give_up_at:
                raise TurnBusy(
                    f"queue {str(self._tree.folder)!r}: another process holds {path!r} and "
                    "does not let go: end that process, which may be frozen "
                    f"(`fuser {path}` in the queue's folder names it), then try again"
                )
            clock.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    def _try_lock(self, fd: int) -> bool:
        try:
            self._tree.fs.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def attempt(self, id_hash: str, budget: WaitBudget, act: Callable[[], int]) -> int:
        """Act within the turn and return what `act` does; 0 if the turn does not come."""
        try:
            with self.turn(id_hash, budget.seconds):
                return act()
        except TurnBusy as busy:
            budget.run_out(busy)
            return 0

    # -- looking; what is decided by it needs the turn

    def in_use(self) -> bool:
        """Was anything ever pushed here with dedupe?"""
        return bool(self._tree.list("ids"))

    def hashes(self) -> Iterator[str]:
        """Every id that has a record."""
        return (name for name in self._tree.list("ids") if names.ID_HASH.fullmatch(name))

    def by_tail(self) -> dict[str, list[str]]:
        """Every id that has a record, by the end that all of its keys have."""
        tails: dict[str, list[str]] = {}
        for id_hash in self.hashes():
            tails.setdefault(id_hash[:8], []).append(id_hash)
        return tails

    def key_of(self, id_hash: str) -> str | None:
        """The key that the id's record names; None without a record, and "" if something
        else is in its place."""
        try:
            text = self._tree.fs.readlink(names.id_path(id_hash), dir_fd=self._tree.fd)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.EINVAL:  # not a symlink
                return _UNKNOWN
            raise
        is_key = names.KEY.fullmatch(text) and names.has_hash(text, id_hash)
        return text if is_key else _UNKNOWN

    def alive(self, id_hash: str) -> bool:
        """Within the turn: is a task of this id there, other than as a dead letter?"""
        key = self.key_of(id_hash)
        if key is None:
            return False
        if key == _UNKNOWN:
            return self._is_found(id_hash)
        if self._tree.exists(f"tmp/{key}"):
            return False
        is_marked = any(map(self._tree.exists, _mark_paths(key)))
        return not (is_marked and self._is_dead(key))

    def _is_found(self, id_hash: str) -> bool:
        return any(
            names.has_hash(key, id_hash) for _ in range(PASSES) for key in self.live_keys()
        )

    def _is_dead(self, key: str) -> bool:
        listed = filter(names.FAILED.fullmatch, self._tree.list("failed"))
        return any(name.startswith(key) for name in listed)

    def live_keys(self) -> Iterator[str]:
        """Keys of all tasks but dead letters, in the direction in which tasks move.

        pending/ is listed again at the end, because a nack moves a task back there.
        """
        for state in ("pending", "leased", "completed", "pending"):
            folders = [state] if state == "leased" else self._below(state)
            for folder in folders:
                yield from (name[:18] for name in self._tree.list(folder))

    def _below(self, folder: str) -> list[str]:
        return [f"{folder}/{name}" for name in self._tree.list(folder)]

    # -- records

    def record(self, id_hash: str, key: str, mark_path: str | None = None) -> None:
        """Within the turn: the id belongs to this key from now on."""
        path = names.id_path(id_hash)
        if not self._make(key, path, mark_path):
            self.free(id_hash, self.key_of(id_hash))
            if not self._make(key, path, mark_path):
                raise QueueUnavailable(
                    f"queue {str(self._tree.folder)!r}: {path!r} is in the way and is not a "
                    "file that can be replaced: move it out of the queue, then try again"
                )
        self._sync()

    def free(self, id_hash: str, key: str | None) -> bool:
        """Within the turn: let this id be pushed again; its record names `key`."""
        freed = self._tree.remove(names.id_path(id_hash))
        if key:
            self.unmark(key)
        return freed

    def free_if(self, id_hash: str, key: str) -> None:
        """Within the turn: free the id if it belongs to this key."""
        if self.key_of(id_hash) == key:
            self.free(id_hash, key)

    def withdraw(self, id_hash: str, key: str, path: str) -> bool:
        """Within the turn: remove a task and free its id; False if it is not there.

        One rename makes it a push that was never published, so a kill after that neither
        blocks the id nor leaves a task whose id is free.
        """
        aside = f"tmp/{key}"
        if not self._tree.rename(path, aside):
            return False
        self.free_if(id_hash, key)
        return self._tree.remove(aside)

    def _make(self, key: str, path: str, twin: str | None = None) -> bool:
        """Make a record or a mark of this key; False if there is something at the path.

        A link of its `twin` if that is possible: not everywhere can a symlink have two
        names, and Linux refuses it for one that another user made.
        """
        try:
            if twin is not None:
                with suppress(FileNotFoundError, PermissionError, NotImplementedError):
                    self._tree.link(twin, path)
                    return True
            self._tree.fs.symlink(key, path, dir_fd=self._tree.fd)
        except FileExistsError:
            return False
        return True

    def _sync(self) -> None:
        if self._tree.durable:
            self._tree.sync("ids")

    # -- dead letters

    def mark(self, key: str, message_id: str) -> str | None:
        """Before the task moves to failed/: mark it if a record names it.

        Returns the id's hash; None if there is no such record. Marking twice is harmless.
        Needs no turn: a mark alone changes nothing.
        """
        id_hash = self.hash_for(key, message_id)
        if id_hash is not None:
            self._make(key, names.dead_mark_path(key), names.id_path(id_hash))
            self._sync()
        return id_hash

    def redriven(self, key: str) -> None:
        """Within the turn, after the dead letter moved back. It may be dead again by now: a
        new mark of that stays."""
        self._tree.remove(names.redrive_mark_path(key))

    def unmark(self, key: str) -> None:
        for path in _mark_paths(key):
            self._tree.remove(path)

    def hash_for(self, key: str, message_id: str) -> str | None:
        """The id whose record names this key. A task that cannot be read goes by its key
        instead of its id: then its record is searched for."""
        candidates = [names.id_hash(message_id)]
        if not names.has_hash(key, candidates[0]):
            in_use = self._tree.exists(_turn_path(key[10:]))
            candidates = self.by_tail().get(key[10:], []) if in_use else []
        return next((each for each in candidates if self.key_of(each) == key), None)

    def free_dead(self, id_hash: str, key: str, path: str) -> bool:
        """Within the turn: free the id of a dead letter, unless it was redriven meanwhile
        (then `path` is gone) or its id was pushed again. Its mark stays for a redrive."""
        is_ours = self._tree.exists(path) and self.key_of(id_hash) == key
        return is_ours and self._tree.remove(names.id_path(id_hash))

    def take(self, id_hash: str, task: TaskName) -> bool:
        """Within the turn, before a dead letter moves back: give it the id again.

        Returns False if another task has the id, or if the dead letter is gone.
        """
        owner = self.key_of(id_hash)
        if owner == task.key and not self._tree.exists(names.failed_path(task)):
            return False  # it was redriven already
        if owner not in (None, task.key) and self.alive(id_hash):
            return False
        mark_path = names.redrive_mark_path(task.key)
        if not self._tree.rename(names.dead_mark_path(task.key), mark_path):
            self._make(task.key, mark_path)
        if owner == task.key:
            self._sync()
        else:
            self.record(id_hash, task.key, mark_path)
        return True


def _mark_paths(key: str) -> tuple[str, str]:
    return names.dead_mark_path(key), names.redrive_mark_path(key)


def _turn_path(id_hash: str) -> str:
    return f"ids/.turn-{id_hash[:2]}"
