"""The conversation store on Amazon DynamoDB."""

from holdfast.adapters.aws.dynamodb.chat.store import DynamoDBConversations
from holdfast.adapters.aws.dynamodb.chat.tables import create_tables

__all__ = ["DynamoDBConversations", "create_tables"]
