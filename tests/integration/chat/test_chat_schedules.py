"""Every schedule of few actors with few preemptions, and one fault at every call.

The actors are a stager and two processors. At each call of a port another actor may continue,
and one of them dies there, or is frozen for a moment or for longer than every lease. There is
no sweeper, so all work must end without it.

R002: I-MS-1…6; MS-01…08, 14, 20. T1.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import pytest

from holdfast.chat.batching import LockedTurn
from holdfast.chat.errors import SendUnclear
from holdfast.chat.messages import Trigger
from holdfast.chat.model import (
    ConversationNotFound,
    ConversationPolicy,
    Doubt,
    LockAcquired,
    LockHeld,
)
from holdfast.chat.outbox import SentPart
from holdfast.chat.processor import BatchProcessor
from holdfast.chat.replies import ProviderResolver, ReplyPipeline
from holdfast.worker.outcome import Done
from support.chat.application import Build
from support.chat.simulation import (
    KEYS,
    Died,
    Fate,
    Process,
    Violation,
    Weather,
    World,
    make_numbered,
)
from support.interleaving import Policy, Scripted, explore

KEY = KEYS[0]
LONG_SECONDS = 100.0  # longer than the lock and the trigger's lease


@dataclass(frozen=True)
class Trouble:
    """A fault before the k-th call of a process.

    The process is frozen for `frozen_seconds`, or dies if that is 0.
    """

    process: int = -1
    call: int = 0
    frozen_seconds: float = 0.0

    def __call__(self, process: Process) -> None:
        if (process.number, process.calls) != (self.process, self.call):
            return
        if not self.frozen_seconds:
            process.die()
        process.world.pass_time(self.frozen_seconds, frozen=process)


NO_TROUBLE = Trouble()


@dataclass(frozen=True)
class Scene:
    """The actors and messages of a schedule.

    The messages `before` were staged, and their window is over. One stager stages `numbers`
    in this order, while the processors handle the triggers.
    """

    before: Sequence[int] = (0,)
    numbers: Sequence[int] = (1,)
    processors: int = 2
    triggers: int = 2  # for each processor
    twice: bool = False  # every trigger is delivered twice
    window_seconds: float = 0.0
    quiet_seconds: float = 0.0
    in_doubt: Doubt = "at_most_once"
    can_tell: bool = True
    pages: int = 1  # of each reply
    unclear: str = ""  # the sender's first answer is lost; "sent" or "not sent"

    def play(
        self, schedule: Policy, trouble: Trouble = NO_TROUBLE, build: Build | None = None
    ) -> World:
        """Run the scene until nothing is left to do, without a sweeper. Raises Violation."""
        world = World(
            Fate(0, Weather(leap=0.0)),
            schedule,
            ConversationPolicy(
                window_seconds=self.window_seconds,
                quiet_seconds=self.quiet_seconds,
                max_wait_seconds=8.0,
                lock_seconds=40.0,
                grace_seconds=20.0,
                in_doubt=self.in_doubt,
            ),
            build=build,
            can_tell=self.can_tell,
        )
        world.pages, world.sender.lag_seconds = self.pages, lambda: 29.0
        if self.unclear:
            sender = world.sender
            errors = sender.after_sending if self.unclear == "sent" else sender.troubles
            errors.append(SendUnclear("no response"))
        if self.twice:
            world.box.copies = 2
        stage = Stage(world)
        lives = [partial(stage.run_stager, self.numbers)]
        lives += [partial(stage.run_consumer, self.triggers)] * self.processors
        actors = [partial(stage.run_until_death, life, world.process()) for life in lives]
        stage.run_stager(self.before, world.process())
        world.pass_time(self.window_seconds)
        stage.busy = len(lives)
        world.trouble = trouble
        world.baton.run(actors)
        world.trouble = lambda process: None
        world.finish()
        return world


class Stage:
    """The actors, which wait for each other instead of letting time pass for new work."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.busy = 0

    def run_until_death(self, life: Callable[[Process], None], process: Process) -> None:
        with suppress(Died):
            life(process)
        self._mark_idle()

    def run_stager(self, numbers: Sequence[int], process: Process) -> None:
        for number in numbers:
            message = make_numbered(KEY, number)
            try:
                process.chat.stager.stage(message)
                self._world.known.add(message.message_sid)
            except Died:  # its webhook is repeated
                self._world.hooks.append(message)

    def run_consumer(self, triggers: int, process: Process) -> None:
        for _ in range(triggers):
            while not process.consume():
                self._mark_idle()
                self._world.baton.wait_until(lambda: not self.busy or self._has_visible_trigger)
                self.busy += 1
                if not self._has_visible_trigger:
                    return

    def _mark_idle(self) -> None:
        self.busy -= 1
        self._world.baton.wake()

    @property
    def _has_visible_trigger(self) -> bool:
        return self._world.box.seconds_to_next == 0


