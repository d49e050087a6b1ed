"""The metrics for CloudWatch, as lines of JSON in the embedded metric format (EMF).

CloudWatch Logs makes metrics of such lines, so a Lambda function or a container only has to
write them to its standard output. There is no thread: lines are written when an event comes
a minute after the last lines, when a metric has as many values as a line can hold, when a
worker stops, and when `flush` is called at the end of an invocation.

The writer shares nothing with Powertools for AWS Lambda, whose lines may be in the same log
and may have the same namespace.
"""

import json
import re
import sys
from collections.abc import Callable
from typing import Any

from holdfast.errors import ConfigError
from holdfast.events import Event, WorkerStopped
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.telemetry.metrics import Gauge, Labels, Measurements, Metric

MAX_VALUES = 100  # of one metric in one line, and as many metrics, but there are fewer
_UNITS = {"s": "Seconds", "ms": "Milliseconds"}
_NAMESPACE = re.compile(r"(?!AWS/)[\w.\-/#:]{1,255}", re.ASCII)

Values = dict[Metric, float | list[float]]
"""What a counter rose by, the last value of a gauge, all values of a histogram."""


def _write_to_stdout(text: str) -> None:
    # One write, because lines of other threads must not come between, and a flush, because
    # Lambda freezes the process when the function returns.
    sys.stdout.write(text)
    sys.stdout.flush()


class EmfWriter(Measurements):
    """A subscriber that writes the metrics of the events since its last lines.

    Raises ConfigError if CloudWatch would not accept the namespace. `write` gets whole lines.
    """

    def __init__(
        self,
        namespace: str = "holdfast",
        *,
        interval_seconds: float = 60.0,
        write: Callable[[str], object] = _write_to_stdout,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if not _NAMESPACE.fullmatch(namespace):
            raise ConfigError(
                "a CloudWatch namespace has up to 255 letters, digits and . - _ / # : and does "
                f"not begin with AWS/; got {namespace!r}"
            )
        super().__init__()
        self._clock = clock
        self._namespace = namespace
        self._interval_seconds = interval_seconds
        self._write = write
        self._flush_at = clock.monotonic() + interval_seconds

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if self._clock.monotonic() >= self._flush_at or isinstance(event, WorkerStopped):
            self.flush()

    def after_counting(self) -> None:
        """Write the lines if one of them is full."""
        with self._lock:
            kept = [x for metric in self._histograms for x in self._values[metric].values()]
            is_full = any(len(readings) >= MAX_VALUES for readings in kept)
        if is_full:
            self._write_lines()

    def flush(self) -> None:
        """Write what was collected since the last call. Writes nothing if that is nothing."""
        self.count_pending()
        self._write_lines()

    def _write_lines(self) -> None:
        self._flush_at = self._clock.monotonic() + self._interval_seconds
        collected: dict[tuple[Labels, Labels, int], Values] = {}
        for metric, labels, value in self.take(self._values):
            if isinstance(value, list):  # may be longer, because events are counted together
                starts = range(0, len(value), MAX_VALUES)
                parts = [value[start : start + MAX_VALUES] for start in starts]
            else:
                parts = [value] if value or isinstance(metric, Gauge) else []
            for number, part in enumerate(parts):
                collected.setdefault((metric.labels, labels, number), {})[metric] = part
        if collected:
            timestamp = int(self._clock.time() * 1000)
            lines = [
                self._format_line(names, labels, values, timestamp)
                for (names, labels, _), values in collected.items()
            ]
            self._write("".join(f"{line}\n" for line in lines))

    def _format_line(
        self, names: Labels, labels: Labels, values: Values, timestamp: int
    ) -> str:
        directive = {
            "Namespace": self._namespace,
            "Dimensions": [names],
            "Metrics": [
                {"Name": metric.cloudwatch_name, "Unit": _UNITS.get(metric.unit, "Count")}
                for metric in values
            ],
        }
        line: dict[str, Any] = {
            "_aws": {"Timestamp": timestamp, "CloudWatchMetrics": [directive]},
            **dict(zip(names, labels, strict=True)),
            **{metric.cloudwatch_name: value for metric, value in values.items()},
        }
        return json.dumps(line, separators=(",", ":"), allow_nan=False)
