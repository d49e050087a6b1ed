"""FilesystemQueue follows the queue contract, checked to the byte."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.queue.message import AnyMessage
from holdfast.queues.files import FilesystemQueue, FsOps
from holdfast.testing import ManualClock
from holdfast.testing.contracts.queue.contract import QueueContract
from holdfast.testing.contracts.queue.support import LEASE, AnyQueue, Inject, MakeQueue


class TestFilesystemQueue(QueueContract):
    lacks = frozenset({"results"})

    @pytest.fixture
    def clock(self) -> ManualClock:
        # Files get real time stamps, so the test's time must not make them look old.
        return ManualClock(time=SYSTEM_CLOCK.time())

    @pytest.fixture
    def make_queue(self, tmp_path: Path, clock: ManualClock) -> MakeQueue:
        return _opener(tmp_path, "default", clock)

    @pytest.fixture
    def make_other_queue(self, tmp_path: Path, clock: ManualClock) -> MakeQueue:
        return _opener(tmp_path, "other", clock)

    @pytest.fixture
    def inject(self, tmp_path: Path, make_queue: MakeQueue) -> Inject:
        return lambda _, body: _overwrite_a_push(make_queue(), tmp_path, body)

    @pytest.fixture
    def contents(self, tmp_path: Path) -> Callable[[AnyQueue], object]:
        """Return every file with its bytes."""
        return lambda queue: _files(tmp_path)


def _opener(root: Path, name: str, clock: ManualClock) -> MakeQueue:
    # The file server uses the test's clock, whatever the worker's own clock says.
    server = FsOps(server_time=clock.time)

    def open_one(**settings: Any) -> AnyQueue:
        defaults = {"lease_seconds": LEASE, "clock": clock, "queue": name, "fs": server}
        return FilesystemQueue(root, **defaults | settings)

    return open_one


def _overwrite_a_push(queue: AnyQueue, root: Path, body: bytes) -> None:
    """Let the queue itself choose the name, so that only the bytes are foreign."""
    before = set(_files(root))
    queue.push(AnyMessage(id="injected"))
    [pushed] = [path for path in set(_files(root)) - before if "/pending/" in path.as_posix()]
    pushed.write_bytes(body)


def _files(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
