"""Events as log lines: one per transition, key=value, with no body in sight.

    2026-11-15T20:45:01.123Z level=info event=completed queue=acme/enrich message_id=4f1c…

`EventLog()` speaks through structlog when it is installed (`holdfast[logging]`), else
through the standard library's `holdfast` logger: an application that has set up either
needs nothing more. `line_log` makes whole lines of its own, for our command line.
"""

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Literal

from holdfast.conversations import events as cv
from holdfast.core import events as ev
from holdfast.core.clock import SYSTEM_CLOCK, Clock, utc
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
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")


def level_of(event: Event) -> int:
    if isinstance(event, jv.ActiveJobs) and event.with_token == 0:
        return logging.DEBUG  # each cycle of an idle process
    if isinstance(event, cv.SweepFinished) and event.triggered == event.parked == 0:
        return logging.DEBUG
    return _LEVELS.get(type(event), logging.INFO)


def name_of(event: Event) -> str:
    """DeadLettered → dead_lettered."""
    return _HUMP.sub("_", type(event).__name__).lower()


def fields_of(event: Event) -> dict[str, Any]:
    """What the event says; text made safe for one line of a terminal."""
    return {field.name: _tidy(getattr(event, field.name)) for field in fields(event)}


def _tidy(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, str) and not value.isprintable():
        return value.encode("unicode_escape", "surrogatepass").decode("ascii")
    return value


class EventLog:
    """A subscriber that hands each event to a logger."""

    def __init__(self, write: Write | None = None, *, at_least: int = logging.INFO) -> None:
        self._write = write or _logger()
        self._at_least = at_least

    def __call__(self, event: Event) -> None:
        if (level := level_of(event)) >= self._at_least:
            self._write(level, name_of(event), fields_of(event))


def _logger() -> Write:
    try:
        import structlog
    except ImportError:
        return _to_stdlib
    logger = structlog.get_logger("holdfast")
    return lambda level, name, said: logger.log(level, name, **said)


def _to_stdlib(level: int, name: str, said: Mapping[str, Any]) -> None:
    logging.getLogger("holdfast").log(level, "%s %s", name, pairs(said))


def line_log(
    write_line: Callable[[str], None],
    style: Style = "text",
    *,
    at_least: int = logging.INFO,
    clock: Clock = SYSTEM_CLOCK,
) -> Subscriber:
    """Lines for people and grep (`text`), or for machines (`json`)."""

    def write(level: int, name: str, said: Mapping[str, Any]) -> None:
        at = f"{utc(clock.time()).isoformat(timespec='milliseconds')[:-6]}Z"
        said = {"level": logging.getLevelName(level).lower(), "event": name, **said}
        line = json.dumps({"at": at, **said}) if style == "json" else f"{at} {pairs(said)}"
        write_line(line)

    return EventLog(write, at_least=at_least)


def pairs(said: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={_quoted(v)}" for key, v in said.items() if v is not None)


def _quoted(value: Any) -> str:
    text = str(value)
    return text if text and not re.search(r'[\s="\\]', text) else json.dumps(text)
