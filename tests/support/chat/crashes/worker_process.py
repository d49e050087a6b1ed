"""A place with the files of a conversation, and a process that works there.

Time is a number that each process is given. It advances a little with each call, and jumps
when there is nothing to do, so no test really waits.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from threading import Event
from typing import Any, Literal

from chaos.file_providers import (
    ForgetfulWriter,
    Ledger,
    LedgerSender,
    OneSecret,
    Partners,
    ThreadWriter,
)
from holdfast.chat.messages import Inbound, Trigger
from holdfast.chat.model import Channel, ConversationKey, LockAcquired, Status
from holdfast.chat.outbox import SendingReply
from holdfast.chat.policy import ConversationPolicy, ConversationProfile, Doubt
from holdfast.chat.ports import ReplySender, ReplyWriter
from holdfast.chat.processor import BatchProcessor
from holdfast.chat.providers.local import OutboxSender
from holdfast.chat.sqlite_conversations import SQLiteConversations
from holdfast.chat.staging import Stager
from holdfast.chat.sweeper import Sweeper
from holdfast.events import Events
from holdfast.lease.backoff import Backoff
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.lease.keeper import LeaseKeeper
from holdfast.queue.manager import MessageState
from holdfast.queue.message import get_lease
from holdfast.queues.files import FilesystemQueue, FsOps
from holdfast.testing.clock import ManualClock
from holdfast.worker.context import Context
from holdfast.worker.outcome import Outcome, retry_after_error, to_outcome
from holdfast.worker.settle import settle
from support.chat.crashes.kill_point import CALL_SECONDS, Doom

KEY = ConversationKey("whatsapp:+4915100000000", "chat-one")
MESSAGES = ("first", "second", "third")
LEASE_SECONDS = (
    20.0  # shorter than the lock, so a trigger is redelivered while the lock is held
)
AWAY_SECONDS = 25.0  # until another process starts
STEP_SECONDS = 12.0
BOOTED_AT = 1_000_000_000.0  # the start of the monotonic clock of all processes
WAIT_TIMEOUT = 100
_PROFILE = ConversationProfile({"credentials_id": "sender"}, {"ai_api_key_reference": "writer"})


@dataclass(frozen=True)
class Scene:
    """The course of a conversation if no process dies."""

    sender: Literal["finds", "blind", "outbox"] = "finds"
    in_doubt: Doubt = "if_missing"
    pages: int = 1
    threads: bool = (
        True  # the writer keeps threads; otherwise a reply that was not noted is lost
    )
    refusals: int = 0  # how often the sender refuses
    unclear: Literal["", "sent", "not sent"] = ""  # the sender's first answer is lost
    third_at: float = 2.0  # seconds after the first message
    late: str = ""  # before this call one more message arrives
    since: str = ""  # the first call to strike; before it all scenes are the same
    until: str = ""  # the last call to strike
    shows: tuple[str, ...] = ()  # calls that are made here but not in every turn

    def make_writer(self, ledger: Ledger) -> ReplyWriter:
        """Return the writer of the scene."""
        kind = ThreadWriter if self.threads else ForgetfulWriter
        return kind(ledger, self.pages)

    def list_blows(self, calls: Sequence[str]) -> range:
        """Return the numbers of calls after which to strike."""
        first = calls.index(self.since) + 1 if self.since else 0
        last = calls.index(self.until) + 1 if self.until else len(calls)
        return range(first, last + 1)

    @property
    def policy(self) -> ConversationPolicy:
        """Return the policy of the conversation."""
        # No lease is renewed here, so look-ups must end within half of a lease.
        return ConversationPolicy(in_doubt=self.in_doubt, writer_seconds=LEASE_SECONDS)


class Place:
    """What outlives processes: a store, a queue, and the ledgers of the providers."""

    def __init__(self, folder: Path, scene: Scene) -> None:
        self.folder, self.scene = folder, scene
        self.store = SQLiteConversations(folder / "chat.db", durability="process")

    @property
    def sent(self) -> Ledger:
        """Return the ledger of sent messages."""
        return Ledger(self.folder / "sent")

    @property
    def asked(self) -> Ledger:
        """Return the ledger of questions to the writer."""
        return Ledger(self.folder / "asked")

    @property
    def accepted(self) -> Ledger:
        """Return the ledger of messages that a stager accepted."""
        return Ledger(self.folder / "came")

    @property
    def letters(self) -> Path:
        """Return the folder of the outbox sender."""
        return self.folder / "letters"

    def make_sender(self, clock: ManualClock) -> ReplySender:
        """Return the sender of the scene."""
        if self.scene.sender == "outbox":
            return OutboxSender(self.letters, clock)
        finds: Any = "always" if self.scene.sender == "finds" else "never"
        scene = self.scene
        return LedgerSender(
            self.sent, clock, finds=finds, refusals=scene.refusals, unclear=scene.unclear
        )

    def read_last_calls(self) -> list[str]:
        """Return the calls of the last process that was struck, as it recorded them."""
        calls: list[str] = json.loads((self.folder / "calls").read_text())
        return calls

    # -- the time

    def now(self) -> float:
        """Return the current time of the place."""
        return float((self.folder / "clock").read_text())

    def start_time(self) -> None:
        """Start with now, because files get their timestamps from the machine's clock."""
        (self.folder / "clock").write_text(repr(float(int(SYSTEM_CLOCK.time()) + 1)))

    def advance_to(self, at: float) -> None:
        """Advance the time; the slow clock of a stale holder does not turn it back."""
        (self.folder / "clock").write_text(repr(max(at, self.now())))


