"""The operations that the lean client makes itself. All others are left to boto3.

An operation is in this table if Holdfast calls it often and its response needs no model: it
has no timestamps, and its binary values can be recognised.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Service(NamedTuple):
    """How requests to a service are addressed, and which of its operations are made here."""

    target_prefix: str
    host_prefix: str  # also the name in signatures
    endpoint_variable: str
    api_version: str
    operations: frozenset[str]  # by boto3's method names
    headers: Mapping[str, str] = MappingProxyType({})


# Repeating these is within the contract of the queue. A message that was sent twice is
# delivered twice, as SQS itself may do; the other calls have the same effect again. Messages of
# a lost ReceiveMessage response become visible again when their timeout has passed.
_SQS = """
change_message_visibility change_message_visibility_batch delete_message delete_message_batch
get_queue_attributes get_queue_url receive_message send_message send_message_batch
"""

# Writes have conditions. If the first of two equal writes was done, the second is refused, and
# the adapter recognises its own write in the row that comes with the refusal.
_DYNAMODB = """
batch_get_item batch_write_item delete_item get_item put_item query scan transact_write_items
update_item
"""
_STEP_FUNCTIONS = "send_task_failure send_task_heartbeat send_task_success"

# A request of these is never sent again after its bytes may have arrived. A second
# SendTaskSuccess or SendTaskFailure would be refused because the first was accepted, and the
# job would count as failed.
NOT_REPEATABLE = frozenset({"send_task_failure", "send_task_success"})

# The parameter that makes a repeated request count once.
IDEMPOTENCY_PARAMETERS = {"transact_write_items": "ClientRequestToken"}

SERVICES = {
    "sqs": Service(
        "AmazonSQS",
        "sqs",
        "AWS_ENDPOINT_URL_SQS",
        "2012-11-05",
        frozenset(_SQS.split()),
        # SQS then adds the error code of its older protocol, which boto3 shows.
        headers={"x-amzn-query-mode": "true"},
    ),
    "dynamodb": Service(
        "DynamoDB_20120810",
        "dynamodb",
        "AWS_ENDPOINT_URL_DYNAMODB",
        "2012-08-10",
        frozenset(_DYNAMODB.split()),
    ),
    "stepfunctions": Service(
        "AWSStepFunctions",
        "states",
        "AWS_ENDPOINT_URL_SFN",
        "2016-11-23",
        frozenset(_STEP_FUNCTIONS.split()),
    ),
}


def name_operation(method: str) -> str:
    """Return the service's name of an operation, such as SendMessage for send_message."""
    return "".join(map(str.capitalize, method.split("_")))
