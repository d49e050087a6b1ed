"""Events as log lines."""

import json
import logging
from dataclasses import fields
from typing import Any

import pytest

from holdfast import events as ev
from holdfast.errors import AttemptFailed
from holdfast.events import Event
from holdfast.queue.event_log import get_event_fields, get_event_name
from holdfast.telemetry.logging import make_line_log
from holdfast.testing import ManualClock

KINDS = [
    kind
    for kind in vars(ev).values()
    if isinstance(kind, type)
    and issubclass(kind, Event)
    and kind not in (Event, ev.MessageEvent)
]
SAMPLES: dict[str, Any] = {"str": "x", "int": 1, "float": 0.5, "float | None": None}


def make_event(kind: type[Event]) -> Event:
    return kind(*(SAMPLES[getattr(f.type, "__name__", str(f.type))] for f in fields(kind)))


# -- log lines


@pytest.fixture
def lines() -> list[str]:
    return []


def test_an_event_is_one_line_of_pairs(lines: list[str]) -> None:
    log = make_line_log(lines.append, clock=ManualClock(time=1_800_000_000.125))
    log(ev.Completed("acme/enrich", "m 1", 2, seconds=0.12345))
    assert lines == [
        "2027-01-15T08:00:00.125Z level=info event=completed queue=acme/enrich "
        'message_id="m 1" attempt=2 seconds=0.123'
    ]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_event_can_be_logged_in_each_style(kind: type[Event], lines: list[str]) -> None:
    event = make_event(kind)
    for style in ("text", "json", "plain"):
        make_line_log(lines.append, style, min_level=logging.DEBUG)(event)  # type: ignore[arg-type]
    assert f"event={get_event_name(event)}" in lines[0]
    assert json.loads(lines[1])["queue"] == "x"
    assert "=" not in lines[2]


def test_a_renewal_is_logged_at_debug_level_only(lines: list[str]) -> None:
    renewed = ev.LeaseRenewed("q", "m", 1, late_seconds=0.0)
    make_line_log(lines.append)(renewed)
    assert lines == []
    make_line_log(lines.append, min_level=logging.DEBUG)(renewed)
    assert len(lines) == 1


def test_ordinary_events_are_not_logged_at_warning_level(lines: list[str]) -> None:
    log = make_line_log(lines.append, min_level=logging.WARNING)
    log(ev.Claimed("q", "m", 1))
    log(ev.Completed("q", "m", 1, seconds=1.0))
    log(ev.Retried("q", "m", 1, delay_seconds=None, reason="down"))
    [line] = lines
    assert "event=retried" in line
    assert "delay_seconds" not in line  # a field without a value is left out


def test_an_id_cannot_forge_a_line_or_control_a_terminal(lines: list[str]) -> None:
    hostile = "a\nlevel=info event=completed\x1b[31m\u009b"
    for style in ("text", "json"):
        make_line_log(lines.append, style)(ev.Claimed("q", hostile, 1))  # type: ignore[arg-type]
    for line in lines:
        assert line.isprintable()
    assert "\\\\nlevel" in lines[0]


# -- failed attempts


def fail(text: str = "no such luck") -> ev.Retried:
    """Return the event of an attempt that failed with this text."""
    try:
        raise ValueError(text)
    except ValueError as error:
        return ev.Retried("q", "m 1", 1, None, "ValueError", error)


def test_a_traceback_follows_its_line(lines: list[str]) -> None:
    make_line_log(lines.append, tracebacks=True)(fail())
    line, first, *_, last = lines[0].splitlines()
    assert "event=retried" in line
    assert first == "    Traceback (most recent call last):"
    assert last == "    ValueError: no such luck"


def test_a_traceback_is_a_value_of_the_json_object(lines: list[str]) -> None:
    make_line_log(lines.append, "json", tracebacks=True)(fail())
    traceback = json.loads(lines[0])["traceback"]
    assert traceback.startswith("Traceback (most recent call last):")
    assert traceback.endswith("ValueError: no such luck")


def test_the_text_of_an_exception_cannot_forge_a_line(lines: list[str]) -> None:
    log = make_line_log(lines.append, tracebacks=True)
    log(fail("x\n2026-01-01T00:00:00.000Z level=info\r2026\u2028now"))
    _, *traceback = "\n".join(lines).splitlines()
    assert [line for line in traceback if not line.startswith("    ")] == []


