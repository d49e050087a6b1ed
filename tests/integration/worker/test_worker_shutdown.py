"""The order in which a worker stops, and the ways to stop it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from threading import Event, Thread, get_ident
from typing import Any

import pytest
from child_handlers import do

from holdfast.events import Events, WorkerStopped, WorkerStopping
from holdfast.lease.clock import SystemClock
from holdfast.lease.keeper import LeaseKeeper
from holdfast.queue.message import AnyMessage, get_lease
from holdfast.testing import ManualClock
from holdfast.worker.outcome import Retry
from holdfast.worker.worker import Worker, WorkerReport
from support.waiting import wait_until
from support.workers.notes import Notes, is_alive
from support.workers.running import Seen, TestQueue, pass_a_renewal, running


class SlowToClaim(TestQueue):
    """Claims only when the test allows it, even if the worker was stopped meanwhile."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.asked, self.go = Event(), Event()

    def poll(self, batch_size: int = 1, **options: Any) -> list[AnyMessage]:
        if self.log:
            self.asked.set()
            self.go.wait(60)
        return super().poll(batch_size, **options)


def test_the_order_is_stop_polling_give_back_finish_and_only_then_stop_renewing() -> None:
    clock = ManualClock()
    queue = SlowToClaim(clock=clock)
    queue.push_ids("running")
    finish = Event()

    def handle(message: Any, ctx: Any) -> None:
        assert ctx.stopping.wait(60)
        queue.log.append("stopping")
        finish.wait(60)

    worker = Worker(queue, handle, concurrency=3, drain_seconds=1000, clock=clock)
    with running(worker) as run:
        queue.asked.wait(60)
        queue.push_ids("unstarted")
        stopper = Thread(target=run.worker.stop)  # in the main thread it would wait for a tick
        stopper.start()  # that this clock never reaches
        stopper.join()
        wait_until(lambda: "stopping" in queue.log)
        queue.go.set()  # the claim in progress returns too late to be started
        wait_until(lambda: "release unstarted" in queue.log)
        for _ in range(4):  # more than a lease
            pass_a_renewal(queue, clock)
        finish.set()
        assert run.join(clock) == WorkerReport(1, 0, 0, 1, 0)
    calls = [line for line in queue.log if not line.startswith("renew")]
    assert calls == [
        "claim running",
        "stopping",
        "claim unstarted",
        "release unstarted",
        "ack running",
    ]
    assert next(iter(queue.find("unstarted"))).attempts == 0
    assert queue.seen.of(WorkerStopping) == [WorkerStopping("memory", 1)]
    assert queue.seen.events[-1] == WorkerStopped("memory", 0)


def test_a_message_claimed_too_late_is_also_given_back_with_coroutines() -> None:
    queue = SlowToClaim()
    queue.push_ids("running")

    async def handle(message: Any, ctx: Any) -> None:
        queue.log.append(f"begun {message.id}")
        await asyncio.to_thread(queue.go.wait, 60)

    with running(Worker(queue, handle, concurrency=3, isolation="async")) as run:
        queue.asked.wait(60)
        wait_until(lambda: "begun running" in queue.log)
        queue.push_ids("unstarted")
        run.worker.stop()
        wait_until(lambda: queue.seen.of(WorkerStopping))
        queue.go.set()
        assert run.join() == WorkerReport(1, 0, 0, 1, 0)
    assert "begun unstarted" not in queue.log


def test_a_keeper_that_was_given_is_neither_started_nor_stopped() -> None:
    queue = TestQueue(lease_seconds=6.0)
    queue.push_ids("m")
    with LeaseKeeper() as keeper:
        worker = Worker(queue, lambda message: None, keeper=keeper)
        with running(worker, until_empty=True) as run:
            run.join()
        queue.push_ids("n")
        [message] = queue.poll()
        keeper.hold(get_lease(message))
        wait_until(lambda: queue.renewals)


def test_draining_lets_running_work_finish_and_claims_nothing_more() -> None:
    queue = TestQueue()
    queue.push_ids("a", "b", "c")
    begun, finish = [], Event()

    def handle(message: Any) -> None:
        begun.append(message.id)
        finish.wait(60)

    with running(Worker(queue, handle, concurrency=2)) as run:
        wait_until(lambda: len(begun) == 2)
        run.worker.stop()
        run.worker.stop()  # repeated calls are allowed
        wait_until(lambda: queue.seen.of(WorkerStopping))
        finish.set()
        assert run.join() == WorkerReport(2, 0, 0, 0, 0)
    assert begun == ["a", "b"]
    assert queue.stats().ready == 1
    assert queue.seen.of(WorkerStopping) == [WorkerStopping("memory", 2)]
    assert queue.seen.events[-1] == WorkerStopped("memory", 0)


