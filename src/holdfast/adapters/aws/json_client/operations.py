"""The operations that the lean client makes itself. All others are left to boto3.

An operation is in this table if Holdfast calls it often and its response needs no model: it
has no timestamps, and its binary values can be recognised.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a service.

    `repeatable` says whether the same request may reach the service twice. A request that may
    not is never sent again after its bytes may have arrived.
    """

    name: str
    repeatable: bool = True
    idempotency_parameter: str | None = None  # makes a repeated request count once


@dataclass(frozen=True, slots=True)
class Service:
    """How requests to a service are addressed, and its operations by boto3's method name."""

    target_prefix: str
    signing_name: str
    host_prefix: str
    endpoint_variable: str
    operations: dict[str, Operation]
    headers: dict[str, str] = field(default_factory=dict)


# Repeating these is within the contract of the queue. A message that was sent twice is
# delivered twice, as SQS itself may do; the other calls have the same effect again. Messages of
# a lost ReceiveMessage response become visible again when their timeout has passed.
_SQS = {
    "change_message_visibility": Operation("ChangeMessageVisibility"),
    "change_message_visibility_batch": Operation("ChangeMessageVisibilityBatch"),
    "delete_message": Operation("DeleteMessage"),
    "delete_message_batch": Operation("DeleteMessageBatch"),
    "get_queue_attributes": Operation("GetQueueAttributes"),
    "get_queue_url": Operation("GetQueueUrl"),
    "receive_message": Operation("ReceiveMessage"),
    "send_message": Operation("SendMessage"),
    "send_message_batch": Operation("SendMessageBatch"),
}

# Writes have conditions. If the first of two equal writes was done, the second is refused, and
# the adapter recognises its own write in the row that comes with the refusal.
_DYNAMODB = {
    "batch_get_item": Operation("BatchGetItem"),
    "batch_write_item": Operation("BatchWriteItem"),
    "delete_item": Operation("DeleteItem"),
    "get_item": Operation("GetItem"),
    "put_item": Operation("PutItem"),
    "query": Operation("Query"),
    "scan": Operation("Scan"),
    "transact_write_items": Operation(
        "TransactWriteItems", idempotency_parameter="ClientRequestToken"
    ),
    "update_item": Operation("UpdateItem"),
}

# A second SendTaskSuccess or SendTaskFailure would be refused because the first was accepted,
# and the job would count as failed.
_STEP_FUNCTIONS = {
    "send_task_failure": Operation("SendTaskFailure", repeatable=False),
    "send_task_heartbeat": Operation("SendTaskHeartbeat"),
    "send_task_success": Operation("SendTaskSuccess", repeatable=False),
}

SERVICES = {
    "sqs": Service(
        "AmazonSQS",
        "sqs",
        "sqs",
        "AWS_ENDPOINT_URL_SQS",
        _SQS,
        # SQS then adds the error code of its older protocol, which boto3 shows.
        headers={"x-amzn-query-mode": "true"},
    ),
    "dynamodb": Service(
        "DynamoDB_20120810", "dynamodb", "dynamodb", "AWS_ENDPOINT_URL_DYNAMODB", _DYNAMODB
    ),
    "stepfunctions": Service(
        "AWSStepFunctions", "states", "states", "AWS_ENDPOINT_URL_SFN", _STEP_FUNCTIONS
    ),
}
