"""A queue folder with a manual clock, for the tests of the file queue."""

import json
from pathlib import Path
from typing import Any

from holdfast.lease.backoff import Backoff
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.queue.message import AnyMessage, get_lease
from holdfast.queues.files import FilesystemQueue, FsOps
from holdfast.testing.clock import ManualClock

LEASE = 30.0
MAX_ATTEMPTS = 3
MUCH_LATER = 3 * LEASE + 60.0
"""Past every lease and delay here, and short of a day, after which cards are swept."""

Queue = FilesystemQueue[Any]


def make_clock(**options: Any) -> ManualClock:
    """Make a clock that starts at the machine's time, from which files get their stamps.

    It starts at a whole second, so that a failure does not depend on when it ran.
    """
    return ManualClock(time=get_today(), **options)


def get_today() -> float:
    return float(int(SYSTEM_CLOCK.time()) + 1)


class Ground:
    """Makes queues on one folder. Each is another worker, as if in its own process."""

    def __init__(self, root: Path, clock: ManualClock | None = None, **options: Any) -> None:
        self.root = root
        self.clock = clock or make_clock()
        self._options: dict[str, Any] = {
            "lease_seconds": LEASE,
            "max_attempts": MAX_ATTEMPTS,
            "backoff": Backoff(first_seconds=1.0, max_seconds=1.0),
            **options,
        }

    @property
    def folder(self) -> Path:
        return self.root / "queues" / "default" / "default"

    def queue(self, fs: FsOps | None = None, **options: Any) -> Queue:
        fs = fs or FsOps(server_time=self.clock.time)
        if self.clock.auto_advance:  # a busy lock is given up at once, too
            fs.lock_clock = self.clock
        options = {**self._options, **options}
        model = options.pop("model", AnyMessage)
        return FilesystemQueue(self.root, model, clock=self.clock, fs=fs, **options)

    def tear(self, message_id: str) -> None:
        """Overwrite the file of the only pending message with half of one."""
        [path] = self.folder.glob("pending/*/*.json")
        path.write_bytes(f'{{"id": "{message_id}"'.encode())


def make_message(message_id: str, **fields: Any) -> AnyMessage:
    return AnyMessage(id=message_id, **fields)


def change_card(queue: Queue, **fields: object) -> None:
    """Overwrite fields of a worker's card."""
    assert queue._claimer is not None
    path = queue.folder / "workers" / f"{queue._claimer.me.token}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def move_to_another_host(queue: Queue) -> None:
    """Make other workers see a worker of another boot from now on."""
    change_card(queue, boot_id="another", host="elsewhere")


def get_key(message: Any) -> str:
    """Return the key of the push behind a polled message."""
    key: str = get_lease(message).handle.task.key
    return key


def drain(queue: Queue) -> list[tuple[str, int]]:
    """Poll and ack until no work is left; return each (id, attempt)."""
    done = []
    while batch := queue.poll(10):
        for message in batch:
            queue.ack(message)
            done.append((message.id, message.attempts))
    return done
