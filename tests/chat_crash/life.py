"""A place where a conversation is held, and one process's life there.

Time is a number that each life is given. It passes by a little with each call, and leaps
when there is nothing to do: nobody really waits.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from threading import Event
from typing import Any, Literal

from chat_crash.doom import CALL_SECONDS, Doom
from chat_crash.partners import (
    ForgetfulWriter,
    Ledger,
    LedgerSender,
    OneSecret,
    Partners,
    ThreadWriter,
)
from holdfast.adapters.chat.outbox import OutboxSender
from holdfast.adapters.local.filesystem import FilesystemQueue, FsOps
from holdfast.adapters.local.sqlite import SQLiteConversations
from holdfast.conversations.messages import Inbound, Trigger
from holdfast.conversations.model import Channel, ConversationKey, LockAcquired, Status
from holdfast.conversations.outbox import SendingReply
from holdfast.conversations.policy import ConversationPolicy, ConversationProfile, Doubt
from holdfast.conversations.ports import ReplySender, ReplyWriter
from holdfast.conversations.processor import BatchProcessor
from holdfast.conversations.staging import Stager
from holdfast.conversations.sweeper import Sweeper
from holdfast.core.backoff import Backoff
from holdfast.core.clock import SYSTEM_CLOCK
from holdfast.core.events import Events
from holdfast.core.lease.keeper import LeaseKeeper
from holdfast.core.queue.manager import MessageState
from holdfast.core.queue.message import lease_of
from holdfast.core.worker.context import LeaseContext
from holdfast.core.worker.outcome import Outcome
from holdfast.core.worker.outcome_mapping import outcome_of, retry_after_error
from holdfast.core.worker.settle import settle
from holdfast.testing.clock import ManualClock

KEY = ConversationKey("whatsapp:+4915100000000", "chat-one")
MESSAGES = ("first", "second", "third")
LEASE_SECONDS = 20.0  # shorter than the lock: a trigger comes back while it is still held
AWAY_SECONDS = 25.0  # until somebody else comes
STEP_SECONDS = 12.0
PATIENCE = 100
_PROFILE = ConversationProfile({"credentials_id": "sender"}, {"ai_api_key_reference": "writer"})


@dataclass(frozen=True)
class Scene:
    """How one conversation goes, when nobody dies."""

    sender: Literal["finds", "blind", "outbox"] = "finds"
    in_doubt: Doubt = "at_most_once"
    pages: int = 1
    threads: bool = True  # the writer keeps them; else whatever was not noted is lost
    refusals: int = 0  # so often the sender is away
    third_at: float = 2.0  # seconds after the first message
    late: str = ""  # before this call one more message comes in
    since: str = ""  # the first call that matters here: up to it other scenes are the same
    until: str = ""  # the last one
    shows: tuple[str, ...] = ()  # calls that are made here, and not in every turn

    def writer(self, ledger: Ledger) -> ReplyWriter:
        kind = ThreadWriter if self.threads else ForgetfulWriter
        return kind(ledger, self.pages)

    def blows(self, calls: Sequence[str]) -> range:
        """After how many calls to strike."""
        first = calls.index(self.since) + 1 if self.since else 0
        last = calls.index(self.until) + 1 if self.until else len(calls)
        return range(first, last + 1)

    @property
    def terms(self) -> ConversationPolicy:
        return ConversationPolicy(in_doubt=self.in_doubt)


class Place:
    """What outlives processes: a store, a queue, and the ledgers of others.

    The store's connections are closed before a fork, and each process opens its own.
    """

    def __init__(self, folder: Path, scene: Scene) -> None:
        self.folder, self.scene = folder, scene
        self.store = SQLiteConversations(folder / "chat.db", durability="process")

    @property
    def sent(self) -> Ledger:
        return Ledger(self.folder / "sent")

    @property
    def asked(self) -> Ledger:
        return Ledger(self.folder / "asked")

    @property
    def came(self) -> Ledger:
        """Messages that a stager took: they are ours by then."""
        return Ledger(self.folder / "came")

    @property
    def letters(self) -> Path:
        return self.folder / "letters"

    def sender(self, clock: ManualClock) -> ReplySender:
        if self.scene.sender == "outbox":
            return OutboxSender(self.letters, clock)
        finds: Any = "always" if self.scene.sender == "finds" else "never"
        return LedgerSender(self.sent, clock, finds=finds, refusals=self.scene.refusals)

    def last_calls(self) -> list[str]:
        """Of whoever was struck last, by his own account."""
        calls: list[str] = json.loads((self.folder / "calls").read_text())
        return calls

    # -- what time it is

    def now(self) -> float:
        clock = self.folder / "clock"
        return float(clock.read_text()) if clock.exists() else _TODAY

    def later(self, at: float) -> None:
        """A zombie's watch is slow: it does not turn time back."""
        (self.folder / "clock").write_text(repr(max(at, self.now())))


# Files get their stamps from the machine's clock, so today it is.
_TODAY = float(int(SYSTEM_CLOCK.time()) + 1)


