"""Conversations: many messages in, one reply out. See docs/how-to/answer-customers.md."""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.adapters.local.sqlite import SQLiteConversations as SQLiteConversations
    from holdfast.bootstrap.chats import ChatApp as ChatApp
    from holdfast.bootstrap.chats import build_chat as build_chat
    from holdfast.bootstrap.chats import open_conversations as open_conversations
    from holdfast.conversations.errors import PermanentError as PermanentError
    from holdfast.conversations.errors import SendUnclear as SendUnclear
    from holdfast.conversations.errors import TransientError as TransientError
    from holdfast.conversations.messages import Inbound as Inbound
    from holdfast.conversations.messages import Trigger as Trigger
    from holdfast.conversations.messages import parse_inbound as parse_inbound
    from holdfast.conversations.model import Channel as Channel
    from holdfast.conversations.model import Conversation as Conversation
    from holdfast.conversations.model import ConversationKey as ConversationKey
    from holdfast.conversations.model import Fragment as Fragment
    from holdfast.conversations.model import HistoryMessage as HistoryMessage
    from holdfast.conversations.model import ParkedBatch as ParkedBatch
    from holdfast.conversations.operator import Operator as Operator
    from holdfast.conversations.outbox import WriterAnswer as WriterAnswer
    from holdfast.conversations.policy import ConversationPolicy as ConversationPolicy
    from holdfast.conversations.policy import ConversationProfile as ConversationProfile
    from holdfast.conversations.ports import ConversationStore as ConversationStore
    from holdfast.conversations.ports import ReplyRequest as ReplyRequest
    from holdfast.conversations.ports import ReplySender as ReplySender
    from holdfast.conversations.ports import ReplyWriter as ReplyWriter
    from holdfast.conversations.ports import Secret as Secret
    from holdfast.conversations.ports import SecretStore as SecretStore
    from holdfast.conversations.processor import BatchProcessor as BatchProcessor
    from holdfast.conversations.staging import Stager as Stager
    from holdfast.conversations.sweeper import Sweeper as Sweeper

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "adapters.local.sqlite": "SQLiteConversations",
        "bootstrap.chats": "ChatApp build_chat open_conversations",
        "conversations.errors": "PermanentError SendUnclear TransientError",
        "conversations.messages": "Inbound Trigger parse_inbound",
        "conversations.model": "Channel Conversation ConversationKey Fragment "
        "HistoryMessage ParkedBatch",
        "conversations.operator": "Operator",
        "conversations.outbox": "WriterAnswer",
        "conversations.policy": "ConversationPolicy ConversationProfile",
        "conversations.ports": "ConversationStore ReplyRequest ReplySender ReplyWriter "
        "Secret SecretStore",
        "conversations.processor": "BatchProcessor",
        "conversations.staging": "Stager",
        "conversations.sweeper": "Sweeper",
    },
)
