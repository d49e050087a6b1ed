"""Simulations of conversations under every kind of fault, decided by seeds.

3 conversations, 2 stagers, 3 processors, a sweeper; the real Stager, BatchProcessor and
Sweeper. At every call of a port another actor may continue, time may pass, a process may die,
or a call may be lost. After each call the promises are checked. When the faults end, all work
must end, too. HOLDFAST_CHAT_SEEDS is the number of simulations in each weather.

R002: I-MS-1…7; MS-01…09, 13, 14, 20, 21. T5.
"""

import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from random import Random
from typing import Any, get_args

import pytest

from holdfast.chat.batching import (
    BatchedTurn,
    LockedTurn,
    merge_texts,
)
from holdfast.chat.errors import LockLost
from holdfast.chat.messages import Trigger
from holdfast.chat.model import (
    ConversationKey,
    ConversationNotFound,
    ConversationPolicy,
    Doubt,
    Fragment,
    LockAcquired,
    LockGrant,
    LockHeld,
    Window,
)
from holdfast.chat.outbox import WritingReply
from holdfast.chat.processor import BatchProcessor
from holdfast.chat.staging import Sweeper
from holdfast.errors import QueueUnavailable, StoreUnavailable
from holdfast.worker.outcome import Done
from support.chat.application import Build
from support.chat.simulation import (
    KEYS,
    LOCK_SECONDS,
    Died,
    Fate,
    Violation,
    Weather,
    World,
    make_numbered,
)
from support.interleaving import Wandering

FROZEN = Weather(leap=0.1, long_leap=0.3, frozen=0.5, twice=0.05, hook_twice=0.3)
ROUGH = Weather(drop=0.03, lose_reply=0.03, writer_fails=0.15, sender_fails=0.2, stopping=0.02)
PROCESSORS_DIE = replace(ROUGH, kill_processor=0.03)
STAGERS_DIE = Weather(long_leap=0.1, kill_stager=0.12)
STORM = replace(
    ROUGH,
    long_leap=0.15,
    frozen=0.4,
    twice=0.05,
    kill_processor=0.015,
    kill_stager=0.06,
    kill_sweeper=0.05,
    lose_trigger=0.03,
    max_attempts=5,
    sweeper=True,
    hooks_return=False,
    strict_receipts=False,
    strangers=True,
)
LATE = replace(STORM, park_after_seconds=100.0, long_leap=0.6, max_attempts=50, strangers=False)
WEATHERS = {
    "processes freeze": FROZEN,
    "calls are lost": ROUGH,
    "processors die": PROCESSORS_DIE,
    "stagers die": STAGERS_DIE,
    "storm": STORM,
    "parked when late": LATE,
}
# triggers are delivered to several workers at once
SHARED = replace(FROZEN, twice=0.4, hook_twice=0.0, frozen=0.7)
SEEDS = int(os.environ.get("HOLDFAST_CHAT_SEEDS", "25"))
SEEDS_FOR_A_MUTANT = 80
DOUBTS: tuple[Doubt, ...] = get_args(Doubt)


# -- one complete simulation, and the activities of its processes


def simulate(weather: Weather, seed: int, build: Build | None = None) -> World:
    """Run a simulation until nothing is left to do, and then repeat one old message.

    Raises Violation, with the seed that reproduces it.
    """
    fate, can_tell = Fate(seed, weather), seed // 3 % 2 == 0
    policy = choose_policy(weather, DOUBTS[seed % 3], fate.random)
    world = World(fate, Wandering(seed), policy, build=build, can_tell=can_tell)
    try:
        run_world(world, Random(seed))
    except Violation as violation:
        violation.add_note(f"seed {seed}, {weather}")
        raise
    return world


def run_world(world: World, random: Random) -> None:
    """Stage and answer messages in bad weather, then in calm, then repeat a message."""
    # A single conversation gets more messages.
    keys = random.choice((KEYS, KEYS, KEYS[:1], KEYS[2:]))
    numbers = range(random.randint(5, 15))
    world.hooks = [make_numbered(random.choice(keys), number) for number in numbers]
    again = random.choice(world.hooks)
    world.customers = 2
    lives = [partial(run_stager, world)] * 2 + [partial(run_consumer, world, 8)] * 3
    if world.weather.sweeper:
        lives.append(partial(run_sweeper, world, 6))
    world.baton.run(lives)
    world.finish()
    world.hooks.append(again)  # a webhook is repeated, long after its message was answered
    world.finish()


