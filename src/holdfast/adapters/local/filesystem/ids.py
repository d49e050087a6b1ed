"""Dedupe: an id that is pending, leased or completed is not pushed twice.

    ids/<hash>          the first name of the task's file, written before it is published
    pending/…           its second name, made by link(2): the publication

So the link count is the answer: 2 or more, the task is alive; 1, its push never got that
far or the task was removed, and the id is free. Pushers of one id take turns by flock,
which the kernel drops with a killed process.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.adapters.local.filesystem import names
from holdfast.adapters.local.filesystem.tree import Tree


class Ids:
    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    @contextmanager
    def turn(self, id_hash: str) -> Iterator[None]:
        """Be the only one who pushes this id."""
        path = f"ids/.turn-{id_hash[:2]}"
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._tree.refuse_links("ids")
        fd = self._tree.open_file(path, flags)
        try:
            self._tree.fs.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            self._tree.fs.close(fd)

    def in_use(self) -> bool:
        """Was anything ever pushed here with dedupe?"""
        return bool(self._tree.list("ids"))

    def alive(self, id_hash: str) -> bool:
        """Within the turn: is a task of this id there, other than as a dead letter?"""
        status = self._tree.stat(names.id_path(id_hash))
        if status is None or status.st_nlink < 2:
            return False
        return not any(self.belongs_to(id_hash, path) for path in self._dead(id_hash))

    def _dead(self, id_hash: str) -> Iterator[str]:
        for name in self._tree.list("failed"):
            match = names.FAILED.fullmatch(name)
            if match and names.has_hash(match[1], id_hash):
                yield f"failed/{name}"

    def belongs_to(self, id_hash: str, path: str) -> bool:
        """Within the turn: is the id's file this very one?"""
        ours, theirs = self._tree.stat(names.id_path(id_hash)), self._tree.stat(path)
        return ours is not None and theirs is not None and ours.st_ino == theirs.st_ino

    def free(self, id_hash: str) -> None:
        """Within the turn: let this id be pushed again."""
        self._tree.remove(names.id_path(id_hash))

    def sweep(self) -> int:
        """Forget the ids of tasks that are gone."""
        freed = 0
        for name in filter(names.ID_HASH.fullmatch, self._tree.list("ids")):
            if not self._is_alone(name):
                continue
            with self.turn(name):
                if self._is_alone(name):
                    self.free(name)
                    freed += 1
        return freed

    def _is_alone(self, id_hash: str) -> bool:
        status = self._tree.stat(names.id_path(id_hash))
        return status is not None and status.st_nlink < 2