@dataclass
class Life:
    """A process with all its components, which starts at `at`."""

    place: Place
    at: float
    doom: Doom = field(default_factory=Doom)

    def __post_init__(self) -> None:
        self.clock = clock = ManualClock(self.at - BOOTED_AT, time=self.at, auto_advance=True)
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
        self.keeper = LeaseKeeper(_BlockingClock(clock))
        self._fences: set[int] = set()
        self.doom.last_word = self._record_state
        self.doom.returned = self._note_grant
        self.doom.call_ended = partial(clock.advance, CALL_SECONDS)
        self._build()

    def _build(self) -> None:
        watch, scene, clock = self.doom.watch, self.place.scene, self.clock
        store, self._queue = watch("store", self.store), watch("queue", self.queue)
        shared: dict[str, Any] = {"policy": scene.policy, "clock": clock}
        queues = {Channel.WHATSAPP: self._queue}
        partners = Partners(
            watch("secrets", OneSecret()),
            watch("writer", scene.make_writer(self.place.asked)),
            watch("sender", self.place.make_sender(clock)),
        )
        self._stager = Stager(store, queues, profiles={"*": _PROFILE}, **shared)
        self._sweeper = Sweeper(store, queues, **shared)
        self._processor = BatchProcessor(
            store, partners, queues, keeper=self.keeper, max_attempts=9, **shared
        )

    def _record_state(self) -> None:
        self.place.advance_to(self.clock.time())
        (self.place.folder / "calls").write_text(json.dumps(self.doom.calls))

    def close(self) -> None:
        """Stop the process."""
        self.doom.pause()
        self.place.advance_to(self.clock.time())
        self.keeper.stop()
        self.queue.close()

    # -- its work

    def stage(self, sids: Iterable[str], third_at: float = 2.0) -> None:
        """Stage the messages one second apart, the third at the given time."""
        began = self.clock.time()
        for number, sid in enumerate(sids):
            at = third_at if number == 2 else float(number)
            self.clock.advance(max(0.0, began + at - self.clock.time()))
            self._stager.stage(self._make_inbound(sid))
            self.place.accepted.add(sid=sid)

    def _make_inbound(self, sid: str) -> Inbound:
        return Inbound(
            message_sid=sid,
            primary_channel=KEY.primary_channel,
            conversation_id=KEY.conversation_id,
            body=f"<{sid}>",
        )

    def run_until_quiet(self, *, sweep: bool = False) -> None:
        """Work until no trigger is left, and with `sweep` until nothing is staged."""
        for _ in range(WAIT_TIMEOUT):
            stats = self.queue.stats()
            if (stats.ready or stats.expired) and self._handle_next():
                continue
            if stats.ready + stats.delayed + stats.leased:
                self.clock.advance(self._seconds_until_due())
            elif sweep and self.store.staged(KEY.conversation_id):
                self.clock.advance(STEP_SECONDS)
                self._sweeper.sweep()
            else:
                return
        raise AssertionError(f"never quiet: {self.queue.stats()}")

    def _seconds_until_due(self) -> float:
        """Return the time until the next trigger is due or a lease expires."""
        due = [
            info.due_at.timestamp()
            for info in self.queue.peek(MessageState.PENDING)
            if info.due_at
        ]
        left = min(due, default=inf) - self.clock.time() + CALL_SECONDS
        return min(STEP_SECONDS, max(CALL_SECONDS, left))

    def _handle_next(self) -> bool:
        messages = self._queue.poll()
        for trigger in messages:
            settle(self._queue, trigger, self._run_handler(trigger), Events())
            assert not self._has_lock(), "the lock was kept"
        return bool(messages)

    def _run_handler(self, trigger: Trigger) -> Outcome:
        ctx = Context(self._queue, trigger, get_lease(trigger), Event(), self.clock)
        try:
            return to_outcome(self._processor(trigger, ctx))
        except Exception as error:
            return retry_after_error(error)

    def _note_grant(self, result: object) -> None:
        if isinstance(result, LockAcquired):
            self._fences.add(result.grant.fence)

    def _has_lock(self) -> bool:
        if (row := self.store.get(KEY)) is None:
            return False
        return row.status == Status.PROCESSING and row.lock_fence in self._fences


class _BlockingClock:
    """The keeper's clock, which waits until the event is set.

    No lock is held long enough to be renewed here, and a thread that polls the time is slow.
    """

    def __init__(self, clock: ManualClock) -> None:
        self.time, self.monotonic, self.sleep = clock.time, clock.monotonic, clock.sleep

    def wait(self, event: Event, seconds: float | None) -> bool:
        return event.wait()


def must_park(place: Place) -> bool:
    """Check whether the next worker must park, by the outbox and the ledgers."""
    conversation = place.store.get(KEY)
    outbox = conversation.outbox if conversation else None
    if not isinstance(outbox, SendingReply) or place.scene.sender == "outbox":
        return False
    return place.scene.in_doubt != "at_least_once" and not _can_be_found(place, outbox)


def _can_be_found(place: Place, outbox: SendingReply) -> bool:
    if place.scene.sender == "blind":
        return False
    mark = outbox.answer.thread_mark
    parts = [
        line
        for line in place.sent.lines()
        if line["what"] == "sent" and line["text"].startswith(mark)
    ]
    return any(line["index"] == len(outbox.parts) for line in parts)
