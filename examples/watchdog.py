"""A watchdog over tasks of unknown length: seconds, or an hour.

    python examples/watchdog.py ./work/watchdog             # in a folder
    python examples/watchdog.py sqs:test-queue              # on SQS, the same code
    python examples/watchdog.py sqs:test-queue --tasks 12
    HOLDFAST_QUEUE=sqs:test-queue python examples/watchdog.py

It pushes three tasks and works until these are complete. Each is processed in a process
of its own, while the worker holds its message for five seconds at a time, again and again.
So it is not necessary to guess how long a task may take. What fails, hangs or dies is back
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
from holdfast import events as ev

HOLD_SECONDS = 5.0  # the lease, renewed after a third of it
LOOK_SECONDS = 1.0
RETRY_SECONDS = 1.0  # a failed task is retried soon, and not only when its lease would end
STALL_SECONDS = 60.0  # a check that hangs this long ends the process
MAX_ATTEMPTS = 50
LIMIT_SECONDS = 600.0  # ends the run even if a message vanishes, as by an SQS redrive policy


class Task(QueueMessage):
    """A task to process."""

    title: str


class State(Enum):
    """The state of processing. It is one value, so a complete task cannot also have failed."""

    IN_PROGRESS = "in progress"
    COMPLETE = "complete"
    FAILED = "failed"


class Processing(Protocol):
    """A task being processed. Yours may read a child process, a status row or a file."""

    def state(self) -> State:
        """Return the current state."""


# -- stand-ins for real processing


class Dice:
    """Processing that fails at one check in five, and else is complete at every second."""

    def state(self) -> State:
        """Return a random state."""
        if is_successful(20):
            return State.FAILED
        return State.COMPLETE if is_successful(50) else State.IN_PROGRESS


def is_successful(chance_in_percent: int) -> bool:
    """Return True with this probability."""
    return random.randint(1, 100) <= chance_in_percent


def start_processing(task: Task) -> Processing:
    """Start processing a task. Yours starts the work and does not wait for it."""
    return Dice()


# -- the handler, which runs in a child process of the worker


@dataclass(frozen=True)
class Watch:
    """A handler that starts a task's processing and checks it until its end."""

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
                    ctx.beat()  # raises if the lease was lost
                    ctx.lost.wait(self.look_seconds)


process = Watch()  # for `holdfast work sqs:test-queue watchdog:process`


# -- pushing tasks, and counting finished ones


def create_tasks(queue: QueueManager[Task], count: int) -> dict[str, str]:
    """Push `count` tasks and return their titles by id."""
    tasks = [Task(title=f"Task #{number}") for number in range(count)]
    ids = queue.push_many(tasks)
    say(f"sent {count} messages to the queue {queue.name!r}")
    return dict(zip(ids, (task.title for task in tasks), strict=True))


@dataclass
class Progress:
    """Prints events and knows which tasks are over, by id, because events may repeat."""

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
            case ev.Completed():  # emitted only after the queue has accepted the ack
                say(f"processing of {title!r} is complete!")
                self.complete.add(event.message_id)
            case ev.Retried():
                say(f"processing of {title!r} failed, to be tried again soon")
            case ev.MessageLeaseLost():
                say(f"{title!r} lost its lease: {event.reason}")
            case ev.DeadLettered():
                say(f"{title!r} is dead-lettered: {event.reason}")
                self.dead.add(event.message_id)
        if self.over:
            self.when_over()

    @property
    def over(self) -> bool:
        """Return whether every task is complete or dead-lettered."""
        return self.titles.keys() <= self.complete | self.dead

    @property
    def all_complete(self) -> bool:
        """Return whether every task is complete."""
        return self.titles.keys() <= self.complete


def run(
    url: str | None,
    count: int = 3,
    watch: Watch = process,
    *,
    max_attempts: int = MAX_ATTEMPTS,
    limit_seconds: float = LIMIT_SECONDS,
) -> Progress:
    """Push `count` tasks, and work until all are over or the time limit is reached."""
    progress = Progress()
    events = Events(progress)
    settings = {"lease_seconds": HOLD_SECONDS, "max_attempts": max_attempts}
    with open_queue(url, Task, events=events, **settings) as queue:
        progress.titles = create_tasks(queue, count)
        worker = Worker(
            queue, watch, isolation="process", stall_seconds=STALL_SECONDS, events=events
        )
        progress.when_over = worker.stop
        if not progress.over:
            with _limit(limit_seconds, worker.stop):
                worker.run()
    return progress


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
    """Print a line at once."""
    print(text, flush=True)


def main(arguments: Sequence[str]) -> int:
    """Run the example and return its exit code."""
    parser = argparse.ArgumentParser(description="Run tasks under a watchdog, on any queue.")
    url_help = "a folder, as ./work/watchdog, or sqs:NAME; by default HOLDFAST_QUEUE"
    parser.add_argument("url", nargs="?", help=url_help)
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--look", type=float, default=LOOK_SECONDS, metavar="SECONDS")
    given = parser.parse_args(arguments)
    try:
        progress = run(given.url, given.tasks, Watch(look_seconds=given.look))
    except HoldfastError as error:
        print(error, file=sys.stderr)
        return 2
    return 0 if progress.all_complete else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
