"""Holdfast on AWS: SQS, DynamoDB, Step Functions and Lambda. Needs the extra `aws`."""

from holdfast._lazy import lazy_exports

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
