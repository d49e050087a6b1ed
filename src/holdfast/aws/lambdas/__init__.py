"""Lambda functions that handle batches of SQS messages."""
