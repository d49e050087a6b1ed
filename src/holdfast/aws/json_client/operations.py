"""The operations that the lean client makes itself. All others are left to boto3.

An operation is in this table if Holdfast calls it often and its response needs no model: it
has no timestamps, and its binary values can be recognised.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class AwsOperation(NamedTuple):
    """One operation of a service.

    `repeatable` says whether the same request may reach the service twice. A request that may
    not is never sent again after its bytes may have arrived.
    """

    name: str
    repeatable: bool = True
    idempotency_parameter: str | None = None  # makes a repeated request count once


class Service(NamedTuple):
    """How requests to a service are addressed, and its operations by boto3's method name."""

    target_prefix: str
    signing_name: str
    host_prefix: str
    endpoint_variable: str
    api_version: str
    operations: dict[str, AwsOperation]
    headers: Mapping[str, str] = MappingProxyType({})


# Repeating these is within the contract of the queue. A message that was sent twice is
# delivered twice, as SQS itself may do; the other calls have the same effect again. Messages of
# a lost ReceiveMessage response become visible again when their timeout has passed.
_SQS = {
    "change_message_visibility": AwsOperation("ChangeMessageVisibility"),
    "change_message_visibility_batch": AwsOperation("ChangeMessageVisibilityBatch"),
    "delete_message": AwsOperation("DeleteMessage"),
    "delete_message_batch": AwsOperation("DeleteMessageBatch"),
    "get_queue_attributes": AwsOperation("GetQueueAttributes"),
    "get_queue_url": AwsOperation("GetQueueUrl"),
    "receive_message": AwsOperation("ReceiveMessage"),
    "send_message": AwsOperation("SendMessage"),
    "send_message_batch": AwsOperation("SendMessageBatch"),
}

# Writes have conditions. If the first of two equal writes was done, the second is refused, and
# the adapter recognises its own write in the row that comes with the refusal.
_DYNAMODB = {
    "batch_get_item": AwsOperation("BatchGetItem"),
    "batch_write_item": AwsOperation("BatchWriteItem"),
    "delete_item": AwsOperation("DeleteItem"),
    "get_item": AwsOperation("GetItem"),
    "put_item": AwsOperation("PutItem"),
    "query": AwsOperation("Query"),
    "scan": AwsOperation("Scan"),
    "transact_write_items": AwsOperation(
        "TransactWriteItems", idempotency_parameter="ClientRequestToken"
    ),
    "update_item": AwsOperation("UpdateItem"),
}

# A second SendTaskSuccess or SendTaskFailure would be refused because the first was accepted,
# and the job would count as failed.
_STEP_FUNCTIONS = {
    "send_task_failure": AwsOperation("SendTaskFailure", repeatable=False),
    "send_task_heartbeat": AwsOperation("SendTaskHeartbeat"),
    "send_task_success": AwsOperation("SendTaskSuccess", repeatable=False),
}

SERVICES = {
    "sqs": Service(
        "AmazonSQS",
        "sqs",
        "sqs",
        "AWS_ENDPOINT_URL_SQS",
        "2012-11-05",
        _SQS,
        # SQS then adds the error code of its older protocol, which boto3 shows.
        headers={"x-amzn-query-mode": "true"},
    ),
    "dynamodb": Service(
        "DynamoDB_20120810",
        "dynamodb",
        "dynamodb",
        "AWS_ENDPOINT_URL_DYNAMODB",
        "2012-08-10",
        _DYNAMODB,
    ),
    "stepfunctions": Service(
        "AWSStepFunctions",
        "states",
        "states",
        "AWS_ENDPOINT_URL_SFN",
        "2016-11-23",
        _STEP_FUNCTIONS,
    ),
}