@dataclass
class Life:
    """One process with all its parts, from `at` on."""

    place: Place
    at: float
    doom: Doom = field(default_factory=Doom)

    def __post_init__(self) -> None:
        self.clock = clock = ManualClock(self.at - _TODAY + 1_000.0, time=self.at)
        self.store = self.place.store
        self.queue = FilesystemQueue(
            self.place.folder,
            Trigger,
            lease_seconds=LEASE_SECONDS,
            max_attempts=9,
            backoff=Backoff(first_seconds=1.0, max_seconds=2.0),
            clock=clock,
            fs=FsOps(server_time=clock.time),
        )
        self.keeper = LeaseKeeper(_Patient(clock))
        self._fences: set[int] = set()
        self.doom.last_word = self._last_word
        self.doom.returned = self._note_grant
        self.doom.call_ended = partial(clock.advance, CALL_SECONDS)
        self._put_together()

    def _put_together(self) -> None:
        watch, scene, clock = self.doom.watch, self.place.scene, self.clock
        store, self._queue = watch("store", self.store), watch("queue", self.queue)
        told: dict[str, Any] = {"terms": scene.terms, "clock": clock}
        queues = {Channel.WHATSAPP: self._queue}
        partners = Partners(
            watch("secrets", OneSecret()),
            watch("writer", scene.writer(self.place.asked)),
            watch("sender", self.place.sender(clock)),
        )
        self._stager = Stager(store, queues, profiles={"*": _PROFILE}, **told)
        self._sweeper = Sweeper(store, queues, **told)
        self._processor = BatchProcessor(
            store, partners, queues, keeper=self.keeper, max_attempts=9, **told
        )

    def _last_word(self) -> None:
        self.place.later(self.clock.time())
        (self.place.folder / "calls").write_text(json.dumps(self.doom.calls))

    def close(self) -> None:
        self.doom.pause()
        self.place.later(self.clock.time())
        self.keeper.stop()
        self.queue.close()

    # -- what it does

    def stage(self, sids: Iterable[str], third_at: float = 2.0) -> None:
        """One second apart, the third at a time of its own."""
        began = self.clock.time()
        for number, sid in enumerate(sids):
            at = third_at if number == 2 else float(number)
            self.clock.advance(max(0.0, began + at - self.clock.time()))
            self._stager.stage(self._inbound(sid))
            self.place.came.add(sid=sid)

    def _inbound(self, sid: str) -> Inbound:
        return Inbound(
            message_sid=sid,
            primary_channel=KEY.primary_channel,
            conversation_id=KEY.conversation_id,
            body=f"<{sid}>",
        )

    def until_quiet(self, *, sweep: bool = False) -> None:
        """Until no trigger is left; with `sweep` until nothing is staged either."""
        for _ in range(PATIENCE):
            stats = self.queue.stats()
            if (stats.ready or stats.expired) and self._handle_one():
                continue
            if stats.ready + stats.delayed + stats.leased:
                self.clock.advance(self._until_due())
            elif sweep and self.store.staged(KEY.conversation_id):
                self.clock.advance(STEP_SECONDS)
                self._sweeper.sweep()
            else:
                return
        raise AssertionError(f"never quiet: {self.queue.stats()}")

    def _until_due(self) -> float:
        """Until the next trigger is; but leases run out, too."""
        due = [
            one.due_at.timestamp()
            for one in self.queue.peek(MessageState.PENDING)
            if one.due_at
        ]
        left = min(due, default=inf) - self.clock.time() + CALL_SECONDS
        return min(STEP_SECONDS, max(CALL_SECONDS, left))

    def _handle_one(self) -> bool:
        messages = self._queue.poll()
        for trigger in messages:
            settle(self._queue, trigger, self._outcome(trigger), Events())
            assert not self._holds_the_lock(), "the lock was kept"
        return bool(messages)

    def _outcome(self, trigger: Trigger) -> Outcome:
        ctx = LeaseContext(self._queue, trigger, lease_of(trigger), Event(), self.clock)
        try:
            return outcome_of(self._processor(trigger, ctx))
        except Exception as error:
            return retry_after_error(error)

    def _note_grant(self, result: object) -> None:
        if isinstance(result, LockAcquired):
            self._fences.add(result.grant.fence)

    def _holds_the_lock(self) -> bool:
        if (found := self.store.get(KEY)) is None:
            return False
        return found.status == Status.PROCESSING and found.lock_fence in self._fences


class _Patient:
    """The keeper's clock: it sleeps until it is woken. No lock is held for so long here that
    it must be renewed, and a thread that looks at the time all the while costs some."""

    def __init__(self, clock: ManualClock) -> None:
        self.time, self.monotonic, self.sleep = clock.time, clock.monotonic, clock.sleep

    def wait(self, event: Event, seconds: float | None) -> bool:
        return event.wait()


def in_doubt(place: Place) -> bool:
    """Whoever comes now must park, by what is written down and by what others did."""
    conversation = place.store.get(KEY)
    outbox = conversation.outbox if conversation else None
    if not isinstance(outbox, SendingReply) or place.scene.sender == "outbox":
        return False
    return place.scene.in_doubt == "at_most_once" and not _can_be_found(place, outbox)


def _can_be_found(place: Place, outbox: SendingReply) -> bool:
    if place.scene.sender == "blind":
        return False
    mark = outbox.answer.thread_mark
    parts = [
        one
        for one in place.sent.lines()
        if one["what"] == "sent" and one["text"].startswith(mark)
    ]
    return any(one["index"] == len(outbox.parts) for one in parts)
