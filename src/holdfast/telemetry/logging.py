"""Events as complete lines. `holdfast.queue.event_log` says what a record contains.

    2026-11-15T20:45:01.123Z level=info event=completed queue=acme/enrich message_id=4f1c…

`make_line_log` formats complete lines itself, for the command line. An application's own
processes log to the `holdfast` logger of the standard library.
"""

import json
import logging
import shlex
from collections.abc import Callable, Mapping
from typing import Any, Literal

from holdfast.events import Subscriber
from holdfast.lease.clock import SYSTEM_CLOCK, Clock, to_utc
from holdfast.queue.event_log import EventLog, format_pairs
from holdfast.worker.outcome import format_traceback

Style = Literal["text", "json", "plain"]

# The events of messages about which `explain` has more to say.
_EXPLAINED = ("retried", "dead_lettered", "message_lease_lost")


def make_line_log(
    write_line: Callable[[str], None],
    style: Style = "text",
    *,
    min_level: int = logging.INFO,
    clock: Clock = SYSTEM_CLOCK,
    tracebacks: bool = False,
    explain: str | None = None,
) -> Subscriber:
    """Return a subscriber that writes complete lines.

    `text` has key=value pairs, `json` is for programs, and `plain` for a person's terminal.
    A traceback is a value of the JSON object, or follows its line, indented, so that the text
    of an exception cannot look like a line of the log. `explain` is a command that shows more
    about a failed message when the message's id is added to it. It is a value too, and in
    `plain` the last line, with less indentation than a traceback.
    """

    def write(
        level: int, name: str, fields: Mapping[str, Any], exception: BaseException | None
    ) -> None:
        trace = "" if exception is None else format_traceback(exception) or ""
        hint = _make_hint(explain, name, fields)
        if style == "plain":
            text = _indent_lines([format_plain(name, fields), *trace.splitlines()])
            write_line(f"{text}\n  {hint}" if hint else text)
            return
        at = f"{to_utc(clock.time()).isoformat(timespec='milliseconds')[:-6]}Z"
        pairs = {"level": logging.getLevelName(level).lower(), "event": name, **fields}
        if hint:
            pairs["explain"] = hint
        if style == "json":
            traceback = {"traceback": trace} if trace else {}
            write_line(json.dumps({"at": at, **pairs, **traceback}))
        else:
            write_line(_indent_lines([f"{at} {format_pairs(pairs)}", *trace.splitlines()]))

    return EventLog(write, min_level=min_level, tracebacks=tracebacks)


def _indent_lines(lines: list[str]) -> str:
    """Join lines, all but the first indented. So none can look like the first of another."""
    return "\n    ".join(lines)


def _make_hint(explain: str | None, name: str, fields: Mapping[str, Any]) -> str | None:
    if explain is None or name not in _EXPLAINED:
        return None
    return f"{explain} {shlex.quote(fields['message_id'])}"


def format_plain(name: str, fields: Mapping[str, Any]) -> str:
    """Format an event for a person.

    For example, `retried 4f1c: ValueError: no such luck (attempt 2, delay 3 s)`. The queue is
    left out, because the person who started a worker knows it.
    """
    others = {key: value for key, value in fields.items() if value not in (None, "")}
    others.pop("queue", None)
    subject = others.pop("message_id", None) or others.pop("job_id", None)
    cause = others.pop("reason", None) or others.pop("error", None)
    verb = name.removeprefix("message_").replace("_", " ")
    title = f"{verb} {subject}" if subject else verb
    details = ", ".join(_format_detail(key, value) for key, value in others.items())
    text = f"{title}: {cause}" if cause else title
    return f"{text} ({details})" if details else text


def _format_detail(key: str, value: Any) -> str:
    label = key.removesuffix("_seconds").replace("_", " ")
    return f"{label} {value:g} s" if key.endswith("_seconds") else f"{label} {value}"
