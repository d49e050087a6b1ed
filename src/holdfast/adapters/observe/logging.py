"""Events as log lines: one line of key=value pairs per transition, never with a body.

    2026-11-15T20:45:01.123Z level=info event=completed queue=acme/enrich message_id=4f1c…

`EventLog()` writes to structlog if that is installed (`holdfast[logging]`), or else to the
`holdfast` logger of the standard library. An application that has configured either needs
nothing more. `make_line_log` formats complete lines itself, for the command line.
"""

import json
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from holdfast.core.clock import SYSTEM_CLOCK, Clock, to_utc
from holdfast.core.events import Event, Subscriber

Style = Literal["text", "json", "plain"]
Write = Callable[[int, str, Mapping[str, Any]], None]

_WORD_BOUNDARY = re.compile(r"(?<=[a-z])(?=[A-Z])")


def get_event_name(event: Event) -> str:
    """Return the name of an event in logs, such as dead_lettered for DeadLettered."""
    return _WORD_BOUNDARY.sub("_", type(event).__name__).lower()


def get_event_fields(event: Event) -> dict[str, Any]:
    """Return the fields of an event, with text made safe for one line of a terminal."""
    return {name: _clean(value) for name, value in event.get_fields().items()}


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
        if (level := event.get_level()) >= self._at_least:
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
    """Return a subscriber that writes complete lines.

    `text` has key=value pairs, `json` is for programs, and `plain` for a person's terminal.
    """

    def write(level: int, name: str, fields: Mapping[str, Any]) -> None:
        if style == "plain":
            write_line(format_plain(name, fields))
            return
        at = f"{to_utc(clock.time()).isoformat(timespec='milliseconds')[:-6]}Z"
        pairs = {"level": logging.getLevelName(level).lower(), "event": name, **fields}
        if style == "json":
            write_line(json.dumps({"at": at, **pairs}))
        else:
            write_line(f"{at} {format_pairs(pairs)}")

    return EventLog(write, min_level=min_level)


def format_plain(name: str, fields: Mapping[str, Any]) -> str:
    """Format an event for a person.

    For example, `retried 4f1c: ValueError: no such luck (attempt 2, delay 3 s)`. The queue is
    left out, because the person who started a worker knows it.
    """
    others = {key: value for key, value in fields.items() if value not in (None, "")}
    others.pop("queue", None)
    subject = others.pop("message_id", None) or others.pop("job_id", None)
    cause = others.pop("reason", None) or others.pop("error", None)
    title = " ".join(map(str, filter(None, (name.replace("_", " "), subject))))
    details = ", ".join(_format_detail(key, value) for key, value in others.items())
    text = f"{title}: {cause}" if cause else title
    return f"{text} ({details})" if details else text


def _format_detail(key: str, value: Any) -> str:
    label = key.removesuffix("_seconds").replace("_", " ")
    return f"{label} {value:g} s" if key.endswith("_seconds") else f"{label} {value}"


def format_pairs(fields: Mapping[str, Any]) -> str:
    """Format fields as key=value pairs, without those that are None."""
    return " ".join(f"{key}={_quote(v)}" for key, v in fields.items() if v is not None)


def _quote(value: Any) -> str:
    text = str(value)
    return text if text and not re.search(r'[\s="\\]', text) else json.dumps(text)
