"""doctor: its results for the place of a queue, with faults made by hand."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.doctor.checks import CheckLevel, CheckResult, run_checks
from holdfast.doctor.file_queue import FOLDER_CHECKS, examine_file_queue
from holdfast.doctor.filesystem import (
    FILESYSTEM,
    HEATS,
    FileQueue,
    grade_inodes,
    grade_space,
)
from holdfast.queue.message import AnyMessage
from holdfast.queues.files import FilesystemQueue, FsOps
from holdfast.store.mounts import find_mount
from support.files.crash import run_in_child


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[FilesystemQueue[AnyMessage]]:
    with FilesystemQueue(tmp_path, queue="q") as queue:
        yield queue  # type: ignore[misc]


def examine(folder: Path, **given: object) -> dict[str, list[CheckResult]]:
    """Return the results by check."""
    results: dict[str, list[CheckResult]] = {}
    for result in examine_file_queue(FileQueue(folder, **given)):  # type: ignore[arg-type]
        results.setdefault(result.check, []).append(result)
    return results


def check_place(folder: Path, check: str, **given: Path) -> list[CheckResult]:
    """Return the results of one check of the filesystem."""
    results = run_checks(FileQueue(folder, **given), *FILESYSTEM)
    return [result for result in results if result.check == check]


def check_folders(folder: Path, check: str) -> list[CheckResult]:
    """Return the results of one check of the queue's folders."""
    results = run_checks(folder, *FOLDER_CHECKS)
    return [result for result in results if result.check == check]


def test_every_result_that_is_not_ok_has_a_remedy(tmp_path: Path) -> None:
    for findings in examine(tmp_path / "nowhere" / "q").values():
        for result in findings:
            assert result.remedy or result.level is CheckLevel.OK, result


def test_nothing_is_left_behind(queue: FilesystemQueue[AnyMessage]) -> None:
    before = sorted(queue.folder.rglob("*"))
    examine(queue.folder)
    assert sorted(queue.folder.rglob("*")) == before


def test_a_queue_that_is_not_there_is_a_failure_and_is_not_made(tmp_path: Path) -> None:
    results = examine(tmp_path / "queues" / "default" / "q")
    assert results["queue"][0].level is CheckLevel.FAIL
    assert results["rename"][0].level is CheckLevel.OK  # the place was probed anyway
    assert list(tmp_path.iterdir()) == []


# -- races


class CopyingFs(FsOps):
    """A folder that is synced by copying: a rename or a link succeeds for each thread."""

    rename = staticmethod(shutil.copyfile)  # type: ignore[assignment]
    link = staticmethod(shutil.copyfile)  # type: ignore[assignment]


class CuttingFs(FsOps):
    """A filesystem that loses what is renamed or linked."""

    def rename(self, source: Path, target: Path) -> None:  # type: ignore[override]
        os.rename(source, target)
        target.write_bytes(b"half")

    def link(self, source: Path, target: Path) -> None:  # type: ignore[override]
        raise FileExistsError(target)


@pytest.mark.parametrize(
    ("fs", "found"),
    [
        (CopyingFs(), f"{HEATS} of {HEATS} files were won by two"),
        (CuttingFs(), f"{HEATS} of {HEATS} files had no winner or were incomplete"),
    ],
)
def test_a_race_that_goes_wrong_is_a_failure_and_the_other_checks_continue(
    queue: FilesystemQueue[AnyMessage], fs: FsOps, found: str
) -> None:
    results = examine(queue.folder, fs=fs)
    for race in ("rename", "link"):
        assert results[race][0].level is CheckLevel.FAIL
        assert found in results[race][0].found
    assert results["lock"][0].level is CheckLevel.OK


def test_a_filesystem_without_hard_links_is_a_failure(
    queue: FilesystemQueue[AnyMessage],
) -> None:
    class LinklessFs(FsOps):
        def link(self, source: Path, target: Path) -> None:  # type: ignore[override]
            raise PermissionError(1, "Operation not permitted")

    [result] = examine(queue.folder, fs=LinklessFs())["link"]
    assert result.level is CheckLevel.FAIL
    assert "hard links do not work: Operation not permitted" in result.found


# -- filesystem and mount

