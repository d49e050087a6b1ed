"""Workers that claim ahead, on files, SQLite and the simulated SQS, with real threads.

One message blocks its handler as soon as others are claimed behind it. What happens to the
others is what these tests are about. Where they must not have waited until they are given
back, the clock is slow, so that this takes 20 s, and a busy machine is not too slow for it.
"""

import asyncio
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from threading import Event, Lock
from typing import Any

import child_handlers as handlers
import pytest

from holdfast.errors import QueueUnavailable
from holdfast.events import MessageLeaseLost
from holdfast.lease.backoff import Backoff
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.lease.keeper import LeaseKeeper
from holdfast.queue.manager import QueueManager
from holdfast.queue.message import AnyMessage, get_lease
from holdfast.queues.files import FilesystemQueue
from holdfast.queues.sqlite.queue import SQLiteQueue
from holdfast.queues.sqs import SQSQueue
from holdfast.testing import ManualClock, SimulatedSqs, SkippingClock
from holdfast.worker.outcome import Done
from holdfast.worker.worker import Worker, WorkerReport
from support.waiting import wait_until
from support.workers.notes import Notes
from support.workers.running import SlowMotionClock, TestQueue, run_until_empty, running

AT_ONCE_SECONDS = 10.0  # half of the time after which messages are given back, if it is slow
FAST = 60  # messages, after which every kind of queue claims ahead
COUNT = FAST + 40
KINDS = ("files", "sqlite", "sqs")
REFUNDING = ("files", "sqlite")


