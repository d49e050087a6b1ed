"""The protocol with one element removed, each by a subclass of our own parts or by a store
that lies. None of these may survive the simulation."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from conversations.liars import (
    AnybodyFinishes,
    AnybodyReleases,
    ByPresence,
    Forgetful,
    LocksForEver,
    NeverCloses,
    NoOutbox,
    NoRepair,
)
from conversations.troubles import Trouble
from conversations.weather import (
    FROZEN,
    LATE,
    PROCESSORS_DIE,
    ROUGH,
    STAGERS_DIE,
    STORM,
    Weather,
)
from conversations.world import Build
from holdfast.conversations.batching import BatchCollector
from holdfast.conversations.delivery import ReplyDelivery
from holdfast.conversations.errors import LockLost
from holdfast.conversations.merging import in_order, merged
from holdfast.conversations.messages import Trigger
from holdfast.conversations.model import (
    ConversationNotFound,
    Fragment,
    LockAcquired,
    LockHeld,
    ParkedBatch,
    WaitingConversation,
    parked_id_of,
)
from holdfast.conversations.outbox import SentPart, WritingReply
from holdfast.conversations.processor import BatchProcessor
from holdfast.conversations.reply_generator import ProviderResolver
from holdfast.conversations.sweeper import Sweeper
from holdfast.conversations.turn_state import BatchedTurn, EmptyBatch, LockedTurn, StillTyping
from holdfast.core.errors import StoreUnavailable
from holdfast.core.queue.message import new_id
from holdfast.core.worker.outcome import Done

# -- processors without a part


class KeepsEmpty(BatchProcessor):
    """An empty batch is over at once, as in the seed: `continue`."""

    def _answered(self, locked: LockedTurn) -> Any:
        if isinstance(self._gathering.gather(locked), EmptyBatch):
            self._windows.close(locked.trigger)
            return Done()
        return super()._answered(locked)


class NeverLooksAgain(BatchProcessor):
    def _look_again(self, locked: LockedTurn) -> None:
        pass


class ClosesLast(BatchProcessor):
    def _answered(self, locked: LockedTurn) -> Any:
        match batch := self._gathering.gather(locked):
            case StillTyping():
                return super()._answered(locked)
            case EmptyBatch():
                self._store.release(locked.grant, None)
            case BatchedTurn():
                self._turn(batch)
        self._look_again(locked)
        self._windows.close(locked.trigger)
        return Done()


class AcksItsOwn(BatchProcessor):
    def _busy(self, trigger: Trigger, owner_trigger: str, expires_at: float) -> Any:
        return Done()


class TriesOnce(BatchProcessor):
    def _acquire(self, trigger: Trigger) -> LockAcquired | LockHeld | ConversationNotFound:
        answer = self._try(trigger)
        if isinstance(answer, LockHeld):
            self._windows.close(trigger)
        return answer


class ProlongsFirst(BatchProcessor):
    """The later trigger is sent under the lock: whoever is quick finds it taken."""

    def _answered(self, locked: LockedTurn) -> Any:
        match self._gathering.gather(locked):
            case StillTyping(delay_seconds):
                self._windows.prolong(locked.trigger, delay_seconds)
                self._store.release(locked.grant, None)
                return Done()
        return super()._answered(locked)


class AnyBatch(BatchCollector):
    """A retry takes in what came meanwhile."""

    def _batch(self, locked: LockedTurn, fragments: tuple[Fragment, ...]) -> BatchedTurn:
        if not isinstance(locked.conversation.outbox, WritingReply):
            return super()._batch(locked, fragments)
        chosen = in_order(fragments)
        found = WritingReply(tuple(one.message_sid for one in chosen))
        return BatchedTurn(locked, chosen, merged(chosen), found)


class LooseBatches(BatchProcessor):
    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._gathering = AnyBatch(self._store, self._terms, self._clock, self._events)


class Doubtless(ReplyDelivery):
    def _resolved(self, *_: Any) -> SentPart | None:
        return None


class SendsAgain(BatchProcessor):
    def __init__(self, store: Any, providers: Any, *args: Any, **how: Any) -> None:
        super().__init__(store, providers, *args, **how)
        self._delivery = Doubtless(
            store, ProviderResolver(providers), self._terms, self._clock, self._events
        )


class LosesHisTrigger(BatchProcessor):
    """Who fails relies on his trigger, even one that somebody else has settled."""

    def _give_back(self, locked: LockedTurn, status: str | None) -> None:
        with suppress(LockLost, StoreUnavailable):
            self._store.release(locked.grant, status)


class ParksUnfenced(Sweeper):
    """The lock is taken; nobody looks whether it is still held."""

    def _park(self, waiting: WaitingConversation) -> int:
        now = self._clock.time()
        answer = self._store.acquire(
            waiting.key,
            owner=new_id(),
            trigger_id="sweeper",
            now=now,
            expires_at=now + self._terms.lock_seconds,
        )
        if not isinstance(answer, LockAcquired):
            return 0
        staged = self._store.staged(waiting.key.conversation_id)
        if staged:
            sids = [one.message_sid for one in staged]
            parked_id = parked_id_of(waiting.key, sids)
            parked = ParkedBatch(parked_id, waiting.key, "it is late", now, tuple(staged))
            self._store.park(None, parked, remember_until=now + 1e7)
        self._store.release(answer.grant, "parked")
        return len(staged)


# -- all of them


@dataclass(frozen=True)
class Mutant:
    build: Build
    weather: Weather  # in which it is caught
    breaks: tuple[str, ...]  # any of these promises


MUTANTS = {
    "processed messages are filtered": Mutant(Build(store=Forgetful), FROZEN, ("I-MS-2",)),
    "the outbox is read": Mutant(Build(store=NoOutbox), ROUGH, ("I-MS-2",)),
    "finish is fenced": Mutant(Build(store=AnybodyFinishes), FROZEN, ("I-MS-3",)),
    "release is fenced": Mutant(Build(store=AnybodyReleases), FROZEN, ("I-MS-3",)),
    "an empty batch gives the lock back": Mutant(
        Build(processor=KeepsEmpty), FROZEN, ("I-MS-4", "I-MS-5")
    ),
    "somebody looks again": Mutant(Build(processor=NeverLooksAgain), ROUGH, ("I-MS-5",)),
    "… after the window is closed": Mutant(Build(processor=ClosesLast), ROUGH, ("I-MS-5",)),
    "the window is closed": Mutant(Build(store=NeverCloses), ROUGH, ("I-MS-5",)),
    "the owner's trigger is kept": Mutant(
        Build(processor=AcksItsOwn), PROCESSORS_DIE, ("I-MS-4", "I-MS-5")
    ),
    "a window without a trigger is repaired": Mutant(
        Build(store=NoRepair), STAGERS_DIE, ("I-MS-5",)
    ),
    "somebody sweeps": Mutant(Build(sweeper=None), STORM, ("I-MS-1", "I-MS-5")),
    "the batch is fixed before it is asked about": Mutant(
        Build(processor=LooseBatches), ROUGH, ("MS-21", "I-MS-6")
    ),
    "whoever lost his trigger sends another": Mutant(
        Build(processor=LosesHisTrigger), FROZEN, ("I-MS-5",)
    ),
    "the sweeper parks what is his": Mutant(
        Build(sweeper=ParksUnfenced), LATE, ("I-MS-1", "I-MS-6", "MS-21")
    ),
    "a send in doubt may be out": Mutant(Build(processor=SendsAgain), ROUGH, ("I-MS-2",)),
    "the lock runs out": Mutant(
        Build(store=LocksForEver), PROCESSORS_DIE, ("I-MS-4", "I-MS-5")
    ),
    "an expired window counts as gone": Mutant(Build(store=ByPresence), STORM, ("I-MS-5",)),
}


@dataclass(frozen=True)
class RareMutant:
    """Caught by a schedule of this scene."""

    build: Build
    scene: str
    trouble: Callable[[], Trouble]
    preemptions: int
    limit: int
    breaks: str


RARE_MUTANTS = {
    "the lock is tried again when the window is closed": RareMutant(
        Build(processor=TriesOnce), "another message comes", Trouble, 2, 1_000, "I-MS-5"
    ),
    "a window is prolonged without the lock": RareMutant(
        Build(processor=ProlongsFirst),
        "the customer is still typing",
        partial(Trouble, 2, 1, 2.0),
        1,
        500,
        "I-MS-5",
    ),
}
