"""The SQS simulator: valid receipts, stale receipts and long polls."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.testing import ManualClock, SimulatedSqs
from support.sqs.calls import (
    Client,
    count_messages,
    create_queue,
    delete,
    extend,
    get_error_code,
    open_threads,
    receive,
    receive_bodies,
    receive_handle,
    send,
    send_fifo,
    wait_for_waiting_threads,
)

# -- receiving and visibility


def test_an_expired_receipt_is_refused(
    client: Client, url: str, manual_clock: ManualClock
) -> None:
    send(client, url)
    handle = receive_handle(client, url)
    manual_clock.advance(30)
    assert get_error_code(delete, client, url, handle) == "ReceiptHandleIsInvalid"
    assert get_error_code(extend, client, url, handle, 30) == (
        "AWS.SimpleQueueService.MessageNotInflight"
    )
    assert count_messages(client, url) == (1, 0, 0)


def test_a_superseded_receipt_is_refused_though_the_message_is_in_flight(
    client: Client, url: str, manual_clock: ManualClock
) -> None:
    send(client, url)
    stale = receive_handle(client, url)
    manual_clock.advance(30)
    current = receive_handle(client, url)
    assert stale != current
    assert get_error_code(delete, client, url, stale) == "ReceiptHandleIsInvalid"
    assert get_error_code(extend, client, url, stale, 60) == "ReceiptHandleIsInvalid"
    delete(client, url, current)
    assert count_messages(client, url) == (0, 0, 0)


def make_stale_receipt(clock: ManualClock, mode: Any) -> tuple[Client, str, str]:
    """Return a client, a queue with one visible message, and that message's stale receipt."""
    client = SimulatedSqs(clock, stale_handles=mode).client()
    url = create_queue(client)
    send(client, url)
    stale = receive_handle(client, url)
    clock.advance(30)
    return client, url, stale


def test_an_ignored_receipt_succeeds_and_does_nothing(manual_clock: ManualClock) -> None:
    client, url, stale = make_stale_receipt(manual_clock, "ignored")
    delete(client, url, stale)
    extend(client, url, stale, 600)
    assert count_messages(client, url) == (1, 0, 0)


def test_an_effective_receipt_deletes_a_message_of_another_receiver(
    manual_clock: ManualClock,
) -> None:
    client, url, stale = make_stale_receipt(manual_clock, "effective")
    current = receive_handle(client, url)
    delete(client, url, stale)
    assert count_messages(client, url) == (0, 0, 0)
    assert get_error_code(extend, client, url, current, 5) == "InvalidParameterValue"


def test_an_effective_receipt_hides_a_message_of_another_receiver(
    manual_clock: ManualClock,
) -> None:
    client, url, stale = make_stale_receipt(manual_clock, "effective")
    receive_handle(client, url)
    extend(client, url, stale, 600)
    manual_clock.advance(599)
    assert receive(client, url) == []
    manual_clock.advance(1)
    assert len(receive(client, url)) == 1


@pytest.mark.parametrize("mode", ["strict", "ignored", "effective"])
def test_a_fifo_queue_refuses_an_expired_receipt_in_every_mode(
    manual_clock: ManualClock, mode: Any
) -> None:
    client = SimulatedSqs(manual_clock, stale_handles=mode).client()
    url = create_queue(client, "letters.fifo")
    send_fifo(client, url, "a")
    handle = receive_handle(client, url)
    manual_clock.advance(30)
    assert get_error_code(delete, client, url, handle) == "InvalidParameterValue"
    assert get_error_code(extend, client, url, handle, 30) == "InvalidParameterValue"


@pytest.mark.parametrize("mode", ["strict", "ignored", "effective"])
def test_a_handle_never_given_is_refused_in_every_mode(
    manual_clock: ManualClock, mode: Any
) -> None:
    client = SimulatedSqs(manual_clock, stale_handles=mode).client()
    url, other = create_queue(client), create_queue(client, "other")
    send(client, other)
    for handle in ("garbage", receive_handle(client, other)):
        assert get_error_code(delete, client, url, handle) == "ReceiptHandleIsInvalid"
        assert get_error_code(extend, client, url, handle, 1) == "ReceiptHandleIsInvalid"


