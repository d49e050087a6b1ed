"""The protocol with one element removed, by a subclass of a component or by a faulty store.

The simulation must detect each of these.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.chat.batching import BatchCollector
from holdfast.chat.delivery import ReplyDelivery
from holdfast.chat.errors import LockLost
from holdfast.chat.merging import merge_texts, sort_fragments
from holdfast.chat.messages import Trigger
from holdfast.chat.model import (
    ConversationKey,
    ConversationNotFound,
    Fragment,
    LockAcquired,
    LockHeld,
)
from holdfast.chat.outbox import SentPart, WritingReply
from holdfast.chat.processor import BatchProcessor
from holdfast.chat.replies import ProviderResolver
from holdfast.chat.sweeper import Sweeper
from holdfast.chat.turn_state import BatchedTurn, EmptyBatch, LockedTurn, StillTyping
from holdfast.errors import StoreUnavailable
from holdfast.worker.outcome import Done
from support.chat.simulation.fault_rates import (
    FROZEN,
    LATE,
    PROCESSORS_DIE,
    ROUGH,
    STAGERS_DIE,
    STORM,
    Weather,
)
from support.chat.simulation.faulty_stores import (
    ByPresence,
    Forgetful,
    LocksForEver,
    NeverCloses,
    NoOutbox,
    NoRepair,
    UnfencedFinish,
    UnfencedRelease,
)
from support.chat.simulation.single_faults import Trouble
from support.chat.simulation.world import Build

# -- processors that lack one element


class KeepsEmpty(BatchProcessor):
    """A processor that keeps the lock after an empty batch."""

    def _answer(self, locked: LockedTurn) -> Any:
        if isinstance(self._collector.collect(locked), EmptyBatch):
            self._close_window(locked.trigger)
            return Done()
        return super()._answer(locked)


class NeverChecksAgain(BatchProcessor):
    """A processor that does not check the staged rows after its turn."""

    def _check_again(self, locked: LockedTurn) -> None:
        pass


class ClosesLast(BatchProcessor):
    """A processor that closes the window after it checked the staged rows again."""

    def _answer(self, locked: LockedTurn) -> Any:
        match batch := self._collector.collect(locked):
            case StillTyping():
                return super()._answer(locked)
            case EmptyBatch():
                self._store.release(locked.grant, None)
            case BatchedTurn():
                self._run_turn(batch)
        self._check_again(locked)
        self._close_window(locked.trigger)
        return Done()


class AcksItsOwn(BatchProcessor):
    """A processor that acks the trigger of the lock's holder."""

    def _handle_busy(self, trigger: Trigger, owner_trigger: str, expires_at: float) -> Any:
        return Done()


class TriesOnce(BatchProcessor):
    """A processor that does not try the lock again after it closed the window."""

    def _acquire(self, trigger: Trigger) -> LockAcquired | LockHeld | ConversationNotFound:
        result = self._try_lock(trigger.key, trigger.id)
        if isinstance(result, LockHeld):
            self._close_window(trigger)
        return result


class ProlongsFirst(BatchProcessor):
    """A processor that sends the later trigger before it releases the lock.

    A fast consumer of that trigger finds the lock held.
    """

    def _answer(self, locked: LockedTurn) -> Any:
        match self._collector.collect(locked):
            case StillTyping(delay_seconds):
                self._prolong_window(locked.trigger, delay_seconds)
                self._store.release(locked.grant, None)
                return Done()
        return super()._answer(locked)


class AnyBatch(BatchCollector):
    """A collector whose retry includes messages that arrived meanwhile."""

    def _choose_batch(self, locked: LockedTurn, fragments: tuple[Fragment, ...]) -> BatchedTurn:
        if not isinstance(locked.conversation.outbox, WritingReply):
            return super()._choose_batch(locked, fragments)
        chosen = sort_fragments(fragments)
        earlier = WritingReply(tuple(fragment.message_sid for fragment in chosen))
        return BatchedTurn(locked, chosen, merge_texts(chosen), earlier)


