"""Count the modules of Holdfast that one message visits, measured with `sys.setprofile`.

python tools/message_path.py     the counts for files and SQS, with the names of the modules

`poll and ack` is one poll of a waiting message and its ack. `worker` is what a worker with
thread isolation does from the call of one handler to the call of the next: it runs a handler,
settles its message, and fetches and claims the next one. A module is visited if one of its
functions is called. All threads count, except the keeper's and the main thread, which run by
time and not for each message. Of many messages, the one in the middle is shown, because now
and then a message also pays for a scan of the leases.
"""

import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from holdfast import Context, FilesystemQueue, QueueManager, Worker
from holdfast.queue.message import AnyMessage
from holdfast.queues.sqs import SQSQueue
from holdfast.testing import SimulatedSqs

MESSAGES = 41
NOT_BY_MESSAGE = ("MainThread", "holdfast-keeper")

AnyQueue = QueueManager[AnyMessage]


class ModuleRecorder:
    """Records the modules of Holdfast in which functions are called, without the fakes."""

    def __init__(self, *ignored_threads: str) -> None:
        self._ignored_threads = ignored_threads
        self._visited: dict[str, None] = {}  # in the order of the first visit
        self._calls = 0

    def record_call(self, frame: FrameType, event: str, _: Any) -> None:
        """Note the module of a called function; `sys.setprofile` calls this."""
        module = frame.f_globals.get("__name__", "")
        if event != "call" or not module.startswith("holdfast."):
            return
        is_fake = module.startswith("holdfast.testing.")
        if not is_fake and threading.current_thread().name not in self._ignored_threads:
            self._visited[module] = None
            self._calls += 1

    def take(self) -> tuple[list[str], int]:
        """Return the modules since the last call of this method, and the number of calls."""
        taken = list(self._visited), self._calls
        self._visited, self._calls = {}, 0
        return taken


def measure_poll_and_ack(queue: AnyQueue) -> list[tuple[list[str], int]]:
    """Return the modules of each message, polled and acked by this thread."""
    recorder = ModuleRecorder()
    measured = []
    for _ in range(MESSAGES):
        sys.setprofile(recorder.record_call)
        [message] = queue.poll(wait_seconds=1.0)
        queue.ack(message)
        sys.setprofile(None)
        measured.append(recorder.take())
    return measured


def measure_worker(queue: AnyQueue) -> list[tuple[list[str], int]]:
    """Return the modules of each message, handled by a worker with one thread."""
    recorder = ModuleRecorder(*NOT_BY_MESSAGE)
    measured = []

    def handle(message: AnyMessage, ctx: Context) -> None:
        measured.append(recorder.take())
        if len(measured) == MESSAGES:
            worker.stop()

    worker = Worker(queue, handle)
    threading.setprofile(recorder.record_call)
    try:
        worker.run()
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]  # None ends it
    return measured


@contextmanager
def open_file_queue() -> Iterator[AnyQueue]:
    """Open a file queue in a new folder."""
    with tempfile.TemporaryDirectory() as folder:
        yield FilesystemQueue(Path(folder))


@contextmanager
def open_sqs_queue() -> Iterator[AnyQueue]:
    """Open a queue of the simulated SQS."""
    client = SimulatedSqs().client()
    url = client.create_queue(QueueName="messages")["QueueUrl"]
    yield SQSQueue(url, client=client)


QUEUES = {"files": open_file_queue, "SQS": open_sqs_queue}
MEASUREMENTS: dict[str, Callable[[AnyQueue], list[tuple[list[str], int]]]] = {
    "poll and ack": measure_poll_and_ack,
    "worker": measure_worker,
}


def measure(kind: str, way: str) -> tuple[list[str], int]:
    """Return the modules and the number of calls of a message in the middle."""
    with QUEUES[kind]() as queue:
        queue.push_many([AnyMessage() for _ in range(2 * MESSAGES)])
        measured = MEASUREMENTS[way](queue)
    return sorted(measured, key=lambda visit: len(visit[0]))[MESSAGES // 2]


def main() -> int:
    """Print the modules of each kind of queue and each way to handle a message."""
    for kind in QUEUES:
        for way in MEASUREMENTS:
            modules, calls = measure(kind, way)
            print(f"{kind}, {way}: {len(modules)} modules, {calls} calls")
            for module in modules:
                print(f"    {module.removeprefix('holdfast.')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
