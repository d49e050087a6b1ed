"""SQSHeartbeat against moto's SQS, with both clocks moved together, twelve hours a second."""

from collections.abc import Iterator

import pytest
import time_machine
from botocore.exceptions import ClientError

from holdfast.utils.sqs_heartbeat import SQSHeartbeat
from support.sqs.heartbeats import MotoMessage, open_moto


@pytest.fixture
def traveller(monkeypatch: pytest.MonkeyPatch) -> Iterator[time_machine.Traveller]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with open_moto() as traveller:
        yield traveller


def test_twelve_hours_of_beats_keep_a_message_hidden_to_the_last_minute(traveller) -> None:
    """SQS refuses nothing, because no request is too long (I-HB-1, I-HB-8)."""
    warned: list[float] = []
    world = MotoMessage(traveller, 600)
    heartbeat = world.heartbeat(200, 600, on_near_cap=warned.append)
    heartbeat.start()
    for _ in range(11):
        world.advance(heartbeat, 3600, step=100)
        assert world.receive() == []
    world.advance(heartbeat, 3540, step=20)
    assert heartbeat.check_for_errors() is None
    assert len(warned) <= 1
    world.advance(heartbeat, 55, step=1)
    assert len(warned) == 1
    assert heartbeat.check_for_errors() is None
    assert world.receive() == []
    world.advance(heartbeat, 10, step=1)
    assert heartbeat.lost.is_set()  # reported before other receivers could get it
    assert heartbeat.transient_errors == 0
    assert len(world.receive()) == 1


def test_moto_refuses_a_full_extension_at_the_cap(traveller) -> None:
    """This shows that the test above can fail (HB-05)."""
    world = MotoMessage(traveller, 600)
    world.leap(43_200 - 599)
    with pytest.raises(ClientError, match="beyond the limit"):
        world.client.change_message_visibility(
            QueueUrl=world.url, ReceiptHandle=world.handle, VisibilityTimeout=600
        )


def test_a_deleted_message_is_a_loss_with_amazons_own_error(traveller) -> None:
    world = MotoMessage(traveller, 60)
    heartbeat = world.heartbeat(20, 60)
    heartbeat.start()
    world.client.delete_message(QueueUrl=world.url, ReceiptHandle=world.handle)
    world.advance(heartbeat, 21, step=1)
    assert heartbeat.lost.wait(20)
    heartbeat.stop()
    error = heartbeat.check_for_errors()
    assert isinstance(error, ClientError)
    assert error.response["Error"]["Code"] == "ReceiptHandleIsInvalid"


def test_a_deleted_queue_is_a_loss(traveller) -> None:
    world = MotoMessage(traveller, 60)
    heartbeat = world.heartbeat(20, 60)
    heartbeat.start()
    world.client.delete_queue(QueueUrl=world.url)
    world.advance(heartbeat, 21, step=1)
    assert heartbeat.lost.wait(20)
    heartbeat.stop()


def test_a_frozen_process_does_not_hide_the_message_of_its_successor(traveller) -> None:
    """moto would accept the stale handle, as SQS does (HB-04)."""
    world = MotoMessage(traveller, 60)
    heartbeat = world.heartbeat(20, 60)
    heartbeat.start()
    world.settle(heartbeat)
    world.leap(61)
    [successors] = world.receive()
    assert heartbeat.lost.wait(20)
    heartbeat.stop()
    world.client.change_message_visibility(  # the successor gives it back
        QueueUrl=world.url, ReceiptHandle=successors["ReceiptHandle"], VisibilityTimeout=0
    )
    world.leap(1)
    assert len(world.receive()) == 1


def test_after_the_stop_a_message_can_be_given_back_at_once(traveller) -> None:
    """No beat comes after the stop that would hide it again (HB-09)."""
    world = MotoMessage(traveller, 60)
    heartbeat = world.heartbeat(20, 60)
    heartbeat.start()
    world.advance(heartbeat, 50, step=1)
    heartbeat.stop()
    world.client.change_message_visibility(
        QueueUrl=world.url, ReceiptHandle=world.handle, VisibilityTimeout=0
    )
    world.leap(30)
    assert len(world.receive()) == 1


@pytest.mark.requirement("R000-040")
def test_a_heartbeat_with_its_own_client_beats(traveller) -> None:
    """No client is given."""
    world = MotoMessage(traveller, 60)
    heartbeat = SQSHeartbeat(world.url, world.handle, 20, 60, clock=world.clock)
    heartbeat.start()
    world.advance(heartbeat, 100, step=1)
    assert world.receive() == []
    heartbeat.stop()
    assert heartbeat.check_for_errors() is None
