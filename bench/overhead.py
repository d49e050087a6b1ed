"""overhead: what the worker adds to a bare loop of poll and ack, with an empty handler."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from bench.handlers import nothing
from bench.measure import filled
from bench.ours import HOLDFAST, open_queue_at
from bench.session import Session, in_fresh_process
from bench.verdict import Bar, Result, ratio, spread
from holdfast.core.events import Completed, Event
from holdfast.core.worker import Isolation, Worker

NAME = "overhead"
TITLE = "What the worker adds, with an empty handler"


@dataclass(frozen=True, slots=True)
class Way:
    label: str
    isolation: Isolation | None  # None: no worker at all
    concurrency: int = 1

    def __str__(self) -> str:
        return self.label


BARE = Way("bare loop of poll and ack", None)
THREAD = Way("worker, one thread", "thread")
FOUR_THREADS = Way("worker, four threads", "thread", 4)
PROCESSES = Way("worker, two processes", "process", 2)
WAYS = (BARE, THREAD, FOUR_THREADS, PROCESSES)

Measured = Mapping[Way, Sequence[float]]


def run(session: Session) -> Result:
    count = session.size(10_000, 2_000)
    measured: dict[Way, list[float]] = defaultdict(list)
    for way in session.interleaved(TITLE, WAYS):
        with session.arena.room(way.label) as path:
            queue = filled(session, HOLDFAST, path, count)
            measured[way].append(in_fresh_process(tasks_per_second, way, queue, count))
    return _result(measured, count)


def tasks_per_second(way: Way, path: Path, count: int) -> float:
    """From the first task completed to the last: starting and stopping are not counted."""
    if way.isolation is None:
        times = _bare_loop(path)
    else:
        times = _worker(path, way.isolation, way.concurrency)
    assert len(times) == count, f"{way}: {len(times):,} of {count:,} were completed"
    return (count - 1) / (times[-1] - times[0])


def _bare_loop(path: Path) -> list[float]:
    queue = open_queue_at(path)
    times = []
    while claimed := queue.poll(queue.poll_batch):
        for message in claimed:
            queue.ack(message)
            times.append(perf_counter())
    return times


def _worker(path: Path, isolation: Isolation, concurrency: int) -> list[float]:
    queue = open_queue_at(path)
    times: list[float] = []

    def note(event: Event) -> None:
        if isinstance(event, Completed):
            times.append(perf_counter())

    queue.events.subscribe(note)
    Worker(queue, nothing, concurrency=concurrency, isolation=isolation).run(until_empty=True)
    return sorted(times)


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
        notes=(f"{count:,} tasks waiting; from the first completed to the last.",),
    )


def _bars(measured: Measured) -> list[Bar]:
    slower = ratio(measured[BARE], measured[THREAD])
    return [
        Bar("thread isolation within 1.5 × of the bare loop", slower, 1.5, "×", at_least=False),
        Bar(
            "process isolation at least 2,000 tasks/s",
            median(measured[PROCESSES]),
            2_000,
            "tasks/s",
        ),
    ]
