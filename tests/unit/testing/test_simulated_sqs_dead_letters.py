"""The SQS simulator: dead letters, redrive and FIFO queues."""

from holdfast.testing import ManualClock
from support.sqs.calls import (
    Client,
    count_messages,
    create_queue,
    create_queue_with_dead_letters,
    delete,
    extend,
    get_arn,
    get_error_code,
    open_threads,
    receive,
    receive_bodies,
    receive_handle,
    send,
    send_fifo,
    wait_for_waiting_threads,
)

# -- dead letters and redrive


def test_the_receipt_of_a_dead_lettered_message_is_refused(
    client: Client, manual_clock: ManualClock
) -> None:
    url, dead = create_queue_with_dead_letters(client)
    send(client, url)
    handle = receive_handle(client, url)
    manual_clock.advance(30)
    assert receive(client, url) == []
    assert get_error_code(extend, client, url, handle, 30) == "InvalidParameterValue"
    delete(client, url, handle)
    assert count_messages(client, dead) == (1, 0, 0)


def test_the_dead_letter_queue_must_exist_and_be_of_the_same_type(client: Client) -> None:
    fifo = create_queue(client, "dead.fifo")
    for target in (get_arn(client, fifo), "arn:aws:sqs:us-east-1:123456789012:none"):
        policy = {"deadLetterTargetArn": target, "maxReceiveCount": 1}
        assert (
            get_error_code(create_queue, client, "q", RedrivePolicy=policy)
            == "InvalidParameterValue"
        )


# -- FIFO


def test_a_group_goes_out_together_and_comes_back_in_order(
    client: Client, manual_clock: ManualClock
) -> None:
    url = create_queue(client, "letters.fifo")
    for body in ("1", "2", "3"):
        send_fifo(client, url, body)
    messages = receive(client, url)
    assert [message["Body"] for message in messages] == ["1", "2", "3"]
    extend(client, url, messages[1]["ReceiptHandle"], 60)
    manual_clock.advance(30)
    # As recorded at AWS: messages before the held one are delivered, those after it are not.
    assert receive_bodies(client, url) == ["1"]


def test_the_next_of_a_group_is_delivered_to_a_long_poll_when_the_first_is_done(
    client: Client, manual_clock: ManualClock
) -> None:
    url = create_queue(client, "letters.fifo")
    send_fifo(client, url, "1")
    send_fifo(client, url, "2")
    handle = receive_handle(client, url)
    with open_threads(manual_clock) as pool:
        waiting = pool.submit(receive_bodies, client, url, WaitTimeSeconds=20)
        wait_for_waiting_threads(manual_clock)
        delete(client, url, handle)
        assert waiting.result(10) == ["2"]


def test_a_purged_queue_remembers_no_deduplication_id(client: Client) -> None:
    url = create_queue(client, "letters.fifo")
    send_fifo(client, url, "once")
    client.purge_queue(QueueUrl=url)
    send_fifo(client, url, "once")
    assert receive_bodies(client, url) == ["once"]


def test_a_fifo_queue_delays_all_or_none(client: Client, manual_clock: ManualClock) -> None:
    url = create_queue(client, "letters.fifo", DelaySeconds=5)
    assert (
        get_error_code(send_fifo, client, url, "x", DelaySeconds=1) == "InvalidParameterValue"
    )
    send_fifo(client, url, "x", DelaySeconds=0)
    assert count_messages(client, url) == (0, 0, 1)
    manual_clock.advance(5)
    assert receive_bodies(client, url) == ["x"]


def test_an_exhausted_message_leaves_its_fifo_group_free(
    client: Client, manual_clock: ManualClock
) -> None:
    url, dead = create_queue_with_dead_letters(client, suffix=".fifo")
    send_fifo(client, url, "poison")
    send_fifo(client, url, "fine")
    assert receive_bodies(client, url, limit=1) == ["poison"]
    manual_clock.advance(30)
    assert receive_bodies(client, url) == ["fine"]
    assert receive_bodies(client, dead) == ["poison"]
