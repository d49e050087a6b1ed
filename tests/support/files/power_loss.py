"""A disk that loses unsynced changes: what a folder would hold if the power failed now.

Bytes survive once their file was synced, and entries once their folder was. A rename is one
change to two folders. Journalling file systems never tear it, so syncing either folder
keeps it. (`atomic_renames=False` is a disk that does tear it.) A change that was not synced
may be lost or may survive. `Cut.least` and `Cut.most` are the two extremes.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from support.files.watched import WatchedFs


@dataclass(eq=False)
class Node:
    """A file or a folder, independent of its name."""

    is_folder: bool
    data: bytes = b""
    synced: bytes = b""
    text: str | None = None  # of a symlink, which is on the disk with its entry


Entries = dict[str, Node]


@dataclass
class Change:
    """Entries that came (a node) or went (None), and the folders that must be synced."""

    entries: dict[str, Node | None]
    folders: frozenset[str]
    durable: bool = False
    moved: tuple[str, str] | None = None  # a folder, with its contents at that time

    def apply(self, to: Entries) -> None:
        if self.moved:
            source, target = self.moved
            for path in [p for p in to if p.startswith(f"{source}/")]:
                to[target + path.removeprefix(source)] = to.pop(path)
        for path, node in self.entries.items():
            if node is None:
                to.pop(path, None)
            else:
                to[path] = node


class Entry(NamedTuple):
    """A name on the disk. The same number is the same file under two names."""

    number: int
    data: bytes | None  # None: a folder
    text: str | None = None  # of a symlink


Image = dict[str, Entry]


@dataclass(frozen=True)
class Cut:
    """The contents of the disk if the power fails after this call."""

    call: str
    least: Image
    most: Image


class ForgetfulFs(WatchedFs):
    """Performs all calls, and records which changes are durable.

    `deaf_to(path)`: a sync of that path is ignored, as if the code had not called it.
    """

    def __init__(
        self,
        server_time: Callable[[], float],
        folder: Path,
        *,
        atomic_renames: bool = True,
        deaf_to: Callable[[str], bool] = lambda path: False,
    ) -> None:
        super().__init__(server_time)
        self._folder, self._deaf_to = folder, deaf_to
        self._atomic_renames = atomic_renames
        self._paths: dict[int, str] = {}  # of open files
        self._there: Entries = {}
        self._base: Entries = {}
        self._changes: list[Change] = []
        self._recorders: dict[str, Callable[..., None]] = {}
        self.cuts: list[Cut] = []
        self.synced: set[str] = set()

    def arm(self) -> None:
        """Start recording. What exists now is on the disk."""
        self._there = _entries(self._folder)
        self._base = dict(self._there)
        self._recorders = {
            "open": self._opened,
            "write": self._written,
            "fsync": self._fsynced,
            "rename": self._renamed,
            "link": self._linked,
            "symlink": self._symlinked,
            "unlink": self._removed,
            "rmdir": self._removed,
            "mkdir": self._made,
        }

    def call(self, name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        if record := self._recorders.get(name):
            record(result, *args)
            self.cuts.append(self._cut(name))
        return result

    # -- how each call changes the record

    def _opened(self, fd: int, path: str, flags: int, *_: object) -> None:
        self._paths[fd] = path
        if path not in self._there and flags & os.O_CREAT:
            self._change({path: Node(is_folder=False)}, path)

    def _written(self, count: int, fd: int, data: bytes) -> None:
        self._there[self._paths[fd]].data += bytes(data[:count])

    def _fsynced(self, _: None, fd: int) -> None:
        path = self._paths[fd]
        self.synced.add(path)
        if self._deaf_to(path):
            return
        node = self._there[path]
        node.synced = node.data
        for change in self._changes:
            change.durable = change.durable or path in change.folders

    def _renamed(self, _: None, source: str, target: str) -> None:
        node = self._there[source]
        if node.is_folder:  # no disk tears that: its own ".." would have to be torn, too
            self._change({source: None, target: node}, source, target, moved=(source, target))
        elif self._atomic_renames:
            self._change({source: None, target: node}, source, target)
        else:
            self._change({target: node}, target)
            self._change({source: None}, source)

    def _linked(self, _: None, source: str, target: str) -> None:
        self._change({target: self._there[source]}, target)

    def _symlinked(self, _: None, text: str, path: str) -> None:
        self._change({path: Node(is_folder=False, text=text)}, path)

    def _removed(self, _: None, path: str) -> None:
        self._change({path: None}, path)

    def _made(self, _: None, path: str, *__: object) -> None:
        self._change({path: Node(is_folder=True)}, path)

    def _change(
        self,
        entries: dict[str, Node | None],
        *paths: str,
        moved: tuple[str, str] | None = None,
    ) -> None:
        change = Change(entries, frozenset(map(os.path.dirname, paths)), moved=moved)
        change.apply(self._there)
        self._changes.append(change)

    def _cut(self, call: str) -> Cut:
        durable = [change for change in self._changes if change.durable]
        return Cut(call, self._image(durable), self._image(self._changes))

    def _image(self, changes: Iterable[Change]) -> Image:
        entries = dict(self._base)
        for change in changes:
            change.apply(entries)
        return {
            path: Entry(id(node), None if node.is_folder else node.synced, node.text)
            for path, node in entries.items()
        }


def _entries(folder: Path) -> Entries:
    nodes: dict[int, Node] = {}
    entries: Entries = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            node = Node(is_folder=False, text=os.readlink(path))
        else:
            data = b"" if path.is_dir() else path.read_bytes()
            node = nodes.setdefault(path.stat().st_ino, Node(path.is_dir(), data, data))
        entries[str(path.relative_to(folder))] = node
    return entries


def restore(image: Image, folder: Path) -> None:
    """Write the image to a folder. The contents of a lost folder are lost."""
    folder.mkdir(parents=True)
    first: dict[int, Path] = {}
    for name, entry in sorted(image.items()):
        path = folder / name
        if not path.parent.is_dir():
            continue
        if entry.data is None:
            path.mkdir()
        elif entry.text is not None:
            path.symlink_to(entry.text)
        elif entry.number in first:
            os.link(first[entry.number], path)
        else:
            path.write_bytes(entry.data)
            first[entry.number] = path