def test_a_handler_can_end_early_when_the_worker_stops() -> None:
    queue = TestQueue()
    queue.push_ids("m")
    begun = Event()

    def handle(message: Any, ctx: Any) -> Any:
        begun.set()
        return Retry(0.0, "stopping") if ctx.stopping.wait(60) else None

    with running(Worker(queue, handle)) as run:
        begun.wait(60)
        assert run.stop() == WorkerReport(0, 1, 0, 0, 0)


def test_threads_still_running_after_the_drain_are_notified_and_their_leases_run_out() -> None:
    queue = TestQueue(lease_seconds=30)
    queue.push_ids("m")
    begun, lost_states, released = Event(), [], Event()

    def handle(message: Any, ctx: Any) -> None:
        lost = ctx.lost
        begun.set()
        released.wait(60)
        lost_states.append(lost.is_set())

    worker = Worker(queue, handle, drain_seconds=0.2, kill_grace_seconds=0.1)
    with running(worker) as run:
        begun.wait(60)
        assert run.stop() == WorkerReport(0, 0, 0, 0, 1)
    assert queue.stats().leased == 1  # not released, because the thread is still working
    released.set()
    wait_until(lambda: lost_states == [True])
    assert not {"ack m", "nack m", "release m"} & set(queue.log)


def test_coroutines_still_running_after_the_drain_are_cancelled_then_released() -> None:
    queue = TestQueue()
    queue.push_ids("m", "n")
    steps: list[str] = []

    async def handle(message: Any, ctx: Any) -> None:
        steps.append("begun")
        try:
            await asyncio.sleep(60)
        finally:
            queue.log.append("cancelled")

    worker = Worker(queue, handle, isolation="async", concurrency=2, drain_seconds=0.2)
    with running(worker) as run:
        wait_until(lambda: len(steps) == 2)
        assert run.stop() == WorkerReport(0, 0, 0, 2, 0)
    ends = [line for line in queue.log if not line.startswith("renew")][2:]
    assert ends[0] == "cancelled"
    assert sorted(ends) == ["cancelled", "cancelled", "release m", "release n"]
    assert [message.attempts for message in queue.poll(2)] == [1, 1]  # not charged


def test_processes_still_running_after_the_drain_are_killed_then_released(
    tmp_path: Path,
) -> None:
    queue, notes = TestQueue(), Notes(tmp_path / "notes")
    queue.push_ids("m", what="sleep", notes=str(notes.path))

    def check_dead(verb: str) -> None:
        queue.log.append(f"alive {is_alive(notes.pid())}")

    queue.before_settling = check_dead
    worker = Worker(queue, do, isolation="process", drain_seconds=0.2)
    with running(worker) as run:
        wait_until(lambda: notes.values("sleeping"))
        assert run.stop() == WorkerReport(0, 0, 0, 1, 0)
    assert queue.log[-2:] == ["release m", "alive False"]
    assert [message.attempts for message in queue.poll()] == [1]


def test_stop_now_does_not_wait_for_the_drain(tmp_path: Path) -> None:
    queue, notes = TestQueue(), Notes(tmp_path / "notes")
    queue.push_ids("m", what="sleep", notes=str(notes.path))
    worker = Worker(queue, do, isolation="process", drain_seconds=1000)
    with running(worker) as run:
        wait_until(lambda: notes.values("sleeping"))
        assert run.stop_now() == WorkerReport(0, 0, 0, 1, 0)


def test_stop_now_ends_a_drain_in_progress() -> None:
    queue = TestQueue()
    queue.push_ids("m")
    begun = Event()

    async def handle(message: Any, ctx: Any) -> None:
        begun.set()
        await asyncio.sleep(1000)

    worker = Worker(queue, handle, isolation="async", drain_seconds=1000)
    with running(worker) as run:
        begun.wait(60)
        run.worker.stop()
        wait_until(lambda: queue.seen.of(WorkerStopping))
        time.sleep(0.2)
        assert not run.ended()
        assert run.stop_now() == WorkerReport(0, 0, 0, 1, 0)


def test_a_worker_stopped_before_it_runs_does_nothing() -> None:
    queue = TestQueue()
    queue.push_ids("m")
    worker = Worker(queue, lambda message: None)
    worker.stop()
    assert worker.run() == WorkerReport(0, 0, 0, 0, 0)
    assert worker.run() == WorkerReport(0, 0, 0, 0, 0)


def test_a_worker_runs_once_at_a_time_and_again_afterwards() -> None:
    queue = TestQueue()
    worker = Worker(queue, lambda message: None)
    queue.push_ids("m")
    assert worker.run(until_empty=True).completed == 1
    queue.push_ids("n")
    assert worker.run(until_empty=True).completed == 1
    with running(worker), pytest.raises(RuntimeError, match="running already"):
        wait_until(worker.run)


