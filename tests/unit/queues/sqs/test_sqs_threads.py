"""Threads that share calls to SQS: batched acks, and long polls that can be left."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Barrier, Event, Thread, current_thread
from typing import Any

import pytest

from holdfast.queues.sqs import long_poll
from holdfast.queues.sqs.long_poll import LongPoll
from holdfast.queues.sqs.queue_client import RawMessage
from holdfast.queues.sqs.receipts import AckBatcher

WAIT_TIMEOUT_SECONDS = 30.0


def start_in_thread(call: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Start the call in a daemon thread, which cannot block the tests if it hangs."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call(*arguments))
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future


# -- batching acks


def test_each_thread_gets_its_own_result_and_no_call_carries_more_than_ten() -> None:
    calls: list[int] = []
    together = Barrier(25)

    def double(numbers: Sequence[int]) -> list[int]:
        calls.append(len(numbers))
        return [2 * number for number in numbers]

    batcher = AckBatcher(double, lambda: 25)

    def submit(number: int) -> int:
        together.wait(WAIT_TIMEOUT_SECONDS)
        return batcher.submit(number)

    futures = [start_in_thread(submit, number) for number in range(25)]
    results = [future.result(WAIT_TIMEOUT_SECONDS) for future in futures]
    assert results == [2 * number for number in range(25)]
    assert max(calls) <= 10
    assert sum(calls) == 25


def test_threads_that_arrive_during_a_call_do_not_wait_for_its_response() -> None:
    called, answered = Event(), Event()

    def slow_for_one(numbers: Sequence[int]) -> Sequence[int]:
        if 1 in numbers:
            called.set()
            assert answered.wait(WAIT_TIMEOUT_SECONDS)
        return numbers

    batcher = AckBatcher(slow_for_one, lambda: 1)
    first = start_in_thread(batcher.submit, 1)
    assert called.wait(WAIT_TIMEOUT_SECONDS)
    assert start_in_thread(batcher.submit, 2).result(WAIT_TIMEOUT_SECONDS) == 2
    answered.set()
    assert first.result(WAIT_TIMEOUT_SECONDS) == 1


def test_an_error_of_the_call_is_raised_in_all_threads_it_carried() -> None:
    def refuse(numbers: Sequence[int]) -> Sequence[int]:
        raise OSError(f"{len(numbers)} of them")

    batcher = AckBatcher(refuse, lambda: 2)
    for future in [start_in_thread(batcher.submit, number) for number in range(2)]:
        assert isinstance(future.exception(WAIT_TIMEOUT_SECONDS), OSError)


def test_no_thread_waits_for_a_leader_that_was_interrupted() -> None:
    joined, interrupt = Event(), Event()

    def expected() -> int:
        if not joined.is_set():
            joined.set()
            assert interrupt.wait(WAIT_TIMEOUT_SECONDS)
            raise KeyboardInterrupt
        return 1

    batcher = AckBatcher(lambda numbers: numbers, expected)
    leader = start_in_thread(batcher.submit, 1)
    assert joined.wait(WAIT_TIMEOUT_SECONDS)
    follower = start_in_thread(batcher.submit, 2)
    interrupt.set()
    assert isinstance(leader.exception(WAIT_TIMEOUT_SECONDS), KeyboardInterrupt)
    assert follower.result(WAIT_TIMEOUT_SECONDS) == 2


# -- long polls


@pytest.fixture(autouse=True)
def _no_idle_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide idle threads of other tests, because these tests count threads."""
    monkeypatch.setattr(long_poll, "_idle_threads", [])


def poll(receive: "Receive", stop: Event | None = None) -> Sequence[RawMessage]:
    return LongPoll(receive, receive.returned.extend).run(stop or Event())


class Receive:
    """A receive call that returns one message once it may, and records its thread."""

    def __init__(self) -> None:
        self.may_end, self.began = Event(), Event()
        self.returned: list[RawMessage] = []
        self.thread: Thread | None = None

    def __call__(self) -> Sequence[RawMessage]:
        self.thread = current_thread()
        self.began.set()
        assert self.may_end.wait(WAIT_TIMEOUT_SECONDS)
        return [{"MessageId": "1"}]


def poll_once() -> Receive:
    receive = Receive()
    receive.may_end.set()
    assert poll(receive) == [{"MessageId": "1"}]
    return receive


def test_one_poll_after_another_is_made_by_one_thread() -> None:
    assert poll_once().thread is poll_once().thread


def test_a_poll_that_was_left_gives_back_its_messages_and_delays_no_other_poll() -> None:
    poll_once()  # so that there is an idle thread
    left, stop = Receive(), Event()
    left_poll = start_in_thread(poll, left, stop)
    assert left.began.wait(WAIT_TIMEOUT_SECONDS)
    stop.set()
    assert list(left_poll.result(WAIT_TIMEOUT_SECONDS)) == []
    next_receive = poll_once()
    assert next_receive.thread is not left.thread
    assert left.returned == []
    left.may_end.set()
    assert left.thread is not None
    left.thread.join(WAIT_TIMEOUT_SECONDS)
    assert left.returned == [{"MessageId": "1"}]


def test_a_thread_without_calls_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_poll, "_IDLE_SECONDS", 0.01)
    thread = poll_once().thread
    assert thread is not None
    thread.join(WAIT_TIMEOUT_SECONDS)
    assert not thread.is_alive()
    assert poll_once().thread is not thread


def test_an_error_of_the_call_reaches_the_poller_and_keeps_the_thread() -> None:
    def refuse() -> Sequence[RawMessage]:
        raise OSError("away")

    before = poll_once().thread
    with pytest.raises(OSError, match="away"):
        LongPoll(refuse, lambda raws: None).run(Event())
    assert poll_once().thread is before
