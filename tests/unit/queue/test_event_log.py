"""What a program that configures nothing, or only the standard logging, sees of events."""

import logging

import pytest

from holdfast.events import (
    Claimed,
    Completed,
    Event,
    Events,
    LeaseRenewed,
    Retried,
    WorkerStarted,
)
from holdfast.queue.event_log import EventLog, LoggedEvents
from holdfast.testing import MemoryQueue

ERROR = ValueError("no such luck")
RETRIED = Retried("q", "m", 1, None, "ValueError", ERROR)


def test_a_queue_without_events_logs_to_the_logger_holdfast(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "holdfast"):
        MemoryQueue().events.emit(Claimed("q", "m", 1))
    [record] = caplog.records
    assert (record.name, record.levelname) == ("holdfast", "INFO")
    assert record.getMessage() == "claimed queue=q message_id=m attempt=1"


def test_a_queue_with_events_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "holdfast"):
        MemoryQueue(events=Events()).events.emit(RETRIED)
    assert caplog.records == []


def test_a_failed_attempt_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    EventLog()(RETRIED)
    [record] = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is ERROR
    assert "no such luck" not in record.getMessage()


def test_tracebacks_can_be_turned_off(caplog: pytest.LogCaptureFixture) -> None:
    EventLog(tracebacks=False)(RETRIED)
    assert "reason=ValueError" in caplog.text
    assert "no such luck" not in caplog.text


def test_the_level_of_the_logger_decides_what_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = EventLog()
    events: list[Event] = [LeaseRenewed("q", "m", 1, 0.0), Completed("q", "m", 1, 0.5), RETRIED]
    for level, expected in [(logging.DEBUG, 3), (logging.INFO, 2), (logging.WARNING, 1)]:
        caplog.clear()
        with caplog.at_level(level, "holdfast"):
            for event in events:
                log(event)
        assert len(caplog.records) == expected


def test_an_event_that_is_not_logged_is_not_formatted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that does not log pays almost nothing for it."""
    formatted: list[Event] = []
    monkeypatch.setattr(Claimed, "get_fields", lambda event: formatted.append(event) or {})
    for level, expected in [(logging.WARNING, 0), (logging.INFO, 1)]:
        with caplog.at_level(level, "holdfast"):
            EventLog()(Claimed("q", "m", 1))
        assert len(formatted) == expected


def test_ordinary_events_are_built_only_if_a_program_logs_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events = LoggedEvents()
    for level, expected in [(logging.WARNING, False), (logging.INFO, True)] * 2:
        with caplog.at_level(level, "holdfast"):
            events.emit(WorkerStarted("q", 1, "thread"))
            assert events.has_subscribers is expected
    with caplog.at_level(logging.WARNING, "holdfast"):
        events.subscribe(lambda event: None)
        events.emit(WorkerStarted("q", 1, "thread"))
        assert events.has_subscribers
