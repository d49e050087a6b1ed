"""A watchdog over tasks whose length nobody knows: seconds, or an hour.

    python examples/watchdog.py ./work/watchdog             # in a folder
    python examples/watchdog.py sqs:test-queue              # on SQS, the same code
    python examples/watchdog.py sqs:test-queue --tasks 12

It pushes three tasks and works until these are complete. Each is processed in a process
of its own, while the worker holds its message for five seconds at a time, again and again.
So nobody has to guess how long a task may take, and what fails, hangs or dies is back
within seconds, however long it had been running.

Two things are yours to replace: `start_processing`, and the `Processing` it returns.
"""

import argparse
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from threading import Timer
from typing import Protocol

from holdfast import (
    Context,
    Events,
    HoldfastError,
    QueueManager,
    QueueMessage,
    Retry,
    Worker,
    open_queue,
)
from holdfast.core import events as ev

HOLD_SECONDS = 5.0  # and renewed each third of it
LOOK_SECONDS = 1.0
RETRY_SECONDS = 1.0  # what failed is tried again soon, not when its time would be over
STALL_SECONDS = 60.0  # a look that hangs so long ends the process
MAX_ATTEMPTS = 50
LIMIT_SECONDS = 600.0  # should one vanish (a redrive policy of SQS moves it), end all the same


class Task(QueueMessage):
    title: str


class State(Enum):
    """How processing stands. One answer: what is complete can not have failed as well."""

    IN_PROGRESS = "in progress"
    COMPLETE = "complete"
    FAILED = "failed"


class Processing(Protocol):
    """One task being processed. Yours knows: a child process, a status row, a file."""

    def state(self) -> State: ...


# -- stand-ins: processing that is a throw of dice


class Dice:
    """Fails at one look in five, and is complete at every second one of the others."""

    def state(self) -> State:
        if is_successful(20):
            return State.FAILED
        return State.COMPLETE if is_successful(50) else State.IN_PROGRESS


def is_successful(chance_in_percent: int) -> bool:
    return random.randint(1, 100) <= chance_in_percent


def start_processing(task: Task) -> Processing:
    """Yours starts the work and does not wait for it."""
    return Dice()


# -- the handler: runs beside the work, in a child process of the worker


@dataclass(frozen=True)
class Watch:
    """Start a task's processing and look at it until it has come to an end."""

    start: Callable[[Task], Processing] = start_processing
    look_seconds: float = LOOK_SECONDS

    def __call__(self, task: Task, ctx: Context) -> Retry | None:
        say(f"starting to process {task.title!r}")
        processing = self.start(task)
        while True:
            match processing.state():
                case State.COMPLETE:
                    return None
                case State.FAILED:
                    return Retry(after_seconds=RETRY_SECONDS, reason="processing failed")
                case State.IN_PROGRESS:
                    say(f"processing of {task.title!r} is still in progress")
                    ctx.beat()  # raises if the message is not ours any more
                    ctx.lost.wait(self.look_seconds)


process = Watch()  # for `holdfast work sqs:test-queue watchdog:process`


# -- sending, and keeping the books


def create_tasks(queue: QueueManager[Task], count: int) -> dict[str, str]:
    """Push that many tasks; their titles by id."""
    tasks = [Task(title=f"Task #{number}") for number in range(count)]
    ids = queue.push_many(tasks)
    say(f"sent {count} messages to the queue {queue.name!r}")
    return dict(zip(ids, (task.title for task in tasks), strict=True))


@dataclass
class Books:
    """Tells the story, and knows which tasks are over: by name, as any may come twice."""

    when_over: Callable[[], None] = lambda: None
    titles: dict[str, str] = field(default_factory=dict)
    complete: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)

    def __call__(self, event: ev.Event) -> None:
        if not isinstance(event, ev.MessageEvent):
            return
        title = self.titles.get(event.message_id, event.message_id)
        match event:
            case ev.Claimed():
                say(f"got {title!r} from the queue, attempt {event.attempt}")
            case ev.LeaseRenewed():
                say(f"{title!r} is held for another {HOLD_SECONDS:g} s")
            case ev.Completed():  # told only once the queue has taken it
                say(f"processing of {title!r} is complete!")
                self.complete.add(event.message_id)
            case ev.Retried():
                say(f"processing of {title!r} failed, to be tried again soon")
            case ev.MessageLeaseLost():
                say(f"{title!r} is not ours any more: {event.reason}")
            case ev.DeadLettered():
                say(f"{title!r} is given up: {event.reason}")
                self.dead.add(event.message_id)
        if self.over:
            self.when_over()

    @property
    def over(self) -> bool:
        return self.titles.keys() <= self.complete | self.dead

    @property
    def all_complete(self) -> bool:
        return self.titles.keys() <= self.complete


def run(
    url: str,
    count: int = 3,
    watch: Watch = process,
    *,
    max_attempts: int = MAX_ATTEMPTS,
    limit_seconds: float = LIMIT_SECONDS,
) -> Books:
    """Push `count` tasks, and work until each of them is over, or time is."""
    books = Books()
    events = Events(books)
    settings = {"lease_seconds": HOLD_SECONDS, "max_attempts": max_attempts}
    with open_queue(url, Task, events=events, **settings) as queue:
        books.titles = create_tasks(queue, count)
        worker = Worker(
            queue, watch, isolation="process", stall_seconds=STALL_SECONDS, events=events
        )
        books.when_over = worker.stop
        if not books.over:
            with _limit(limit_seconds, worker.stop):
                worker.run()
    return books


@contextmanager
def _limit(seconds: float, action: Callable[[], None]) -> Iterator[None]:
    timer = Timer(seconds, action)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def say(text: str) -> None:
    print(text, flush=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Tasks under a watchdog, on any queue.")
    parser.add_argument("url", help="a folder, as ./work/watchdog, or sqs:NAME")
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--look", type=float, default=LOOK_SECONDS, metavar="SECONDS")
    given = parser.parse_args(arguments)
    try:
        books = run(given.url, given.tasks, Watch(look_seconds=given.look))
    except HoldfastError as error:
        print(error, file=sys.stderr)
        return 2
    return 0 if books.all_complete else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
