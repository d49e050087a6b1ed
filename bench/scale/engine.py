"""The engine of the simulation: virtual time, events in order, and what is counted."""

import gc
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from itertools import count
from math import inf, log10
from random import Random
from typing import Any

Flow = Mapping[str, float]
"""Calls by `service.Operation`, and `dynamodb.write`, `dynamodb.read` in capacity units."""


class Simulation:
    """Events in the order of their times. Everything happens in one thread."""

    def __init__(self, seed: int, begins_at: float = 0.0) -> None:
        self.now = begins_at
        self.random = Random(seed)
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
        # Nothing here needs the garbage collector, which would visit every job and message.
        gc.disable()
        while heap and heap[0][0] <= until:
            time, _, action, arguments = heappop(heap)
            self.now = max(self.now, time)
            self.events += 1
            action(*arguments)
        gc.enable()
        self.now = until


class Meter:
    """The most units in a window, as a mean per second."""

    def __init__(self, window_seconds: float) -> None:
        self._window = window_seconds
        self._peak = self._units = self._ends_at = 0.0

    def add(self, now: float, units: float) -> None:
        """Count units at this time. Times must not go back."""
        if now >= self._ends_at:
            self._peak = max(self._peak, self._units)
            self._units, self._ends_at = 0.0, (now // self._window + 1) * self._window
        self._units += units

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
        left = share * self._buckets.total()
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0:
                return float(10 ** ((bucket + 1) / 20))
        return 0.0


class Usage:
    """What is counted in a run: flows, single calls, billed units, and the highest levels."""

    def __init__(self, flows: Mapping[str, Flow]) -> None:
        self.flows = flows
        self.counts: defaultdict[str, float] = defaultdict(float)  # calls and billed units
        self.marks: Counter[str] = Counter()  # what a failure changes
        self.peaks: dict[str, float] = {}
        self._flow_counts: defaultdict[str, float] = defaultdict(float)
        # In windows of a minute, because the burst capacity of DynamoDB evens out seconds.
        self._meters: dict[str, Meter] = {}

    def note_level(self, name: str, level: float) -> None:
        """Remember the highest level."""
        if level > self.peaks.get(name, 0.0):
            self.peaks[name] = level

    def meter(self, name: str, now: float, units: float, window_seconds: float = 60.0) -> None:
        """Measure the busiest window."""
        if name not in self._meters:
            self._meters[name] = Meter(window_seconds)
        self._meters[name].add(now, units)

    def add_flow(self, name: str, now: float, number: float = 1.0) -> None:
        """Count a flow, whose calls counting.py has counted."""
        self._flow_counts[name] += number
        self.meter("dynamodb.write", now, number * self.flows[name].get("dynamodb.write", 0.0))

    def read_peak(self, name: str) -> float:
        """Return the highest level, or the most per second in a window."""
        meter = self._meters.get(name)
        return self.peaks.get(name, 0.0) if meter is None else meter.peak

    def total(self) -> defaultdict[str, float]:
        """Return all calls and units: those of flows, and those counted alone."""
        totals = self.counts.copy()
        for name, number in self._flow_counts.items():
            for call, calls in self.flows[name].items():
                totals[call] += number * calls
        return totals
