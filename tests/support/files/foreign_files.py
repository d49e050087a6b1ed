"""Files that users and broken programs leave in a queue's folders."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

KEY = "0123456789abcdef01"
FUTURE = b'{"id": "x", "schema_version": 99}'

# For each folder, names that the protocol itself might have written.
WELL_FORMED = {
    "pending": ["1700000000000-ab12-0"],
    "pending/1700000000001-ab12-0": [f"{KEY}~0~1700000000001.json"],
    "leased": [
        f"{KEY}~1~abcdef~1700000000000+0+1000.json",
        f"{KEY}~1~abcdef~1700000000000+1000.json",
    ],
    "completed": ["2020-01-01T00"],
    "completed/2020-01-01T01": [f"{KEY}~1~abcdef~1577840400000.json"],
    "failed": [f"{KEY}~1.json", f"{KEY}~1.reason.json"],
    "checkpoints": [KEY],
    f"checkpoints/{KEY}": ["1.json"],
    "history": [f"{KEY}.jsonl"],
    "workers": ["abcdef.json", ".clock"],
    "ids": ["0" * 40, ".turn-94"],
    "tmp": [KEY],
}
ILL_FORMED = ["notes.txt", "~~~.json", ".hidden", "sp ace\n.json", "ünïcode.json", "x" * 255]


def _bytes(data: bytes) -> Callable[[Path, Path], None]:
    def drop(path: Path, outside: Path) -> None:
        path.write_bytes(data)

    return drop


def _folder(path: Path, outside: Path) -> None:
    path.mkdir()


def _full_folder(path: Path, outside: Path) -> None:
    path.mkdir()
    (path / "inside.json").write_text("{}")


def _link_to_file(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "file.json")


def _link_to_folder(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "folder")


def _dangling_link(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "not there")


def _fifo(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path, outside: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        folder = os.open(path.parent, os.O_RDONLY)  # a socket's address must be short
        try:
            listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)


KINDS: dict[str, Callable[[Path, Path], None]] = {
    "empty": _bytes(b""),
    "torn": _bytes(b'{"id": "a", "scho'),
    "huge": _bytes(b'{"id": "a", "x": "' + b"x" * 3 * 2**20 + b'"}'),
    "not UTF-8": _bytes(b'{"id": "\xff\xfe"}'),
    "deeply nested": _bytes(b"[" * 100_000),
    "deep in an object": _bytes(b'{"id": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "not an object": _bytes(b"[1, 2]"),
    "without an id of ours": _bytes(b'{"id": 7}'),
    "text": _bytes(b"remember the milk\n"),
    "folder": _folder,
    "full folder": _full_folder,
    "link to a file outside": _link_to_file,
    "link to a folder outside": _link_to_folder,
    "dangling link": _dangling_link,
    "FIFO": _fifo,
    "socket": _socket,
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
