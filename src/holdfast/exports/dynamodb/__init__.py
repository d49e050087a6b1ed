"""The job store on Amazon DynamoDB."""

from holdfast.exports.dynamodb.jobs import DynamoDBJobs
from holdfast.exports.dynamodb.tables import create_tables

__all__ = ["DynamoDBJobs", "create_tables"]
