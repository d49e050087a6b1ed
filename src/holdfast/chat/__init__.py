"""Conversations: many messages in, one reply out. See docs/how-to/answer-customers.md."""

from holdfast._lazy import lazy_exports

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "chat.sqlite_conversations": "SQLiteConversations",
        "chat.building": "ChatApp build_chat open_conversations",
        "chat.errors": "PermanentError SendUnclear TransientError",
        "chat.messages": "Inbound Trigger parse_inbound",
        "chat.model": "Channel Conversation ConversationKey Fragment "
        "HistoryMessage ParkedBatch ConversationPolicy ConversationProfile",
        "chat.operator": "Operator",
        "chat.outbox": "WriterAnswer",
        "chat.ports": "ConversationStore ReplyRequest ReplySender ReplyWriter "
        "Secret SecretStore",
        "chat.processor": "BatchProcessor",
        "chat.staging": "Stager Sweeper",
    },
)
