"""How many tasks run at once in a worker process."""

from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

import pytest

from holdfast.exports.pool.slot_queue import SlotQueue, Task, choose_limit
from holdfast.testing.clock import ManualClock

SLOTS = 4


@pytest.mark.parametrize(
    ("limit", "core_share", "seconds", "expected"),
    [
        (4, 0.9, 0.001, 1),  # short tasks that compute
        (4, 1.8, 0.001, 1),
        (1, 0.9, 0.001, 1),
        (4, 0.9, 0.5, 4),  # long tasks, which compute outside of the interpreter
        (1, 0.9, 0.5, 4),
        (4, 0.1, 0.001, 4),  # short tasks that wait for a network
        (1, 0.1, 0.001, 4),
        (4, 0.5, 0.001, 4),  # between the two, nothing changes
        (1, 0.5, 0.001, 1),
    ],
)
def test_only_short_tasks_that_compute_run_one_after_the_other(
    limit: int, core_share: float, seconds: float, expected: int
) -> None:
    assert choose_limit(limit, SLOTS, core_share, seconds) == expected


class Worker:
    """A queue whose tasks take manual time and use a part of it as CPU time."""

    def __init__(self) -> None:
        self.clock, self.cpu_seconds = ManualClock(), 0.0
        self.queue = SlotQueue(SLOTS, self.clock, lambda: self.cpu_seconds)

    def put(self, *names: str) -> None:
        for name in names:
            self.queue.put((1, {"name": name}))

    def spend(self, seconds: float, core_share: float) -> None:
        self.clock.advance(seconds)
        self.cpu_seconds += seconds * core_share

    def compute(self, count: int) -> None:
        """Take and end so many short tasks that compute; the last one still runs."""
        for _ in range(count):
            self.put("short")
            assert self.queue.take()[1] == {"name": "short"}
            self.spend(0.002, 0.95)


@contextmanager
def other_slots(worker: Worker) -> Iterator[list[Future[Task]]]:
    """Let the three other slots take one task each."""
    with ThreadPoolExecutor(SLOTS - 1) as threads:
        slots = [threads.submit(worker.queue.take) for _ in range(SLOTS - 1)]
        try:
            yield slots
        finally:
            worker.spend(60.0, 0.0)
            worker.put("end", "end", "end", "end")  # for those that got none
            worker.queue.take()  # decides, so that all may run


def count_taken(slots: list[Future[Task]], seconds: float) -> int:
    return len(wait(slots, seconds).done)


def test_all_slots_work_at_first() -> None:
    worker = Worker()
    with other_slots(worker) as slots:
        worker.put("a", "b", "c")
        assert count_taken(slots, 60.0) == 3


def test_while_a_short_task_computes_the_others_wait_for_it() -> None:
    worker = Worker()
    worker.compute(20)
    with other_slots(worker) as slots:
        worker.put("a", "b", "c")
        assert count_taken(slots, 0.2) == 0
        worker.spend(0.002, 0.95)
        assert worker.queue.take()[1] == {"name": "a"}  # in the thread that was busy
        assert count_taken(slots, 0.2) == 0


def test_a_task_that_turns_out_to_be_long_does_not_keep_the_others_waiting() -> None:
    worker = Worker()
    worker.compute(20)
    with other_slots(worker) as slots:
        worker.put("a", "b", "c")
        worker.spend(0.5, 0.95)  # the running task, without its end
        assert count_taken(slots, 60.0) == 3


def test_slots_that_waited_when_the_limit_fell_do_not_wait_for_a_long_task() -> None:
    """As after the start of a process, whose imports compute until the first task comes."""
    worker = Worker()
    with other_slots(worker) as slots:
        assert count_taken(slots, 0.1) == 0
        worker.spend(0.05, 0.95)
        worker.put("long")
        assert wait(slots, 60.0, FIRST_COMPLETED).done
        worker.put("a", "b")
        worker.spend(0.5, 0.95)
        assert count_taken(slots, 5.0) == 3


def test_a_task_that_begins_to_wait_does_not_keep_the_others_waiting() -> None:
    worker = Worker()
    worker.compute(20)
    with other_slots(worker) as slots:
        worker.put("a", "b", "c")
        worker.spend(0.019, 0.0)
        worker.queue.take()
        worker.put("d")
        worker.spend(0.019, 0.0)
        assert count_taken(slots, 60.0) == 3


def test_a_task_that_follows_a_pause_is_taken_at_once() -> None:
    worker = Worker()
    worker.compute(20)
    with other_slots(worker) as slots:
        assert count_taken(slots, 0.1) == 0
        worker.spend(10.0, 0.0)
        worker.put("a")
        assert wait(slots, 60.0, FIRST_COMPLETED).done
