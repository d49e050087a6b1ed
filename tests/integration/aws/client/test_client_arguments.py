"""What clients do with wrong arguments, and what Holdfast needs of that.

    arguments              boto3 that retries     boto3 that tries once   lean client
    an unknown name        ParamValidationError   KeyError                sends it
    a missing argument     ParamValidationError   sends the rest          sends the rest
    a number for a text    ParamValidationError   sends a number          sends a number
    bytes for a text       ParamValidationError   TypeError               sends base64
    a value without JSON   ParamValidationError   TypeError               ParamValidationError

The lean client has no model of a service, so it leaves the check to the service, which refuses
the call with a code of its own. That is enough, because Holdfast's own code makes all arguments
from values that it has checked. What it needs is that a value that cannot be sent is refused
before anything is sent, as an error that adapters translate and that does not quote the value.
"""

from decimal import Decimal
from typing import Any

import pytest
from aws_responses import QUEUE, TOKEN
from botocore.exceptions import ParamValidationError
from client_maker import ClientMaker

from support.aws.sqs_over_http import make_success
from support.http_server import LoopbackServer

SEND = {"QueueUrl": QUEUE, "MessageBody": "x"}
WRONG: dict[str, dict[str, Any]] = {
    "an unknown name": {**SEND, "Body": "x"},
    "a missing argument": {"QueueUrl": QUEUE},
    "a number for a text": {**SEND, "MessageBody": 7},
    "bytes for a text": {**SEND, "MessageBody": b"x"},
}


class Unknown:
    """A value that is not JSON and shows what it holds."""

    def __repr__(self) -> str:
        return TOKEN


LOOP: dict[str, Any] = {}
LOOP["loop"] = LOOP

NOT_JSON: dict[str, Any] = {
    "object": Unknown(),
    "decimal": Decimal("1.5"),
    "set": {TOKEN},
    "not a number": float("nan"),
    "a loop": LOOP,
    "a key that is no text": {(TOKEN,): 1},
}


@pytest.mark.parametrize("arguments", [*WRONG.values(), {**SEND, "MessageBody": Unknown()}])
def test_boto3_checks_the_arguments_of_a_client_that_retries(
    server: LoopbackServer, arguments: Any
) -> None:
    with pytest.raises(ParamValidationError):
        ClientMaker("boto3", server).make_retrying().send_message(**arguments)
    assert server.asks == []


@pytest.mark.parametrize("name", WRONG)
def test_the_lean_client_leaves_the_check_to_the_service(
    lean: ClientMaker, server: LoopbackServer, name: str
) -> None:
    server.on("/", make_success({}))
    lean.make_retrying().send_message(**WRONG[name])
    assert len(server.asks) == 1


@pytest.mark.parametrize("name", NOT_JSON)
def test_a_value_that_cannot_be_sent_is_refused_before_anything_is_sent(
    lean: ClientMaker, server: LoopbackServer, name: str
) -> None:
    with pytest.raises(ParamValidationError) as raised:
        lean.make_fail_fast().send_message(**SEND, MessageAttributes={"a": NOT_JSON[name]})
    assert TOKEN not in str(raised.value)
    assert server.asks == []


def test_only_named_arguments_are_accepted(maker: ClientMaker, server: LoopbackServer) -> None:
    with pytest.raises(TypeError):
        maker.make_fail_fast().send_message(SEND)
    assert server.asks == []
