"""Threads that share calls to SQS: acks gathered, and long polls that can be left."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Thread, current_thread

import pytest

from holdfast.adapters.aws.sqs import receiving
from holdfast.adapters.aws.sqs.gathering import Gathering
from holdfast.adapters.aws.sqs.receiving import LongPoll, Raw

PATIENCE_SECONDS = 30.0


# -- gathering


def test_each_of_many_gets_its_own_answer_and_no_call_carries_more_than_ten() -> None:
    calls: list[int] = []
    together = Barrier(25)

    def double(numbers: Sequence[int]) -> list[int]:
        calls.append(len(numbers))
        return [2 * number for number in numbers]

    gathering = Gathering(double, lambda: 25)

    def hand_in(number: int) -> int:
        together.wait(PATIENCE_SECONDS)
        return gathering.hand_in(number)

    with ThreadPoolExecutor(25) as threads:
        answers = list(threads.map(hand_in, range(25), timeout=PATIENCE_SECONDS))
    assert answers == [2 * number for number in range(25)]
    assert max(calls) <= 10
    assert sum(calls) == 25


def test_those_who_come_during_a_call_do_not_wait_for_its_answer() -> None:
    called, answered = Event(), Event()

    def slow_for_one(numbers: Sequence[int]) -> Sequence[int]:
        if 1 in numbers:
            called.set()
            assert answered.wait(PATIENCE_SECONDS)
        return numbers

    gathering = Gathering(slow_for_one, lambda: 1)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(gathering.hand_in, 1)
        assert called.wait(PATIENCE_SECONDS)
        assert threads.submit(gathering.hand_in, 2).result(PATIENCE_SECONDS) == 2
        answered.set()
        assert first.result(PATIENCE_SECONDS) == 1


def test_an_error_of_the_call_is_told_to_all_it_carried() -> None:
    def refuse(numbers: Sequence[int]) -> Sequence[int]:
        raise OSError(f"{len(numbers)} of them")

    gathering = Gathering(refuse, lambda: 2)
    with ThreadPoolExecutor(2) as threads:
        told = [threads.submit(gathering.hand_in, number) for number in range(2)]
        for one in told:
            assert isinstance(one.exception(PATIENCE_SECONDS), OSError)


def test_a_leader_that_is_interrupted_leaves_nobody_waiting_for_it() -> None:
    joined, interrupt = Event(), Event()

    def expected() -> int:
        if not interrupt.is_set() and current_thread().name == "leader":
            joined.set()
            assert interrupt.wait(PATIENCE_SECONDS)
            raise KeyboardInterrupt
        return 1

    gathering = Gathering(lambda numbers: numbers, expected)

    def lead() -> None:
        with pytest.raises(KeyboardInterrupt):
            gathering.hand_in(1)

    leader = Thread(target=lead, name="leader")
    leader.start()
    assert joined.wait(PATIENCE_SECONDS)
    with ThreadPoolExecutor(1) as threads:
        follower = threads.submit(gathering.hand_in, 2)
        interrupt.set()
        assert follower.result(PATIENCE_SECONDS) == 2
    leader.join(PATIENCE_SECONDS)
    assert not leader.is_alive()


# -- long polls


@pytest.fixture(autouse=True)
def _no_spare_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that other tests left would make the counting wrong."""
    monkeypatch.setattr(receiving, "_spare", [])


def poll(receive: "Receive", stop: Event | None = None) -> Sequence[Raw]:
    return LongPoll(receive, receive.returned.extend).run(stop or Event())


class Receive:
    """A call that brings one message once it may, and notes its thread."""

    def __init__(self) -> None:
        self.may_end, self.began = Event(), Event()
        self.returned: list[Raw] = []
        self.thread: Thread | None = None

    def __call__(self) -> Sequence[Raw]:
        self.thread = current_thread()
        self.began.set()
        assert self.may_end.wait(PATIENCE_SECONDS)
        return [{"MessageId": "1"}]


def received() -> Receive:
    receive = Receive()
    receive.may_end.set()
    assert poll(receive) == [{"MessageId": "1"}]
    return receive


def test_one_poll_after_another_is_made_by_one_thread() -> None:
    assert received().thread is received().thread


def test_a_poll_that_was_left_gives_back_what_it_brings_and_delays_nobody() -> None:
    received()  # so that there is a thread to be taken
    left, stop = Receive(), Event()
    with ThreadPoolExecutor(1) as threads:
        leaving = threads.submit(poll, left, stop)
        assert left.began.wait(PATIENCE_SECONDS)
        stop.set()
        assert list(leaving.result(PATIENCE_SECONDS)) == []
    next_one = received()
    assert next_one.thread is not left.thread
    assert left.returned == []
    left.may_end.set()
    assert left.thread is not None
    left.thread.join(PATIENCE_SECONDS)
    assert left.returned == [{"MessageId": "1"}]


def test_a_thread_without_calls_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "_SPARE_SECONDS", 0.01)
    thread = received().thread
    assert thread is not None
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert received().thread is not thread


def test_an_error_of_the_call_reaches_the_poller_and_spares_the_thread() -> None:
    def refuse() -> Sequence[Raw]:
        raise OSError("away")

    before = received().thread
    with pytest.raises(OSError, match="away"):
        LongPoll(refuse, lambda raws: None).run(Event())
    assert received().thread is before
