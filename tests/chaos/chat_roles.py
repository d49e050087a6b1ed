"""The roles of the chat chaos tests: stagers and workers, each in a process."""

import os
from dataclasses import dataclass
from random import Random

from chaos.rounds import RoundFolder
from holdfast.chat.errors import SendStatusUnknown
from holdfast.chat.messages import Trigger
from holdfast.chat.model import Channel, ConversationKey, ConversationPolicy
from holdfast.chat.processor import BatchProcessor
from holdfast.chat.sqlite_conversations import SQLiteConversations
from holdfast.chat.staging import Stager, Sweeper
from holdfast.lease.backoff import Backoff
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.lease.keeper import LeaseKeeper
from holdfast.queue.message import make_id
from holdfast.queues.files import FilesystemQueue
from holdfast.worker.worker import Worker
from support.chat.accounting import ChatAccounting
from support.chat.application import PROFILE, make_message
from support.chat.providers import FakeProviders, FakeSender, FakeWriter, Ledger

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
    stager = Stager(store, queues, policy=POLICY, profiles={"*": PROFILE})
    while missing := list_missing(workspace):
        delivered = sorted(set(workspace.sids()) - set(missing))
        repeats = delivered and random.random() < 1 / 8
        sid = random.choice(delivered) if repeats else random.choice(missing[:20])
        stager.stage(make_message(get_key(sid), sid))
        workspace.delivered.add(sid=sid)
        SYSTEM_CLOCK.sleep(random.uniform(0, 2 * workspace.pace_seconds))


def list_missing(workspace: ChatWorkspace) -> list[str]:
    """Return the undelivered messages in the order in which they were written."""
    delivered_sids = {line["sid"] for line in workspace.delivered.lines()}
    return [sid for sid in workspace.sids() if sid not in delivered_sids]


# -- workers


def wait_or_fail(point: str) -> None:
    """Wait, so that processes die at these moments. Half of all look-ups fail."""
    if point in ("ask", "send", "sent"):
        SYSTEM_CLOCK.sleep(os.urandom(1)[0] / 256 * 0.08)
    if point == "find" and os.urandom(1)[0] < 128:
        raise SendStatusUnknown("it keeps no list")


def answer_until_stopped(workspace: ChatWorkspace) -> None:
    """Answer messages until the stop file exists."""
    store, queue, keeper = workspace.store(), workspace.queue(), LeaseKeeper()
    writer = FakeWriter(_reply, ledger=workspace.questions, fault=wait_or_fail)
    sender = FakeSender(ledger=workspace.sent, fault=wait_or_fail)
    processor = BatchProcessor(
        store,
        FakeProviders(writer, sender),
        {Channel.WHATSAPP: queue},
        keeper=keeper,
        policy=POLICY,
        max_attempts=MAX_ATTEMPTS,
    )
    worker = Worker(queue, processor, concurrency=2, keeper=keeper)
    with keeper:
        workspace.run_until_stopped(worker)
    store.close()


def _reply(text: str) -> str:
    return f"{make_id()[:8]} on: {text}"


# -- the sweeper and the accounting


def run_sweeper(workspace: ChatWorkspace) -> None:
    """Run the sweeper once."""
    queue = workspace.queue()
    with workspace.store() as store:
        Sweeper(store, {Channel.WHATSAPP: queue}, policy=POLICY).sweep()
    queue.close()


def check_promises(workspace: ChatWorkspace) -> None:
    """Check that each message was answered once, or parked because of an unknown send."""
    with workspace.store() as store:
        account = _account(workspace, store)
        wrong = [*account.find_wrong(), *account.find_unfinished(workspace.sids())]
        assert not [*wrong, *account.find_wrongly_parked()]


def format_summary(workspace: ChatWorkspace) -> str:
    """Return the totals in one line."""
    with workspace.store() as store:
        account = _account(workspace, store)
    lost = set(workspace.sids()) - set(account.answered) - set(account.parked_sids)
    sent_and_parked = sum(bool(account.replies[sid, 0]) for sid in account.parked_sids)
    asked_twice = sum(count > 1 for count in account.count_asked().values())
    return (
        f"{workspace.messages} messages in {len(workspace.delivered.lines())} webhooks, "
        f"{sum(map(len, account.histories)) // 2} turns; lost {len(lost)}, parked "
        f"{len(account.parked_sids)} ({sent_and_parked} were sent); asked twice {asked_twice}"
    )


def _account(workspace: ChatWorkspace, store: SQLiteConversations) -> ChatAccounting:
    return ChatAccounting(store, workspace.sent.lines(), workspace.questions.lines())
