"""Settings of the clients of Amazon's services, from the environment."""

from typing import Literal

from holdfast.settings import Settings

AwsClient = Literal["auto", "boto3"]


class AwsSettings(Settings):
    """How SQS, DynamoDB and Step Functions are called.

    The adapters read the variable when they make a client, because libraries use them without
    reading settings.
    """

    aws_client: AwsClient = "auto"
