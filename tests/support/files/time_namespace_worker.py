"""A worker of a local queue that reads commands from its standard input, one per line.

    poll            prints "took" or "nothing"
    extend <s>      prints "held" or "lost"

It ends with its standard input, and so with the test that started it. Its arguments are the
queue's URL and the lease.
"""

import os
import sys
from typing import Any

from holdfast.errors import LeaseLost
from holdfast.queue.manager import QueueManager
from holdfast.queue.message import AnyMessage
from holdfast.queues.opening import open_queue


def main() -> None:
    queue = open_queue(sys.argv[1], AnyMessage, lease_seconds=float(sys.argv[2]))
    print(os.getpid(), flush=True)
    held: list[AnyMessage] = []
    for line in sys.stdin:
        word, *seconds = line.split()
        print(poll(queue, held) if word == "poll" else extend(queue, held, seconds), flush=True)


def poll(queue: QueueManager[Any], held: list[AnyMessage]) -> str:
    held += (taken := queue.poll())
    return "took" if taken else "nothing"


def extend(queue: QueueManager[Any], held: list[AnyMessage], seconds: list[str]) -> str:
    try:
        queue.extend(held[0], float(seconds[0]))
    except LeaseLost:
        return "lost"
    return "held"


if __name__ == "__main__":
    main()