def test_the_work_itself_may_stop_the_worker() -> None:
    queue = TestQueue()
    queue.push_ids("a", "b", "c")
    worker: Worker[Any] = Worker(queue, lambda message: worker.stop())
    assert worker.run().completed >= 1


def test_a_message_that_cannot_be_settled_does_not_block_the_end_of_the_worker() -> None:
    class Unsettling(TestQueue):
        def _ack(self, leases: Any) -> Any:
            raise OSError("disk away")

    queue, begun = Unsettling(lease_seconds=60), Event()
    queue.push_ids("m")

    def handle(message: Any) -> None:
        begun.set()

    with running(Worker(queue, handle, drain_seconds=0.2)) as run:
        begun.wait(60)
        assert run.stop() == WorkerReport(0, 0, 0, 0, 1)


SCRIPT = """
import signal, sys, time
from threading import Event, Thread
from holdfast.queue.message import AnyMessage, get_lease
from holdfast.worker.worker import Worker
from holdfast.testing import MemoryQueue

queue = MemoryQueue()
queue.push(AnyMessage(id="m"))

def handle(message, ctx):
    print("begun", flush=True)
    ctx.stopping.wait(60)
    time.sleep(0.5)
    print("finished", flush=True)

worker = Worker(queue, handle)
if sys.argv[1] == "handled":
    signal.signal(signal.SIGINT, lambda *_: worker.stop())
try:
    print(worker.run(), flush=True)
except KeyboardInterrupt:
    print("interrupted", queue.stats().leased, flush=True)
"""


@pytest.fixture
def script(tmp_path: Path) -> Any:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        path = tmp_path / "script.py"
        path.write_text(SCRIPT)
        process = subprocess.Popen(
            [sys.executable, str(path), *arguments], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_signal_handler_may_stop_the_worker(script: Any) -> None:
    process = script("handled")
    for _ in range(20):  # also at the moment when the run begins to wait
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.01)
    output, _ = process.communicate(timeout=60)
    assert output.splitlines()[0] == "finished"
    assert "completed=1" in output


def test_ctrl_c_without_a_signal_handler_ends_the_run_at_once(script: Any) -> None:
    process = script("unhandled")
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert "interrupted" in output


def test_a_worker_runs_without_subscribers() -> None:
    queue = TestQueue()
    queue.push_ids("m")
    seen = Seen()
    with running(Worker(queue, print, events=Events(seen)), until_empty=True) as run:
        assert run.join().completed == 1
    assert queue.seen.of(WorkerStopped) == []
    assert seen.of(WorkerStopped) == [WorkerStopped("memory", 0)]


INTERRUPTED_WAITS = """
import signal
from holdfast.worker.worker import SignalSafeEvent

event = SignalSafeEvent()
signal.signal(signal.SIGALRM, lambda *_: event.set())
signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
for _ in range(20_000):
    event.wait(0.0001)
    event.clear()
signal.setitimer(signal.ITIMER_REAL, 0)
"""


def test_a_signal_handler_may_set_the_event_that_its_own_thread_waits_for() -> None:
    """The event of `threading` would wait here for a lock that the same thread holds."""
    subprocess.run([sys.executable, "-c", INTERRUPTED_WAITS], check=True, timeout=60)


INTERRUPTED_DRAIN = """
import signal, time
from holdfast import AnyMessage, Worker
from holdfast.testing import MemoryQueue

queue = MemoryQueue()
queue.push(AnyMessage(id="m"))

def handle(message, ctx):
    signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
    ctx.stopping.wait(60)
    time.sleep(3)
    signal.setitimer(signal.ITIMER_REAL, 0)

worker = Worker(queue, handle)
signal.signal(signal.SIGALRM, lambda *_: worker.stop())
assert worker.run().completed == 1
"""


def test_a_worker_that_drains_may_be_stopped_by_thousands_of_signals() -> None:
    """Each may interrupt the run while it holds a lock of the event that it waits for."""
    subprocess.run([sys.executable, "-c", INTERRUPTED_DRAIN], check=True, timeout=60)


class CountingClock(SystemClock):
    """Counts the waits of each thread."""

    def __init__(self) -> None:
        self.waits: Counter[int] = Counter()

    def wait(self, event: Event, seconds: float | None) -> bool:
        self.waits[get_ident()] += 1
        return super().wait(event, seconds)


@pytest.mark.parametrize("limits", [{}, {"timeout_seconds": 60.0}, {"stall_seconds": 60.0}])
def test_the_thread_that_runs_an_idle_worker_does_not_wake(limits: Any) -> None:
    clock = CountingClock()
    worker = Worker(TestQueue(), print, **limits, clock=clock)
    thread = Thread(target=worker.run, daemon=True)
    thread.start()
    time.sleep(0.5)
    # The first wait takes no time, and the second lasts until the stop.
    assert clock.waits[thread.ident or 0] <= 2
    worker.stop()
    thread.join(60)
    assert not thread.is_alive()
