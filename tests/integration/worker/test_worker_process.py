"""The worker with handlers in child processes, for work that ends by itself."""

import os
import signal
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import child_handlers as handlers
import pytest

from holdfast import AnyMessage, Message, QueueManager, open_queue
from holdfast.errors import HandlerNotFound
from holdfast.lease.keeper import LeaseKeeper
from holdfast.queue.info import Holder, MessageState
from holdfast.queue.message import QueueMessage
from holdfast.testing import MemoryQueue
from holdfast.worker.worker import Worker, WorkerReport
from support.leftovers import Leftovers
from support.waiting import wait_until
from support.workers.notes import Notes, is_alive
from support.workers.running import TestQueue, members, run_until_empty, running


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


def process_worker(
    queue: MemoryQueue[Any], handler: Any = handlers.do, **settings: Any
) -> Worker[Any]:
    return Worker(queue, handler, isolation="process", **settings)


def push(queue: TestQueue, notes: Notes, what: str, *ids: str, **fields: Any) -> None:
    queue.push_ids(*(ids or ("m",)), what=what, notes=str(notes.path), **fields)


def test_children_are_reused_and_their_work_is_acked(notes: Notes) -> None:
    queue = TestQueue()
    push(queue, notes, "finish", *(f"m{number}" for number in range(50)))
    report = run_until_empty(process_worker(queue, concurrency=2, prefetch=0))
    assert report == WorkerReport(50, 0, 0, 0, 0)
    assert sorted(notes.values("finished")) == sorted(f"m{number}" for number in range(50))
    assert len(set(notes.values("pid"))) <= 2
    assert queue.most_asked <= 2


def test_an_idle_child_need_not_send_pulses(notes: Notes) -> None:
    queue = TestQueue()
    push(queue, notes, "finish", "first")
    with running(process_worker(queue, pulse_seconds=2.0)):
        wait_until(lambda: queue.stats().completed == 1)
        time.sleep(2.1)
        push(queue, notes, "finish", "second")
        wait_until(lambda: queue.stats().completed == 2)
    assert len(set(notes.values("pid"))) == 1


def test_a_typed_message_arrives_as_it_was_pushed(notes: Notes) -> None:
    queue = MemoryQueue(handlers.Enrich)
    when = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
    queue.push(handlers.Enrich(id="m-ü", notes=str(notes.path), what="tell_all", when=when))
    assert run_until_empty(process_worker(queue)).completed == 1
    assert notes.values("model") == ["Enrich"]
    assert notes.values("fields") == [f"m-ü 1 {when.isoformat()}"]


def test_handlers_may_take_the_message_alone_or_be_coroutines(notes: Notes) -> None:
    queue = TestQueue()
    push(queue, notes, "-")
    assert run_until_empty(process_worker(queue, handlers.only_message)).completed == 1
    push(queue, notes, "-")
    assert run_until_empty(process_worker(queue, handlers.coroutine)).dead_lettered == 1
    assert notes.lines() == ["alone m", "awaited m"]
    assert next(queue.dead_letters()).reason == "as a coroutine says"


@pytest.mark.requirement("R003-033")
@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("reject", "a child rejects"),
        ("raise_error", "failed 2 times, last: ValueError: from a child"),
        ("leave", "failed 2 times, last: SystemExit: 7"),
        ("interrupt", "failed 2 times, last: KeyboardInterrupt"),
        ("save_nonsense", "failed 2 times, last: MalformedMessage: "),
        ("nonsense", "the handler returned a value of type dict"),
    ],
)
def test_outcomes_of_processes_are_the_same_as_of_threads(
    notes: Notes, what: str, reason: str
) -> None:
    queue = TestQueue(max_attempts=2)
    push(queue, notes, what)
    assert run_until_empty(process_worker(queue)).dead_lettered == 1
    [dead] = queue.find("m")
    assert (dead.reason or "").startswith(reason)
    assert len(set(notes.values("pid"))) == 1  # no such outcome ends a child
    if what == "raise_error":
        assert "in raise_error" in (dead.past[-1].detail or "")


def test_a_requested_retry_keeps_its_reason_and_detail(notes: Notes) -> None:
    queue = TestQueue()
    push(queue, notes, "ask_for_retry")
    assert run_until_empty(process_worker(queue)) == WorkerReport(1, 1, 0, 0, 0)
    [view] = queue.find("m")
    assert (view.past[0].reason, view.past[0].detail) == ("a child asks", "with detail")


def test_a_checkpoint_goes_through_the_worker_to_the_next_attempt(notes: Notes) -> None:
    queue = TestQueue()
    push(queue, notes, "use_checkpoint")
    assert run_until_empty(process_worker(queue)) == WorkerReport(1, 1, 0, 0, 0)
    assert notes.values("found") == ["None", "{'step': 1}"]


