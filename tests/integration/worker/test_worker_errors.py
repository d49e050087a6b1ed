"""A handler that fails is visible: in the log, in the event and to `on_error`."""

import gc
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import child_handlers as handlers
import pytest

from holdfast import AnyMessage, AttemptFailed, Context, Reject, Retry, Worker
from holdfast.events import DeadLettered, Retried
from support.workers.notes import Notes
from support.workers.running import TestQueue, run_until_empty

Failure = tuple[BaseException, Retried | DeadLettered]


def raise_error(message: Any, ctx: Context) -> None:
    raise ValueError("from a handler")


async def raise_later(message: Any, ctx: Context) -> None:
    raise ValueError("from a handler")


@pytest.fixture
def failures() -> list[Failure]:
    return []


def work(
    handler: Any, failures: list[Failure], isolation: Any = "thread", **settings: Any
) -> TestQueue:
    """Run the handler for one message, and record what `on_error` gets."""
    queue = TestQueue(max_attempts=2)
    queue.push_ids("m", **settings)
    run_until_empty(
        Worker(
            queue,
            handler,
            isolation=isolation,
            on_error=lambda error, event: failures.append((error, event)),
        )
    )
    return queue


@pytest.mark.parametrize(
    ("handler", "isolation"), [(raise_error, "thread"), (raise_later, "async")]
)
def test_on_error_gets_the_exception_and_what_follows(
    failures: list[Failure], handler: Any, isolation: Any
) -> None:
    queue = work(handler, failures, isolation)
    errors, events = zip(*failures, strict=True)
    assert [str(error) for error in errors] == ["from a handler"] * 2
    assert [type(error) for error in errors] == [ValueError] * 2
    assert list(events) == [*queue.seen.of(Retried), *queue.seen.of(DeadLettered)]
    assert [event.exception for event in events] == list(errors)
    # It begins where the handler does.
    assert errors[0].__traceback__.tb_frame.f_code is handler.__code__


def test_an_exception_of_a_child_process_has_a_representative(
    failures: list[Failure], tmp_path: Path
) -> None:
    notes = str(Notes(tmp_path / "notes").path)
    work(handlers.do, failures, "process", what="raise_error", notes=notes)
    [(error, _), _] = failures
    assert isinstance(error, AttemptFailed)
    assert str(error) == "ValueError: from a child"
    [traceback] = error.__notes__
    assert traceback == error.detail
    assert "in raise_error" in traceback
    assert "core/worker" not in traceback


def test_a_child_process_that_dies_is_an_error(failures: list[Failure], tmp_path: Path) -> None:
    notes = str(Notes(tmp_path / "notes").path)
    work(handlers.do, failures, "process", what="exit_once", notes=notes)
    [(error, event)] = failures
    assert isinstance(error, AttemptFailed)
    assert str(error) == "the worker process died (exit code 3)"
    assert isinstance(event, Retried)


def test_a_child_process_that_stalls_shows_where_and_no_frame_of_holdfast(
    failures: list[Failure], tmp_path: Path
) -> None:
    queue = TestQueue(max_attempts=1)
    queue.push_ids("m")
    worker = Worker(
        queue,
        sleep_long,
        isolation="process",
        stall_seconds=0.5,
        kill_grace_seconds=0.2,
        on_error=lambda error, event: failures.append((error, event)),
    )
    run_until_empty(worker)
    [(error, _)] = failures
    assert isinstance(error, AttemptFailed)
    assert str(error) == "stalled: no beat for 0.5 s"
    heading, *frames = str(error.detail).splitlines()
    assert heading.endswith("(most recent call first):")
    assert [frame.rpartition(" ")[2] for frame in frames] == ["sleep_long"]


def sleep_long(message: Any) -> None:
    time.sleep(60)


def test_a_retry_that_the_handler_asks_for_is_not_an_error(failures: list[Failure]) -> None:
    queue = work(lambda message: Retry(0), failures)
    assert failures == []
    assert len(queue.seen.of(Retried)) == 1


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_handler_may_return_the_exception_that_it_caught(
    failures: list[Failure], isolation: Any
) -> None:
    queue = work(reject_with_exception, failures, isolation)
    [(error, event)] = failures
    assert "no such luck" in str(error) + str(getattr(error, "__notes__", ""))
    assert isinstance(event, DeadLettered)
    [letter] = queue.find(next(queue.dead_letters()).id)
    assert letter.reason == "cannot be charged"
    [found] = queue.find(letter.id)
    assert "ValueError: no such luck" in str(found.past[-1].detail)


