"""A file that was published is a completed task, even if its process was killed directly after.

The next attempt recognises the file by its mark. The server may not have it any more.
"""

import os
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from export_place import ExportPlace
from killed_export import make_killed_work

from holdfast.events import Events
from holdfast.exports.engine import EngineSettings, JobEngine
from holdfast.exports.events import TaskCompleted, TaskRetried
from holdfast.exports.file_names import OWN_FOLDER
from holdfast.exports.model import JobStatus
from holdfast.exports.request import JobRequest, TaskSpec
from holdfast.exports.sqlite_jobs import MemoryJobs
from support.http_server import file, status
from support.workers.running import Seen

if TYPE_CHECKING:
    from support.ministack_server import Ministack

pytest_plugins = ["support.ministack_server"]

DATA = bytes(range(256)) * 8_000  # about 2 MB, so that there is a resume note
BUCKET = "published-files"


@pytest.fixture
def s3(ministack: "Ministack", monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in ministack.env.items():
        monkeypatch.setenv(name, value)
    client = ministack.client("s3")
    client.create_bucket(Bucket=BUCKET)
    return client


@pytest.fixture(params=["folder", "s3"])
def target(request: pytest.FixtureRequest, place: ExportPlace, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(place.target)
    request.getfixturevalue("s3")
    return f"s3://{BUCKET}/{tmp_path.name}"


def find_parts(place: ExportPlace, target: str) -> Path:
    """Return the folder of partial files and notes."""
    is_s3 = target.startswith("s3:")
    return place.target.with_name("scratch") if is_s3 else place.target / OWN_FOLDER


def read_published(request: pytest.FixtureRequest, place: ExportPlace, target: str) -> bytes:
    if not target.startswith("s3:"):
        return place.visible()["file.bin"]
    key = f"{target.removeprefix(f's3://{BUCKET}/')}/file.bin"
    body = request.getfixturevalue("s3").get_object(Bucket=BUCKET, Key=key)["Body"]
    data: bytes = body.read()
    return data


@pytest.mark.parametrize("refusal", ["403 Forbidden", "404 Not Found"])
def test_a_worker_that_is_killed_after_publishing_has_completed_its_task(
    request: pytest.FixtureRequest, place: ExportPlace, target: str, refusal: str
) -> None:
    """(JB-28)"""
    url = place.server.on("/a", file(DATA), status(refusal))
    jobs, seen = MemoryJobs(), Seen()
    settings = place.settings(target=target)
    engine = JobEngine(
        jobs,
        make_killed_work(settings),
        lambda task: {"url": task.url, "s3Bucket": None, "s3Key": task.key},
        lambda request: iter(()),
        settings=EngineSettings(pool_size=1),
        events=Events(seen),
    )
    with engine:
        task = TaskSpec(url=url, key="file.bin")
        job = engine.runner.run(JobRequest("abc-123", "e", "u", None, (task,)), lost=Event())
    assert (job.status, job.state.completed_tasks) == (JobStatus.COMPLETED, 1)
    assert len(seen.of(TaskRetried)) == 1  # the first worker was killed
    [completed] = seen.of(TaskCompleted)
    assert completed.bytes_processed == len(DATA)
    assert read_published(request, place, target) == DATA
    assert len(place.server.asks) == 1
    assert os.listdir(find_parts(place, target)) == []


def test_a_service_that_is_killed_before_it_counts_has_completed_its_task(
    request: pytest.FixtureRequest, place: ExportPlace, target: str
) -> None:
    """The next service has no memory of the attempt, and the server refuses the file."""
    url = place.server.on("/a", file(DATA), status("403 Forbidden"))
    place.get(url, target=target)  # its result is lost with the service
    note = f"{place.task(url)['taskId']}.part.json"  # it was killed before it removed the note
    (find_parts(place, target) / note).write_text("{}")
    assert place.get(url, target=target)["bytesProcessed"] == len(DATA)
    assert read_published(request, place, target) == DATA
    assert os.listdir(find_parts(place, target)) == []


@pytest.mark.parametrize(
    "other",
    [
        {"jobCreatedAt": 2.0},  # the store was deleted, and the same list is another job
        {"taskId": "0" * 32},
        {"checksum": f"sha256:{'0' * 64}"},
        {"size": len(DATA) + 1},
    ],
)
def test_the_file_of_another_task_is_not_recognised(
    place: ExportPlace, target: str, other: dict[str, Any]
) -> None:
    url = place.server.on("/a", file(DATA), status("404 Not Found"))
    assert place.get(url, target=target, jobCreatedAt=1.0)["success"]
    later = {"jobCreatedAt": 1.0, "attempt": 2, **other}
    assert place.get(url, target=target, **later)["error"]["code"] == "Http404"


def write_other_bytes(path: Path) -> None:
    path.write_bytes(bytes(len(DATA)))
    os.utime(path, ns=(1, 1))  # clocks of file systems may be too coarse for a test


def replace_file(path: Path) -> None:
    path.unlink()
    path.write_bytes(DATA)


def put_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def put_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def put_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "change", [write_other_bytes, replace_file, put_pipe, put_link, put_folder, Path.unlink]
)
def test_a_file_that_was_changed_since_is_not_recognised(
    place: ExportPlace, change: Callable[[Path], None]
) -> None:
    url = place.server.on("/a", file(DATA), status("404 Not Found"))
    assert place.get(url, "deep/file.bin")["success"]
    path = place.target / "deep/file.bin"
    change(path)
    assert place.get(url, "deep/file.bin", attempt=2)["error"]["code"] == "Http404"


def test_a_file_that_was_not_synced_is_recognised_only_in_the_same_boot(
    place: ExportPlace,
) -> None:
    """After a power cut it may have its size but not its bytes. A synced file names no boot."""
    url = place.server.on("/a", file(DATA), status("404 Not Found"))
    assert place.get(url, durable=True)["success"]
    assert place.get(url, durable=True)["success"]
    assert place.get(url, durable=False)["error"]["code"] == "Http404"
