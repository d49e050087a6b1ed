"""Holdfast on AWS: SQS, DynamoDB, Step Functions and Lambda. Needs `holdfast[aws]`."""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.adapters.aws.dynamodb import (
        DynamoDBJobs,
    )
    from holdfast.adapters.aws.dynamodb.chat import (
        DynamoDBConversations,
    )
    from holdfast.adapters.aws.heartbeat import (
        SQSHeartbeat,
        interval_from_env,
        stop_all,
        visibility_timeout_of,
    )
    from holdfast.adapters.aws.sqs import (
        SQSQueue,
    )
    from holdfast.adapters.aws.stepfunctions import (
        StepFunctionsCallbacks,
    )
    from holdfast.lambdas.batch import (
        sqs_batch,
    )

_HOMES = {
    "adapters.aws.dynamodb": ["DynamoDBJobs"],
    "adapters.aws.dynamodb.chat": ["DynamoDBConversations"],
    "adapters.aws.heartbeat": [
        "SQSHeartbeat",
        "interval_from_env",
        "stop_all",
        "visibility_timeout_of",
    ],
    "adapters.aws.sqs": ["SQSQueue"],
    "adapters.aws.stepfunctions": ["StepFunctionsCallbacks"],
    "lambdas.batch": ["sqs_batch"],
}

__all__ = [  # made by __getattr__ below
    "DynamoDBConversations",
    "DynamoDBJobs",
    "SQSHeartbeat",
    "SQSQueue",
    "StepFunctionsCallbacks",
    "interval_from_env",
    "sqs_batch",
    "stop_all",
    "visibility_timeout_of",
]

__getattr__ = lazy_exports(__name__, _HOMES)
