"""The table of metrics, and their values after events."""

import weakref
from typing import Any

import prometheus_client
import pytest

from holdfast import events as ev
from holdfast.events import Event, Events
from holdfast.lease.keeper import LeaseKeeper
from holdfast.lease.lease import RENEWED, Lease, Refused, Renewal, Unanswered
from holdfast.queue.message import AnyMessage, get_lease
from holdfast.telemetry.metrics import (
    MAX_LABEL_VALUES,
    categorize_reason,
)
from holdfast.telemetry.prometheus import Metrics
from holdfast.telemetry.setup import QueueSampler
from holdfast.testing import ManualClock, MemoryQueue


class Shown:
    """What a scrape of Prometheus would show."""

    def __init__(self) -> None:
        self._registry = prometheus_client.CollectorRegistry()
        self.clock = ManualClock()
        self.subscriber = Metrics(self._registry)

    def __call__(self, name: str, **labels: str) -> float | None:
        return self._registry.get_sample_value(f"holdfast_{name}", labels)

    def find(self, name: str) -> list[dict[str, str]]:
        return [
            sample.labels
            for family in self._registry.collect()
            for sample in family.samples
            if sample.name == f"holdfast_{name}"
        ]


@pytest.fixture
def shown() -> Shown:
    return Shown()


def test_a_reading_at_the_limit_of_a_bucket_is_in_it(shown: Shown) -> None:
    for seconds in (0.01, 0.011, 43_200.0, 43_201.0):
        shown.subscriber(ev.Completed("q", "m", 1, seconds))
    name = "attempt_seconds_bucket"
    assert shown(name, queue="q", le="0.01") == 1
    assert shown(name, queue="q", le="0.05") == 2
    assert shown(name, queue="q", le="43200.0") == 3
    assert shown(name, queue="q", le="+Inf") == 4


def test_failed_attempts_have_a_duration_too_unless_no_handler_ran(shown: Shown) -> None:
    shown.subscriber(ev.Retried("q", "m", 1, None, "x", seconds=2.0))
    shown.subscriber(ev.DeadLettered("q", "m", 2, "x", seconds=3.0))
    shown.subscriber(ev.DeadLettered("q", "m", 2, "malformed"))
    assert shown("attempt_seconds_sum", queue="q") == 5.0
    assert shown("attempt_seconds_count", queue="q") == 2
    assert shown("attempts_total", queue="q", outcome="dead_lettered") == 2


class HandlerError(Exception):
    """An exception that can be watched, as those of Python cannot."""


def test_the_exception_of_a_failed_attempt_is_not_kept(shown: Shown) -> None:
    error = HandlerError()
    kept = weakref.ref(error)
    shown.subscriber(ev.Claimed("q", "m", 1, 60.0))
    shown.subscriber(ev.Retried("q", "m", 1, None, "ValueError", error))
    del error
    assert kept() is None


# -- leases, with a real keeper


class Source:
    name, renew_batch = "q", 10

    def __init__(self) -> None:
        self.answer: Renewal = RENEWED
        self.clock: ManualClock | None = None  # moves past the deadline during the call

    def renew(self, leases: Any, seconds: float) -> list[Renewal]:
        if self.clock is not None:
            self.clock.advance(60)
        return [self.answer] * len(leases)


class Held:
    def __init__(self, shown: Shown, **options: Any) -> None:
        self.source, self.shown = Source(), shown
        events = Events(shown.subscriber)
        self.keeper = LeaseKeeper(shown.clock, events)
        now = shown.clock.monotonic()
        self.lease = Lease(
            self.source, None, message_id="m", attempt=1, fence=1, claimed_at=now, seconds=60.0
        )
        events.emit(ev.Claimed("q", "m", 1, self.lease.deadline))
        self.keeper.hold(self.lease, **options)

    def renew_after(self, seconds: float) -> None:
        self.shown.clock.advance(seconds)
        self.keeper.tick()


@pytest.mark.parametrize(
    ("answer", "late", "outcome", "reason"),
    [
        (RENEWED, False, "renewed", None),
        (Refused("another worker took the message over"), False, "refused", "taken"),
        (Unanswered("throttled"), False, "unanswered", None),
        (RENEWED, True, "late", "expired"),
    ],
)
def test_renewals_are_counted_by_outcome_and_losses_by_reason(
    answer: Renewal, late: bool, outcome: str, reason: str | None, shown: Shown
) -> None:
    held = Held(shown)
    held.source.answer = answer
    held.source.clock = shown.clock if late else None
    held.renew_after(25)
    assert shown.find("renewals_total") == [{"queue": "q", "outcome": outcome}]
    assert shown("renewals_total", queue="q", outcome=outcome) == 1
    losses = [] if reason is None else [{"queue": "q", "reason": reason}]
    assert shown.find("leases_lost_total") == losses


def test_a_stall_and_a_missed_deadline_have_reasons_of_their_own(shown: Shown) -> None:
    Held(shown, stall_seconds=5).renew_after(6)
    Held(shown).renew_after(61)
    reasons = [labels["reason"] for labels in shown.find("leases_lost_total")]
    assert reasons == ["stalled", "expired"]


