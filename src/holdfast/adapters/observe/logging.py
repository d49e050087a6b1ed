"""Events as log lines: one line of key=value pairs per transition, never with a body.

    2026-11-15T20:45:01.123Z level=info event=completed queue=acme/enrich message_id=4f1c…

`EventLog()` writes to structlog if that is installed (`holdfast[logging]`), or else to the
`holdfast` logger of the standard library. An application that has configured either needs
nothing more. `make_line_log` formats complete lines itself, for the command line.
"""

import dataclasses
import json
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from holdfast.conversations import events as cv
from holdfast.core import events as ev
from holdfast.core.clock import SYSTEM_CLOCK, Clock, to_utc
from holdfast.core.events import Event, Subscriber
from holdfast.jobs import events as jv

Style = Literal["text", "json"]
Write = Callable[[int, str, Mapping[str, Any]], None]

_LEVELS: dict[type[Event], int] = {
    ev.LeaseRenewed: logging.DEBUG,
    ev.Retried: logging.WARNING,
    ev.LeaseAtRisk: logging.WARNING,
    ev.MessageLeaseLost: logging.WARNING,
    ev.NearCap: logging.WARNING,
    ev.TakenOver: logging.WARNING,
    ev.SchemaTooNew: logging.WARNING,
    ev.ChildKilled: logging.WARNING,
    ev.PollFailed: logging.WARNING,
    ev.CheckpointNotKept: logging.WARNING,
    ev.DeadLettered: logging.ERROR,
    jv.HeartbeatSent: logging.DEBUG,
    jv.JobResumed: logging.WARNING,
    jv.TaskFailed: logging.WARNING,
    jv.TaskRetried: logging.WARNING,
    jv.JobCancelled: logging.WARNING,
    jv.HeartbeatFailed: logging.WARNING,
    jv.CallbackFailed: logging.WARNING,
    jv.OrchestratorDisabled: logging.WARNING,
    jv.IntervalTight: logging.WARNING,
    jv.PoolWorkerEnded: logging.WARNING,
    jv.JobStalled: logging.ERROR,
    jv.StepFunctionsTimedOut: logging.ERROR,
    jv.ActiveJobsUnknown: logging.ERROR,
    cv.InboundRefused: logging.WARNING,
    cv.LockBusy: logging.WARNING,
    cv.LockTakenOver: logging.WARNING,
    cv.NothingStaged: logging.WARNING,
    cv.SendInDoubt: logging.WARNING,
    cv.BatchFailed: logging.WARNING,
    cv.ReleaseFailed: logging.WARNING,
    cv.LockNotRenewed: logging.ERROR,
    cv.BatchParked: logging.ERROR,
    cv.SentNotRecorded: logging.CRITICAL,
}
_WORD_BOUNDARY = re.compile(r"(?<=[a-z])(?=[A-Z])")


def get_event_level(event: Event) -> int:
    """Return the log level of an event."""
    if isinstance(event, jv.ActiveJobs) and event.with_token == 0:
        return logging.DEBUG  # emitted in each cycle of an idle process
    if isinstance(event, cv.SweepFinished) and event.triggered == event.parked == 0:
        return logging.DEBUG
    return _LEVELS.get(type(event), logging.INFO)


def get_event_name(event: Event) -> str:
    """Return the name of an event in logs, such as dead_lettered for DeadLettered."""
    return _WORD_BOUNDARY.sub("_", type(event).__name__).lower()


def get_event_fields(event: Event) -> dict[str, Any]:
    """Return the fields of an event, with text made safe for one line of a terminal."""
    return {
        field.name: _clean(getattr(event, field.name)) for field in dataclasses.fields(event)
    }


def _clean(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, str) and not value.isprintable():
        return value.encode("unicode_escape", "surrogatepass").decode("ascii")
    return value


class EventLog:
    """A subscriber that writes each event of at least `min_level` to a logger."""

    def __init__(self, write: Write | None = None, *, min_level: int = logging.INFO) -> None:
        self._write = write or _find_logger()
        self._at_least = min_level

    def __call__(self, event: Event) -> None:
        if (level := get_event_level(event)) >= self._at_least:
            self._write(level, get_event_name(event), get_event_fields(event))


def _find_logger() -> Write:
    try:
        import structlog
    except ImportError:
        return _write_to_stdlib
    logger = structlog.get_logger("holdfast")
    return lambda level, name, fields: logger.log(level, name, **fields)


def _write_to_stdlib(level: int, name: str, fields: Mapping[str, Any]) -> None:
    logging.getLogger("holdfast").log(level, "%s %s", name, format_pairs(fields))


def make_line_log(
    write_line: Callable[[str], None],
    style: Style = "text",
    *,
    min_level: int = logging.INFO,
    clock: Clock = SYSTEM_CLOCK,
) -> Subscriber:
    """Return a subscriber that writes complete lines, as readable `text` or as `json`."""

    def write(level: int, name: str, fields: Mapping[str, Any]) -> None:
        at = f"{to_utc(clock.time()).isoformat(timespec='milliseconds')[:-6]}Z"
        pairs = {"level": logging.getLevelName(level).lower(), "event": name, **fields}
        if style == "json":
            write_line(json.dumps({"at": at, **pairs}))
        else:
            write_line(f"{at} {format_pairs(pairs)}")

    return EventLog(write, min_level=min_level)


def format_pairs(fields: Mapping[str, Any]) -> str:
    """Format fields as key=value pairs, without those that are None."""
    return " ".join(f"{key}={_quote(v)}" for key, v in fields.items() if v is not None)


def _quote(value: Any) -> str:
    text = str(value)
    return text if text and not re.search(r'[\s="\\]', text) else json.dumps(text)
