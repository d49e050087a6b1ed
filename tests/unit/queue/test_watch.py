"""Watching a queue: reads are shared, bounded and honest about what is not known."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from holdfast import AnyMessage, SQLiteQueue, SQSQueue
from holdfast.errors import QueueUnavailable
from holdfast.lease.clock import SYSTEM_CLOCK, to_utc
from holdfast.queue.info import Holder, MessageInfo, MessageState, QueueWorker
from holdfast.queue.manager import QueueManager
from holdfast.queue.watch import (
    Activity,
    DeadFilter,
    LeaseHealth,
    LiveLeases,
    QueueWatch,
    Reading,
    group_reasons,
    iterate_dead,
    judge_activity,
    judge_lease,
    read_dead_page,
    simplify_reason,
)
from holdfast.testing import ManualClock, MemoryQueue, SimulatedSqs

NOW = to_utc(1_000_000)


def make_reading(read: Callable[[], Any], clock: ManualClock) -> Reading[Any]:
    reading = Reading(read, clock)
    reading.get(5)
    return reading


# -- readings


def test_viewers_share_one_read_until_it_is_old() -> None:
    clock, reads = ManualClock(), []
    reading = make_reading(lambda: reads.append(1) or len(reads), clock)
    assert [reading.get(5) for _ in range(100)] == [1] * 100
    clock.advance(1.1)
    assert reading.get(5) == 2


def test_a_slow_read_is_repeated_so_seldom_that_it_takes_two_percent() -> None:
    clock, reads = ManualClock(), []

    def read() -> int:
        reads.append(1)
        clock.advance(0.5)
        return len(reads)

    reading = make_reading(read, clock)
    clock.advance(1.1)
    assert reading.get(5) == 2  # the first read also opened the queue
    clock.advance(24)
    assert reading.get(5) == 2
    clock.advance(1)
    assert reading.get(5) == 3


def test_a_viewer_does_not_wait_for_a_slow_read() -> None:
    go = Event()
    reading: Reading[bool] = Reading(lambda: go.wait(5), SYSTEM_CLOCK)
    assert reading.get(0.01) is None
    go.set()
    assert reading.get(5) is True


def test_a_read_that_fails_keeps_the_last_value(caplog: pytest.LogCaptureFixture) -> None:
    clock, values = ManualClock(), [1]
    reading = make_reading(values.pop, clock)
    clock.advance(2)
    assert reading.get(5) == 1
    assert "could not be watched" in caplog.text


def test_a_queue_that_cannot_be_opened_is_a_problem_until_it_can() -> None:
    clock = ManualClock()
    results: list[Any] = [QueueUnavailable("not yet"), MemoryQueue(clock=clock)]

    def open_next() -> Any:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    watch = QueueWatch("q", open_next, clock)
    counts = watch.counts.get(5)
    assert counts is not None
    assert (counts.problem, counts.stats) == ("not yet", None)
    clock.advance(60)
    counts = watch.counts.get(5)
    assert counts is not None
    assert counts.stats is not None
    assert (counts.problem, counts.completed, len(watch.view(0).depths)) == ("", [0] * 60, 1)


# -- judging


def make_lease(left_seconds: float, lease_seconds: float | None = 30.0) -> MessageInfo:
    holder = Holder(
        "w", NOW, 1, NOW + timedelta(seconds=left_seconds), lease_seconds=lease_seconds
    )
    return MessageInfo("a", "1", MessageState.LEASED, 1, 1, "", holder=holder)


def make_worker(seen_seconds_ago: float) -> QueueWorker:
    return QueueWorker("w", "host", 1, NOW - timedelta(seconds=seen_seconds_ago))


@pytest.mark.parametrize(
    ("left", "health"),
    [
        (20, LeaseHealth.HELD),
        (11, LeaseHealth.HELD),
        (9, LeaseHealth.AT_RISK),
        (0, LeaseHealth.EXPIRED),
        (-5, LeaseHealth.EXPIRED),
    ],
)
def test_a_lease_is_at_risk_once_its_renewal_is_late(left: float, health: LeaseHealth) -> None:
    holder = make_lease(left).holder
    assert holder is not None
    assert judge_lease(holder, NOW) is health


@pytest.mark.parametrize(
    ("since", "health"),
    [(None, LeaseHealth.HELD), (30, LeaseHealth.HELD), (31, LeaseHealth.STALLED)],
)
def test_a_handler_that_beat_before_and_not_for_a_lease_is_stalled(
    since: float | None, health: LeaseHealth
) -> None:
    beat_at = None if since is None else NOW - timedelta(seconds=since)
    holder = make_lease(20).holder
    assert holder is not None
    assert judge_lease(replace(holder, beat_at=beat_at), NOW) is health


@pytest.mark.parametrize(
    ("leases", "workers", "activity"),
    [
        ([], None, Activity.UNKNOWN),
        ([], [], Activity.NO_WORKER),
        ([], [make_worker(5)], Activity.IDLE),
        ([], [make_worker(31)], Activity.NO_WORKER),
        ([make_lease(20)], [make_worker(500)], Activity.WORKING),
        ([make_lease(-1)], [make_worker(31)], Activity.NO_WORKER),
    ],
)
def test_no_worker_is_told_from_an_idle_one(
    leases: list[MessageInfo], workers: list[QueueWorker] | None, activity: Activity
) -> None:
    assert judge_activity(LiveLeases(NOW, leases, workers)) is activity


# -- dead letters


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("company-17.example did not answer", "… did not answer"),
        ("TimeoutError: 'https://a.example' after 30 s", "TimeoutError: … after … s"),
        ('KeyError: "name"', "KeyError: …"),
        ("gave up after 5 attempts; the last: x", "gave up after … attempts; the last: x"),
        (None, ""),
    ],
)
def test_reasons_of_one_fault_are_one_kind(reason: str | None, kind: str) -> None:
    assert simplify_reason(reason) == kind


@pytest.fixture
def dead(tmp_path: Path) -> SQLiteQueue[AnyMessage]:
    queue: SQLiteQueue[AnyMessage] = SQLiteQueue(tmp_path / "q.db")
    queue.push_many(AnyMessage(id=f"m-{n}", group=n % 2) for n in range(620))
    while messages := queue.poll(100):
        for message in messages:
            kind = "late" if message.id.endswith("7") else "broken"
            queue.dead_letter(message, f"{message.id} is {kind}")
    return queue


def test_dead_letters_are_grouped_by_kind(dead: SQLiteQueue[AnyMessage]) -> None:
    kinds = group_reasons(dead)
    assert kinds.kinds == [
        ("… is broken", 558),
        ("… is late", 62),
    ]
    assert (kinds.scanned, kinds.is_complete) == (620, True)


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (DeadFilter(), 620),
        (DeadFilter(kind="… is late"), 62),
        (DeadFilter(text="M-61"), 11),
        (DeadFilter(field="group=1"), 310),
        (DeadFilter(field="group=1", kind="… is broken"), 248),
        (DeadFilter(field="none=1"), 0),
    ],
)
def test_pages_and_batches_hold_what_the_filter_chooses(
    dead: SQLiteQueue[AnyMessage], wanted: DeadFilter, count: int
) -> None:
    assert sum(len(batch) for batch in iterate_dead(dead, wanted)) == count
    page = read_dead_page(dead, wanted, limit=50)
    ids = [message.id for message in page.messages]
    while page.after is not None:
        page = read_dead_page(dead, wanted, after=page.after, limit=50)
        ids += [message.id for message in page.messages]
    assert len(ids) == len(set(ids)) == (min(count, 50) if wanted.field else count)


def test_a_search_that_takes_too_long_returns_what_it_has(
    dead: SQLiteQueue[AnyMessage],
) -> None:
    page = read_dead_page(dead, DeadFilter(text="nothing"), is_late=lambda: True)
    assert (list(page.messages), page.is_cut) == ([], True)
    assert page.after is not None
    page = read_dead_page(dead, DeadFilter(field="group=9"), is_late=lambda: True)
    assert (list(page.messages), page.is_cut) == ([], True)


def fail_all(queue: QueueManager[AnyMessage], count: int) -> None:
    queue.push_many(AnyMessage(id=f"m-{number}") for number in range(count))
    while count:
        for message in queue.poll(10):
            queue.dead_letter(message, "no answer")
            count -= 1


def test_all_are_redriven_also_if_a_page_follows_one_that_was_removed() -> None:
    queue: MemoryQueue[AnyMessage] = MemoryQueue()
    fail_all(queue, 1100)
    redriven = sum(map(queue.redrive_many, iterate_dead(queue, DeadFilter())))
    assert (redriven, queue.stats().failed, queue.stats().ready) == (1100, 0, 1100)


def test_on_sqs_the_dead_letters_are_received_twice_and_not_once_for_each() -> None:
    """Once to choose them, and once to move them."""
    clock = ManualClock()
    simulated = SimulatedSqs(clock)
    sqs = simulated.client()
    sqs.create_queue(QueueName="enrich")
    queue: SQSQueue[AnyMessage] = SQSQueue("enrich", client=sqs, clock=clock)
    fail_all(queue, 40)
    simulated.calls.clear()
    redriven = sum(map(queue.redrive_many, iterate_dead(queue, DeadFilter(text="m-"))))
    assert (redriven, queue.stats().failed) == (40, 0)
    assert simulated.calls.count("ReceiveMessage") <= 20
