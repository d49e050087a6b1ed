"""SQSHeartbeat and its example against moto's SQS, with both clocks moved together."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
import time_machine
from botocore.exceptions import ClientError
from moto import mock_aws

from holdfast.testing import ManualClock
from holdfast.utils.sqs_heartbeat import SQSHeartbeat
from support.leftovers import Leftovers
from support.paths import ROOT
from support.waiting import WAIT_TIMEOUT_SECONDS, wait_until

REGION = "eu-west-1"
BEGAN = 1_800_000_000  # the wall clock of moto at the beginning of a test


class MotoMessage:
    """A message in a queue of moto that hides for `timeout` seconds, received at `BEGAN`.

    The heartbeat's thread is real; its clock and moto's are moved together.
    """

    def __init__(self, traveller: time_machine.Traveller, timeout: int) -> None:
        self.client = boto3.client("sqs", region_name=REGION)
        attributes = {"VisibilityTimeout": str(timeout)}
        response = self.client.create_queue(QueueName="orders", Attributes=attributes)
        self.url = response["QueueUrl"]
        self.client.send_message(QueueUrl=self.url, MessageBody=json.dumps({"customer": "Ada"}))
        [self.message] = self.receive()
        self.handle = self.message["ReceiptHandle"]
        self.clock = ManualClock(time=BEGAN)
        self._traveller = traveller

    def receive(self) -> list[dict[str, Any]]:
        """Receive messages of the queue."""
        response = self.client.receive_message(
            QueueUrl=self.url, MessageSystemAttributeNames=["All"]
        )
        messages: list[dict[str, Any]] = response.get("Messages", [])
        return messages

    def heartbeat(self, interval: float, timeout: int, **more: Any) -> SQSHeartbeat:
        """Make a heartbeat of the message."""
        options = {"client": self.client, "clock": self.clock, "received_at": BEGAN, **more}
        return SQSHeartbeat(self.url, self.handle, interval, timeout, **options)

    def advance(self, heartbeat: SQSHeartbeat, seconds: float, step: float = 1.0) -> None:
        """Let time pass in steps, each of which the thread can follow."""
        end = self.clock.monotonic() + seconds
        while (left := end - self.clock.monotonic()) > 0:
            self.leap(min(step, left))
            self.settle(heartbeat)

    def leap(self, seconds: float) -> None:
        """Let time pass at once."""
        # moto's first, because the thread would otherwise call in the past.
        self._traveller.shift(seconds)
        self.clock.advance(seconds)

    def settle(self, heartbeat: SQSHeartbeat) -> None:
        """Wait until its thread has nothing to do at this time, or has ended."""
        wait_until(lambda: self.clock.waiting or not heartbeat.running)


@pytest.fixture
def traveller(monkeypatch: pytest.MonkeyPatch) -> Iterator[time_machine.Traveller]:
    """Let boto3 call moto, whose time stands still at `BEGAN`."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    with mock_aws(), time_machine.travel(BEGAN, tick=False) as traveller:
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


# -- in a Lambda function


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "examples")
    import lambda_heartbeat

    lambda_heartbeat.visibility_timeout.cache_clear()
    return lambda_heartbeat


@pytest.fixture
def in_lambda(traveller, example: Any, monkeypatch: pytest.MonkeyPatch) -> MotoMessage:
    queue = MotoMessage(traveller, 905)
    monkeypatch.setenv("QUEUE_URL", queue.url)
    monkeypatch.setenv("SQS_HEARTBEAT_INTERVAL_MS", "300000")
    return queue


def to_record(queue: MotoMessage) -> dict[str, Any]:
    """Return the message as a Lambda record."""
    return {
        "body": queue.message["Body"],
        "receiptHandle": queue.handle,
        "attributes": queue.message["Attributes"],
    }


def worked_on(example: Any, short: bool) -> Callable[..., None]:
    process: Callable[..., None] = example.process_in_short if short else example.process
    return process


@pytest.mark.requirement("R000-080")
def test_only_a_message_that_can_be_read_gets_a_heartbeat(
    in_lambda: MotoMessage, example
) -> None:
    """Parsed and validated first."""
    began: list[object] = []
    bad = {**to_record(in_lambda), "body": json.dumps({"wrong": 1})}
    del bad["receiptHandle"]  # a heartbeat could not be made
    leftovers = Leftovers()
    with pytest.raises(ValueError, match="customer"):
        example.process(bad, lambda task, heartbeat: began.append(heartbeat))
    assert began == []
    assert leftovers.threads == set()


@pytest.mark.requirement("R000-019", "R000-081", "R000-082", "R000-084")
@pytest.mark.parametrize("short", [False, True])
def test_the_heartbeat_runs_while_the_work_does_and_not_after_it(
    in_lambda: MotoMessage, example: Any, short: bool
) -> None:
    """On the success path."""
    seen: list[SQSHeartbeat] = []

    def work(task: dict[str, Any], heartbeat: SQSHeartbeat) -> None:
        assert heartbeat.running
        assert heartbeat.interval_sec == 300
        assert heartbeat.visibility_timeout_sec == 905
        seen.append(heartbeat)

    worked_on(example, short)(to_record(in_lambda), work)
    assert not seen[0].running
    assert seen[0]._stop_event.is_set()


@pytest.mark.requirement("R000-019", "R000-023", "R000-083")
@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("is_lost", [False, True])
def test_work_that_fails_stops_the_heartbeat_and_fails_with_its_own_error(
    in_lambda: MotoMessage, example: Any, short: bool, is_lost: bool
) -> None:
    """The heartbeat's error is asked for on success only."""
    seen: list[SQSHeartbeat] = []

    def work(task: dict[str, Any], heartbeat: SQSHeartbeat) -> None:
        seen.append(heartbeat)
        if is_lost:
            lose(heartbeat)
        raise KeyError("the work's own")

    with pytest.raises(KeyError, match="own"):
        worked_on(example, short)(to_record(in_lambda), work)
    assert not seen[0].running


@pytest.mark.requirement("R000-023", "R000-024", "R000-084", "R000-085")
@pytest.mark.parametrize("short", [False, True])
def test_work_that_succeeded_while_the_message_was_lost_fails(
    in_lambda: MotoMessage, example: Any, short: bool
) -> None:

    def work(task: dict[str, Any], heartbeat: SQSHeartbeat) -> None:
        lose(heartbeat)

    with pytest.raises(RuntimeError, match="no beat"):
        worked_on(example, short)(to_record(in_lambda), work)


@pytest.mark.requirement("R000-001", "R000-019", "R000-079", "R000-081")
def test_the_handler_of_the_example_works(in_lambda: MotoMessage, example, capsys) -> None:
    """As Lambda calls it."""
    assert example.SQSHeartbeat is SQSHeartbeat
    example.handler({"Records": [to_record(in_lambda)]}, None)
    assert "sent to Ada" in capsys.readouterr().out


def lose(heartbeat: SQSHeartbeat) -> None:
    """Lose the message: restart with a first beat at once, which is refused."""
    heartbeat.stop()

    class Refusing:
        def change_message_visibility(self, **_: object) -> None:
            raise RuntimeError("no beat")

    heartbeat._sqs_client = Refusing()
    heartbeat.initial_beat = True
    heartbeat.start()
    assert heartbeat.lost.wait(WAIT_TIMEOUT_SECONDS)
