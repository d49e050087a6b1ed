"""A message that an operator cancels while a worker runs its handler, on real queues.

The operator uses a queue of its own, as the command line does. Nothing reaches the worker
but the refusal of its next renewal.
"""

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import child_handlers as handlers
import pytest

from holdfast.errors import LeaseLost
from holdfast.events import ChildKilled, Events, MessageLeaseLost
from holdfast.queue.manager import QueueManager
from holdfast.queue.message import AnyMessage
from holdfast.queues.files import FilesystemQueue
from holdfast.queues.sqlite.queue import SQLiteQueue
from holdfast.worker.worker import Worker
from support.waiting import wait_until
from support.workers.notes import Notes
from support.workers.running import Seen, members, running

LEASE_SECONDS = 6.0
MakeQueue = Callable[..., QueueManager[Any]]


@pytest.fixture(params=["files", "SQLite"])
def make_queue(request: pytest.FixtureRequest, tmp_path: Path) -> MakeQueue:
    """Open the test's queue once more, as another process does."""

    def open_queue(**settings: Any) -> QueueManager[Any]:
        settings = {"lease_seconds": LEASE_SECONDS} | settings
        if request.param == "files":
            return FilesystemQueue(tmp_path, **settings)
        return SQLiteQueue(tmp_path / "work.db", **settings)

    return open_queue


@pytest.fixture
def seen() -> Seen:
    return Seen()


def check_cancelled(operator: QueueManager[Any], seen: Seen) -> None:
    """Check that the message is the operator's dead letter, and that nothing settled it."""
    [lost] = seen.of(MessageLeaseLost)
    assert "an operator cancelled it" in lost.reason
    [view] = operator.find("m")
    assert (view.state.value, view.attempts) == ("failed", 1)
    assert view.reason == "cancelled by an operator"
    assert [past.outcome for past in view.past] == ["cancelled"]


def test_a_handler_in_a_thread_is_told_and_nothing_is_settled(
    make_queue: MakeQueue, seen: Seen
) -> None:
    queue, operator = make_queue(events=Events(seen)), make_queue()
    started, noticed = Event(), Event()

    def handle(message: Any, ctx: Any) -> None:
        started.set()
        assert ctx.lost.wait(60)
        with pytest.raises(LeaseLost):
            ctx.raise_if_lost()
        noticed.set()

    operator.push(AnyMessage(id="m"))
    with running(Worker(queue, handle)) as run:
        assert started.wait(60)
        assert operator.cancel("m") == 1
        assert noticed.wait(60)
        report = run.stop()
    assert (report.completed, report.abandoned) == (0, 1)
    check_cancelled(operator, seen)


@pytest.mark.parametrize("what", ["sleep", "hold_the_gil"])
def test_a_child_process_is_killed_and_nothing_is_settled(
    make_queue: MakeQueue, seen: Seen, tmp_path: Path, what: str
) -> None:
    queue, operator = make_queue(events=Events(seen)), make_queue()
    notes = Notes(tmp_path / "notes")
    operator.push(AnyMessage(id="m", what=what, notes=str(notes.path)))
    worker = Worker(queue, handlers.do, isolation="process")
    with running(worker) as run:
        pid = notes.pid()
        assert operator.cancel("m") == 1
        wait_until(lambda: not members(pid))
        wait_until(lambda: seen.of(ChildKilled))
        report = run.stop()
    assert (report.completed, report.abandoned) == (0, 1)
    check_cancelled(operator, seen)


def test_the_worker_goes_on_with_the_next_message_and_with_the_redriven_one(
    make_queue: MakeQueue,
) -> None:
    queue, operator = make_queue(), make_queue()
    started, handled = Event(), []

    def handle(message: Any, ctx: Any) -> None:
        if not started.is_set():
            started.set()
            assert ctx.lost.wait(60)
            return
        handled.append((message.id, ctx.attempt))

    operator.push(AnyMessage(id="m"))
    with running(Worker(queue, handle)):
        assert started.wait(60)
        assert operator.cancel("m") == 1
        operator.push(AnyMessage(id="n"))
        wait_until(lambda: handled == [("n", 1)])
        assert operator.redrive("m") == 1
        wait_until(lambda: handled == [("n", 1), ("m", 1)])
        wait_until(lambda: operator.stats().completed == 2)