class LooseBatches(BatchProcessor):
    """A processor whose batches are not fixed."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._collector = AnyBatch(self._store, self._policy, self._clock, self._park)


class AssumesNotSent(ReplyDelivery):
    """A delivery that treats every unclear part as not sent."""

    def _resolve_interrupted(self, *_: Any) -> SentPart | None:
        return None

    def _resolve_unclear(self, *_: Any) -> SentPart | None:
        return None


class AssumesOver(ReplyDelivery):
    """A delivery that treats an interrupted call like one that is over."""

    def _resolve_interrupted(self, following: Any, since: float) -> SentPart | None:
        return self._resolve_unclear(following, since, 1)


class LooksUpOnce(ReplyDelivery):
    """A delivery that believes the first look-up."""

    def _look_up(self, following: Any, since: float) -> SentPart | None:
        self._wait(following.locked, 1.0)
        return following.find(since)


class Delivers(BatchProcessor):
    """A processor with another delivery."""

    delivery: type[ReplyDelivery]

    def __init__(self, store: Any, providers: Any, *args: Any, **how: Any) -> None:
        super().__init__(store, providers, *args, **how)
        self._delivery = self.delivery(
            store, ProviderResolver(providers), self._policy, self._clock, self._events
        )


class SendsAgain(Delivers):
    """A processor that sends every unclear part again."""

    delivery = AssumesNotSent


class SendsInterruptedAgain(Delivers):
    """A processor that sends an interrupted part again if it is missing."""

    delivery = AssumesOver


class Believes(Delivers):
    """A processor that believes the first look-up."""

    delivery = LooksUpOnce


class ReliesOnItsTrigger(BatchProcessor):
    """A processor that sends no new trigger, even if another worker settled its own."""

    def _give_back(self, locked: LockedTurn, status: str | None) -> None:
        with suppress(LockLost, StoreUnavailable):
            self._store.release(locked.grant, status)


class ParksUnfenced(Sweeper):
    """A sweeper that takes the lock, but parks without its grant."""

    def _park_all(self, key: ConversationKey) -> int:
        result = self._try_lock(key, "sweeper")
        if not isinstance(result, LockAcquired):
            return 0
        staged = self._store.staged(key.conversation_id)
        if staged:
            self._park(key, staged, "it is late")
        self._store.release(result.grant, "parked")
        return len(staged)


# -- all of them


@dataclass(frozen=True)
class Mutant:
    """A protocol without one element, and how it is detected."""

    build: Build
    weather: Weather  # in which it is detected
    breaks: tuple[str, ...]  # any of these promises


MUTANTS = {
    "processed messages are filtered": Mutant(Build(store=Forgetful), FROZEN, ("I-MS-2",)),
    "the outbox is read": Mutant(Build(store=NoOutbox), ROUGH, ("I-MS-2",)),
    "finish is fenced": Mutant(Build(store=UnfencedFinish), FROZEN, ("I-MS-3",)),
    "release is fenced": Mutant(Build(store=UnfencedRelease), FROZEN, ("I-MS-3",)),
    "an empty batch gives the lock back": Mutant(
        Build(processor=KeepsEmpty), FROZEN, ("I-MS-4", "I-MS-5")
    ),
    "the staged rows are checked again": Mutant(
        Build(processor=NeverChecksAgain), ROUGH, ("I-MS-5",)
    ),
    "… after the window is closed": Mutant(Build(processor=ClosesLast), ROUGH, ("I-MS-5",)),
    "the window is closed": Mutant(Build(store=NeverCloses), ROUGH, ("I-MS-5",)),
    "the owner's trigger is kept": Mutant(
        Build(processor=AcksItsOwn), PROCESSORS_DIE, ("I-MS-4", "I-MS-5")
    ),
    "a window without a trigger is repaired": Mutant(
        Build(store=NoRepair), STAGERS_DIE, ("I-MS-5",)
    ),
    "a sweeper runs": Mutant(Build(sweeper=None), STORM, ("I-MS-1", "I-MS-5")),
    "the batch is fixed before the writer is asked": Mutant(
        Build(processor=LooseBatches), ROUGH, ("MS-21", "I-MS-6")
    ),
    "a worker that lost its trigger sends another": Mutant(
        Build(processor=ReliesOnItsTrigger), FROZEN, ("I-MS-5",)
    ),
    "the sweeper parks under its lock": Mutant(
        Build(sweeper=ParksUnfenced), LATE, ("I-MS-1", "I-MS-6", "MS-21")
    ),
    "an unclear send may have been sent": Mutant(
        Build(processor=SendsAgain), ROUGH, ("I-MS-2",)
    ),
    "an interrupted send may still be sent": Mutant(
        Build(processor=SendsInterruptedAgain), FROZEN, ("I-MS-2",)
    ),
    "an unclear send is looked up several times": Mutant(
        Build(processor=Believes), ROUGH, ("I-MS-2",)
    ),
    "the lock expires": Mutant(Build(store=LocksForEver), PROCESSORS_DIE, ("I-MS-4", "I-MS-5")),
    "an expired window counts as gone": Mutant(Build(store=ByPresence), STORM, ("I-MS-5",)),
}


@dataclass(frozen=True)
class RareMutant:
    """A mutant that a schedule of this scene detects."""

    build: Build
    scene: str
    trouble: Callable[[], Trouble]
    preemptions: int
    limit: int
    breaks: str


RARE_MUTANTS = {
    "the lock is tried again after the window is closed": RareMutant(
        Build(processor=TriesOnce), "another message arrives", Trouble, 2, 1_000, "I-MS-5"
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
