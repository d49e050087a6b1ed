"""Secrets do not reach logs, warnings, reprs or the texts of exceptions, whatever goes wrong.

boto3 is not tested: at DEBUG it logs each request with its signature and its body, so Holdfast
silences it where it matters. The lean client logs nothing.
"""

import logging
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from aws_responses import (
    BODY,
    COMMON_ERRORS,
    CONNECTIONS,
    CONTENTS,
    FOREIGN_ERRORS,
    RECEIPT,
    REDIRECTS,
    TOKEN,
    make_arguments,
    make_errors,
)
from botocore.exceptions import BotoCoreError, ClientError
from botocore.utils import ContainerMetadataFetcher
from client_maker import ClientMaker, call_queue, send_success
from known_keys import FIRST, SECOND, CredentialServer, parse_authorization

from holdfast.errors import HoldfastError
from support.aws.sqs_over_http import make_success
from support.http_server import LoopbackServer, Route

CALLED = [
    ("sqs", "send_message"),
    ("sqs", "delete_message_batch"),
    ("dynamodb", "put_item"),
    ("stepfunctions", "send_task_success"),
]
FAILURES: dict[str, Route] = {
    **{name: route for name, route in CONNECTIONS.items() if name != "silent"},
    **CONTENTS,
    **REDIRECTS,
    **{
        f"{number}: {response.status}": response
        for number, response in enumerate((*COMMON_ERRORS, *FOREIGN_ERRORS))
    },
    "success": make_success({"QueueUrl": "q"}),
}


class Output:
    """Everything that is logged or warned, and the texts of exceptions."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        self._caplog = caplog
        self._texts: list[str] = []
        self._warnings = warnings.catch_warnings(record=True)

    def __enter__(self) -> "Output":
        self._caught = self._warnings.__enter__()
        warnings.simplefilter("always")
        return self

    def __exit__(self, *_: object) -> None:
        self._warnings.__exit__(None, None, None)

    def run(self, call: Callable[[], Any]) -> None:
        """Make a call and keep what its exception says, in all forms."""
        try:
            call()
        except (BotoCoreError, ClientError, HoldfastError) as error:
            self._texts += [str(error), repr(error), *traceback.format_exception(error)]

    def read(self, *objects: object) -> str:
        """Return everything, and how these objects are shown."""
        logged = [
            f"{record.getMessage()} {record.args} {record.exc_text}"
            for record in self._caplog.records
        ]
        warned = [str(warning.message) for warning in self._caught or ()]
        return "\n".join([*self._texts, *logged, *warned, *map(repr, objects)])


@pytest.fixture
def output(caplog: pytest.LogCaptureFixture) -> Any:
    with Output(caplog) as output:
        yield output


def find_secrets(text: str, server: LoopbackServer) -> set[str]:
    """Return the secrets that the text contains."""
    signed = [ask for ask in server.asks if "authorization" in ask.headers]
    secrets = {
        *(part for key in (FIRST, SECOND) for part in (key.secret, key.token)),
        *(parse_authorization(ask)["signature"] for ask in signed),
        BODY[:11],
        RECEIPT,
        TOKEN,
    }
    return {secret for secret in secrets if secret in text}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failed_call_tells_no_secret(
    lean: ClientMaker, server: LoopbackServer, output: Output, waits: list[float], name: str
) -> None:
    server.on("/", FAILURES[name])
    clients = []
    for service, method in CALLED:
        clients += [lean.make_fail_fast(service), lean.make_retrying(service)]
        for client in clients[-2:]:
            arguments = make_arguments(service, method)
            output.run(lambda: getattr(client, method)(**arguments))  # noqa: B023
    output.run(lambda: call_queue(clients[0]))
    output.run(lambda: send_success(clients[-1]))
    assert len(server.asks) >= 2 * len(CALLED)
    shown = output.read(*clients, *[client.meta for client in clients])
    assert not find_secrets(shown, server)


def test_a_refusal_of_the_service_tells_only_what_the_service_said(
    lean: ClientMaker, server: LoopbackServer, output: Output
) -> None:
    """The row of a failed condition is in the response, but not in the text."""
    for service, method in CALLED:
        client = lean.make_fail_fast(service)
        for response in make_errors(service, method):
            server.on("/", response)
            output.run(lambda: getattr(client, method)(**make_arguments(service, method)))  # noqa: B023
    assert not find_secrets(output.read(), server)


@pytest.mark.parametrize(
    "arguments",
    [
        {"QueueUrl": "q", "MessageBody": TOKEN.encode, "ReceiptHandle": RECEIPT},
        {"QueueUrl": "q", "MessageBody": {1: {2, TOKEN}}},
        {"QueueUrl": "q", "MessageBody": float("nan"), "ReceiptHandle": RECEIPT},
        {"QueueUrl": "q", "MessageBody": "\ud800" + TOKEN},
    ],
)
def test_arguments_that_are_not_valid_are_not_quoted(
    lean: ClientMaker, server: LoopbackServer, output: Output, arguments: Any
) -> None:
    output.run(lambda: lean.make_fail_fast().send_message(**arguments))
    assert not find_secrets(output.read(), server)


def test_credentials_that_cannot_be_refreshed_are_not_told(
    lean: ClientMaker,
    server: LoopbackServer,
    output: Output,
    no_environment_credentials: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ContainerMetadataFetcher, "SLEEP_TIME", 0)
    credential_server = CredentialServer(FIRST, valid_seconds=60)
    url = server.on("/credentials", credential_server)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url)
    client = lean.make_fail_fast()
    server.on("/", make_success({"QueueUrl": "q"}))
    output.run(lambda: call_queue(client))
    credential_server.is_broken = True
    output.run(lambda: call_queue(client))
    assert not find_secrets(output.read(client, client._credentials), server)
