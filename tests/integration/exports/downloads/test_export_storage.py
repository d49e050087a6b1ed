"""Disks that are full, closed or unusual: a clear error, and never an incomplete file.

Proves I-JB-12 and I-JB-14 (what a worker leaves behind).
"""

import os
import subprocess
import time
from collections.abc import Iterator

import pytest
from export_place import ExportPlace, cut, result_of

from holdfast.errors import ConfigError
from holdfast.exports.file_names import OWN_FOLDER
from support.http_server import Wire, file
from support.waiting import wait_until

MIB = 1 << 20
DATA = bytes(range(256)) * 8192  # 2 MiB


@pytest.fixture
def small_disk(place: ExportPlace) -> Iterator[ExportPlace]:
    """Make a place whose target is a disk of one mebibyte."""
    place.target.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place.target)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting needs root")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place.target)], check=True)


def test_a_full_disk_is_reported_and_its_space_is_freed(small_disk: ExportPlace) -> None:
    large = small_disk.server.on("/large", file(DATA))
    assert small_disk.code(large) == "DiskFull"
    assert len(small_disk.server.asks) == 1
    assert small_disk.hidden() == []
    fits = small_disk.server.on("/fits", file(DATA[: MIB // 2]))
    assert small_disk.get(fits)["success"]


def test_a_file_larger_than_the_system_allows_is_reported(place: ExportPlace) -> None:
    """This is like a full disk, for users that may not mount one."""
    task = place.task(place.server.on("/a", file(DATA)))
    assert result_of(place.process(task, limit=MIB))["error"]["code"] == "FileTooBig"
    assert place.visible() == {}
    assert place.hidden() == []


def test_another_filesystem_inside_the_target_is_reported(place: ExportPlace) -> None:
    other = place.target / "other"
    other.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(other)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting needs root")
    try:
        url = place.server.on("/a", file(b"data"))
        assert place.code(url, "other/x") == "OtherFilesystem"
    finally:
        subprocess.run(["umount", str(other)], check=True)


def test_the_name_of_a_folder_cannot_be_published(place: ExportPlace) -> None:
    (place.target / "x").mkdir(parents=True)
    assert place.code(place.server.on("/a", file(DATA)), "x") == "NameTaken"
    (place.target / "x" / "file").write_bytes(b"theirs")
    assert place.code(place.server.url("/a"), "x/file/y") == "UnsafePath"
    assert place.hidden() == []


def test_a_name_too_long_for_the_disk_is_reported(place: ExportPlace) -> None:
    """The name is checked with the task, before the file system gets it."""
    url = place.server.on("/a", file(DATA))
    assert place.code(url, "x" * 256) == "InvalidTask"


def test_a_target_that_is_not_a_folder_is_reported_at_once(place: ExportPlace) -> None:
    place.target.write_bytes(b"a file")
    with pytest.raises(ConfigError, match="target"), place.work():
        pass


def test_abandoned_partial_files_are_swept(place: ExportPlace) -> None:
    """Old parts and private parts of dead processes are removed, but none that is in use."""
    folder = place.target / OWN_FOLDER
    folder.mkdir(parents=True)
    names = {
        "old.part": 8,
        "old.part.json": 8,
        "new.part": 6,
        f"private.{'0' * 16}.part": 0,
        "people's own": 99,
    }
    for name, days in names.items():
        (folder / name).write_bytes(b"x")
        os.utime(folder / name, times=(0, time.time() - days * 86_400))
    with place.work():
        assert place.hidden() == ["new.part", "people's own"]


def test_a_private_part_in_use_is_not_swept(place: ExportPlace) -> None:
    task = place.task(place.server.on("/a", cut(DATA, MIB, then=Wire.hang)))
    both = [place.process(task)]
    try:
        wait_until(lambda: len(place.server.asks) == 1)
        both.append(place.process(task))
        wait_until(lambda: len(place.server.asks) == 2)
        before = place.hidden()
        assert sum(name.endswith(".part") for name in before) == 2
        with place.work():
            assert [name for name in place.hidden() if name.endswith(".part")] == [
                name for name in before if name.endswith(".part")
            ]
    finally:
        for process in both:
            process.kill()
            process.communicate()


def test_no_descriptor_is_left_open(place: ExportPlace) -> None:
    """A worker leaves no descriptor behind (I-JB-14)."""
    url = place.server.on("/a", file(DATA))

    def open_now() -> int:
        return len(
            os.listdir("/proc/self/fd" if os.path.exists("/proc/self/fd") else "/dev/fd")
        )

    def some() -> None:
        for number in range(3):
            place.get(url, f"a/{number}")
            place.get(place.server.url("/missing"))
            place.get(url, checksum=f"sha256:{'0' * 64}", attempts=1)

    some()
    wait_until(lambda: not place.server.open)
    before = open_now()
    some()
    wait_until(lambda: not place.server.open)
    assert open_now() <= before
