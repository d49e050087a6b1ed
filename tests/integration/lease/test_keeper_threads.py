"""The keeper's thread in real time: started, stopped, woken, forked and frozen."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from textwrap import dedent
from types import FrameType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.lease.background import BackgroundLoop
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.lease.keeper import LeaseKeeper
from holdfast.lease.lease import RENEWED, Lease, LeaseState, Refused, Renewal
from holdfast.testing.clock import ManualClock
from support.leftovers import Leftovers
from support.waiting import WAIT_TIMEOUT_SECONDS, wait_until


class Source:
    """Grants every renewal, counts calls and concurrent calls, and can be blocked."""

    name = "fake"

    def __init__(self, clock: Clock, renew_batch: int = 10) -> None:
        self.renew_batch = renew_batch
        self.calls = 0
        self.most_at_once = 0
        self.gate = threading.Event()
        self.gate.set()
        self.answer: Callable[[Lease], Renewal] = lambda lease: RENEWED
        self._at_once = 0
        self._clock = clock

    def lease(self, message_id: str = "m", seconds: float = 60.0) -> Lease:
        return Lease(
            self,
            None,
            message_id=message_id,
            attempt=1,
            fence=1,
            claimed_at=self._clock.monotonic(),
            seconds=seconds,
        )

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        self.calls += 1
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        assert self.gate.wait(WAIT_TIMEOUT_SECONDS)
        self._at_once -= 1
        return [self.answer(lease) for lease in leases]


def keeper_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "holdfast-keeper"]


def start_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def join(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(WAIT_TIMEOUT_SECONDS)
        assert not thread.is_alive(), "deadlock"


@pytest.fixture(autouse=True)
def _no_thread_left_behind() -> Iterator[None]:
    yield
    assert keeper_threads() == []


@pytest.fixture
def source(clock: ManualClock) -> Source:
    return Source(clock)


@pytest.fixture
def keeper(clock: ManualClock, source: Source) -> Iterator[LeaseKeeper]:
    keeper = LeaseKeeper(clock)
    yield keeper
    source.gate.set()
    keeper.stop()


def block_keeper(keeper: LeaseKeeper, clock: ManualClock, source: Source) -> None:
    """Bring the keeper's thread into a call that does not return."""
    source.gate.clear()
    keeper.hold(source.lease())
    keeper.start()
    wait_until(lambda: clock.waiting == 1)
    clock.advance(20)
    wait_until(lambda: source.calls == 1)


# -- renewing


def test_the_thread_renews_when_the_time_comes(keeper, clock, source):
    lease = source.lease(seconds=60)
    keeper.hold(lease)
    with keeper:
        for number in range(1, 6):
            wait_until(lambda: clock.waiting == 1)
            clock.advance(20)
            wait_until(lambda: source.calls == number)  # noqa: B023
    assert lease.state is LeaseState.HELD


def test_the_thread_sleeps_between_two_calls_of_a_source_that_is_broken(
    keeper, clock, source, caplog
):
    calls: list[float] = []
    source.renew = lambda leases, seconds: calls.append(clock.monotonic())  # returns None
    keeper.hold(source.lease(seconds=60))
    with keeper:
        wait_until(lambda: clock.waiting == 1)
        for _ in range(30):
            before = len(calls)
            clock.advance(1)
            wait_until(lambda: clock.waiting == 1)  # a keeper without pauses is never asleep
            assert len(calls) <= before + 1
    assert len(calls) > 1
    assert caplog.records == []


def test_a_new_lease_wakes_a_thread_that_had_nothing_to_do(keeper, clock, source):
    keeper.start()
    wait_until(lambda: clock.waiting == 1)
    keeper.hold(source.lease(seconds=60))
    clock.advance(20)
    wait_until(lambda: source.calls == 1)


def test_a_shorter_lease_wakes_a_thread_that_waits_for_a_longer_one(keeper, clock, source):
    keeper.hold(source.lease("long", seconds=6_000))
    keeper.start()
    wait_until(lambda: clock.waiting == 1)
    keeper.hold(source.lease("short", seconds=60))
    clock.advance(20)
    wait_until(lambda: source.calls == 1)


