"""Threads that share calls to SQS: acks gathered, and long polls that can be left."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Barrier, Event, Thread, current_thread
from typing import Any

import pytest

from holdfast.adapters.aws.sqs import long_poll
from holdfast.adapters.aws.sqs.ack_batcher import AckBatcher
from holdfast.adapters.aws.sqs.long_poll import LongPoll, Raw

PATIENCE_SECONDS = 30.0


def begun(call: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """In a thread that nobody has to wait for, should it hang."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call(*arguments))
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future


# -- gathering


def test_each_of_many_gets_its_own_answer_and_no_call_carries_more_than_ten() -> None:
    calls: list[int] = []
    together = Barrier(25)

    def double(numbers: Sequence[int]) -> list[int]:
        calls.append(len(numbers))
        return [2 * number for number in numbers]

    gathering = AckBatcher(double, lambda: 25)

    def hand_in(number: int) -> int:
        together.wait(PATIENCE_SECONDS)
        return gathering.hand_in(number)

    answers = [begun(hand_in, number) for number in range(25)]
    told = [answer.result(PATIENCE_SECONDS) for answer in answers]
    assert told == [2 * number for number in range(25)]
    assert max(calls) <= 10
    assert sum(calls) == 25


def test_those_who_come_during_a_call_do_not_wait_for_its_answer() -> None:
    called, answered = Event(), Event()

    def slow_for_one(numbers: Sequence[int]) -> Sequence[int]:
        if 1 in numbers:
            called.set()
            assert answered.wait(PATIENCE_SECONDS)
        return numbers

    gathering = AckBatcher(slow_for_one, lambda: 1)
    first = begun(gathering.hand_in, 1)
    assert called.wait(PATIENCE_SECONDS)
    assert begun(gathering.hand_in, 2).result(PATIENCE_SECONDS) == 2
    answered.set()
    assert first.result(PATIENCE_SECONDS) == 1


def test_an_error_of_the_call_is_told_to_all_it_carried() -> None:
    def refuse(numbers: Sequence[int]) -> Sequence[int]:
        raise OSError(f"{len(numbers)} of them")

    gathering = AckBatcher(refuse, lambda: 2)
    for told in [begun(gathering.hand_in, number) for number in range(2)]:
        assert isinstance(told.exception(PATIENCE_SECONDS), OSError)


def test_a_leader_that_is_interrupted_leaves_nobody_waiting_for_it() -> None:
    joined, interrupt = Event(), Event()

    def expected() -> int:
        if not joined.is_set():
            joined.set()
            assert interrupt.wait(PATIENCE_SECONDS)
            raise KeyboardInterrupt
        return 1

    gathering = AckBatcher(lambda numbers: numbers, expected)
    leader = begun(gathering.hand_in, 1)
    assert joined.wait(PATIENCE_SECONDS)
    follower = begun(gathering.hand_in, 2)
    interrupt.set()
    assert isinstance(leader.exception(PATIENCE_SECONDS), KeyboardInterrupt)
    assert follower.result(PATIENCE_SECONDS) == 2


# -- long polls


@pytest.fixture(autouse=True)
def _no_spare_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that other tests left would make the counting wrong."""
    monkeypatch.setattr(long_poll, "_spare", [])


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
    leaving = begun(poll, left, stop)
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
    monkeypatch.setattr(long_poll, "_SPARE_SECONDS", 0.01)
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
