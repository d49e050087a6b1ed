"""Count the modules of Holdfast that one message visits, measured with `sys.setprofile`.

python tools/message_path.py     the counts for each queue, with the names of the modules
python tools/message_path.py -v  with each function, in the order of the calls

`poll and ack` is one poll of a waiting message and its ack. `worker` is what a worker with
thread isolation does from the call of one handler to the call of the next: it runs a handler,
settles its message, and fetches and claims the next one. In `no backlog`, each handler pushes
the next message, so the worker polls for each. A module is visited if one of its functions is
called. A switch is a call into another module than that of the call before. All threads count,
except the main thread and those that run by time and not for each message. Of many messages,
the one in the middle is shown, because now and then a message also pays for a scan of the
leases.
"""

import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

from holdfast import Context, FilesystemQueue, QueueManager, SQLiteQueue, Worker
from holdfast.queue.message import AnyMessage
from holdfast.queues.sqs import SQSQueue
from holdfast.testing import SimulatedSqs

MESSAGES = 41
NOT_BY_MESSAGE = ("MainThread", "holdfast-keeper", "holdfast-prefetch", "holdfast-checkpoint")

AnyQueue = QueueManager[AnyMessage]
CallPath = list[tuple[str, str]]  # the module and the name of each called function


class CallRecorder:
    """Records the calls of functions of Holdfast, without the fakes."""

    def __init__(self, *ignored_threads: str) -> None:
        self.paused = False
        self._ignored_threads = ignored_threads
        self._calls: CallPath = []

    def record_call(self, frame: FrameType, event: str, _: Any) -> None:
        """Note the called function; `sys.setprofile` calls this."""
        module = frame.f_globals.get("__name__", "")
        if event != "call" or self.paused or not module.startswith("holdfast."):
            return
        is_fake = module.startswith("holdfast.testing.")
        if not is_fake and threading.current_thread().name not in self._ignored_threads:
            self._calls.append((module.removeprefix("holdfast."), frame.f_code.co_qualname))

    def take(self) -> CallPath:
        """Return the calls since the last call of this method."""
        taken, self._calls = self._calls, []
        return taken


def list_modules(path: CallPath) -> list[str]:
    """Return the modules in the order of the first visit."""
    return list(dict.fromkeys(module for module, _ in path))


def count_switches(path: CallPath) -> int:
    """Return how often a call goes to another module than the call before."""
    return sum(before[0] != after[0] for before, after in pairwise(path))


def measure_poll_and_ack(queue: AnyQueue) -> list[CallPath]:
    """Return the path of each message, polled and acked by this thread."""
    queue.push_many([AnyMessage() for _ in range(MESSAGES)])
    recorder = CallRecorder()
    measured = []
    for _ in range(MESSAGES):
        sys.setprofile(recorder.record_call)
        [message] = queue.poll(wait_seconds=1.0)
        queue.ack(message)
        sys.setprofile(None)
        measured.append(recorder.take())
    return measured


def measure_worker(queue: AnyQueue) -> list[CallPath]:
    """Return the path of each message, handled by a worker with one thread."""
    queue.push_many([AnyMessage() for _ in range(2 * MESSAGES)])
    return _measure_worker(queue, lambda: None)


def measure_without_backlog(queue: AnyQueue) -> list[CallPath]:
    """Return the path of each message if the queue never has more than one."""
    queue.push(AnyMessage())
    return _measure_worker(queue, lambda: queue.push(AnyMessage()))


def _measure_worker(queue: AnyQueue, before_return: Callable[[], object]) -> list[CallPath]:
    recorder = CallRecorder(*NOT_BY_MESSAGE)
    measured = []

    def handle(message: AnyMessage, ctx: Context) -> None:
        measured.append(recorder.take())
        recorder.paused = True
        before_return()
        recorder.paused = False
        if len(measured) == MESSAGES:
            worker.stop()

    worker = Worker(queue, handle)
    for thread in threading.enumerate():
        # It would serve this queue too, and its calls would not be recorded.
        if thread.name == "holdfast-sqs-receive":
            thread.join()
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
def open_sqlite_queue() -> Iterator[AnyQueue]:
    """Open a SQLite queue in a new file."""
    with tempfile.TemporaryDirectory() as folder:
        yield SQLiteQueue(Path(folder) / "queue.db", AnyMessage)


@contextmanager
def open_sqs_queue() -> Iterator[AnyQueue]:
    """Open a queue of the simulated SQS."""
    client = SimulatedSqs().client()
    url = client.create_queue(QueueName="messages")["QueueUrl"]
    yield SQSQueue(url, client=client)


QUEUES = {"files": open_file_queue, "SQLite": open_sqlite_queue, "SQS": open_sqs_queue}
MEASUREMENTS: dict[str, Callable[[AnyQueue], list[CallPath]]] = {
    "poll and ack": measure_poll_and_ack,
    "worker": measure_worker,
    "no backlog": measure_without_backlog,
}


def measure(kind: str, way: str) -> CallPath:
    """Return the path of a message in the middle."""
    with QUEUES[kind]() as queue:
        measured = MEASUREMENTS[way](queue)
    return sorted(measured, key=len)[MESSAGES // 2]


def main() -> int:
    """Print the modules of each kind of queue and each way to handle a message."""
    for kind in QUEUES:
        for way in MEASUREMENTS:
            path = measure(kind, way)
            modules = list_modules(path)
            print(
                f"{kind}, {way}: {len(modules)} modules, {count_switches(path)} switches, "
                f"{len(path)} calls"
            )
            lines = [f"{module} {name}" for module, name in path]
            for line in lines if "-v" in sys.argv else modules:
                print(f"    {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
