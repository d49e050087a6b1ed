"""Events as log records: one line of key=value pairs per transition, never with a body.

    completed queue=acme/enrich message_id=4f1c… attempt=1 seconds=0.12

Every queue that is given no events logs to the `holdfast` logger of the standard library. In a
program that has not configured logging, Python shows warnings and errors on stderr, and so a
handler that fails with its traceback, but nothing about messages that are handled.

A failed attempt is logged with the traceback of its exception. The text of an exception is
written by the handler, so it may quote the message. `EventLog(tracebacks=False)` shows only
its type.
"""

import json
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.events import Event, Events

WriteRecord = Callable[[int, str, Mapping[str, Any], BaseException | None], None]
"""Writes one record: its level, the event's name and fields, and the exception to show."""

_log = logging.getLogger("holdfast")
_WORD_BOUNDARY = re.compile(r"(?<=[a-z])(?=[A-Z])")


class EventLog:
    """A subscriber that logs each event of at least `min_level`.

    It writes to the logger `holdfast` unless it is given another way to write a record.
    """

    def __init__(
        self,
        write: WriteRecord | None = None,
        *,
        min_level: int = logging.NOTSET,
        tracebacks: bool = True,
    ) -> None:
        self._write = write or _write_to_logger
        self._is_enabled = _log.isEnabledFor if write is None else lambda level: True
        self._min_level = min_level
        self._tracebacks = tracebacks

    def __call__(self, event: Event) -> None:
        level = event.get_level()
        if level < self._min_level or not self._is_enabled(level):
            return
        exception = getattr(event, "exception", None) if self._tracebacks else None
        self._write(level, get_event_name(event), get_event_fields(event), exception)


class LoggedEvents(Events):
    """The events of a queue that was given none. They go to the logger `holdfast`.

    The level of the logger is read again with each event, so also when a worker starts.
    """

    def __init__(self) -> None:
        super().__init__(EventLog())
        self.has_subscribers = _log.isEnabledFor(logging.INFO)

    def emit(self, event: Event) -> None:
        """Log the event, and call the subscribers that were added."""
        self.has_subscribers = len(self._subscribers) > 1 or _log.isEnabledFor(logging.INFO)
        super().emit(event)


def _write_to_logger(
    level: int, name: str, fields: Mapping[str, Any], exception: BaseException | None
) -> None:
    _log.log(level, "%s %s", name, format_pairs(fields), exc_info=exception)


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


def format_pairs(fields: Mapping[str, Any]) -> str:
    """Format fields as key=value pairs, without those that are None."""
    return " ".join(f"{key}={_quote(v)}" for key, v in fields.items() if v is not None)


def _quote(value: Any) -> str:
    text = str(value)
    return text if text and not re.search(r'[\s="\\]', text) else json.dumps(text)
