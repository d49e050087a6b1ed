"""Conversations: many messages in, one reply out. See docs/how-to/answer-customers.md."""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.chat.building import ChatApp as ChatApp
    from holdfast.chat.building import build_chat as build_chat
    from holdfast.chat.building import open_conversations as open_conversations
    from holdfast.chat.errors import PermanentError as PermanentError
    from holdfast.chat.errors import SendUnclear as SendUnclear
    from holdfast.chat.errors import TransientError as TransientError
    from holdfast.chat.messages import Inbound as Inbound
    from holdfast.chat.messages import Trigger as Trigger
    from holdfast.chat.messages import parse_inbound as parse_inbound
    from holdfast.chat.model import Channel as Channel
    from holdfast.chat.model import Conversation as Conversation
    from holdfast.chat.model import ConversationKey as ConversationKey
    from holdfast.chat.model import Fragment as Fragment
    from holdfast.chat.model import HistoryMessage as HistoryMessage
    from holdfast.chat.model import ParkedBatch as ParkedBatch
    from holdfast.chat.operator import Operator as Operator
    from holdfast.chat.outbox import WriterAnswer as WriterAnswer
    from holdfast.chat.policy import ConversationPolicy as ConversationPolicy
    from holdfast.chat.policy import ConversationProfile as ConversationProfile
    from holdfast.chat.ports import ConversationStore as ConversationStore
    from holdfast.chat.ports import ReplyRequest as ReplyRequest
    from holdfast.chat.ports import ReplySender as ReplySender
    from holdfast.chat.ports import ReplyWriter as ReplyWriter
    from holdfast.chat.ports import Secret as Secret
    from holdfast.chat.ports import SecretStore as SecretStore
    from holdfast.chat.processor import BatchProcessor as BatchProcessor
    from holdfast.chat.sqlite_conversations import SQLiteConversations as SQLiteConversations
    from holdfast.chat.staging import Stager as Stager
    from holdfast.chat.sweeper import Sweeper as Sweeper

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "chat.sqlite_conversations": "SQLiteConversations",
        "chat.building": "ChatApp build_chat open_conversations",
        "chat.errors": "PermanentError SendUnclear TransientError",
        "chat.messages": "Inbound Trigger parse_inbound",
        "chat.model": "Channel Conversation ConversationKey Fragment "
        "HistoryMessage ParkedBatch",
        "chat.operator": "Operator",
        "chat.outbox": "WriterAnswer",
        "chat.policy": "ConversationPolicy ConversationProfile",
        "chat.ports": "ConversationStore ReplyRequest ReplySender ReplyWriter "
        "Secret SecretStore",
        "chat.processor": "BatchProcessor",
        "chat.staging": "Stager",
        "chat.sweeper": "Sweeper",
    },
)