def choose_policy(weather: Weather, in_doubt: Doubt, random: Random) -> ConversationPolicy:
    """Choose short or long windows, because each kind has races of its own."""
    return ConversationPolicy(
        window_seconds=random.choice((0.0, 0.5, 4.0)),
        quiet_seconds=random.choice((0.0, 1.0, 3.0)),
        max_wait_seconds=8.0,
        lock_seconds=LOCK_SECONDS,
        grace_seconds=20.0,
        sender_seconds=5.0,
        in_doubt=in_doubt,
        park_after_seconds=weather.park_after_seconds,
        most_fragments=3,
    )


def run_stager(world: World) -> None:
    """Stage messages until there are no more. After a crash another process continues."""
    weather, fate = world.weather, world.fate
    process = world.process(weather.kill_stager)
    while world.hooks and not world.over:
        if fate.strikes(0.3):  # customers do not type faster
            world.pass_time(fate.random.choice((0.2, 1.0, 3.0)))
        message = world.hooks.pop(fate.random.randrange(len(world.hooks)))
        try:
            process.chat.stager.stage(message)
            world.known.add(message.message_sid)
            if fate.strikes(weather.hook_twice):
                world.hooks.append(message)
        except (StoreUnavailable, QueueUnavailable):
            world.hooks.append(message)
        except Died:
            if weather.hooks_return or fate.strikes(0.5):
                world.hooks.append(message)
            process = world.process(weather.kill_stager)
    world.customers -= 1


def run_consumer(world: World, triggers: int) -> None:
    """Handle this many triggers, or until no more will arrive."""
    process = world.process(world.weather.kill_processor)
    for _ in range(triggers):
        with suppress(StoreUnavailable, QueueUnavailable):
            try:
                while not process.consume(stopping=world.fate.strikes(world.weather.stopping)):
                    if not wait_for_work(world):
                        return
            except Died:
                if world.over:
                    return
                process = world.process(world.weather.kill_processor)


def wait_for_work(world: World) -> bool:
    """Wait for work, or return False if none will arrive."""
    if world.customers:
        world.baton.wait_until(lambda: not world.customers or world.box.seconds_to_next == 0)
        return True
    seconds = world.box.seconds_to_next
    if seconds is not None:
        world.pass_time(min(30.0, max(0.1, seconds)))
    return seconds is not None


def run_sweeper(world: World, times: int) -> None:
    """Sweep this many times, with a pause after each."""
    process = world.process(world.weather.kill_sweeper)
    for _ in range(times):
        with suppress(StoreUnavailable, QueueUnavailable):
            try:
                if process.sweeper:
                    process.sweeper.sweep()
                world.pass_time(10.0)
            except Died:
                process = world.process(world.weather.kill_sweeper)


# -- the tests


@pytest.mark.parametrize("name", WEATHERS)
def test_each_message_is_answered_once_or_parked_whatever_the_weather(name: str) -> None:
    turns = sum(simulate(WEATHERS[name], seed).witness.turns for seed in range(SEEDS))
    assert turns > SEEDS  # otherwise the test would prove nothing


def test_a_seed_tells_the_same_story_every_time() -> None:
    first, second = simulate(STORM, 7), simulate(STORM, 7)
    assert len(first.story) > 50
    assert first.story == second.story


# -- the protocol with one element removed, by a faulty store or by a subclass