def test_a_stall_time_named_later_wakes_the_thread_in_time(keeper, clock, source):
    lease = source.lease(seconds=6_000)
    keeper.hold(lease)
    keeper.start()
    wait_until(lambda: clock.waiting == 1)
    keeper.hold(lease, stall_seconds=5)
    clock.advance(5)
    wait_until(lease.lost.is_set)


def test_a_thread_that_wakes_after_the_deadline_makes_no_call(keeper, clock, source):
    lease = source.lease(seconds=60)
    keeper.hold(lease)
    with keeper:
        wait_until(lambda: clock.waiting == 1)
        clock.advance(60)
        wait_until(lease.lost.is_set)
    assert source.calls == 0


# -- starting and stopping


def test_starting_twice_runs_one_thread_and_stopping_twice_none(keeper):
    assert not keeper.running
    keeper.stop()
    keeper.start()
    keeper.start()
    assert keeper.running
    assert len(keeper_threads()) == 1
    keeper.stop()
    keeper.stop()
    assert not keeper.running
    assert keeper_threads() == []


@pytest.fixture
def _hectic() -> Iterator[None]:
    """Switch threads as often as possible, to see more interleavings."""
    normal = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(normal)


@pytest.mark.usefixtures("_hectic")
def test_starting_and_stopping_many_times_never_leaves_a_thread(keeper):
    leftovers = Leftovers()
    for _ in range(300):
        with keeper:
            assert len(leftovers.threads) == 1
        assert leftovers.threads == set()


@pytest.fixture
def _slow_to_end() -> Iterator[None]:
    """Delay each new thread when the keeper's part of it has just ended."""

    def linger(frame: FrameType, event: str, _: object) -> None:
        if event == "return" and frame.f_code is BackgroundLoop.run.__code__:
            SYSTEM_CLOCK.sleep(0.05)

    threading.setprofile(linger)
    yield
    threading.setprofile(None)


@pytest.mark.usefixtures("_slow_to_end")
def test_a_stop_returns_when_the_thread_is_gone(keeper):
    keeper.start()
    keeper.stop()
    assert keeper_threads() == []


@pytest.mark.usefixtures("_slow_to_end")
def test_a_start_waits_for_the_last_thread_to_be_gone(keeper, clock, source):
    lease = source.lease()
    lease.on_lost(lambda lease: keeper.stop())
    keeper.hold(lease)
    keeper.start()
    wait_until(lambda: clock.waiting == 1)
    clock.advance(60)
    wait_until(lambda: not keeper.running)
    wait_until(lambda: clock.waiting == 0)
    SYSTEM_CLOCK.sleep(0.01)
    keeper.start()
    assert len(keeper_threads()) == 1
    assert keeper.running


def test_the_thread_ends_with_the_with_block_even_if_that_raises(keeper):
    with pytest.raises(ZeroDivisionError), keeper:
        raise ZeroDivisionError
    assert not keeper.running


def test_nothing_is_renewed_after_a_stop_and_everything_after_the_next_start(
    keeper, clock, source
):
    lease = source.lease(seconds=60)
    keeper.hold(lease)
    keeper.start()
    keeper.stop()
    clock.advance(30)
    assert source.calls == 0
    keeper.start()
    wait_until(lambda: source.calls == 1)
    assert keeper.held == 1


def test_a_lease_that_ran_out_between_stop_and_start_is_lost_without_a_call(
    keeper, clock, source
):
    lease = source.lease(seconds=60)
    keeper.hold(lease)
    clock.advance(60)
    keeper.start()
    wait_until(lease.lost.is_set)
    assert source.calls == 0


def test_every_stop_waits_for_the_call_in_progress(keeper, clock, source):
    block_keeper(keeper, clock, source)
    stopped_before_the_answer: list[bool] = []

    def stop() -> None:
        keeper.stop()
        stopped_before_the_answer.append(not source.gate.is_set())

    threads = [start_thread(stop) for _ in range(3)]
    wait_until(lambda: not keeper.running)
    SYSTEM_CLOCK.sleep(0.05)
    source.gate.set()
    join(*threads)
    assert stopped_before_the_answer == [False] * 3
    assert keeper_threads() == []


