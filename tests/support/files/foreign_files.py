"""Files that users and broken programs leave in a queue's folders."""

import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

KEY = "0123456789abcdef01"


def _write(data: bytes, path: Path, outside: Path) -> None:
    path.write_bytes(data)


def _fill_folder(path: Path, outside: Path) -> None:
    path.mkdir()
    (path / "inside.json").write_text("{}")


def _bind(path: Path, outside: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        folder = os.open(path.parent, os.O_RDONLY)  # a socket's address must be short
        try:
            listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)


_CONTENTS = {
    "empty": b"",
    "torn": b'{"id": "a", "scho',
    "huge": b'{"id": "a", "x": "' + b"x" * 3 * 2**20 + b'"}',
    "not UTF-8": b'{"id": "\xff\xfe"}',
    "deeply nested": b"[" * 100_000,
    "deep in an object": b'{"id": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "not an object": b"[1, 2]",
    "without an id of ours": b'{"id": 7}',
    "text": b"remember the milk\n",
}
KINDS: dict[str, Callable[[Path, Path], None]] = {
    **{kind: partial(_write, data) for kind, data in _CONTENTS.items()},
    "folder": lambda path, outside: path.mkdir(),
    "full folder": _fill_folder,
    "link to a file outside": lambda path, outside: path.symlink_to(outside / "file.json"),
    "link to a folder outside": lambda path, outside: path.symlink_to(outside / "folder"),
    "dangling link": lambda path, outside: path.symlink_to(outside / "not there"),
    "FIFO": lambda path, outside: os.mkfifo(path),
    "socket": _bind,
}


def outside_of(folder: Path) -> Path:
    """Make files outside of the queue, to which links may lead."""
    outside = folder / "outside"
    (outside / "folder").mkdir(parents=True)
    (outside / "file.json").write_text('{"id": "theirs"}')
    (outside / "folder" / f"{KEY}~0~1700000000000.json").write_text('{"id": "theirs"}')
    return outside


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return the kind, time stamp and content of everything below a folder."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            path.lstat().st_mtime_ns,
            path.read_bytes() if path.is_file() and not path.is_symlink() else b"",
        )
        for path in sorted(folder.rglob("*"))
    }