# -- depth


def test_the_sampler_reports_the_depth_by_state_and_the_age(shown: Shown) -> None:
    queue: MemoryQueue[Any] = MemoryQueue(AnyMessage, name="q", clock=shown.clock)
    events = Events(shown.subscriber)
    for _ in range(3):
        queue.push(AnyMessage())
    queue.push(AnyMessage(), delay_seconds=100)
    [message] = queue.poll()
    shown.clock.advance(7)
    next_at = QueueSampler(queue, events, interval_seconds=15).tick()
    assert next_at == shown.clock.monotonic() + 15
    depth = {state: shown("queue_depth", queue="q", state=state) for state in STATES}
    assert depth == {"ready": 2, "delayed": 1, "leased": 1, "failed": 0}
    assert shown("queue_oldest_seconds", queue="q") == 7
    queue.dead_letter(message, "x")
    QueueSampler(queue, events).tick()
    assert shown("queue_depth", queue="q", state="failed") == 1
    assert get_lease(message).state.value == "released"


STATES = ("ready", "delayed", "leased", "failed")


class SlowQueue(MemoryQueue[Any]):
    def stats(self) -> Any:
        self.clock.advance(2)  # type: ignore[attr-defined]
        return super().stats()


class BrokenQueue(MemoryQueue[Any]):
    def stats(self) -> Any:
        raise OSError("away")


def test_a_slow_queue_is_sampled_less_often() -> None:
    clock = ManualClock()
    next_at = QueueSampler(SlowQueue(AnyMessage, name="q", clock=clock)).tick()
    assert next_at == clock.monotonic() + 100


def test_a_queue_that_cannot_be_counted_is_left_out(shown: Shown) -> None:
    queue = BrokenQueue(AnyMessage, name="q", clock=shown.clock)
    sampler = QueueSampler(queue, Events(shown.subscriber), interval_seconds=15)
    assert sampler.tick() == shown.clock.monotonic() + 15
    assert shown.find("queue_depth") == []


# -- labels


HOSTILE = [
    "", " ", "\n", "a\nb", 'a"b', "\x1b[31m", "é" * 500, "a" * 10_000, "\ud800", "{}", "\\",
]  # fmt: skip


@pytest.mark.parametrize("queue", HOSTILE)
def test_a_hostile_queue_name_becomes_a_short_printable_label(queue: str, shown: Shown) -> None:
    for _ in range(2):
        shown.subscriber(ev.Claimed(queue, "m", 1, 60.0))
        shown.subscriber(ev.Completed(queue, "m", 1, 1.0))
    for name in ("attempts_total", "attempt_seconds_sum", "claimed_total"):
        [labels] = shown.find(name)
        value = labels["queue"]
        assert 0 < len(value) <= 100
        assert value.isascii()
        assert value.isprintable()
    [labels] = shown.find("attempts_total")
    assert shown("attempts_total", **labels) == 2


def test_more_queues_than_a_backend_can_keep_share_one_label(shown: Shown) -> None:
    for number in range(MAX_LABEL_VALUES + 50):
        shown.subscriber(ev.Claimed(f"q{number}", "m", 1, 60.0))
        shown.subscriber(ev.Completed(f"q{number}", "m", 1, 1.0))
    for name in ("attempts_total", "attempt_seconds_sum", "claimed_total"):
        assert len(shown.find(name)) == MAX_LABEL_VALUES + 1
    assert shown("attempts_total", queue="other", outcome="completed") == 50
    shown.subscriber(ev.Completed("q7", "m", 1, 1.0))
    assert shown("attempts_total", queue="q7", outcome="completed") == 2


@pytest.mark.parametrize("kind", [ev.MessageLeaseLost, ev.ChildKilled])
def test_reasons_become_categories(kind: type[Event], shown: Shown) -> None:
    extra = {"pid": 1} if kind is ev.ChildKilled else {}
    for number in range(500):
        for text in (f"timed out after {number} s", f"{number} is not a reason of ours"):
            shown.subscriber(kind(queue="q", message_id="m", attempt=1, reason=text, **extra))
    name = "children_killed_total" if extra else "leases_lost_total"
    assert {labels["reason"] for labels in shown.find(name)} == {"timeout", "other"}


@pytest.mark.parametrize(
    ("reason", "category"),
    [
        ("stalled: no beat for 5 s", "stalled"),
        ("its cap of 43200 s is reached", "capped"),
        ("the worker stops", "stopped"),
        ("the worker stopped before the work was done", "stopped"),
        ("the worker process did not answer for 30 s", "unresponsive"),
        ("its process sent an invalid frame: it is of no known kind", "invalid"),
        ("it could not be settled: OSError: away", "unsettled"),
        ("SQS does not accept the receipt any more (ReceiptHandleIsInvalid)", "taken"),
    ],
)
def test_each_reason_of_ours_has_a_category(reason: str, category: str) -> None:
    assert categorize_reason(reason) == category
