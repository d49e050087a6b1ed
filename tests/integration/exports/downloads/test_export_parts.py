"""Partial files, step by step: their owner, their version, and their removal."""

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.exports.downloads.partial_files import PartialFile, PartialFiles
from holdfast.exports.downloads.targets import FolderTarget
from holdfast.exports.downloads.task import (
    Checksum,
    Digests,
    RunningDownload,
    TaskError,
    TaskInput,
)
from holdfast.lease.clock import SYSTEM_CLOCK

MIB = 1 << 20
URL = "https://x/a"


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[PartialFiles]:
    parts = PartialFiles(str(tmp_path / "parts"))
    yield parts
    parts.close()


def opened(parts: PartialFiles, url: str = URL) -> PartialFile:
    part = parts.open("task", url, Digests(["sha256"]))
    part.resume(trust_other_boots=False, on_chunk=lambda count: None)
    return part


def killed(part: PartialFile) -> None:
    """Close the file as the kernel does for a killed process, and do nothing else."""
    os.close(part.fd)


def test_the_next_process_has_the_bytes_and_their_digest(parts: PartialFiles) -> None:
    first = opened(parts)
    first.begin('"v1"', 3 * MIB)
    first.write(bytes(2 * MIB))
    killed(first)
    second = opened(parts)
    assert (second.size, second.validator, second.length) == (2 * MIB, '"v1"', 3 * MIB)
    assert not second.complete
    second.write(bytes(MIB))
    complete = Digests(["sha256"])
    complete.update(bytes(3 * MIB))
    assert second.digests.has(Checksum("sha256", complete.get_digest("sha256").hex()))
    second.close(keep=False)


def test_bytes_of_a_new_version_are_not_taken_for_the_old_one(parts: PartialFiles) -> None:
    """The note of the old version is removed before the first byte of the new one."""
    part = opened(parts)
    part.begin('"v1"', None)
    part.write(bytes(2 * MIB))
    part.restart()
    part.begin('"v2"', None)
    part.write(b"too short to be worth a note")
    killed(part)
    again = opened(parts)
    assert (again.size, again.validator) == (0, None)
    again.close(keep=False)


def test_bytes_of_another_url_are_not_taken(parts: PartialFiles) -> None:
    part = opened(parts)
    part.begin('"v1"', None)
    part.write(bytes(2 * MIB))
    killed(part)
    other = opened(parts, "https://x/b")
    assert other.size == 0
    other.close(keep=False)


def test_a_locked_part_is_not_shared(parts: PartialFiles) -> None:
    first, second = opened(parts), opened(parts)
    assert first.name != second.name
    first.write(b"first")
    second.write(b"second")
    assert os.pread(first.fd, 99, 0) == b"first"
    first.close(keep=False)
    second.close(keep=False)
    assert os.listdir(parts.fd) == []


def test_a_file_published_before_we_have_its_lock_is_not_written_to(
    parts: PartialFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process finishes the task between open and lock."""
    folder, lock = tmp_path / "parts", fcntl.flock
    (folder / "task.part").write_bytes(b"whole")

    def late(fd: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        (folder / "task.part").rename(tmp_path / "published")
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", late)
    part = opened(parts)
    part.write(b"mine")
    assert (tmp_path / "published").read_bytes() == b"whole"
    assert (folder / "task.part").read_bytes() == b"mine"
    part.close(keep=False)


def test_after_publishing_the_name_is_not_ours_to_remove(
    parts: PartialFiles, tmp_path: Path
) -> None:
    first = opened(parts)
    os.rename(tmp_path / "parts" / first.name, tmp_path / "published")
    first.mark_published()
    second = opened(parts)
    assert second.name == first.name
    first.close(keep=False)
    assert os.listdir(parts.fd) == [second.name]
    second.close(keep=False)


NOT_A_NOTE = [b"", b"{", b"[]", b'{"url": 1}', b"\xff", b"[" * 100_000, b"1" * 10_000]


@pytest.mark.parametrize("note", NOT_A_NOTE)
def test_a_broken_note_is_ignored(parts: PartialFiles, tmp_path: Path, note: bytes) -> None:
    (tmp_path / "parts" / "task.part").write_bytes(bytes(MIB))
    (tmp_path / "parts" / "task.part.json").write_bytes(note)
    part = opened(parts)
    assert part.size == 0
    part.close(keep=False)


NOT_A_LENGTH = [("length", value) for value in ("3", 3.5, -1, True, False, [], float("inf"))]


@pytest.mark.parametrize(("name", "value"), [*NOT_A_LENGTH, ("validator", '"v"\r\nX: y')])
def test_a_note_with_an_impossible_value_is_ignored(
    parts: PartialFiles, tmp_path: Path, name: str, value: object
) -> None:
    first = opened(parts)
    first.begin('"v1"', 3 * MIB)
    first.write(bytes(2 * MIB))
    killed(first)
    path = tmp_path / "parts" / "task.part.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    part = opened(parts)
    assert (part.size, part.validator, part.length) == (0, None, None)
    part.close(keep=False)


@pytest.mark.parametrize("other_end", ["closed", "open"])
def test_a_pipe_in_place_of_a_note_does_not_hold_up_the_task(
    parts: PartialFiles, tmp_path: Path, other_end: str
) -> None:
    path = tmp_path / "parts" / "task.part.json"
    (tmp_path / "parts" / "task.part").write_bytes(bytes(MIB))
    os.mkfifo(path)
    held = os.open(path, os.O_RDWR) if other_end == "open" else os.open(os.devnull, os.O_RDWR)
    part = opened(parts)  # opening a pipe waits for its other end, if that is closed
    assert part.size == 0
    part.close(keep=False)
    os.close(held)


def test_a_pipe_in_place_of_a_new_note_is_an_error(parts: PartialFiles, tmp_path: Path) -> None:
    part = opened(parts)
    os.mkfifo(tmp_path / "parts" / "task.part.json")
    part.begin('"v1"', None)
    with pytest.raises(OSError, match=r"task\.part\.json"):
        part.write(bytes(MIB))
    part.close(keep=False)


def test_a_small_file_costs_no_note(parts: PartialFiles) -> None:
    part = opened(parts)
    part.begin('"v1"', None)
    part.write(bytes(MIB - 1))
    assert os.listdir(parts.fd) == ["task.part"]
    part.write(b"x")
    assert sorted(os.listdir(parts.fd)) == ["task.part", "task.part.json"]
    part.close(keep=False)
    assert os.listdir(parts.fd) == []


def test_a_cancelled_download_is_not_published(tmp_path: Path) -> None:
    target = FolderTarget(str(tmp_path), durable=False)
    part = target.partial_files.open("t", "http://a.example/", Digests(()))
    part.write(b"complete")
    task = TaskInput("t", "j", "http://a.example/", "k")
    run = RunningDownload(task, lambda count: None, SYSTEM_CLOCK)
    run.stop()
    with pytest.raises(TaskError, match="cancelled"):
        target.publish(part, "k", run)
    part.close(keep=True)
    target.close()
    assert not (tmp_path / "k").exists()