def test_a_checkpoint_may_be_as_large_as_the_queue_accepts_and_no_larger(notes: Notes) -> None:
    queue = TestQueue()
    push(queue, notes, "save_large")
    assert run_until_empty(process_worker(queue)) == WorkerReport(1, 1, 0, 0, 0)
    assert notes.values("found") == ["1000000"]
    assert notes.values("refused") == ["1500000", "3000000"]
    assert len(set(notes.values("pid"))) == 1  # the child continues


def test_beats_are_cheap_and_keep_long_work_from_stalling(notes: Notes) -> None:
    queue = TestQueue()
    push(queue, notes, "beat_on", "long", seconds=6.0)
    push(queue, notes, "beat_a_lot", "many")
    report = run_until_empty(process_worker(queue, stall_seconds=5.0))
    assert report == WorkerReport(2, 0, 0, 0, 0)


def test_work_that_takes_many_leases_is_renewed_and_the_child_gets_each_deadline(
    notes: Notes,
) -> None:
    queue = TestQueue(lease_seconds=5.0)
    push(queue, notes, "take_long", seconds=6.0)
    with LeaseKeeper(
        renew_after=0.02
    ) as keeper:  # frequent, so that a busy machine is not late
        report = run_until_empty(process_worker(queue, keeper=keeper))
    assert report == WorkerReport(1, 0, 0, 0, 0)
    assert notes.values("renewed") == ["True"]
    assert notes.values("attempt") == ["1"]


def test_a_child_learns_that_the_worker_is_stopping(notes: Notes) -> None:
    queue = TestQueue()
    push(queue, notes, "wait_for_stopping")
    with running(process_worker(queue)) as run:
        wait_until(lambda: notes.values("waiting"))
        assert run.stop() == WorkerReport(0, 1, 0, 0, 0)


def test_a_message_larger_than_any_pipe_arrives(notes: Notes) -> None:
    queue = TestQueue()
    push(queue, notes, "tell_size", padding="x" * 1_000_000)
    assert run_until_empty(process_worker(queue)).completed == 1
    assert notes.values("size") == ["1000000"]


def test_a_handler_may_carry_more_data_than_a_frame_holds(notes: Notes) -> None:
    queue = TestQueue()
    push(queue, notes, "-")
    handler = partial(handlers.carry, b"x" * (5 << 20))
    assert run_until_empty(process_worker(queue, handler)).completed == 1
    assert notes.values("ballast") == [str(5 << 20)]


# -- children that die by themselves


@pytest.mark.parametrize(
    ("what", "how"), [("exit_at_once", "exit code 3"), ("crash", "SIGSEGV")]
)
def test_a_message_that_kills_its_process_is_dead_lettered(
    notes: Notes, what: str, how: str
) -> None:
    queue = TestQueue(max_attempts=2)
    push(queue, notes, what, "poison")
    push(queue, notes, "finish", "a", "b", "c")
    report = run_until_empty(process_worker(queue))
    assert report == WorkerReport(3, 1, 1, 0, 0)
    [dead] = queue.find("poison")
    assert dead.reason == f"failed 2 times, last: the worker process died ({how})"
    if what == "crash":
        assert "in crash" in (dead.past[-1].detail or "")  # a segmentation fault has a stack


def test_a_killed_child_is_replaced_and_its_work_is_done_again(notes: Notes) -> None:
    queue = TestQueue()
    push(queue, notes, "sleep_once")
    with running(process_worker(queue)) as run:
        wait_until(lambda: notes.values("sleeping"))
        os.kill(notes.pid(), signal.SIGKILL)
        wait_until(lambda: queue.stats().completed == 1)
        assert run.stop() == WorkerReport(1, 1, 0, 0, 0)
    [view] = queue.find("m")
    assert view.past[0].reason == "the worker process died (SIGKILL)"


def test_a_child_that_died_while_idle_costs_no_attempt(notes: Notes) -> None:
    queue = TestQueue()
    push(queue, notes, "finish", "first")
    with running(process_worker(queue)) as run:
        wait_until(lambda: queue.stats().completed == 1)
        os.kill(notes.pid(), signal.SIGKILL)
        wait_until(lambda: not is_alive(notes.pid()))
        push(queue, notes, "finish", "second")
        wait_until(lambda: queue.stats().completed == 2)
        assert run.stop() == WorkerReport(2, 0, 0, 0, 0)
    assert notes.values("attempt") == ["1", "1"]


def test_what_a_child_started_dies_with_it(notes: Notes) -> None:
    queue = TestQueue(max_attempts=1)
    push(queue, notes, "have_children", then="exit")
    report = run_until_empty(process_worker(queue))
    assert report.dead_lettered == 1
    # Its end is noticed at once, although the fork holds its pipes open.
    assert "the worker process died (exit code 3)" in (next(queue.dead_letters()).reason or "")
    assert not is_alive(notes.pid("started"))
    assert not is_alive(notes.pid("forked"))
    assert members(notes.pid()) == []