class FaultyStore:
    """The real store, except for what a subclass overrides."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._last: dict[ConversationKey, LockGrant] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def acquire(
        self, key: ConversationKey, **how: Any
    ) -> LockAcquired | LockHeld | ConversationNotFound:
        result: LockAcquired | LockHeld | ConversationNotFound = self._store.acquire(key, **how)
        if isinstance(result, LockAcquired):
            self._last[key] = result.grant
        return result


class Forgetful(FaultyStore):
    """A store that remembers no processed messages."""

    def processed(self, key: ConversationKey, sids: Collection[str]) -> set[str]:
        return set()


class NoOutbox(FaultyStore):
    """A store that hides the outbox of the previous owner."""

    def acquire(
        self, key: ConversationKey, **how: Any
    ) -> LockAcquired | LockHeld | ConversationNotFound:
        result = super().acquire(key, **how)
        if isinstance(result, LockAcquired):
            return replace(result, conversation=replace(result.conversation, outbox=None))
        return result


class UnfencedFinish(FaultyStore):
    """A store that checks the status of the lock, but not its owner."""

    def finish(self, grant: LockGrant, *args: Any, **how: Any) -> None:
        self._store.finish(self._last[grant.key], *args, **how)


class UnfencedRelease(FaultyStore):
    """A store that accepts a release from any grant."""

    def release(self, grant: LockGrant, status: str) -> None:
        self._store.release(self._last[grant.key], status)


class LocksForEver(FaultyStore):
    """A store whose locks never expire."""

    def acquire(
        self, key: ConversationKey, **how: Any
    ) -> LockAcquired | LockHeld | ConversationNotFound:
        return super().acquire(key, **(how | {"expires_at": how["now"] + 1e9}))

    def renew(self, grant: LockGrant, *, now: float, expires_at: float) -> bool:
        renewed: bool = self._store.renew(grant, now=now, expires_at=now + 1e9)
        return renewed


class ByPresence(FaultyStore):
    """A store where a window's row blocks others even after it expired."""

    def open_window(self, window: Window, *, now: float, untriggered_before: float) -> bool:
        opened: bool = self._store.open_window(
            window, now=-inf, untriggered_before=untriggered_before
        )
        return opened


class NoRepair(FaultyStore):
    """A store where a window without a trigger blocks all others."""

    def open_window(self, window: Window, *, now: float, untriggered_before: float) -> bool:
        unowned = replace(window, owner_sid=window.trigger_id)
        opened: bool = self._store.open_window(unowned, now=now, untriggered_before=-inf)
        return opened


class NeverCloses(FaultyStore):
    """A store that does not close windows."""

    def close_window(self, conversation_id: str, trigger_id: str) -> None:
        pass


# -- processors that lack one element


class KeepsEmpty(BatchProcessor):
    """A processor that keeps the lock after an empty batch."""

    def _answer(self, locked: LockedTurn) -> Any:
        if not self._collect(locked):
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
        if fragments := self._collect(locked):
            batch = self._choose_batch(locked, fragments)
            if self._find_typing_seconds(batch) > 0:
                return super()._answer(locked)
            self._run_turn(batch)
        else:
            self._store.release(locked.grant, None)
        self._check_again(locked)
        self._close_window(locked.trigger)
        return Done()


class AcksItsOwn(BatchProcessor):
    """A processor that acks the trigger of the lock's holder."""

    def _handle_busy(self, trigger: Trigger, owner_trigger: str, expires_at: float) -> Any:
        return Done()


class LooseBatches(BatchProcessor):
    """A processor whose retry includes messages that arrived meanwhile."""

    def _choose_batch(self, locked: LockedTurn, fragments: Sequence[Fragment]) -> BatchedTurn:
        if not isinstance(locked.conversation.outbox, WritingReply):
            return super()._choose_batch(locked, fragments)
        earlier = WritingReply(tuple(fragment.message_sid for fragment in fragments))
        return BatchedTurn(locked, tuple(fragments), merge_texts(fragments), earlier)


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
        Build(processor=ReliesOnItsTrigger), SHARED, ("I-MS-5",)
    ),
    "the sweeper parks under its lock": Mutant(
        Build(sweeper=ParksUnfenced), LATE, ("I-MS-1", "I-MS-6", "MS-21")
    ),
    "the lock expires": Mutant(Build(store=LocksForEver), PROCESSORS_DIE, ("I-MS-4", "I-MS-5")),
    "an expired window counts as gone": Mutant(Build(store=ByPresence), STORM, ("I-MS-5",)),
}


@pytest.mark.parametrize("element", MUTANTS)
def test_each_element_of_the_protocol_is_needed(element: str) -> None:
    mutant = MUTANTS[element]
    for seed in range(SEEDS_FOR_A_MUTANT):
        if (broken := find_violation(mutant, seed)).startswith(mutant.breaks):
            print(f"seed {seed}: {broken}")
            return
    pytest.fail(f"not detected in {SEEDS_FOR_A_MUTANT} simulations")


def find_violation(mutant: Mutant, seed: int) -> str:
    """Return the violation of a simulation, or ''."""
    try:
        simulate(mutant.weather, seed, mutant.build)
    except Violation as violation:
        return str(violation)
    return ""
