"""Every operation of SQS, DynamoDB and Step Functions that Holdfast calls, with arguments.

`find_operations` reads the source code, so that a new operation cannot be forgotten here.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from botocore import xform_name
from botocore.loaders import Loader
from botocore.model import ServiceModel

import holdfast
from support.paths import ROOT

SERVICES = ("sqs", "dynamodb", "stepfunctions")

QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/letters"
RECEIPT = "AQEB-receipt-canary+/=="
TOKEN = "AQCE-token-canary"
BODY = 'body-canary "quoted" \\ \n\t Grüße 東京 🎉 \u2028 \x7f é'
ARN = "arn:aws:sqs:eu-west-1:123456789012:letters"

_ATTRIBUTES = {
    "kind": {"DataType": "String", "StringValue": "größer"},
    "count": {"DataType": "Number", "StringValue": "12345678901234567890.5"},
    "raw": {"DataType": "Binary", "BinaryValue": b"\x00\xff bytes"},
}
ITEM = {
    "id": {"S": BODY},
    "empty": {"S": ""},
    "count": {"N": "123456789012345678901234567890.12345678"},
    "raw": {"B": b"\x00\x01\xfe\xff"},
    "none": {"NULL": True},
    "flag": {"BOOL": False},
    "texts": {"SS": ["a", "ü"]},
    "numbers": {"NS": ["1", "-2.5E+7"]},
    "raws": {"BS": [b"", b"\xff"]},
    "list": {"L": [{"S": "x"}, {"L": []}, {"M": {}}, {"B": b"deep"}]},
    "map": {"M": {"deep": {"M": {"deeper": {"B": b"\x80"}, "B": {"S": "named B"}}}}},
}
_KEY = {"id": {"S": "a"}, "at": {"N": "7"}}
_CONDITION = {
    "ConditionExpression": "attribute_not_exists(#id) OR #fence < :fence",
    "ExpressionAttributeNames": {"#id": "id", "#fence": "fence"},
    "ExpressionAttributeValues": {":fence": {"N": "3"}, ":raw": {"B": b"\x01"}},
    "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
}
_TABLE = {
    "TableName": "holdfast-jobs",
    "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
    "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
    "BillingMode": "PAY_PER_REQUEST",
}

Arguments = Mapping[str, Any]

CALLS: Mapping[tuple[str, str], tuple[Arguments, ...]] = {
    ("sqs", "change_message_visibility"): (
        {"QueueUrl": QUEUE, "ReceiptHandle": RECEIPT, "VisibilityTimeout": 0},
        {"QueueUrl": QUEUE, "ReceiptHandle": RECEIPT, "VisibilityTimeout": 43_200},
    ),
    ("sqs", "change_message_visibility_batch"): (
        {
            "QueueUrl": QUEUE,
            "Entries": [
                {"Id": str(number), "ReceiptHandle": RECEIPT, "VisibilityTimeout": 30}
                for number in range(10)
            ],
        },
    ),
    ("sqs", "create_queue"): (
        {"QueueName": "letters", "Attributes": {"MessageRetentionPeriod": "1209600"}},
        {"QueueName": "letters.fifo", "Attributes": {"FifoQueue": "true"}},
    ),
    ("sqs", "delete_message"): ({"QueueUrl": QUEUE, "ReceiptHandle": RECEIPT},),
    ("sqs", "delete_message_batch"): (
        {"QueueUrl": QUEUE, "Entries": [{"Id": "0", "ReceiptHandle": RECEIPT}]},
    ),
    ("sqs", "get_queue_attributes"): ({"QueueUrl": QUEUE, "AttributeNames": ["All"]},),
    ("sqs", "get_queue_url"): (
        {"QueueName": "letters"},
        {"QueueName": "letters", "QueueOwnerAWSAccountId": "123456789012"},
    ),
    ("sqs", "list_dead_letter_source_queues"): ({"QueueUrl": QUEUE},),
    ("sqs", "list_message_move_tasks"): ({"SourceArn": ARN, "MaxResults": 1},),
    ("sqs", "list_queues"): ({}, {"QueueNamePrefix": "let", "MaxResults": 1000}),
    ("sqs", "receive_message"): (
        {
            "QueueUrl": QUEUE,
            "MaxNumberOfMessages": 10,
            "VisibilityTimeout": 30,
            "WaitTimeSeconds": 0,
            "AttributeNames": ["ApproximateReceiveCount", "SentTimestamp"],
            "MessageAttributeNames": ["All"],
        },
    ),
    ("sqs", "send_message"): (
        {"QueueUrl": QUEUE, "MessageBody": BODY, "DelaySeconds": 900},
        {
            "QueueUrl": QUEUE,
            "MessageBody": BODY,
            "MessageAttributes": _ATTRIBUTES,
            "MessageGroupId": "g",
            "MessageDeduplicationId": "d",
        },
    ),
    ("sqs", "send_message_batch"): (
        {
            "QueueUrl": QUEUE,
            "Entries": [
                {"Id": "0", "MessageBody": BODY, "MessageAttributes": _ATTRIBUTES},
                {"Id": "1", "MessageBody": "", "DelaySeconds": 0},
            ],
        },
    ),
    ("sqs", "start_message_move_task"): ({"SourceArn": ARN, "DestinationArn": ARN},),
    ("dynamodb", "batch_get_item"): (
        {"RequestItems": {"holdfast-jobs": {"Keys": [_KEY], "ConsistentRead": True}}},
    ),
    ("dynamodb", "batch_write_item"): (
        {
            "RequestItems": {
                "holdfast-jobs": [
                    {"PutRequest": {"Item": ITEM}},
                    {"DeleteRequest": {"Key": _KEY}},
                ]
            }
        },
    ),
    ("dynamodb", "create_table"): (_TABLE,),
    ("dynamodb", "delete_item"): ({"TableName": "holdfast-jobs", "Key": _KEY, **_CONDITION},),
    ("dynamodb", "describe_continuous_backups"): ({"TableName": "holdfast-jobs"},),
    ("dynamodb", "describe_table"): ({"TableName": "holdfast-jobs"},),
    ("dynamodb", "describe_time_to_live"): ({"TableName": "holdfast-jobs"},),
    ("dynamodb", "get_item"): (
        {"TableName": "holdfast-jobs", "Key": _KEY, "ConsistentRead": True},
    ),
    ("dynamodb", "put_item"): ({"TableName": "holdfast-jobs", "Item": ITEM, **_CONDITION},),
    ("dynamodb", "query"): (
        {
            "TableName": "holdfast-jobs",
            "IndexName": "by-state",
            "KeyConditionExpression": "#id = :id",
            "ExpressionAttributeNames": {"#id": "id"},
            "ExpressionAttributeValues": {":id": {"S": "ü"}},
            "ExclusiveStartKey": _KEY,
            "ConsistentRead": False,
            "ScanIndexForward": False,
            "Limit": 25,
        },
    ),
    ("dynamodb", "scan"): ({"TableName": "holdfast-jobs", "ExclusiveStartKey": _KEY},),
    ("dynamodb", "transact_write_items"): (
        {
            "TransactItems": [
                {"Put": {"TableName": "holdfast-jobs", "Item": ITEM, **_CONDITION}},
                {"Delete": {"TableName": "holdfast-jobs", "Key": _KEY}},
            ]
        },
        {
            "TransactItems": [{"Delete": {"TableName": "holdfast-jobs", "Key": _KEY}}],
            "ClientRequestToken": "our own",
        },
    ),
    ("dynamodb", "update_item"): (
        {
            "TableName": "holdfast-jobs",
            "Key": _KEY,
            "UpdateExpression": "SET #fence = :fence, #raw = :raw",
            "ReturnValues": "ALL_NEW",
            **_CONDITION,
        },
    ),
    ("dynamodb", "update_time_to_live"): (
        {
            "TableName": "holdfast-jobs",
            "TimeToLiveSpecification": {"Enabled": True, "AttributeName": "expires"},
        },
    ),
    ("stepfunctions", "describe_state_machine"): (
        {"stateMachineArn": "arn:aws:states:eu-west-1:123456789012:stateMachine:m"},
    ),
    ("stepfunctions", "send_task_failure"): (
        {"taskToken": TOKEN, "error": "JobFailed", "cause": BODY},
    ),
    ("stepfunctions", "send_task_heartbeat"): ({"taskToken": TOKEN},),
    ("stepfunctions", "send_task_success"): ({"taskToken": TOKEN, "output": '{"a": 1}'},),
}

# A method's name after a dot or in quotes.
_NAMES = re.compile(r"""[."']([a-z]+(?:_[a-z]+)*)\b""")


@cache
def get_model(service: str) -> Any:
    """Return AWS's description of a service, which botocore ships."""
    return ServiceModel(Loader().load_service_model(service, "service-2"), service)


def find_operations() -> set[tuple[str, str]]:
    """Return the operations that the source code and infra/ name, in code or in a text."""
    operations = {
        xform_name(name): service
        for service in SERVICES
        for name in get_model(service).operation_names
    }
    names = {
        name
        for folder in (Path(holdfast.__path__[0]), ROOT / "infra")
        for path in folder.rglob("*.py")
        for name in _NAMES.findall(path.read_text())
    }
    return {(operations[name], name) for name in names if name in operations}
