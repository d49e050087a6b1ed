"""The queue contract on Amazon SQS."""

from holdfast.adapters.aws.sqs.queue import SQSQueue

__all__ = ["SQSQueue"]
