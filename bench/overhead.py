"""overhead: measure what the worker adds to a loop of poll and ack."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from bench.contender import Card
from bench.handlers import nothing
from bench.holdfast import HOLDFAST, SQLITE_ONE, open_queue_at, open_sqlite_at
from bench.measure import filled
from bench.payload import BenchTask
from bench.session import Session, in_fresh_process
from bench.verdict import Bar, Result, ratio, spread
from holdfast import QueueManager
from holdfast.events import Completed, Event
from holdfast.worker.worker import Isolation, Worker

NAME = "overhead"
TITLE = "What the worker adds, with an empty handler"


# In the first tasks the worker learns the pace of the handlers, and every slot opens its files
# or its database.
WARM_UP = 500
# Four threads and one are equally fast, so their ratio shows the noise of the machine.
ROUNDS = 2  # times those of the session
MIN_RATIO = 0.97


@dataclass(frozen=True, slots=True)
class Way:
    """A way to run the handler."""

    label: str
    isolation: Isolation | None  # None for a loop without a worker
    concurrency: int = 1
    is_sqlite: bool = False

    def __str__(self) -> str:
        return self.label

    @property
    def card(self) -> Card:
        """Return the queue to fill."""
        return SQLITE_ONE if self.is_sqlite else HOLDFAST


BARE = Way("files: bare loop of poll and ack", None)
THREAD = Way("files: worker, one thread", "thread")
FOUR_THREADS = Way("files: worker, four threads", "thread", 4)
PROCESSES = Way("files: worker, two processes", "process", 2)
SQLITE_THREAD = Way("SQLite: worker, one thread", "thread", is_sqlite=True)
SQLITE_FOUR_THREADS = Way("SQLite: worker, four threads", "thread", 4, is_sqlite=True)
WAYS = (BARE, THREAD, FOUR_THREADS, PROCESSES, SQLITE_THREAD, SQLITE_FOUR_THREADS)

Measured = Mapping[Way, Sequence[float]]


def run(session: Session) -> Result:
    """Run the benchmark and return its result."""
    count = session.size(10_000, 2_000)
    measured: dict[Way, list[float]] = defaultdict(list)
    for way in session.interleaved(TITLE, WAYS, rounds=ROUNDS * session.rounds):
        with session.arena.room(way.label) as path:
            queue = filled(session, way.card, path, count)
            measured[way].append(in_fresh_process(tasks_per_second, way, queue, count))
    return _result(measured, count)


def tasks_per_second(way: Way, path: Path, count: int) -> float:
    """Measure up to the last task, without starting, the warm-up and stopping."""
    queue = (open_sqlite_at if way.is_sqlite else open_queue_at)(path)
    match way.isolation:
        case None:
            times = _bare_loop(queue)
        case "process":
            times = _processes(queue, way.concurrency)
        case _:
            times = time_tasks(queue, way.concurrency)
    assert len(times) == count, f"{way}: {len(times):,} of {count:,} were handled"
    return (count - 1 - WARM_UP) / (max(times) - sorted(times)[WARM_UP])


def _bare_loop(queue: QueueManager[BenchTask]) -> list[float]:
    times = []
    while claimed := queue.poll(queue.poll_batch):
        for message in claimed:
            times.append(perf_counter())
            queue.ack(message)
    return times


def time_tasks(queue: QueueManager[BenchTask], concurrency: int) -> list[float]:
    """Run a worker until the queue is empty and return when each task began."""
    times: list[float] = []

    def note_time(message: BenchTask) -> None:
        times.append(perf_counter())

    Worker(queue, note_time, concurrency=concurrency).run(until_empty=True)
    return times


def _processes(queue: QueueManager[BenchTask], concurrency: int) -> list[float]:
    """Take the times from the worker's events, because handlers run in other processes."""
    times: list[float] = []

    def note_time(event: Event) -> None:
        if isinstance(event, Completed):
            times.append(perf_counter())

    queue.events.subscribe(note_time)
    Worker(queue, nothing, concurrency=concurrency, isolation="process").run(until_empty=True)
    return times


def _result(measured: Measured, count: int) -> Result:
    return Result(
        name=NAME,
        title=TITLE,
        columns=("", "tasks/s", "lowest to highest"),
        rows=[
            [way.label, f"{median(rates):,.0f}", spread(rates)]
            for way, rates in measured.items()
        ],
        bars=_bars(measured),
        notes=(
            f"{count:,} tasks waiting; from task {WARM_UP + 1} to the last."
            " Starting and stopping are not counted.",
            "One thread runs the empty handlers in any case (ADR 27), so four are as fast as "
            f"one. The limit is {MIN_RATIO:g} because of the noise.",
        ),
    )


def _bars(measured: Measured) -> list[Bar]:
    slower = ratio(measured[BARE], measured[THREAD])
    return [
        Bar("thread isolation within 1.5 × of the bare loop", slower, 1.5, "×", at_least=False),
        _compare_threads("files", measured[FOUR_THREADS], measured[THREAD]),
        _compare_threads("SQLite", measured[SQLITE_FOUR_THREADS], measured[SQLITE_THREAD]),
        Bar(
            "process isolation at least 2,000 tasks/s",
            median(measured[PROCESSES]),
            2_000,
            "tasks/s",
        ),
    ]


def _compare_threads(queue: str, four: Sequence[float], one: Sequence[float]) -> Bar:
    return Bar(f"{queue}: four threads as fast as one", ratio(four, one), MIN_RATIO, "×")
