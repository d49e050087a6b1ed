"""The job store on Amazon DynamoDB."""

from holdfast.adapters.aws.dynamodb.jobs import DynamoDBJobs
from holdfast.adapters.aws.dynamodb.tables import create_tables

__all__ = ["DynamoDBJobs", "create_tables"]
