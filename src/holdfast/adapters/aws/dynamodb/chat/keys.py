"""Keys of rows, within DynamoDB's limits on their length."""

from holdfast.adapters.aws.dynamodb.values import Attributes, count_bytes
from holdfast.conversations.model import ConversationKey, digest_texts

_MAX_HASH_BYTES, _MAX_RANGE_BYTES = 2048, 1024  # bytes


def build_conversation_key(key: ConversationKey) -> Attributes:
    """Return the key of a conversation's row."""
    return {
        "primary_channel": {"S": key.primary_channel},
        "conversation_id": {"S": key.conversation_id},
    }


def is_valid_key(key: ConversationKey) -> bool:
    """Return whether DynamoDB can hold a row with this key."""
    hash_bytes, range_bytes = (
        count_bytes(key.primary_channel),
        count_bytes(key.conversation_id),
    )
    return 0 < hash_bytes <= _MAX_HASH_BYTES and 0 < range_bytes <= _MAX_RANGE_BYTES


def build_stage_key(conversation_id: str, sid: str) -> Attributes:
    """Return the key of a staged message's row."""
    return {"conversation_id": {"S": conversation_id}, "message_sid": {"S": sid}}


def build_history_hash(key: ConversationKey) -> str:
    """Return the hash key of the conversation's rows in `conversation-messages`.

    The line break separates the two names, because no name contains one.
    """
    text = f"{key.primary_channel}\n{key.conversation_id}"
    short = count_bytes(text) <= _MAX_HASH_BYTES
    return text if short else digest_texts(key.primary_channel, key.conversation_id)


def build_sid_key(key: ConversationKey, sid: str) -> Attributes:
    """Return the key of the row that marks a sid as processed."""
    entry = (
        f"sid#{sid}" if count_bytes(sid) <= _MAX_RANGE_BYTES - 4 else f"sid#{digest_texts(sid)}"
    )
    return {"conversation": {"S": build_history_hash(key)}, "entry": {"S": entry}}