class QueueOpener:
    """Opens queues of each kind, which share a clock."""

    def __init__(self, folder: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        self._folder = folder
        self._clock = clock
        self.sqs = SimulatedSqs(clock)

    def __call__(self, kind: str) -> QueueManager[AnyMessage]:
        settings: Any = {"lease_seconds": 10.0, "backoff": Backoff(0.0), "clock": self._clock}
        if kind == "files":
            return FilesystemQueue(self._folder / "files", AnyMessage, **settings)
        if kind == "sqlite":
            return SQLiteQueue(self._folder / "work.db", AnyMessage, **settings)
        self.sqs.client().create_queue(QueueName="work")
        return SQSQueue("work", AnyMessage, client=self.sqs.client(), **settings)


@pytest.fixture
def open_kind(tmp_path: Path) -> QueueOpener:
    return QueueOpener(tmp_path)


@pytest.fixture
def open_slow(tmp_path: Path) -> QueueOpener:
    return QueueOpener(tmp_path, SlowMotionClock())


def push(queue: QueueManager[AnyMessage], count: int = COUNT) -> None:
    queue.push_many([AnyMessage(id=f"m{number}") for number in range(count)])


class BlockingHandler:
    """Handles messages at once, and blocks once when others are claimed behind one."""

    def __init__(self, queue: QueueManager[AnyMessage], behind: int = 3) -> None:
        self._queue, self._behind = queue, behind  # of COUNT messages
        self.blocked, self.go_on = Event(), Event()
        self.attempts: Counter[int] = Counter()
        self.handled: Counter[str] = Counter()
        self._lock = Lock()

    def __call__(self, message: AnyMessage, ctx: Any) -> None:
        if self._blocks(message, ctx):
            self.go_on.wait(60)

    async def call_async(self, message: AnyMessage, ctx: Any) -> None:
        if self._blocks(message, ctx):
            while not self.go_on.is_set():
                await asyncio.sleep(0.01)

    def _blocks(self, message: AnyMessage, ctx: Any) -> bool:
        with self._lock:
            self.handled[message.id] += 1
            self.attempts[ctx.attempt] += 1
            if self.blocked.is_set() or self.handled.total() <= FAST:
                return False
            blocks = self.count_waiting() >= self._behind
            if blocks:
                self.blocked.set()
            return blocks

    def count_waiting(self) -> int:
        """Count the messages that were claimed and not started, before any was given back."""
        return COUNT - self._queue.stats().ready - self.handled.total()


@pytest.fixture(params=["thread", "async"])
def run_blocking(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Return a function that makes a worker with a handler that blocks."""

    def make_worker(handler: BlockingHandler, queue: Any, **options: Any) -> Worker[Any]:
        handle: Any = handler.call_async if request.param == "async" else handler
        return Worker(queue, handle, isolation=request.param, **options)

    return make_worker


# -- a handler becomes slow


@pytest.mark.parametrize("kind", KINDS)
def test_another_worker_gets_what_waits_behind_a_slow_handler(
    kind: str, open_kind: Any, run_blocking: Any
) -> None:
    queue = open_kind(kind)
    push(queue)
    handler = BlockingHandler(queue)
    with running(run_blocking(handler, queue)) as slow:
        assert handler.blocked.wait(60)
        with running(Worker(open_kind(kind), handler)) as other:
            wait_until(lambda: len(handler.handled) == COUNT)
            other.stop()
        handler.go_on.set()
        report = slow.stop()
    assert report.given_back >= 3
    assert max(handler.handled.values()) == 1  # each was handled once
    assert max(handler.attempts) == (1 if kind in REFUNDING else 2)


@pytest.mark.parametrize("kind", KINDS)
def test_other_slots_get_what_waits_behind_a_slow_handler_at_once(
    kind: str, open_slow: Any, run_blocking: Any
) -> None:
    queue = open_slow(kind)
    push(queue)
    handler = BlockingHandler(queue, behind=1)
    with running(run_blocking(handler, queue, concurrency=4)) as run:
        assert handler.blocked.wait(60)
        wait_until(lambda: len(handler.handled) == COUNT)
        handler.go_on.set()
        report = run.stop()
    assert report.given_back == 0, "they waited until they were given back"
    assert max(handler.handled.values()) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outcome", [None, Done("a result, whose ack does not wait")])
def test_idle_slots_take_over_from_the_one_that_handled_all_fast_messages(
    kind: str, outcome: Done | None, open_slow: Any
) -> None:
    queue = open_slow(kind)
    push(queue)
    handled: list[str] = []
    blocked, go_on = Event(), Event()

    def handle(message: AnyMessage) -> Done | None:
        handled.append(message.id)
        if len(handled) > FAST and not blocked.is_set():
            blocked.set()
            go_on.wait(60)
        return outcome

    with running(Worker(queue, handle, concurrency=4)) as run:
        assert blocked.wait(60)
        wait_until(lambda: len(handled) == COUNT)
        go_on.set()
        report = run.stop()
    assert report == WorkerReport(COUNT, 0, 0, 0, 0)  # none was given back


@pytest.mark.parametrize("kind", REFUNDING)
def test_a_slow_handler_in_a_process_holds_up_no_other_message(
    kind: str, open_kind: Any, tmp_path: Path
) -> None:
    queue, notes = open_kind(kind), Notes(tmp_path / "notes")
    whats = ["finish"] * FAST + ["sleep"] * 30
    queue.push_many(
        [
            AnyMessage(id=f"m{number}", what=what, notes=str(notes.path))
            for number, what in enumerate(whats)
        ]
    )
    worker = Worker(queue, handlers.do, isolation="process", kill_grace_seconds=0.1)
    with running(worker) as run:
        wait_until(lambda: "sleeping now" in notes.lines())
        wait_until(lambda: queue.stats().leased == 1)
        report = run.stop_now()
    assert report.completed == FAST
    assert {get_lease(message).attempt for message in queue.poll(100)} == {1}


def test_a_stalled_handler_loses_its_own_message_only() -> None:
    clock = SkippingClock()
    queue = TestQueue(lease_seconds=60.0, clock=clock)
    queue.push_ids(*(f"m{number}" for number in range(COUNT)))
    handler = BlockingHandler(queue)
    worker: Any = Worker(queue, handler, stall_seconds=1.0)
    with running(worker) as run:
        assert handler.blocked.wait(60)
        with running(Worker(queue, handler)) as other:
            # The clock skips to the end of the stalled handler's lease, when no work runs.
            wait_until(lambda: handler.handled.total() == COUNT + 1)
            other.stop()
        handler.go_on.set()
        report = run.stop()
    assert report.abandoned == 1
    assert sorted(handler.handled.values())[-2:] == [1, 2]


def test_the_stall_of_a_coroutine_counts_from_its_start() -> None:
    queue = TestQueue()
    queue.push_ids(*(f"m{number}" for number in range(COUNT)))
    blocking = BlockingHandler(queue)
    slept: list[str] = []

    async def handle(message: AnyMessage, ctx: Any) -> None:
        if blocking.blocked.is_set() and not slept:
            slept.append(message.id)
            await asyncio.sleep(0.3)  # together with its wait, more than the stall time
        elif not slept:
            until = time.monotonic() + 1.4
            beating = asyncio.create_task(blocking.call_async(message, ctx))
            while not beating.done() and time.monotonic() < until:
                ctx.beat()
                await asyncio.sleep(0.001)
            if blocking.blocked.is_set():
                blocking.go_on.set()
            await beating

    worker: Any = Worker(queue, handle, isolation="async", stall_seconds=1.5)
    report = run_until_empty(worker)
    assert slept
    assert (report.completed, report.retried) == (COUNT, 0)


def test_messages_whose_lease_is_lost_while_they_wait_are_not_started() -> None:
    clock = ManualClock()
    queue = TestQueue(lease_seconds=4.0, max_attempts=9, clock=clock)
    queue.push_ids(*(f"m{number}" for number in range(COUNT)))
    handler = BlockingHandler(queue)
    with running(Worker(queue, handler)) as run:
        assert handler.blocked.wait(60)
        claimed = handler.count_waiting() + 1
        clock.advance(0.1)
        wait_until(lambda: queue.stats().leased == claimed)  # the acks are sent
        queue.refusing.set()
        clock.advance(1.4)  # the renewals are due before the messages are given back
        wait_until(lambda: len(queue.seen.of(MessageLeaseLost)) == claimed)
        queue.refusing.clear()
        clock.advance(4.0)
        handler.go_on.set()  # the others are next, and come back because their leases ended
        wait_until(lambda: clock.advance(0.01) or len(handler.handled) == COUNT)
        run.worker.stop()
        report = run.join(clock)
    assert report.abandoned == claimed
    assert sorted(handler.handled.values())[-2:] == [1, 2]  # only the blocked one, twice


# -- the worker stops


@pytest.mark.parametrize("kind", REFUNDING)
def test_a_stop_gives_back_at_once_what_waits(
    kind: str, open_slow: Any, run_blocking: Any
) -> None:
    queue = open_slow(kind)
    push(queue)
    handler = BlockingHandler(queue)
    with running(run_blocking(handler, queue)) as run:
        assert handler.blocked.wait(60)
        run.worker.stop()
        wait_until(lambda: queue.stats().leased == 1, AT_ONCE_SECONDS)
        handler.go_on.set()
        report = run.join()
    assert report.given_back >= 3
    assert report.completed == len(handler.handled)
    assert {get_lease(message).attempt for message in queue.poll(100)} == {1}


def test_a_stop_finishes_what_waits_if_giving_back_would_cost_an_attempt(
    open_kind: Any, run_blocking: Any
) -> None:
    queue = open_kind("sqs")
    push(queue)
    handler = BlockingHandler(queue)
    with running(run_blocking(handler, queue)) as run:
        assert handler.blocked.wait(60)
        run.worker.stop()
        before = handler.handled.total()
        handler.go_on.set()
        report = run.join()
    assert report.given_back == 0
    assert handler.handled.total() - before >= 3
    assert report.completed == handler.handled.total()
    assert {get_lease(message).attempt for message in queue.poll(10)} == {1}


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_now_gives_back_what_waits(kind: str, open_slow: Any, run_blocking: Any) -> None:
    queue = open_slow(kind)
    push(queue)
    handler = BlockingHandler(queue)
    with running(run_blocking(handler, queue, kill_grace_seconds=5.0)) as run:
        assert handler.blocked.wait(60)
        run.worker.stop_now()
        wait_until(lambda: queue.stats().leased <= 1, AT_ONCE_SECONDS)
        handler.go_on.set()
        report = run.join()
    assert report.given_back >= 3
    assert report.completed == len(handler.handled) - 1


def test_a_stop_waits_for_a_queue_that_is_away_for_a_moment() -> None:
    queue = TestQueue()
    queue.push_ids(*(f"m{number}" for number in range(COUNT)))
    handler = BlockingHandler(queue)
    away_until = [0.0]

    def be_away(verb: str) -> None:
        if verb == "release" and time.monotonic() < away_until[0]:
            raise QueueUnavailable("away")

    queue.before_settling = be_away
    with running(Worker(queue, handler)) as run:
        assert handler.blocked.wait(60)
        away_until[0] = time.monotonic() + 0.5
        handler.go_on.set()
        report = run.stop()
    assert report.abandoned == 0
    assert queue.stats().leased == 0


def test_a_queue_that_hangs_does_not_keep_a_worker_from_stopping_now() -> None:
    """The keeper is shared, so it would renew what was not given back without end."""
    queue = TestQueue()
    queue.push_ids(*(f"m{number}" for number in range(COUNT)))
    handler = BlockingHandler(queue)
    answers = Event()

    def hang(verb: str) -> None:
        if verb == "release":
            answers.wait(60)

    queue.before_settling = hang
    with LeaseKeeper() as keeper:
        worker: Any = Worker(queue, handler, keeper=keeper, kill_grace_seconds=0.3)
        with running(worker) as run:
            assert handler.blocked.wait(60)
            report = run.stop_now()
            handler.go_on.set()
        assert keeper.held == 0
        answers.set()
    assert report.abandoned >= 4


WORKER_SCRIPT = dedent(
    """
    import signal, sys, time
    from holdfast import AnyMessage, SQLiteQueue, Worker

    queue = SQLiteQueue(sys.argv[1], AnyMessage, lease_seconds=5.0)
    count = 0

    def handle(message, ctx):
        global count
        count += 1
        with open(sys.argv[2], "ab", buffering=0) as log:
            log.write(f"{ctx.attempt} {message.id}\\n".encode())
        if sys.argv[3] == "block" and count > 60:
            while queue.stats().completed < count - 1:
                time.sleep(0.005)  # until the acks of finished messages are sent
            if queue.stats().leased > 3:
                print("blocked", flush=True)
                ctx.lost.wait(float(sys.argv[4]))

    worker = Worker(queue, handle, kill_grace_seconds=0.2)
    signals = 0

    def stop(*_):
        global signals
        signals += 1
        print("signal", signals, flush=True)
        worker.stop() if signals == 1 else worker.stop_now()

    signal.signal(signal.SIGTERM, stop)
    print(worker.run(until_done=sys.argv[3] == "finish"), flush=True)
    """
)


class WorkerProcess:
    """A worker in a process of its own, whose handler blocks while others wait."""

    def __init__(self, folder: Path, mode: str, seconds: float) -> None:
        self._log = folder / "log"
        arguments = [str(folder / "work.db"), str(self._log), mode, str(seconds)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER_SCRIPT, *arguments], stdout=subprocess.PIPE, text=True
        )

    def await_line(self, line: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{line}\n"

    def await_end(self) -> str:
        output, _ = self.process.communicate(timeout=60)
        return output

    def count_handled(self) -> Counter[str]:
        return Counter(line.split()[1] for line in self._log.read_text().splitlines())


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[Callable[..., WorkerProcess]]:
    push(SQLiteQueue(tmp_path / "work.db", AnyMessage), 300)
    started: list[WorkerProcess] = []

    def start(mode: str, seconds: float = 0.0) -> WorkerProcess:
        started.append(WorkerProcess(tmp_path, mode, seconds))
        return started[-1]

    yield start
    for worker in started:
        worker.process.kill()
        worker.process.wait(60)


def test_sigterm_gives_back_what_waits_and_finishes_what_runs(
    start_worker: Any, tmp_path: Path
) -> None:
    worker = start_worker("block", 1.0)
    worker.await_line("blocked")
    worker.process.send_signal(signal.SIGTERM)
    output = worker.await_end()
    handled = worker.count_handled()
    assert f"WorkerReport(completed={handled.total()}, " in output
    assert "abandoned=0" in output
    queue = SQLiteQueue(tmp_path / "work.db", AnyMessage)
    assert queue.stats().ready == 300 - handled.total()
    assert {get_lease(message).attempt for message in queue.poll(300)} == {1}


def test_a_second_sigterm_gives_back_what_waits_and_abandons_what_runs(
    start_worker: Any, tmp_path: Path
) -> None:
    worker = start_worker("block", 60.0)
    worker.await_line("blocked")
    worker.process.send_signal(signal.SIGTERM)
    worker.await_line("signal 1")  # two pending signals of the same kind are one
    worker.process.send_signal(signal.SIGTERM)
    output = worker.await_end()
    handled = worker.count_handled()
    assert f"WorkerReport(completed={handled.total() - 1}, " in output
    assert "abandoned=1" in output
    stats = SQLiteQueue(tmp_path / "work.db", AnyMessage).stats()
    assert stats.ready + stats.leased + stats.expired == 300 - handled.total() + 1


def test_after_sigkill_every_message_comes_back_and_few_are_handled_twice(
    start_worker: Any, tmp_path: Path
) -> None:
    worker = start_worker("block", 60.0)
    worker.await_line("blocked")
    worker.process.kill()
    worker.process.wait(60)
    start_worker("finish").await_end()
    handled = worker.count_handled()
    assert len(handled) == 300
    assert handled.total() == 301  # only the one that ran, because the acks were sent before
    queue = SQLiteQueue(tmp_path / "work.db", AnyMessage)
    assert queue.stats().completed == 300


# -- calls and order


def test_one_slot_on_sqs_needs_a_fifth_of_a_call_for_a_message(open_slow: Any) -> None:
    queue, calls = open_slow("sqs"), open_slow.sqs.calls
    push(queue, 1_000)
    calls.clear()
    worker: Any = None

    def handle(message: AnyMessage) -> None:
        handled.append(message.id)
        if len(handled) == 1_000:
            worker.stop()

    handled: list[str] = []
    worker = Worker(queue, handle)
    with running(worker) as run:
        assert run.join() == WorkerReport(1_000, 0, 0, 0, 0)
    assert calls.count("ReceiveMessage", "DeleteMessageBatch", "DeleteMessage") <= 250


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_fifo_queue_keeps_the_order_of_its_groups(concurrency: int) -> None:
    sqs = SimulatedSqs()
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    sqs.client().create_queue(QueueName="work.fifo", Attributes=attributes)
    queue = SQSQueue("work.fifo", AnyMessage, client=sqs.client(), group_by="group")
    queue.push_many(
        [AnyMessage(id=f"m{number}", group=f"g{number % 3}") for number in range(120)]
    )
    handled: list[int] = []
    lock = Lock()

    def handle(message: AnyMessage) -> None:
        with lock:
            handled.append(int(message.id[1:]))

    worker = Worker(queue, handle, concurrency=concurrency)
    assert worker.prefetch == 0
    with running(worker) as run:
        wait_until(lambda: len(handled) == 120)
        run.stop()
    for group in range(3):
        assert [number for number in handled if number % 3 == group] == list(
            range(group, 120, 3)
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("isolation", ["thread", "async"])
def test_workers_that_claim_ahead_handle_each_message_once(
    kind: str, isolation: Any, open_kind: Any
) -> None:
    count = 400
    push(open_kind(kind), count)
    handled: Counter[str] = Counter()
    lock = Lock()

    def handle(message: AnyMessage) -> None:
        with lock:
            handled[message.id] += 1

    async def handle_async(message: AnyMessage) -> None:
        handle(message)

    chosen: Any = handle_async if isolation == "async" else handle
    workers = [
        Worker(open_kind(kind), chosen, concurrency=4, isolation=isolation) for _ in range(2)
    ]
    with running(workers[0]) as first, running(workers[1]) as second:
        wait_until(lambda: len(handled) == count)
        reports = [first.stop(), second.stop()]
    assert sum(report.completed for report in reports) == count
    assert max(handled.values()) == 1


def test_a_run_until_empty_ends_with_all_acks_sent() -> None:
    queue = TestQueue()
    queue.push_ids(*(f"m{number}" for number in range(333)))
    report = run_until_empty(Worker(queue, lambda message: None, concurrency=3))
    assert report == WorkerReport(333, 0, 0, 0, 0)
    assert queue.stats().completed == 333