def play_every_schedule(scene: Scene, *, limit: int, limit_in_trouble: int) -> int:
    """Play schedules with two preemptions, and with one for each fault; return their number.

    There are three faults before each call that a process makes without preemptions: it dies,
    is frozen for a moment, or is frozen for longer than every lease.
    """
    actors = scene.play(Scripted([])).processes[: scene.processors + 1]
    played = explore(lambda policy: scene.play(policy).baton, preemptions=2, limit=limit)
    for process, seconds in product(actors, (0.0, 2.0, LONG_SECONDS)):
        for call in range(1, process.calls + 1):
            play = partial(scene.play, trouble=Trouble(process.number, call, seconds))
            played += explore(
                lambda policy, play=play: play(policy).baton,
                preemptions=1,
                limit=limit_in_trouble,
            )
    return played


SCENES = {
    "another message arrives": Scene(),
    "two other messages arrive": Scene(numbers=(1, 2)),
    "every trigger is delivered twice": Scene(numbers=(), twice=True),
    "the webhook is repeated": Scene(numbers=(0, 1)),
    "the customer is still typing": Scene(window_seconds=0.5, quiet_seconds=1.0),
    "an unclear part is sent again": Scene(in_doubt="at_least_once"),
    "the sender cannot be queried": Scene(numbers=(), can_tell=False),
    "the reply has two parts": Scene(numbers=(), pages=2),
    "the sender's answer is lost": Scene(numbers=(), in_doubt="if_missing", unclear="sent"),
    "the sender fails without an answer": Scene(
        numbers=(), in_doubt="if_missing", unclear="not sent"
    ),
}


# -- the protocol with one element removed


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
        if fragments := self._collect(locked):
            batch = self._choose_batch(locked, fragments)
            if (wait := self._find_typing_seconds(batch)) > 0:
                self._prolong_window(locked.trigger, wait)
                self._store.release(locked.grant, None)
                return Done()
        return super()._answer(locked)


class AssumesNotSent(ReplyPipeline):
    """A pipeline that treats every unclear part as not sent."""

    def _resolve(self, *_: Any, is_over: bool) -> SentPart | None:
        return None


class AssumesOver(ReplyPipeline):
    """A pipeline that treats an interrupted call like one that is over."""

    def _resolve(self, *args: Any, is_over: bool) -> SentPart | None:
        return super()._resolve(*args, is_over=True)


class LooksUpOnce(ReplyPipeline):
    """A pipeline that believes the first look-up."""

    def _look_up(self, following: Any, since: float) -> SentPart | None:
        self._wait(following.locked, 1.0)
        return self._find(following, since)


def make_processor(pipeline: type[ReplyPipeline]) -> type[BatchProcessor]:
    """Return a processor with this pipeline."""

    class Changed(BatchProcessor):
        def __init__(self, store: Any, providers: Any, *args: Any, **how: Any) -> None:
            super().__init__(store, providers, *args, **how)
            self._replies = pipeline(
                store, ProviderResolver(providers), self._policy, self._clock, self._events
            )

    return Changed


@dataclass(frozen=True)
class Mutant:
    """A protocol without one element, and how a schedule of the scene detects it."""

    processor: type[BatchProcessor]
    scene: Scene
    breaks: str
    trouble: Trouble = NO_TROUBLE
    preemptions: int = 0
    limit: int = 1


# With one trigger for each processor there are fewer schedules to search.
ANOTHER = replace(SCENES["another message arrives"], triggers=1)
TYPING = replace(SCENES["the customer is still typing"], triggers=1)
LOST_ANSWER = SCENES["the sender's answer is lost"]
IF_MISSING = Scene(numbers=(), in_doubt="if_missing")
BEFORE_SENDING = Trouble(1, 11, LONG_SECONDS)
MUTANTS = {
    "the lock is tried again after the window is closed": Mutant(
        TriesOnce, ANOTHER, "I-MS-5", preemptions=2, limit=1_000
    ),
    "a window is prolonged without the lock": Mutant(
        ProlongsFirst, TYPING, "I-MS-5", Trouble(2, 1, 2.0), preemptions=1, limit=500
    ),
    "an unclear send may have been sent": Mutant(
        make_processor(AssumesNotSent), LOST_ANSWER, "I-MS-2"
    ),
    "an unclear send is looked up several times": Mutant(
        make_processor(LooksUpOnce), LOST_ANSWER, "I-MS-2"
    ),
    "an interrupted send may still be sent": Mutant(
        make_processor(AssumesOver),
        IF_MISSING,
        "I-MS-2",
        BEFORE_SENDING,
        preemptions=1,
        limit=200,
    ),
}


@pytest.mark.parametrize("name", SCENES)
def test_no_schedule_with_a_crash_or_a_freeze_breaks_a_promise(name: str) -> None:
    assert play_every_schedule(SCENES[name], limit=60, limit_in_trouble=2) > 100


@pytest.mark.parametrize("element", MUTANTS)
def test_each_element_of_the_protocol_is_needed(element: str) -> None:
    mutant = MUTANTS[element]
    build = Build(processor=mutant.processor)
    with pytest.raises(Violation, match=mutant.breaks) as caught:
        explore(
            lambda schedule: mutant.scene.play(schedule, mutant.trouble, build).baton,
            preemptions=mutant.preemptions,
            limit=mutant.limit,
        )
    print(caught.value.__notes__)