MOUNTS = """\
/dev/vda / ext4 rw,relatime 0 0
tmpfs /run tmpfs rw,nosuid 0 0
server:/export /srv nfs4 rw,vers=4.2,soft,local_lock=all 0 0
server:/export /srv/hard nfs rw,hard,noac 0 0
//box/share /mnt/my\\040share cifs rw 0 0
host:/x /mnt/ssh fuse.sshfs rw 0 0
/dev/vdb /mnt/ro ext4 ro,relatime 0 0
/dev/vdc /mnt/ro/inner ext4 rw 0 0
/dev/vdd /mnt/ro/inner xfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/q", "ext4"),
        ("/srv/q", "nfs4"),
        ("/srv/hard/q", "nfs"),
        ("/srvx/q", "ext4"),
        ("/mnt/my share/q", "cifs"),
        ("/mnt/ro/inner/q", "xfs"),
    ],
)
def test_the_mount_of_a_path_is_the_nearest_and_the_newest(
    tmp_path: Path, path: str, kind: str
) -> None:
    table = tmp_path / "mounts"
    table.write_text(MOUNTS)
    mount = find_mount(Path(path), table)
    assert mount is not None
    assert mount.kind == kind


@pytest.mark.parametrize(
    ("line", "level", "word"),
    [
        ("x / ext4 rw 0 0", CheckLevel.OK, "ext4"),
        ("x / nfs4 rw,hard 0 0", CheckLevel.OK, "network filesystem"),
        ("x / nfs4 rw,soft 0 0", CheckLevel.WARN, "mounted soft"),
        ("x / nfs rw,nolock 0 0", CheckLevel.WARN, "locks are local"),
        ("x / tmpfs rw 0 0", CheckLevel.WARN, "in memory"),
        ("x / cifs rw 0 0", CheckLevel.WARN, "not guaranteed"),
        ("x / fuse.s3fs rw 0 0", CheckLevel.WARN, "not guaranteed"),
        ("x / ext4 ro 0 0", CheckLevel.FAIL, "read-only"),
        ("", CheckLevel.OK, "is unknown"),
    ],
)
def test_each_kind_of_mount_is_judged(
    queue: FilesystemQueue[AnyMessage], tmp_path: Path, line: str, level: CheckLevel, word: str
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(line)
    judged = [
        result
        for check in ("filesystem", "mount")
        for result in check_place(queue.folder, check, mounts=mounts)
    ]
    assert any(f.level is level and word in f.found for f in judged), judged


@pytest.mark.requirement("R001-024")
@pytest.mark.parametrize("mark", [".stfolder", ".dropbox.cache"])
def test_a_synced_folder_is_a_failure(
    queue: FilesystemQueue[AnyMessage], tmp_path: Path, mark: str
) -> None:
    (tmp_path / mark).mkdir()
    [result] = check_place(queue.folder, "synced folder")
    assert result.level is CheckLevel.FAIL
    assert "move the queue out" in result.remedy


# -- folders


def test_a_folder_on_another_device_is_a_failure(
    queue: FilesystemQueue[AnyMessage], fast_path: Path
) -> None:
    if fast_path.stat().st_dev == queue.folder.stat().st_dev:
        pytest.skip("there is only one filesystem here")
    (queue.folder / "completed").rmdir()
    (queue.folder / "completed").symlink_to(fast_path)
    [result] = check_folders(queue.folder, "one device")
    assert result.level is CheckLevel.FAIL
    assert "completed" in result.found


def test_sticky_folders_are_pointed_out(queue: FilesystemQueue[AnyMessage]) -> None:
    (queue.folder / "leased").chmod(0o1777)
    results = check_folders(queue.folder, "permissions")
    assert any("sticky" in result.found for result in results)


@pytest.mark.parametrize(
    ("judge", "free", "level"),
    [
        (grade_space, 10 << 30, CheckLevel.OK),
        (grade_space, 500 << 20, CheckLevel.WARN),
        (grade_space, 1 << 20, CheckLevel.FAIL),
        (grade_inodes, 10**7, CheckLevel.OK),
        (grade_inodes, 50_000, CheckLevel.WARN),
        (grade_inodes, 10, CheckLevel.FAIL),
    ],
)
def test_little_space_is_pointed_out_before_there_is_none(
    judge: Callable[[int], CheckResult], free: int, level: CheckLevel
) -> None:
    assert judge(free).level is level


# -- access


def access_of(folder: Path) -> CheckResult:
    [result] = check_folders(folder, "access")
    return result


def test_a_private_and_a_shared_queue_are_distinguished(tmp_path: Path) -> None:
    private = FilesystemQueue(tmp_path, queue="private").folder
    shared = FilesystemQueue(tmp_path, queue="shared", access="group").folder
    assert access_of(private) == CheckResult("access", CheckLevel.OK, "private (mode 0700)")
    assert access_of(shared).level is CheckLevel.OK
    assert access_of(shared).found.startswith("shared with group ")
    assert access_of(shared).found.endswith(" (mode 2770)")


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o775, 0o770, 0o2775])
def test_a_queue_that_others_can_read_is_mended_by_the_command_it_gives(
    tmp_path: Path, mode: int
) -> None:
    """An earlier version made such queues under umask 022, 027, 002 or 007."""
    queue = FilesystemQueue(tmp_path / "it's here", queue="q")
    queue.push(AnyMessage())
    for path in (queue.folder, *queue.folder.rglob("*")):
        path.chmod(mode if path.is_dir() else mode & 0o666)
    results = access_of(queue.folder)
    assert results.level is CheckLevel.WARN
    assert f"mode {mode:04o}" in results.found
    subprocess.run(results.remedy.partition("; or")[0], shell=True, check=True)
    while (
        results := access_of(queue.folder)
    ).level is not CheckLevel.OK:  # two things were wrong
        subprocess.run(results.remedy, shell=True, check=True)
    assert all(path.stat().st_mode & 0o007 == 0 for path in queue.folder.rglob("*"))
    with FilesystemQueue(tmp_path / "it's here", queue="q") as again:
        assert len(again.poll()) == 1


def test_a_link_in_the_place_of_a_folder_is_a_failure(
    queue: FilesystemQueue[AnyMessage], tmp_path: Path
) -> None:
    (queue.folder / "failed").rmdir()
    (queue.folder / "failed").symlink_to(tmp_path)
    results = examine(queue.folder)
    assert results["folders"][0].level is CheckLevel.FAIL
    assert "failed" in results["folders"][0].found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("name", ["pending/1700000000001-ab12-0", "workers/abcdef.json"])
def test_what_another_user_closed_is_named(fast_path: Path, name: str) -> None:
    queue = FilesystemQueue(fast_path, queue="q")
    path = queue.folder / name
    path.mkdir() if name.startswith("pending") else path.touch()
    for folder in (fast_path, *fast_path.rglob("*")):
        folder.chmod(0o777)
    path.chmod(0o700)

    def play(say: Callable[[str], None]) -> None:
        os.setuid(54323)
        results = check_folders(queue.folder, "permissions")
        closed = [result for result in results if result.level is CheckLevel.FAIL]
        assert [str(path) in result.found for result in closed] == [True]

    run_in_child(play)
