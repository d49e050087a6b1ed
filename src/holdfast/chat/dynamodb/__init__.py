"""The conversation store on Amazon DynamoDB."""

from holdfast.chat.dynamodb.store import DynamoDBConversations
from holdfast.chat.dynamodb.tables import create_tables

__all__ = ["DynamoDBConversations", "create_tables"]
