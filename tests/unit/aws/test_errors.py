"""Errors of AWS calls name the endpoint that did not respond, and nothing secret."""

import pytest
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
)

from holdfast.aws.errors import describe_cause, translate_error
from holdfast.errors import ConfigError, QueueUnavailable
from holdfast.exports.errors import CallbackRefused
from holdfast.exports.step_functions import translate_error as translate_callback_error
from holdfast.store.dynamodb.errors import explain_error

DENIED = ClientError({"Error": {"Code": "AccessDenied"}}, "SendMessage")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (DENIED, "AccessDenied"),
        (NoCredentialsError(), "NoCredentialsError"),
        (
            EndpointConnectionError(endpoint_url="http://localhost:4566/q?signature=canary"),
            "EndpointConnectionError: no response from http://localhost:4566",
        ),
        (
            ConnectTimeoutError(endpoint_url="https://user:canary@sqs.example/"),
            "ConnectTimeoutError: no response from https://sqs.example",
        ),
    ],
)
def test_the_cause_is_the_code_or_the_endpoint(error: BotoCoreError, text: str) -> None:
    assert describe_cause(error) == text


def test_an_unreachable_queue_names_its_endpoint() -> None:
    error = translate_error("queue 'sqs:q'", EndpointConnectionError(endpoint_url="http://x:1"))
    assert isinstance(error, QueueUnavailable)
    assert str(error).endswith("no response from http://x:1")


def test_a_request_that_was_never_sent_is_not_an_outage() -> None:
    """It would be repeated for as long as the lease lasts, and fail in the same way."""
    error = ParamValidationError(report="canary is not valid")
    translated = translate_error("queue 'sqs:q'", error)
    assert isinstance(translated, ConfigError)
    assert str(translated) == "queue 'sqs:q': the request has invalid parameters"
    refused = translate_callback_error("SendTaskSuccess", error)
    assert isinstance(refused, CallbackRefused)
    assert "canary" not in str(refused)


@pytest.mark.parametrize("operation", ["SendMessage", "SendMessageBatch"])
def test_a_denied_batch_names_the_permission_of_the_single_call(operation: str) -> None:
    denied = ClientError({"Error": {"Code": "AccessDenied"}}, operation)
    error = translate_error("queue 'sqs:q'", denied)
    assert str(error).endswith("the role needs sqs:SendMessage")


def test_a_denied_transaction_names_the_permissions_of_its_writes() -> None:
    denied = ClientError({"Error": {"Code": "AccessDeniedException"}}, "TransactWriteItems")
    error = explain_error("TransactWriteItems", denied, "holdfast export tables")
    assert "dynamodb:PutItem, UpdateItem, DeleteItem and ConditionCheckItem" in str(error)
