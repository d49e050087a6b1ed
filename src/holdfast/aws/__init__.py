"""Holdfast on AWS: SQS, DynamoDB, Step Functions and Lambda. Needs the extra `aws`."""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.aws.heartbeat import SQSHeartbeat as SQSHeartbeat
    from holdfast.aws.heartbeat import interval_from_env as interval_from_env
    from holdfast.aws.heartbeat import stop_all as stop_all
    from holdfast.aws.heartbeat import visibility_timeout_of as visibility_timeout_of
    from holdfast.aws.lambdas.batch import sqs_batch as sqs_batch
    from holdfast.chat.dynamodb import (
        DynamoDBConversations as DynamoDBConversations,
    )
    from holdfast.exports.dynamodb import DynamoDBJobs as DynamoDBJobs
    from holdfast.exports.step_functions import (
        StepFunctionsCallbacks as StepFunctionsCallbacks,
    )
    from holdfast.queues.sqs import SQSQueue as SQSQueue

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "exports.dynamodb": "DynamoDBJobs",
        "chat.dynamodb": "DynamoDBConversations",
        "aws.heartbeat": "SQSHeartbeat interval_from_env stop_all visibility_timeout_of",
        "queues.sqs": "SQSQueue",
        "exports.step_functions": "StepFunctionsCallbacks",
        "aws.lambdas.batch": "sqs_batch",
    },
)
