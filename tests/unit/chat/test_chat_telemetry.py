"""Events of conversations as log lines and as metrics: ."""

import logging
from dataclasses import fields
from typing import Any

import prometheus_client
import pytest

from holdfast.chat import events as cv
from holdfast.events import Event
from holdfast.queue.event_log import get_event_name
from holdfast.telemetry.logging import make_line_log
from holdfast.telemetry.prometheus import Metrics

KINDS = [
    kind
    for kind in vars(cv).values()
    if isinstance(kind, type)
    and issubclass(kind, Event)
    and kind not in (Event, cv.ConversationEvent)
]
SAMPLES: dict[str, Any] = {"str": "x", "int": 1, "float": 0.5, "bool": True}
WARNINGS = {
    cv.InboundRefused, cv.LockBusy, cv.NothingStaged, cv.SendInDoubt, cv.LockTakenOver,
    cv.BatchFailed, cv.ReleaseFailed, cv.WebhookRefused,
}  # fmt: skip
LEVELS = {
    **dict.fromkeys(WARNINGS, logging.WARNING),
    cv.BatchParked: logging.ERROR,
    cv.LockNotRenewed: logging.ERROR,
    cv.WebhookFailed: logging.ERROR,
    cv.SentNotRecorded: logging.CRITICAL,
}


def make_event(kind: type[Event]) -> Event:
    return kind(*(SAMPLES[getattr(f.type, "__name__", str(f.type))] for f in fields(kind)))


class Counted:
    def __init__(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        self.metrics = Metrics(self.registry)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"holdfast_chat_{name}", labels)


@pytest.mark.requirement("R002-023", "R002-032", "R002-076", "R002-092")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_event_is_logged_at_its_level_and_counted_without_an_error(
    kind: type[Event],
) -> None:
    """A warning; : critical, for an alarm."""
    lines: list[str] = []
    event = make_event(kind)
    make_line_log(lines.append, min_level=logging.DEBUG)(event)
    Metrics(prometheus_client.CollectorRegistry())(event)
    assert f"event={get_event_name(event)}" in lines[0]
    assert event.get_level() == LEVELS.get(kind, logging.INFO)


def test_a_sweep_without_work_is_logged_at_debug_level() -> None:
    assert cv.SweepFinished(3, 0, 0, 5.0).get_level() == logging.DEBUG
    assert cv.SweepFinished(3, 1, 0, 500.0).get_level() == logging.INFO


def test_the_metrics_of_conversations_are_counted() -> None:
    counted = Counted()
    for event in (
        cv.FragmentStaged("c", "sms", True),
        cv.FragmentStaged("c", "sms", True),
        cv.FragmentStaged("c", "sms", False),
        cv.ReplyWritten("c", 100, 20, 3.5),
        cv.TurnFinished("c", 2),
        cv.BatchFailed("c", "Passing"),
        cv.SendInDoubt("c", "found"),
        cv.BatchParked("c", 1, "x"),
        cv.SentNotRecorded("c", "StoreUnavailable"),
        cv.SweepFinished(4, 1, 0, 90.0),
        cv.WebhookRefused("signature", "x"),
        cv.WebhookRefused("unsigned", "x"),
        cv.WebhookFailed("store_unavailable", "x"),
    ):
        counted.metrics(event)
    assert counted.value("staged_total", channel="sms") == 2
    assert counted.value("tokens_total", kind="prompt") == 100
    assert counted.value("tokens_total", kind="completion") == 20
    assert counted.value("writer_seconds_sum") == 3.5
    assert counted.value("in_doubt_total", outcome="found") == 1
    for reason in ("signature", "unsigned", "store_unavailable"):
        assert counted.value("webhook_problems_total", reason=reason) == 1
    for name in ("turns", "retries", "parked", "unrecorded"):
        assert counted.value(f"{name}_total") == 1, name
    for name in ("webhooks_refused", "webhooks_failed"):  # without the unsigned one
        assert counted.value(f"{name}_total") == 1, name
    assert (counted.value("waiting"), counted.value("oldest_seconds")) == (4, 90)
