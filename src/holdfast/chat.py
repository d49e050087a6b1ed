"""Conversations: many messages in, one reply out. See docs/how-to/answer-customers.md."""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.adapters.local.sqlite import (
        SQLiteConversations,
    )
    from holdfast.bootstrap.chats import (
        ChatApp,
        build_chat,
        open_conversations,
    )
    from holdfast.conversations.errors import (
        PermanentError,
        SendUnclear,
        TransientError,
    )
    from holdfast.conversations.messages import Inbound, Trigger, parse_inbound
    from holdfast.conversations.model import (
        Channel,
        Conversation,
        ConversationKey,
        Fragment,
        HistoryMessage,
        ParkedBatch,
    )
    from holdfast.conversations.operator import (
        Operator,
    )
    from holdfast.conversations.outbox import (
        WriterAnswer,
    )
    from holdfast.conversations.policy import (
        ConversationPolicy,
        ConversationProfile,
    )
    from holdfast.conversations.ports import (
        ConversationStore,
        ReplyRequest,
        ReplySender,
        ReplyWriter,
        SecretStore,
    )
    from holdfast.conversations.processor import (
        BatchProcessor,
    )
    from holdfast.conversations.secret import (
        Secret,
    )
    from holdfast.conversations.staging import (
        Stager,
    )
    from holdfast.conversations.sweeper import (
        Sweeper,
    )

_HOMES = {
    "adapters.local.sqlite": ["SQLiteConversations"],
    "bootstrap.chats": ["ChatApp", "build_chat", "open_conversations"],
    "conversations.errors": ["PermanentError", "SendUnclear", "TransientError"],
    "conversations.messages": ["Inbound", "Trigger", "parse_inbound"],
    "conversations.model": [
        "Channel",
        "Conversation",
        "ConversationKey",
        "Fragment",
        "HistoryMessage",
        "ParkedBatch",
    ],
    "conversations.operator": ["Operator"],
    "conversations.outbox": ["WriterAnswer"],
    "conversations.policy": ["ConversationPolicy", "ConversationProfile"],
    "conversations.ports": [
        "ConversationStore",
        "ReplyRequest",
        "ReplySender",
        "ReplyWriter",
        "SecretStore",
    ],
    "conversations.processor": ["BatchProcessor"],
    "conversations.secret": ["Secret"],
    "conversations.staging": ["Stager"],
    "conversations.sweeper": ["Sweeper"],
}

__all__ = [  # made by __getattr__ below
    "BatchProcessor",
    "Channel",
    "ChatApp",
    "Conversation",
    "ConversationKey",
    "ConversationPolicy",
    "ConversationProfile",
    "ConversationStore",
    "Fragment",
    "HistoryMessage",
    "Inbound",
    "Operator",
    "ParkedBatch",
    "PermanentError",
    "ReplyRequest",
    "ReplySender",
    "ReplyWriter",
    "SQLiteConversations",
    "Secret",
    "SecretStore",
    "SendUnclear",
    "Stager",
    "Sweeper",
    "TransientError",
    "Trigger",
    "WriterAnswer",
    "build_chat",
    "open_conversations",
    "parse_inbound",
]

__getattr__ = lazy_exports(__name__, _HOMES)
