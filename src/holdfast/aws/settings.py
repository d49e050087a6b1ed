"""Settings of the clients of Amazon's services, from the environment."""

from typing import Literal

from holdfast.settings import Settings

AwsClient = Literal["auto", "boto3"]


class AwsSettings(Settings):
    """How SQS, DynamoDB and Step Functions are called.

    The adapters read the variable when they make a client, because libraries use them without
    reading settings.
    """

    #: what calls them: Holdfast's own client, and boto3 where calls are mocked or traced
    #: (`auto`, [the rule](../how-to/run-on-sqs.md#which-client-calls-aws)); always `boto3`
    aws_client: AwsClient = "auto"
