"""Amazon SQS behind the queue contract."""

from holdfast.adapters.aws.sqs.queue import SQSQueue

__all__ = ["SQSQueue"]