def test_a_child_stopped_together_with_the_worker_is_not_charged(notes: Notes) -> None:
    queue = TestQueue()
    push(queue, notes, "sleep")
    with running(process_worker(queue)) as run:
        wait_until(lambda: notes.values("sleeping"))
        os.kill(notes.pid(), signal.SIGTERM)
        assert run.stop() == WorkerReport(0, 0, 0, 1, 0)


# -- children that cannot start


def test_a_handler_that_children_cannot_import_ends_the_run_and_costs_no_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hf_here_only.py").write_text("def handle(message): ...")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        import hf_here_only  # type: ignore[import-not-found]
    queue = TestQueue()
    queue.push_ids("m")
    with pytest.raises(HandlerNotFound, match="No module named 'hf_here_only'"):
        run_until_empty(process_worker(queue, hf_here_only.handle, concurrency=2))
    assert [message.attempts for message in queue.poll()] == [1]
    del sys.modules["hf_here_only"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [("1 / 0", "ZeroDivisionError"), ("import os; os._exit(9)", "exit code 9")],
)
def test_a_handler_whose_import_fails_only_in_children_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, problem: str
) -> None:
    source = f"""
        import multiprocessing
        if multiprocessing.parent_process():
            {line}
        def handle(message): ...
        """
    (tmp_path / "hf_not_in_children.py").write_text(dedent(source))
    monkeypatch.syspath_prepend(str(tmp_path))
    import hf_not_in_children  # type: ignore[import-not-found]

    queue = TestQueue()
    queue.push_ids("m")
    with pytest.raises(HandlerNotFound, match=problem):
        run_until_empty(process_worker(queue, hf_not_in_children.handle))
    assert queue.log == []
    del sys.modules["hf_not_in_children"]


def test_a_model_that_children_cannot_import_gives_the_message_back() -> None:
    class Local(QueueMessage):
        pass

    queue = MemoryQueue(Local)
    queue.push(Local(id="m"))
    with pytest.raises(HandlerNotFound, match="Local cannot reach a process of its own"):
        run_until_empty(process_worker(queue))
    assert [message.attempts for message in queue.poll()] == [1]


# -- no leaks


def test_no_process_thread_or_descriptor_is_left_after_many_runs(notes: Notes) -> None:
    def run_once() -> None:
        queue = TestQueue()
        push(queue, notes, "finish", "a", "b")
        assert run_until_empty(process_worker(queue)).completed == 2

    run_once()  # Python has now started what it starts only once
    leftovers = Leftovers()
    for _ in range(6):
        run_once()
    wait_until(lambda: not leftovers.threads)
    assert leftovers.descriptors == set()
    assert [pid for pid in set(notes.values("pid")) if members(int(pid))] == []


# -- what other processes see


def test_a_payload_reaches_a_child_process(tmp_path: Path) -> None:
    # No annotation names Message[Parcel] in a module that the child could import.
    note = tmp_path / "note"
    with open_queue(f"sqlite:{tmp_path}/work.db", handlers.Parcel, env={}) as queue:
        queue.push(Message(payload=handlers.Parcel(str(note), 3), id="acme-42"))
        report = Worker(queue, handlers.deliver, isolation="process").run(until_empty=True)
    assert report.completed == 1
    assert note.read_text() == "Parcel acme-42 3"


def test_a_payload_that_a_child_cannot_import_ends_the_worker_and_stays(tmp_path: Path) -> None:
    @dataclass
    class LocalParcel:
        note: str

    with open_queue(f"sqlite:{tmp_path}/work.db", LocalParcel, env={}) as queue:
        queue.push(LocalParcel("x"))
        with pytest.raises(HandlerNotFound, match=r"LocalParcel\] cannot reach a process"):
            Worker(queue, handlers.deliver, isolation="process").run(until_empty=True)
        assert queue.stats().failed == 0
        assert queue.stats().completed == 0


def find_beat(viewer: QueueManager[Any]) -> Holder | None:
    holders = [message.holder for message in viewer.browse(MessageState.LEASED).messages]
    return next((holder for holder in holders if holder and holder.beat_at), None)


@pytest.mark.parametrize(
    ("isolation", "url"), [("thread", "sqlite:{}/q.db"), ("process", "{}/acme/enrich")]
)
def test_another_connection_sees_the_progress_of_a_handler(
    tmp_path: Path, isolation: Any, url: str
) -> None:
    address, notes = url.format(tmp_path), Notes(tmp_path / "notes")
    with open_queue(address, lease_seconds=0.9) as queue, open_queue(address) as viewer:
        queue.push(AnyMessage(id="m", what="beat_on", notes=str(notes.path), seconds=30))
        worker: Worker[Any] = Worker(queue, handlers.do, isolation=isolation)
        with running(worker):
            wait_until(lambda: find_beat(viewer) is not None)
            holder = find_beat(viewer)
        assert holder is not None
        assert holder.progress == 0.5