def test_a_stop_ends_the_pass_before_its_next_call(keeper, clock, source):
    source.renew_batch = 1
    keeper.hold(source.lease("second"))
    block_keeper(keeper, clock, source)
    stopping = start_thread(keeper.stop)
    wait_until(lambda: not keeper.running)
    source.gate.set()
    join(stopping)
    assert source.calls == 1
    clock.advance(1)
    assert keeper.tick().renewed == 1  # the leases that were not renewed are still due


def test_a_start_while_a_stop_waits_keeps_the_one_thread_running(keeper, clock, source):
    block_keeper(keeper, clock, source)
    stopping = start_thread(keeper.stop)
    wait_until(lambda: not keeper.running)
    keeper.start()
    assert keeper.running
    assert len(keeper_threads()) == 1
    source.gate.set()
    join(stopping)
    assert keeper.running
    assert len(keeper_threads()) == 1
    clock.advance(20)
    wait_until(lambda: source.calls == 2)


def test_a_callback_may_stop_the_keeper_from_its_own_thread(keeper, clock, source):
    source.renew_batch = 1
    source.answer = lambda lease: Refused("gone")
    first, second = source.lease("first"), source.lease("second")
    first.on_lost(lambda lease: keeper.stop())
    keeper.hold(first)
    keeper.hold(second)
    keeper.start()
    wait_until(lambda: clock.waiting == 1)
    clock.advance(20)
    wait_until(lambda: keeper_threads() == [])
    assert not keeper.running
    assert source.calls == 1
    keeper.stop()


def test_a_callback_may_stop_and_start_the_keeper(keeper, clock, source):
    def again(lease: Lease) -> None:
        for _ in range(5):
            keeper.stop()
            keeper.start()

    source.answer = lambda lease: Refused("gone") if lease is first else RENEWED
    first, second = source.lease("first", seconds=30), source.lease("second", seconds=60)
    first.on_lost(again)
    keeper.hold(first)
    keeper.hold(second)
    keeper.start()
    wait_until(lambda: clock.waiting == 1)
    clock.advance(10)
    wait_until(first.lost.is_set)
    wait_until(lambda: clock.waiting == 1)
    clock.advance(10)
    wait_until(lambda: source.calls == 2)
    assert len(keeper_threads()) == 1


def test_a_callback_that_exits_does_not_end_the_thread(keeper, clock, source):
    leaving, staying = source.lease("leaving", seconds=30), source.lease("staying")
    leaving.on_lost(lambda lease: sys.exit(1))
    source.answer = lambda lease: Refused("gone") if lease is leaving else RENEWED
    keeper.hold(leaving)
    keeper.hold(staying)
    keeper.start()
    wait_until(lambda: clock.waiting == 1)
    clock.advance(10)
    wait_until(leaving.lost.is_set)
    wait_until(lambda: clock.waiting == 1)
    clock.advance(10)
    wait_until(lambda: source.calls == 2)
    assert keeper.running


def test_a_thread_that_could_not_be_started_does_not_seem_to_run(keeper, monkeypatch):
    def no_more(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_more)
        with pytest.raises(RuntimeError):
            keeper.start()
    assert not keeper.running
    keeper.start()
    assert keeper.running


steps = st.lists(st.sampled_from(["start", "stop", "hold", "look"]), max_size=12)


@pytest.mark.usefixtures("_hectic")
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(scripts=st.tuples(steps, steps, steps))
def test_any_interleaving_of_three_threads_ends_well(scripts):
    source = Source(SYSTEM_CLOCK)
    keeper = LeaseKeeper(renew_after=0.0001)  # each 6 ms, with a minute to spare
    failures: list[BaseException] = []

    def act(script: list[str]) -> None:
        try:
            for step in script:
                if step == "hold":
                    keeper.hold(source.lease())
                elif step == "look":
                    assert len(keeper_threads()) <= 1
                else:
                    getattr(keeper, step)()
        except BaseException as error:
            failures.append(error)

    join(*[start_thread(lambda script=script: act(script)) for script in scripts])
    keeper.stop()
    calls = source.calls
    SYSTEM_CLOCK.sleep(0.01)
    assert failures == []
    assert keeper_threads() == []
    assert source.most_at_once <= 1
    assert source.calls == calls


