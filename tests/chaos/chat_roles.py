"""The roles of the chat chaos tests: stagers and workers, each in a process."""

import os
from dataclasses import dataclass
from random import Random
from typing import Any

from chaos.file_providers import (
    Ledger,
    LedgerSender,
    OneSecret,
    Partners,
    ThreadWriter,
)
from chaos.rounds import RoundFolder
from holdfast.chat.messages import Inbound, Trigger
from holdfast.chat.model import Channel, ConversationKey
from holdfast.chat.outbox import SentPart
from holdfast.chat.policy import ConversationPolicy, ConversationProfile
from holdfast.chat.ports import ReplyPart
from holdfast.chat.processor import BatchProcessor
from holdfast.chat.sqlite_conversations import SQLiteConversations
from holdfast.chat.staging import Stager
from holdfast.chat.sweeper import Sweeper
from holdfast.lease.backoff import Backoff
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.lease.keeper import LeaseKeeper
from holdfast.queues.files import FilesystemQueue
from holdfast.worker.worker import Worker

CONVERSATIONS = 20
LEASE_SECONDS = 0.6
MAX_ATTEMPTS = 200  # killed workers fail often, and that must not park a batch
POLICY = ConversationPolicy(
    window_seconds=0.15,
    quiet_seconds=0.05,
    max_wait_seconds=0.4,
    lock_seconds=0.8,
    grace_seconds=0.5,
)
_PROFILE = ConversationProfile({"credentials_id": "sender"}, {"ai_api_key_reference": "writer"})


@dataclass(frozen=True, slots=True)
class ChatWorkspace(RoundFolder):
    """The folder of one round, and the number and pace of its messages."""

    messages: int
    pace_seconds: float  # between two messages

    @property
    def sent(self) -> Ledger:
        """Return the log of replies that were sent."""
        return Ledger(self.root / "sent")

    @property
    def questions(self) -> Ledger:
        """Return the log of requests to the writer."""
        return Ledger(self.root / "questions")

    @property
    def delivered(self) -> Ledger:
        """Return the log of webhooks that were answered."""
        return Ledger(self.root / "delivered")

    def store(self) -> SQLiteConversations:
        """Open the conversation store."""
        return SQLiteConversations(self.root / "chat.db", durability="process")

    def queue(self) -> FilesystemQueue[Trigger]:
        """Open the queue of triggers."""
        return FilesystemQueue(
            self.root,
            Trigger,
            lease_seconds=LEASE_SECONDS,
            max_attempts=MAX_ATTEMPTS,
            backoff=Backoff(first_seconds=0.05, max_seconds=0.2),
        )

    def sids(self) -> list[str]:
        """Return the sids of all messages of the round."""
        return [f"m-{number}" for number in range(self.messages)]


def get_key(sid: str) -> ConversationKey:
    """Return the conversation that a message belongs to."""
    number = int(sid.partition("-")[2]) % CONVERSATIONS
    return ConversationKey(f"whatsapp:+491510000{number:04}", f"chat-{number}")


# -- stagers


def deliver_webhooks(workspace: ChatWorkspace, seed: int) -> None:
    """Deliver webhooks until each was answered, and deliver one in eight a second time."""
    random = Random(seed)
    store, queue = workspace.store(), workspace.queue()
    queues = {Channel.WHATSAPP: queue}
    stager = Stager(store, queues, policy=POLICY, profiles={"*": _PROFILE})
    while missing := list_missing(workspace):
        delivered = sorted(set(workspace.sids()) - set(missing))
        repeats = delivered and random.random() < 1 / 8
        sid = random.choice(delivered) if repeats else random.choice(missing[:20])
        stager.stage(_make_inbound(sid))
        workspace.delivered.add(sid=sid)
        SYSTEM_CLOCK.sleep(random.uniform(0, 2 * workspace.pace_seconds))


def list_missing(workspace: ChatWorkspace) -> list[str]:
    """Return the undelivered messages in the order in which they were written."""
    delivered_sids = {line["sid"] for line in workspace.delivered.lines()}
    return [sid for sid in workspace.sids() if sid not in delivered_sids]


def _make_inbound(sid: str) -> Inbound:
    key = get_key(sid)
    return Inbound(
        message_sid=sid,
        primary_channel=key.primary_channel,
        conversation_id=key.conversation_id,
        body=f"<{sid}>",
    )


# -- workers


class SlowSender(LedgerSender):
    """A sender that waits before and after it sends, so that processes die at these moments."""

    def send(self, part: ReplyPart) -> SentPart:
        SYSTEM_CLOCK.sleep(_choose_delay())
        taken = super().send(part)
        SYSTEM_CLOCK.sleep(_choose_delay())
        return taken


class SlowWriter(ThreadWriter):
    """A writer that waits before it writes."""

    def write(self, *args: Any, **kwargs: Any) -> Any:
        SYSTEM_CLOCK.sleep(_choose_delay())
        return super().write(*args, **kwargs)


def _choose_delay() -> float:
    return os.urandom(1)[0] / 256 * 0.08


def answer_until_stopped(workspace: ChatWorkspace) -> None:
    """Answer messages until the stop file exists."""
    store, queue, keeper = workspace.store(), workspace.queue(), LeaseKeeper()
    sender = SlowSender(workspace.sent, SYSTEM_CLOCK, finds="by chance")
    processor = BatchProcessor(
        store,
        Partners(OneSecret(), SlowWriter(workspace.questions), sender),
        {Channel.WHATSAPP: queue},
        keeper=keeper,
        policy=POLICY,
        max_attempts=MAX_ATTEMPTS,
    )
    worker = Worker(queue, processor, concurrency=2, keeper=keeper)
    with keeper:
        workspace.run_until_stopped(worker)
    store.close()


# -- the sweeper


def run_sweeper(workspace: ChatWorkspace) -> None:
    """Run the sweeper once."""
    queue = workspace.queue()
    with workspace.store() as store:
        Sweeper(store, {Channel.WHATSAPP: queue}, policy=POLICY).sweep()
    queue.close()
