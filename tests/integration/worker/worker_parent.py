"""A worker in its own process, for tests that kill, stop or interrupt it."""

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from threading import Thread
from typing import Any

if __name__ == "__mp_main__":
    # A child imports this script before any code of Holdfast runs in it. Be slow here, so
    # that a signal can reach the child before it has its own session.
    time.sleep(float(os.environ.get("SLOW_CHILDREN", "0")))

import child_handlers as handlers

from holdfast.lease.backoff import Backoff
from holdfast.queue.manager import QueueManager
from holdfast.queue.message import AnyMessage
from holdfast.queues.files import FilesystemQueue
from holdfast.testing import MemoryQueue
from holdfast.worker.worker import Worker
from support.waiting import wait_until
from support.workers.notes import Notes

PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    plan = json.loads(sys.argv[1])
    notes = Notes(Path(plan["notes"]))
    queue = make_queue(plan)
    if plan.get("what"):
        queue.push(AnyMessage(id="m", **plan))
    worker = Worker(queue, handlers.do, isolation="process", **plan.get("settings", {}))
    globals()[plan["mode"]](worker, notes)


def make_queue(plan: dict[str, Any]) -> QueueManager[AnyMessage]:
    settings: Any = {"lease_seconds": plan["lease_seconds"], "max_attempts": 2}
    settings["backoff"] = Backoff(first_seconds=0.02)
    if "root" in plan:
        return FilesystemQueue(plan["root"], AnyMessage, **settings)
    return MemoryQueue(AnyMessage, **settings)


def run(worker: Worker[Any], notes: Notes) -> None:
    """Run the worker, and stop it on Ctrl-C."""
    signal.signal(signal.SIGINT, lambda *_: worker.stop())
    notes.write("running now")
    notes.write(f"report {worker.run()}")
    # The test may send more signals, and Python would die of the first one during its exit.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def leak(worker: Worker[Any], notes: Notes) -> None:
    """Run while a fork holds all pipes open, as a careless daemon would."""
    thread = Thread(target=worker.run)
    thread.start()
    notes.pid()
    if (leaking := os.fork()) == 0:
        time.sleep(1000)
        os._exit(0)
    notes.write(f"leaking {leaking}")
    thread.join()


def adopt(worker: Worker[Any], notes: Notes) -> None:
    """Run like process 1 of a container, which adopts orphans."""
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1) == 0
    worker.run(until_empty=True)
    try:
        notes.write(f"unreaped {os.waitpid(-1, os.WNOHANG)[0]}")
    except ChildProcessError:
        notes.write("unreaped 0")


def abandon(worker: Worker[Any], notes: Notes) -> None:
    """End without stopping the worker."""
    Thread(target=worker.run, daemon=True).start()
    wait_until(lambda: notes.values("sleeping"))


if __name__ == "__main__":
    main()