# -- under load


def test_eight_threads_hold_and_release_while_renewals_are_due_each_millisecond():
    source = Source(SYSTEM_CLOCK)
    keeper = LeaseKeeper(renew_after=0.001 / 30)  # each ms, with 30 s to spare
    leases: list[Lease] = []
    stop_at = SYSTEM_CLOCK.monotonic() + 1.0

    def work() -> None:
        chance = random.Random(1)
        while SYSTEM_CLOCK.monotonic() < stop_at:
            lease = source.lease(seconds=30)
            leases.append(lease)
            keeper.hold(lease)
            SYSTEM_CLOCK.sleep(chance.random() * 0.01)
            assert lease.release()

    leftovers = Leftovers()
    with keeper:
        kept = source.lease(seconds=30)
        keeper.hold(kept)
        join(*[start_thread(work) for _ in range(8)])
        wait_until(lambda: source.calls > 100)
        assert keeper.held == 1
    assert leftovers.threads == set()
    assert source.most_at_once == 1
    assert kept.state is LeaseState.HELD
    assert {lease.state for lease in leases} == {LeaseState.RELEASED}


# -- forked


def exit_code_of_a_fork(child: Callable[[], bool]) -> int:
    pid = os.fork()
    if pid == 0:
        signal.alarm(int(WAIT_TIMEOUT_SECONDS))  # a deadlocked child ends by itself
        code = 1
        try:
            code = 0 if child() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_the_keeper_of_a_forked_child_is_not_running():
    source = Source(SYSTEM_CLOCK)
    with LeaseKeeper() as keeper:
        lease = source.lease()
        keeper.hold(lease)

        def child() -> bool:
            asleep = not keeper.running and keeper.held == 0
            keeper.stop()
            with keeper:
                own = source.lease(seconds=3)
                keeper.hold(own)
                wait_until(lambda: source.calls)
                return asleep and keeper.running and own.live

        assert exit_code_of_a_fork(child) == 0
        assert keeper.running
        assert keeper.held == 1
        assert source.calls == 0


def test_a_child_forked_while_a_lock_was_held_does_not_hang():
    source = Source(SYSTEM_CLOCK)
    keeper = LeaseKeeper()
    for _ in range(2_000):
        keeper.hold(source.lease())
    enough = threading.Event()

    def count() -> None:
        while not enough.is_set():
            assert keeper.held  # holds the keeper's lock nearly all the time

    counting = start_thread(count)
    try:
        assert [exit_code_of_a_fork(lambda: keeper.held == 0) for _ in range(5)] == [0] * 5
    finally:
        enough.set()
        join(counting)


# -- frozen

FROZEN = dedent("""
    import sys
    from holdfast.lease.clock import SYSTEM_CLOCK
    from holdfast.lease.keeper import LeaseKeeper
    from holdfast.lease.lease import RENEWED, Lease

    def say(*words):
        print(*words, flush=True)

    class Source:
        name, renew_batch = "fake", 10

        def renew(self, leases, seconds):
            say("call", SYSTEM_CLOCK.monotonic())
            return [RENEWED] * len(leases)

    lease = Lease(
        Source(), None, message_id="m", attempt=1, fence=1,
        claimed_at=SYSTEM_CLOCK.monotonic(), seconds=5.0,
    )
    lease.on_lost(lambda lease: say("lost", lease.reason))
    with LeaseKeeper(renew_after=0.02) as keeper:
        keeper.hold(lease)
        lease.lost.wait()
    say("end")
""")


def test_a_process_stopped_for_longer_than_its_lease_makes_no_call_when_it_wakes():
    child = subprocess.Popen([sys.executable, "-c", FROZEN], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("call ")
        child.send_signal(signal.SIGSTOP)
        SYSTEM_CLOCK.sleep(5.5)
        woken_at = SYSTEM_CLOCK.monotonic()
        child.send_signal(signal.SIGCONT)
        out, _ = child.communicate(timeout=WAIT_TIMEOUT_SECONDS)
    finally:
        child.kill()
        child.wait()
    *calls, lost, end = out.splitlines()
    assert lost.startswith("lost ")
    assert end == "end"
    assert all(float(call.split()[1]) < woken_at for call in calls)
