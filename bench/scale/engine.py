"""The engine of the simulation: virtual time, events in order, and counts of calls."""

import gc
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from itertools import count
from math import inf, log10
from random import Random
from threading import Event
from typing import Any

EPOCH = 1_800_000_000.0


class Simulation:
    """Events in the order of their times. Everything happens in one thread."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.random = Random(seed)
        self.clock = VirtualClock(self)
        self.events = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = count()

    def at(self, time: float, action: Callable[..., None], *arguments: Any) -> None:
        """Call the action at that time, or now if the time is over."""
        heappush(self._heap, (time, next(self._numbers), action, arguments))

    def after(self, seconds: float, action: Callable[..., None], *arguments: Any) -> None:
        """Call the action after so many seconds."""
        heappush(self._heap, (self.now + seconds, next(self._numbers), action, arguments))

    def run(self, until: float = inf) -> None:
        """Run all events that are due by that time."""
        heap = self._heap
        events = 0
        # Nothing here needs the garbage collector, which would visit every job and message.
        gc.disable()
        while heap and heap[0][0] <= until:
            time, _, action, arguments = heappop(heap)
            if time > self.now:
                self.now = time
            events += 1
            action(*arguments)
        gc.enable()
        self.events += events
        if until < inf:
            self.now = until


class VirtualClock:
    """The time of the simulation, for the package's own objects."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def monotonic(self) -> float:
        """Return the virtual time."""
        return self._simulation.now

    def time(self) -> float:
        """Return the virtual wall time."""
        return EPOCH + self._simulation.now

    def wait(self, event: Event, seconds: float | None) -> bool:
        """Return at once, because nothing may wait in the simulation's one thread."""
        return event.is_set()

    def sleep(self, seconds: float) -> None:
        """Return at once."""


class Meter:
    """Counts units, and the most in a second, or in a longer window as a mean per second."""

    __slots__ = ("_ends_at", "_peak", "_units", "_window", "total")

    def __init__(self, window_seconds: float = 1.0) -> None:
        self._window = window_seconds
        self.total = self._peak = self._units = self._ends_at = 0.0

    def add(self, now: float, units: float = 1.0) -> None:
        """Count units at this time. Times must not go back."""
        self.total += units
        if now < self._ends_at:
            self._units += units
            return
        if self._units > self._peak:
            self._peak = self._units
        self._units = units
        self._ends_at = (now // self._window + 1) * self._window

    @property
    def peak(self) -> float:
        """The most units per second in a window."""
        return max(self._peak, self._units) / self._window


class Histogram:
    """Times in buckets of 12 %, from which percentiles are read."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        """Count a time."""
        self._buckets[int(20 * log10(seconds)) if seconds > 0.001 else -60] += 1

    def read(self, share: float) -> float:
        """Return the time that this share of all times does not exceed."""
        left = share * sum(self._buckets.values())
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0:
                return float(10 ** ((bucket + 1) / 20))
        return 0.0


class Tally:
    """Counts units, where only their sum is of interest."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0.0

    def add(self, now: float, units: float = 1.0) -> None:
        """Count units."""
        self.total += units


class Usage:
    """What is counted in a run: flows, single calls, and levels such as the backlog."""

    def __init__(self, flows: Mapping[str, Mapping[str, float]] | None = None) -> None:
        self._flow_calls = flows or {}
        self._flow_writes = {
            name: flow.get("dynamodb.write", 0.0) for name, flow in self._flow_calls.items()
        }
        self.calls: defaultdict[str, Tally] = defaultdict(Tally)
        self.flows: defaultdict[str, float] = defaultdict(float)
        self.writes = Meter(60.0)  # of DynamoDB, in units; its burst capacity evens out seconds
        self.units: Counter[str] = Counter()  # GB-seconds, vCPU-hours and so on
        self.peaks: dict[str, float] = {}

    def note_level(self, name: str, level: float) -> None:
        """Remember the highest level."""
        if level > self.peaks.get(name, 0.0):
            self.peaks[name] = level

    def add_flow(self, name: str, now: float, number: float = 1.0) -> None:
        """Count a flow, whose calls measuring.py has counted."""
        self.flows[name] += number
        self.writes.add(now, number * self._flow_writes[name])

    def total_calls(self) -> Counter[str]:
        """Return all calls and capacity units: those of flows, and those counted alone."""
        totals: Counter[str] = Counter(
            {name: meter.total for name, meter in self.calls.items()}
        )
        for name, number in self.flows.items():
            for call, calls in self._flow_calls[name].items():
                totals[call] += number * calls
        return totals
