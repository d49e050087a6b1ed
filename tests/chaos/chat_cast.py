"""Those who hold conversations: stagers and workers, each in a process of its own."""

import os
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

from chat_crash.partners import Ledger, LedgerSender, OneSecret, Partners, ThreadWriter
from holdfast.adapters.local.filesystem import FilesystemQueue
from holdfast.adapters.local.sqlite import SQLiteConversations
from holdfast.conversations.messages import Inbound, Trigger
from holdfast.conversations.model import Channel, ConversationKey
from holdfast.conversations.outbox import SentPart
from holdfast.conversations.policy import ConversationPolicy, ConversationProfile
from holdfast.conversations.ports import ReplyPart
from holdfast.conversations.processor import BatchProcessor
from holdfast.conversations.staging import Stager
from holdfast.conversations.sweeper import Sweeper
from holdfast.core.backoff import Backoff
from holdfast.core.clock import SYSTEM_CLOCK
from holdfast.core.lease.keeper import LeaseKeeper
from holdfast.core.worker.worker import Worker

CONVERSATIONS = 20
LEASE_SECONDS = 0.6
MAX_ATTEMPTS = 200  # who is killed all the time fails often: that is no reason to park
TERMS = ConversationPolicy(
    window_seconds=0.15,
    quiet_seconds=0.05,
    max_wait_seconds=0.4,
    lock_seconds=0.8,
    grace_seconds=0.5,
)
_PROFILE = ConversationProfile({"credentials_id": "sender"}, {"ai_api_key_reference": "writer"})


@dataclass(frozen=True, slots=True)
class Place:
    """Where a round is played."""

    root: Path
    messages: int
    pace_seconds: float  # from one message to the next

    @property
    def sent(self) -> Ledger:
        return Ledger(self.root / "sent")

    @property
    def asked(self) -> Ledger:
        return Ledger(self.root / "asked")

    @property
    def came(self) -> Ledger:
        """Webhooks that were answered."""
        return Ledger(self.root / "came")

    @property
    def stop(self) -> Path:
        return self.root / "stop"

    def store(self) -> SQLiteConversations:
        return SQLiteConversations(self.root / "chat.db", durability="process")

    def queue(self) -> FilesystemQueue[Trigger]:
        return FilesystemQueue(
            self.root,
            Trigger,
            lease_seconds=LEASE_SECONDS,
            max_attempts=MAX_ATTEMPTS,
            backoff=Backoff(first_seconds=0.05, max_seconds=0.2),
        )

    def sids(self) -> list[str]:
        return [f"m-{number}" for number in range(self.messages)]


def key_of(sid: str) -> ConversationKey:
    number = int(sid.partition("-")[2]) % CONVERSATIONS
    return ConversationKey(f"whatsapp:+491510000{number:04}", f"chat-{number}")


# -- stagers


def stage_on(place: Place, seed: int) -> None:
    """Deliver webhooks until each was answered; one in eight comes again all the same."""
    random = Random(seed)
    store, queue = place.store(), place.queue()
    queues = {Channel.WHATSAPP: queue}
    stager = Stager(store, queues, terms=TERMS, profiles={"*": _PROFILE})
    while missing := missing_of(place):
        come = sorted(set(place.sids()) - set(missing))
        again = come and random.random() < 1 / 8
        sid = random.choice(come) if again else random.choice(missing[:20])
        stager.stage(_inbound(sid))
        place.came.add(sid=sid)
        SYSTEM_CLOCK.sleep(random.uniform(0, 2 * place.pace_seconds))


def missing_of(place: Place) -> list[str]:
    """In the order in which they were written."""
    came = {one["sid"] for one in place.came.lines()}
    return [sid for sid in place.sids() if sid not in came]


def _inbound(sid: str) -> Inbound:
    key = key_of(sid)
    return Inbound(
        message_sid=sid,
        primary_channel=key.primary_channel,
        conversation_id=key.conversation_id,
        body=f"<{sid}>",
    )


# -- workers


class SlowSender(LedgerSender):
    """Takes its time before and after: that is when people die in doubt."""

    def send(self, part: ReplyPart) -> SentPart:
        SYSTEM_CLOCK.sleep(_moment())
        taken = super().send(part)
        SYSTEM_CLOCK.sleep(_moment())
        return taken


class SlowWriter(ThreadWriter):
    def write(self, *args: Any, **kwargs: Any) -> Any:
        SYSTEM_CLOCK.sleep(_moment())
        return super().write(*args, **kwargs)


def _moment() -> float:
    return os.urandom(1)[0] / 256 * 0.08


def work_on(place: Place) -> None:
    """Answer until the stop file is there."""
    store, queue, keeper = place.store(), place.queue(), LeaseKeeper()
    sender = SlowSender(place.sent, SYSTEM_CLOCK, finds="by chance")
    processor = BatchProcessor(
        store,
        Partners(OneSecret(), SlowWriter(place.asked), sender),
        {Channel.WHATSAPP: queue},
        keeper=keeper,
        terms=TERMS,
        max_attempts=MAX_ATTEMPTS,
    )
    worker = Worker(queue, processor, concurrency=2, keeper=keeper)
    Thread(target=_stop_when_told, args=(place, worker), daemon=True).start()
    with keeper:
        worker.run()
    store.close()


def _stop_when_told(place: Place, worker: Worker[Trigger]) -> None:
    while not place.stop.exists():
        SYSTEM_CLOCK.sleep(0.05)
    worker.stop()


# -- the sweeper


def sweep(place: Place) -> None:
    queue = place.queue()
    with place.store() as store:
        Sweeper(store, {Channel.WHATSAPP: queue}, terms=TERMS).sweep()
    queue.close()
