"""Holdfast on AWS: SQS, DynamoDB, Step Functions and Lambda. Needs `holdfast[aws]`."""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.adapters.aws.dynamodb import DynamoDBJobs as DynamoDBJobs
    from holdfast.adapters.aws.dynamodb.chat import (
        DynamoDBConversations as DynamoDBConversations,
    )
    from holdfast.adapters.aws.heartbeat import SQSHeartbeat as SQSHeartbeat
    from holdfast.adapters.aws.heartbeat import interval_from_env as interval_from_env
    from holdfast.adapters.aws.heartbeat import stop_all as stop_all
    from holdfast.adapters.aws.heartbeat import visibility_timeout_of as visibility_timeout_of
    from holdfast.adapters.aws.sqs import SQSQueue as SQSQueue
    from holdfast.adapters.aws.stepfunctions import (
        StepFunctionsCallbacks as StepFunctionsCallbacks,
    )
    from holdfast.lambdas.batch import sqs_batch as sqs_batch

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "adapters.aws.dynamodb": "DynamoDBJobs",
        "adapters.aws.dynamodb.chat": "DynamoDBConversations",
        "adapters.aws.heartbeat": "SQSHeartbeat interval_from_env stop_all "
        "visibility_timeout_of",
        "adapters.aws.sqs": "SQSQueue",
        "adapters.aws.stepfunctions": "StepFunctionsCallbacks",
        "lambdas.batch": "sqs_batch",
    },
)
