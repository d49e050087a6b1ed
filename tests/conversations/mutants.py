"""The protocol with one element removed, each from our own parts by a subclass or a store
that lies to its callers. None of these may survive the simulation.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

from conversations.troubles import Trouble
from conversations.weather import (
    FROZEN,
    PROCESSORS_DIE,
    ROUGH,
    STAGERS_DIE,
    STORM,
    Weather,
)
from conversations.world import Build
from holdfast.conversations.delivery import Delivery
from holdfast.conversations.gathering import Gathering
from holdfast.conversations.merging import in_order, merged
from holdfast.conversations.messages import Trigger
from holdfast.conversations.model import (
    Acquired,
    ConversationKey,
    Fragment,
    Grant,
    Held,
    Unknown,
    Window,
)
from holdfast.conversations.outbox import SentPart, Writing
from holdfast.conversations.processor import BatchProcessor
from holdfast.conversations.steps import Batched, Empty, Locked, StillTyping
from holdfast.conversations.writing import Equipment
from holdfast.core.outcome import Done

# -- stores that lie


class Lying:
    """The store, but for what a subclass says otherwise."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._last: dict[ConversationKey, Grant] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def acquire(self, key: ConversationKey, **how: Any) -> Acquired | Held | Unknown:
        answer: Acquired | Held | Unknown = self._store.acquire(key, **how)
        if isinstance(answer, Acquired):
            self._last[key] = answer.grant
        return answer


class Forgetful(Lying):
    """Nothing was ever processed."""

    def processed(self, key: ConversationKey, sids: Collection[str]) -> set[str]:
        return set()


class NoOutbox(Lying):
    """Nobody learns how far the last owner came."""

    def acquire(self, key: ConversationKey, **how: Any) -> Acquired | Held | Unknown:
        answer = super().acquire(key, **how)
        if isinstance(answer, Acquired):
            return replace(answer, conversation=replace(answer.conversation, outbox=None))
        return answer


class AnybodyFinishes(Lying):
    """As the seed has it: the status is looked at, not whose it is."""

    def finish(self, grant: Grant, *args: Any, **how: Any) -> None:
        self._store.finish(self._last[grant.key], *args, **how)


class AnybodyReleases(Lying):
    def release(self, grant: Grant, status: str) -> None:
        self._store.release(self._last[grant.key], status)


class LocksForEver(Lying):
    def acquire(self, key: ConversationKey, **how: Any) -> Acquired | Held | Unknown:
        return super().acquire(key, **(how | {"expires_at": how["now"] + 1e9}))

    def renew(self, grant: Grant, *, now: float, expires_at: float) -> bool:
        renewed: bool = self._store.renew(grant, now=now, expires_at=now + 1e9)
        return renewed


class ByPresence(Lying):
    """A window's row is in the way as long as it is there, expired or not."""

    def open_window(self, window: Window, *, now: float, untriggered_before: float) -> bool:
        opened: bool = self._store.open_window(
            window, now=-inf, untriggered_before=untriggered_before
        )
        return opened


class NoRepair(Lying):
    """A window that never got its trigger is in the way of everybody."""

    def open_window(self, window: Window, *, now: float, untriggered_before: float) -> bool:
        nobody = replace(window, owner_sid=window.trigger_id)
        opened: bool = self._store.open_window(nobody, now=now, untriggered_before=-inf)
        return opened


class NeverCloses(Lying):
    def close_window(self, conversation_id: str, trigger_id: str) -> None:
        pass


# -- processors without a part


class KeepsEmpty(BatchProcessor):
    """An empty batch is over at once, as in the seed: `continue`."""

    def _answered(self, locked: Locked) -> Any:
        if isinstance(self._gathering.gather(locked), Empty):
            self._windows.close(locked.trigger)
            return Done()
        return super()._answered(locked)


class NeverLooksAgain(BatchProcessor):
    def _look_again(self, locked: Locked) -> None:
        pass


class ClosesLast(BatchProcessor):
    def _answered(self, locked: Locked) -> Any:
        match batch := self._gathering.gather(locked):
            case StillTyping():
                return super()._answered(locked)
            case Empty():
                self._store.release(locked.grant, locked.conversation.previous_status)
            case Batched():
                self._turn(batch)
        self._look_again(locked)
        self._windows.close(locked.trigger)
        return Done()


class AcksItsOwn(BatchProcessor):
    def _busy(self, trigger: Trigger, owner_trigger: str, expires_at: float) -> Any:
        return Done()


class TriesOnce(BatchProcessor):
    def _acquire(self, trigger: Trigger) -> Acquired | Held | Unknown:
        answer = self._try(trigger)
        if isinstance(answer, Held):
            self._windows.close(trigger)
        return answer


class ProlongsFirst(BatchProcessor):
    """The later trigger is sent under the lock: whoever is quick finds it taken."""

    def _answered(self, locked: Locked) -> Any:
        match self._gathering.gather(locked):
            case StillTyping(delay_seconds):
                self._windows.prolong(locked.trigger, delay_seconds)
                self._store.release(locked.grant, locked.conversation.previous_status)
                return Done()
        return super()._answered(locked)


class AnyBatch(Gathering):
    """A retry takes in what came meanwhile."""

    def _batch(self, locked: Locked, fragments: tuple[Fragment, ...]) -> Batched:
        if not isinstance(locked.conversation.outbox, Writing):
            return super()._batch(locked, fragments)
        chosen = in_order(fragments)
        found = Writing(tuple(one.message_sid for one in chosen))
        return Batched(locked, chosen, merged(chosen), found)


class LooseBatches(BatchProcessor):
    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._gathering = AnyBatch(self._store, self._terms, self._clock, self._events)


class Doubtless(Delivery):
    def _resolved(self, *_: Any) -> SentPart | None:
        return None


class SendsAgain(BatchProcessor):
    def __init__(self, store: Any, providers: Any, *args: Any, **how: Any) -> None:
        super().__init__(store, providers, *args, **how)
        self._delivery = Doubtless(
            store, Equipment(providers), self._terms, self._clock, self._events
        )


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
