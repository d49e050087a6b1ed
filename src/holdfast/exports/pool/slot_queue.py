"""The tasks that a worker process was given, on their way to its slots.

    put ─▶ waiting ── take ─▶ running, at most `limit` at once ── take again ─▶ done

The slots are threads, which share the interpreter's lock. While tasks wait for a network, all
slots work side by side. Short tasks that mostly compute take that lock from each other at
each system call, which costs more than such a task, so they run one after the other.
This module imports little, because each worker process loads it.
"""

from collections import deque
from collections.abc import Callable, Mapping
from threading import Condition, get_ident
from time import process_time
from typing import Any

from holdfast.lease.clock import SYSTEM_CLOCK, Clock

_WINDOW_SECONDS = 0.02  # between two decisions; a task that takes longer is not short
_COMPUTING = 0.75  # of a core that the process used
_WAITING = 0.4

Task = tuple[int, Mapping[str, Any]]  # with the nonce of the attempt


def choose_limit(limit: int, slots: int, core_share: float, max_task_seconds: float) -> int:
    """Return how many tasks may run at once, given how the last ones went.

    `core_share` is the part of one core that the process used, and `max_task_seconds` is the
    longest time that one of the last tasks took so far.
    """
    if max_task_seconds >= _WINDOW_SECONDS or core_share < _WAITING:
        return slots
    return 1 if core_share >= _COMPUTING else limit


class SlotQueue:
    """Tasks for the threads of the slots."""

    def __init__(
        self,
        slots: int,
        clock: Clock = SYSTEM_CLOCK,
        read_cpu_seconds: Callable[[], float] = process_time,
    ) -> None:
        self._clock = clock
        self._read_cpu_seconds = read_cpu_seconds
        self._slots = slots
        self._limit = slots
        self._changed = Condition()
        self._waiting: deque[Task] = deque()
        self._started_at: dict[int, float] = {}  # the running tasks, by thread
        self._max_task_seconds = 0.0  # of the tasks that ended since the last decision
        self._decided_at = clock.monotonic()
        self._cpu_at = read_cpu_seconds()

    def put(self, task: Task) -> None:
        """Add a task."""
        with self._changed:
            self._waiting.append(task)
            if len(self._started_at) < self._limit:
                self._changed.notify()

    def take(self) -> Task:
        """End the task that this thread took before, and wait for the next one."""
        with self._changed:
            self._end_task()
            while not (self._waiting and len(self._started_at) < self._limit):
                # While one task runs at a time, it may turn out to be a long one.
                is_limited = self._limit < self._slots
                self._changed.wait(_WINDOW_SECONDS if is_limited else None)
                self._decide()
            self._started_at[get_ident()] = self._clock.monotonic()
            return self._waiting.popleft()

    def _end_task(self) -> None:
        started_at = self._started_at.pop(get_ident(), None)
        if started_at is not None:
            seconds = self._clock.monotonic() - started_at
            self._max_task_seconds = max(self._max_task_seconds, seconds)
        self._decide()

    def _decide(self) -> None:
        now = self._clock.monotonic()
        passed = now - self._decided_at
        if passed < _WINDOW_SECONDS:
            return
        oldest = min(self._started_at.values(), default=now)
        cpu_at = self._read_cpu_seconds()
        core_share = (cpu_at - self._cpu_at) / passed
        longest = max(self._max_task_seconds, now - oldest)
        before = self._limit
        self._limit = choose_limit(before, self._slots, core_share, longest)
        self._decided_at, self._cpu_at, self._max_task_seconds = now, cpu_at, 0.0
        if self._limit != before:  # those who wait without a timeout must get one
            self._changed.notify_all()
