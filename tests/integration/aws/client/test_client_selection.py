"""Which client calls AWS: the lean one, or boto3 where calls are mocked or instrumented."""

import functools
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest import mock

import botocore.client
import pytest
import wrapt
from moto import mock_aws

from holdfast.aws import clients
from holdfast.aws.json_client.client import JsonClient
from holdfast.aws.json_client.settings import SERVICES
from holdfast.errors import ConfigError
from holdfast.queues.sqs import SQSQueue
from holdfast.testing import SimulatedSqs

NOWHERE = "http://127.0.0.1:9"  # no server responds there
MAKE_API_CALL = "BaseClient._make_api_call"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(clients.CLIENT_VARIABLE, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", NOWHERE)
    for sessions in ("_sessions", "_boto3_sessions"):
        monkeypatch.setattr(clients, sessions, {})


def make_clients() -> list[Any]:
    """Make a client of each kind for each service."""
    return [
        make(service)
        for service in SERVICES
        for make in (
            clients.make_retrying_client,
            lambda service: clients.make_fail_fast_client(service, 2.0),
        )
    ]


def is_lean() -> bool:
    """Return whether new clients are lean. All of them must be of the same kind."""
    [answer] = {isinstance(client, JsonClient) for client in make_clients()}
    return answer


class Recorder:
    """Notes the operations that botocore is asked for, and returns an empty result."""

    def __init__(self) -> None:
        self.operations: list[str] = []

    def wrap(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> dict[str, Any]:
        self.operations.append(args[0])
        return {}


# -- tools that replace a function of botocore


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder()


def patch_with_wrapt(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patch as X-Ray, OpenTelemetry and Datadog do."""
    original = vars(botocore.client.BaseClient)["_make_api_call"]
    # It restores the original after the test.
    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", original)
    wrapt.wrap_function_wrapper("botocore.client", MAKE_API_CALL, recorder.wrap)


def patch_with_function(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patch with a decorator that hides behind the name of the original."""
    original = botocore.client.BaseClient._make_api_call

    @functools.wraps(original)
    def make_api_call(self: Any, operation: str, arguments: Any) -> Any:
        return recorder.wrap(original, self, (operation, arguments), {})

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", make_api_call)


def patch_with_mock(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patch as tests do that were written by hand."""
    fake = mock.Mock(side_effect=lambda *args: recorder.wrap(None, None, args, {}))
    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", fake)


Patch = Callable[[Recorder, pytest.MonkeyPatch], None]
PATCHES = [patch_with_wrapt, patch_with_function, patch_with_mock]


def test_without_a_patch_clients_are_lean() -> None:
    assert "moto" in sys.modules, "its import alone must not change the client"
    assert is_lean()


@pytest.mark.parametrize("patch", PATCHES)
def test_a_client_that_is_made_while_botocore_is_patched_is_boto3s(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, patch: Patch
) -> None:
    patch(recorder, monkeypatch)
    assert not is_lean()


@pytest.mark.parametrize("patch", PATCHES)
def test_a_client_that_is_older_than_the_patch_calls_boto3_while_it_lasts(
    recorder: Recorder, patch: Patch
) -> None:
    client = clients.make_fail_fast_client("sqs", 2.0)
    with pytest.MonkeyPatch.context() as monkeypatch:
        patch(recorder, monkeypatch)
        assert client.get_queue_url(QueueName="letters") == {}
    assert recorder.operations == ["GetQueueUrl"]
    with pytest.raises(Exception, match="Could not connect"):
        client.get_queue_url(QueueName="letters")
    assert recorder.operations == ["GetQueueUrl"]


@pytest.mark.parametrize("agent", ["ddtrace", "newrelic"])
def test_agents_that_wait_for_botocore_are_noticed(
    monkeypatch: pytest.MonkeyPatch, agent: str
) -> None:
    monkeypatch.setitem(sys.modules, agent, ModuleType(agent))
    assert not is_lean()


# -- moto


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    with mock_aws():
        yield


def test_calls_are_mocked_by_moto(aws: None) -> None:
    assert not is_lean()
    client = clients.make_retrying_client("sqs")
    url = client.create_queue(QueueName="letters")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="x")
    [message] = client.receive_message(QueueUrl=url)["Messages"]
    assert message["Body"] == "x"


def test_calls_of_an_older_client_are_mocked_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    client = clients.make_fail_fast_client("sqs", 2.0)
    assert isinstance(client, JsonClient)
    with mock_aws():
        client.create_queue(QueueName="letters")
        assert client.get_queue_url(QueueName="letters")["QueueUrl"].endswith("/letters")
    assert client.get_queue_url.func == client._call


# -- what the user says


def test_the_variable_chooses_boto3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(clients.CLIENT_VARIABLE, "boto3")
    assert not is_lean()
    monkeypatch.setenv(clients.CLIENT_VARIABLE, "auto")
    assert is_lean()


def test_a_wrong_value_names_the_right_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(clients.CLIENT_VARIABLE, "botocore")
    with pytest.raises(ConfigError, match="HOLDFAST_AWS_CLIENT must be auto or boto3"):
        clients.make_retrying_client("sqs")


def test_a_given_client_is_used_as_it_is() -> None:
    sqs = SimulatedSqs()
    sqs.client().create_queue(QueueName="letters")
    given = sqs.client()
    queue: SQSQueue[Any] = SQSQueue("letters", client=given)
    assert queue._client.retrying_client is given


def test_other_services_are_called_by_boto3() -> None:
    assert not isinstance(clients.make_retrying_client("s3"), JsonClient)


# -- what is left to boto3


def test_operations_that_the_lean_client_lacks_are_boto3s() -> None:
    client = clients.make_retrying_client("sqs")
    assert client.get_paginator("list_queues") is not None
    assert client.can_paginate("list_queues")


def test_a_client_has_no_attribute_that_boto3s_does_not_have() -> None:
    client = clients.make_retrying_client("sqs")
    with pytest.raises(AttributeError):
        client.send_letter  # noqa: B018
    with pytest.raises(AttributeError):
        client._private  # noqa: B018


def test_neither_client_nor_credentials_show_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "canary-token")
    client = clients.make_retrying_client("sqs")
    shown = f"{client!r} {client.meta!r} {client._credentials!r} {vars(client)!r}"
    assert "canary" not in shown
