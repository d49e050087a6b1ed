"""The client and address of a Lambda event source's queue, made from its ARN."""

import pytest

from holdfast import AnyMessage, ConfigError
from holdfast.queues.opening import make_queue_opener
from holdfast.queues.sqs.address import make_client_and_address

ACCOUNT = "123456789012"


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)


@pytest.mark.parametrize(
    ("arn", "url"),
    [
        (
            f"arn:aws:sqs:eu-west-1:{ACCOUNT}:a",
            f"https://sqs.eu-west-1.amazonaws.com/{ACCOUNT}/a",
        ),
        (
            f"arn:aws-cn:sqs:cn-north-1:{ACCOUNT}:a.fifo",
            f"https://sqs.cn-north-1.amazonaws.com.cn/{ACCOUNT}/a.fifo",
        ),
    ],
)
def test_the_url_of_an_arn_is_that_of_its_region_and_partition(arn: str, url: str) -> None:
    client, address = make_client_and_address(arn, 1.0)
    assert address == url
    assert client.meta.endpoint_url == url.rpartition(f"/{ACCOUNT}/")[0]


def test_an_endpoint_that_is_set_wins_over_amazons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:4566")
    _, address = make_client_and_address(f"arn:aws:sqs:eu-west-1:{ACCOUNT}:a", 1.0)
    assert address == f"http://127.0.0.1:4566/{ACCOUNT}/a"


def test_a_url_is_called_where_it_points() -> None:
    client, address = make_client_and_address(f"http://127.0.0.1:9/{ACCOUNT}/a", 1.0)
    assert address == f"http://127.0.0.1:9/{ACCOUNT}/a"
    assert client.meta.endpoint_url == "http://127.0.0.1:9"


def test_no_call_takes_longer_than_its_response_timeout() -> None:
    client, _ = make_client_and_address(f"arn:aws:sqs:eu-west-1:{ACCOUNT}:a", 1.25)
    config = client.get_boto3_client().meta.config
    assert config.read_timeout == 1.25
    assert config.retries["total_max_attempts"] == 1


@pytest.mark.parametrize(
    ("arn", "problem"),
    [
        ("arn:aws:sns:eu-west-1:123456789012:a", "is not the ARN of an SQS queue"),
        ("arn:aws:sqs:x:1:a", "is not the ARN of an SQS queue"),
        ("", "cannot be used"),
    ],
)
def test_an_address_that_is_not_a_queue_is_refused(arn: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make_client_and_address(arn, 1.0)


def test_settings_come_from_the_environment_and_are_checked_before_any_queue_is_opened() -> (
    None
):
    env = {"HOLDFAST_LEASE_SECONDS": "33"}
    queue = make_queue_opener(AnyMessage, answer_seconds=1.0, env=env)(
        f"arn:aws:sqs:eu-west-1:{ACCOUNT}:a"
    )
    assert queue.lease_seconds == 33
    with pytest.raises(ConfigError, match="HOLDFAST_LEASE_SECONDS"):
        make_queue_opener(AnyMessage, answer_seconds=1.0, env={"HOLDFAST_LEASE_SECONDS": "-1"})