@pytest.mark.parametrize("style", ["text", "json"])
def test_without_tracebacks_only_the_type_of_an_exception_is_shown(
    lines: list[str], style: Any
) -> None:
    make_line_log(lines.append, style)(fail())
    [line] = lines
    assert "no such luck" not in line
    assert "Traceback" not in line
    assert "ValueError" in line


def test_a_failed_attempt_names_the_command_that_explains_it(lines: list[str]) -> None:
    log = make_line_log(lines.append, "json", explain="holdfast explain acme/enrich")
    log(fail())
    log(ev.DeadLettered("q", "a", 1, reason="no use"))
    log(ev.Completed("q", "a", 1, seconds=1.0))
    retried, dead, completed = map(json.loads, lines)
    assert retried["explain"] == "holdfast explain acme/enrich 'm 1'"
    assert dead["explain"] == "holdfast explain acme/enrich a"
    assert "explain" not in completed


def test_no_event_has_a_field_for_a_body_or_a_receipt() -> None:
    named = {field.name for kind in KINDS for field in fields(kind)}
    assert not named & {"body", "message", "receipt", "token", "payload", "handle"}
    assert set(get_event_fields(ev.Claimed("q", "m", 1))) == {"queue", "message_id", "attempt"}


# -- plain lines


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            ev.Retried("q", "4f1c", 2, 3.0, "ValueError: no such luck"),
            "retried 4f1c: ValueError: no such luck (attempt 2, delay 3 s)",
        ),
        (ev.Retried("q", "4f1c", 2, None, "later"), "retried 4f1c: later (attempt 2)"),
        (ev.PollFailed("q", "OSError: away"), "poll failed: OSError: away"),
        (
            ev.MessageLeaseLost("q", "4f1c", 1, "stalled"),
            "lease lost 4f1c: stalled (attempt 1)",
        ),
        (
            ev.ChildKilled("q", "4f1c", 1, "stalled", 123),
            "child killed 4f1c: stalled (attempt 1, pid 123)",
        ),
    ],
)
def test_a_plain_line_reads_as_a_sentence(event: Event, line: str) -> None:
    lines: list[str] = []
    make_line_log(lines.append, "plain")(event)
    assert lines == [line]


def test_a_plain_line_is_followed_by_the_traceback_and_then_the_command(
    lines: list[str],
) -> None:
    make_line_log(lines.append, "plain", tracebacks=True, explain="holdfast explain q")(fail())
    first, *traceback, command = lines[0].split("\n")
    assert first == "retried m 1: ValueError (attempt 1)"
    assert traceback[0] == "    Traceback (most recent call last):"
    assert traceback[-1] == "    ValueError: no such luck"
    assert command == "  holdfast explain q 'm 1'"


def test_the_text_of_an_exception_cannot_forge_a_command(lines: list[str]) -> None:
    log = make_line_log(lines.append, "plain", tracebacks=True, explain="holdfast explain q")
    log(fail("x\n  holdfast explain q; halt\r\u2028  holdfast explain q; halt"))
    commands = [line for line in lines[0].splitlines() if not line.startswith("    ")][1:]
    assert commands == ["  holdfast explain q 'm 1'"]


@pytest.mark.parametrize("style", ["plain", "text", "json"])
def test_a_process_that_failed_shows_its_own_traceback_once(
    lines: list[str], style: Any
) -> None:
    error = AttemptFailed("ValueError: no such luck", "Traceback:\nValueError: no such luck")
    make_line_log(lines.append, style, tracebacks=True)(
        ev.DeadLettered("q", "m", 1, "failed once, last: ValueError", error)
    )
    assert lines[0].count("no such luck") == 1
    assert "AttemptFailed" not in lines[0]


def test_an_attempt_without_a_traceback_is_one_line(lines: list[str]) -> None:
    event = ev.Retried("q", "m", 1, None, "it died", AttemptFailed("it died"))
    for style in ("plain", "text", "json"):
        make_line_log(lines.append, style, tracebacks=True)(event)  # type: ignore[arg-type]
    assert [line.count("\n") for line in lines] == [0, 0, 0]
    assert "traceback" not in lines[2]