def reject_with_exception(message: Any) -> Reject:
    try:
        raise ValueError("no such luck")
    except ValueError as error:
        return Reject("cannot be charged", exception=error)


def test_on_error_that_fails_does_not_disturb_the_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(error: BaseException, event: object) -> None:
        raise RuntimeError("the tracker is down")

    queue = TestQueue(max_attempts=2)
    queue.push_ids("m")
    report = run_until_empty(Worker(queue, raise_error, on_error=broken))
    assert (report.retried, report.dead_lettered) == (1, 1)
    assert "the tracker is down" in caplog.text


def test_on_error_belongs_to_one_worker(failures: list[Failure]) -> None:
    queue = work(raise_error, failures)
    failures.clear()
    queue.push_ids("another")
    run_until_empty(Worker(queue, raise_error))
    assert failures == []


@pytest.mark.parametrize(
    ("handler", "isolation"), [(raise_error, "thread"), (raise_later, "async")]
)
def test_a_failed_attempt_leaves_no_cycle_behind(handler: Any, isolation: Any) -> None:
    """Otherwise a message of up to a megabyte would stay until the garbage collector runs."""
    seen: list[weakref.ref[AnyMessage]] = []
    queue = TestQueue(max_attempts=1)
    poll = queue.poll

    def record(*args: Any, **named: Any) -> list[AnyMessage]:
        messages = poll(*args, **named)
        seen.extend(map(weakref.ref, messages))
        return messages

    queue.poll = record  # type: ignore[method-assign]
    queue.push_ids("m")
    gc.disable()
    try:
        run_until_empty(Worker(queue, handler, isolation=isolation))
        queue.seen.events.clear()
        assert [reference() for reference in seen] == [None]
    finally:
        gc.enable()


# -- a program that configures nothing

PROGRAM = """
from holdfast import AnyMessage, Backoff, Worker
from holdfast.events import EventLog, Events
from holdfast.testing import MemoryQueue, SkippingClock

def handle(message):
    if message.id == "bad":
        raise ValueError("no such luck")

queue = MemoryQueue(max_attempts=2, clock=SkippingClock())
queue.push_many([AnyMessage(id="good", body="secret"), AnyMessage(id="bad", body="secret")])
"""


def run_program(last_lines: str, before: str = "") -> str:
    """Run a program in its own process, and return what it writes to stderr."""
    ran = subprocess.run(
        [sys.executable, "-c", before + PROGRAM + last_lines],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return ran.stderr


def test_a_program_without_logging_shows_failures_and_nothing_else() -> None:
    shown = run_program("Worker(queue, handle).run(until_empty=True)")
    lines = shown.splitlines()
    assert lines[0].startswith("retried queue=memory message_id=bad attempt=1")
    assert lines[1] == "Traceback (most recent call last):"
    assert shown.count("ValueError: no such luck") == 2
    assert sum(line.startswith("dead_lettered queue=memory") for line in lines) == 1
    assert "good" not in shown
    assert "secret" not in shown


def test_a_program_with_logging_shows_every_transition() -> None:
    shown = run_program(
        "Worker(queue, handle).run(until_empty=True)",
        before="import logging; logging.basicConfig(level=logging.INFO)\n",
    )
    assert "INFO:holdfast:completed queue=memory message_id=good attempt=1" in shown
    assert "WARNING:holdfast:retried" in shown
    assert "ERROR:holdfast:dead_lettered" in shown


def test_tracebacks_are_turned_off_with_the_events() -> None:
    shown = run_program(
        "events = Events(EventLog(tracebacks=False))\n"
        "Worker(queue, handle, events=events).run(until_empty=True)"
    )
    assert len(shown.splitlines()) == 2
    assert "no such luck" not in shown


def test_a_worker_with_empty_events_is_silent() -> None:
    assert run_program("Worker(queue, handle, events=Events()).run(until_empty=True)") == ""