def test_an_unknown_stale_handles_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="lenient"):
        SimulatedSqs(stale_handles="lenient")  # type: ignore[arg-type]


def test_giving_back_wakes_a_long_poll(
    client: Client, url: str, manual_clock: ManualClock
) -> None:
    send(client, url)
    handle = receive_handle(client, url)
    with open_threads(manual_clock) as pool:
        waiting = pool.submit(receive, client, url, WaitTimeSeconds=20)
        wait_for_waiting_threads(manual_clock)
        extend(client, url, handle, 0)
        assert len(waiting.result(10)) == 1
        assert manual_clock.monotonic() == 1_000


# -- long polling


def test_a_long_poll_returns_at_once_when_a_message_arrives(
    client: Client, url: str, manual_clock: ManualClock
) -> None:
    with open_threads(manual_clock) as pool:
        waiting = pool.submit(receive_bodies, client, url, WaitTimeSeconds=20)
        wait_for_waiting_threads(manual_clock)
        send(client, url, "hello")
        assert waiting.result(10) == ["hello"]
        assert manual_clock.monotonic() == 1_000


def test_a_long_poll_returns_when_a_message_becomes_visible() -> None:
    clock = ManualClock(auto_advance=True)
    client = SimulatedSqs(clock).client()
    url = create_queue(client)
    send(client, url, "late", DelaySeconds=7)
    assert receive_bodies(client, url, WaitTimeSeconds=20) == ["late"]
    assert clock.monotonic() == 1_007


def test_a_long_poll_ends_empty_after_its_wait_and_no_sooner() -> None:
    clock = ManualClock(auto_advance=True)
    client = SimulatedSqs(clock).client()
    url = create_queue(client, ReceiveMessageWaitTimeSeconds=3)
    send(client, url, DelaySeconds=900)
    assert receive(client, url) == []
    assert clock.monotonic() == 1_003
    assert receive(client, url, WaitTimeSeconds=20) == []
    assert clock.monotonic() == 1_023
    assert receive(client, url, WaitTimeSeconds=0) == []
    assert clock.monotonic() == 1_023


def test_one_message_goes_to_one_of_many_long_polls(
    client: Client, url: str, manual_clock: ManualClock
) -> None:
    with open_threads(manual_clock, 4) as pool:
        waiting = [
            pool.submit(receive_bodies, client, url, WaitTimeSeconds=20) for _ in range(4)
        ]
        wait_for_waiting_threads(manual_clock, threads=4)
        send(client, url, "one")
        wait_for_waiting_threads(manual_clock, threads=3)
        manual_clock.advance(20)
        assert sorted(future.result(10) for future in waiting) == [[], [], [], ["one"]]


def test_a_long_poll_on_a_deleted_queue_is_refused(
    client: Client, url: str, manual_clock: ManualClock
) -> None:
    with open_threads(manual_clock) as pool:
        waiting = pool.submit(get_error_code, receive, client, url, WaitTimeSeconds=20)
        wait_for_waiting_threads(manual_clock)
        client.delete_queue(QueueUrl=url)
        assert waiting.result(10) == "AWS.SimpleQueueService.NonExistentQueue"


def test_many_threads_neither_lose_nor_duplicate_messages(client: Client, url: str) -> None:
    def produce(name: int) -> None:
        for number in range(25):
            send(client, url, f"{name}-{number}")

    def consume(_: int) -> list[str]:
        seen = []
        while messages := receive(client, url):
            for message in messages:
                seen.append(message["Body"])
                delete(client, url, message["ReceiptHandle"])
        return seen

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(produce, range(8)))
        seen = [body for some in pool.map(consume, range(8)) for body in some]
    assert sorted(seen) == sorted(f"{a}-{b}" for a in range(8) for b in range(25))
    assert count_messages(client, url) == (0, 0, 0)
