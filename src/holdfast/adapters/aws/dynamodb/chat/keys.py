"""The keys of rows. DynamoDB takes no empty ones, and none of any length."""

from holdfast.adapters.aws.dynamodb.values import Attributes
from holdfast.conversations.model import ConversationKey, mark_of

_MAX_HASH, _MAX_RANGE = 2048, 1024  # bytes


def conversation_key(key: ConversationKey) -> Attributes:
    return {
        "primary_channel": {"S": key.primary_channel},
        "conversation_id": {"S": key.conversation_id},
    }


def possible(key: ConversationKey) -> bool:
    """Can there be such a row?"""
    hash_bytes, range_bytes = _bytes(key.primary_channel), _bytes(key.conversation_id)
    return 0 < hash_bytes <= _MAX_HASH and 0 < range_bytes <= _MAX_RANGE


def stage_key(conversation_id: str, sid: str) -> Attributes:
    return {"conversation_id": {"S": conversation_id}, "message_sid": {"S": sid}}


def messages_of(key: ConversationKey) -> str:
    """The hash of its rows in `conversation-messages`. No name has a line break."""
    text = f"{key.primary_channel}\n{key.conversation_id}"
    short = _bytes(text) <= _MAX_HASH
    return text if short else mark_of(key.primary_channel, key.conversation_id)


def sid_key(key: ConversationKey, sid: str) -> Attributes:
    entry = f"sid#{sid}" if _bytes(sid) <= _MAX_RANGE - 4 else f"sid#{mark_of(sid)}"
    return {"conversation": {"S": messages_of(key)}, "entry": {"S": entry}}


def _bytes(text: str) -> int:
    return len(text.encode(errors="replace"))
