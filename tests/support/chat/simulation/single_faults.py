"""One fault at one call, for schedules that are tried systematically."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from holdfast.chat.policy import ConversationPolicy, Doubt
from support.chat.simulation.fault_rates import Died, Weather
from support.chat.simulation.providers import Finder
from support.chat.simulation.runs import finish_quietly, make_inbound
from support.chat.simulation.world import KEYS, Build, Process, World
from support.interleaving import Baton, Policy, Scripted, explore

KEY = KEYS[0]
LONG_SECONDS = 100.0  # longer than the lock and the trigger's lease


@dataclass
class Trouble:
    """A fault before the k-th call of a process.

    The process is frozen for `frozen_seconds`, or dies if that is 0.
    """

    process: int = -1
    call: int = 0
    frozen_seconds: float = 0.0
    struck: bool = False
    _calls: Counter[int] = field(default_factory=Counter)

    def __call__(self, process: Process) -> None:
        self._calls[process.number] += 1
        if (process.number, self._calls[process.number]) != (self.process, self.call):
            return
        self.struck = True
        if not self.frozen_seconds:
            process.die()
        process.world.pass_time(self.frozen_seconds, frozen=process)


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
    finder: Finder = "finds"
    words: int = 2  # of each reply; 500 need two parts
    unclear: Sequence[bool] = ()  # the first answers of the sender are lost; True: it has sent

    @property
    def conversation_policy(self) -> ConversationPolicy:
        """Return the policy of the conversation."""
        return ConversationPolicy(
            window_seconds=self.window_seconds,
            quiet_seconds=self.quiet_seconds,
            max_wait_seconds=8.0,
            lock_seconds=40.0,
            grace_seconds=20.0,
            in_doubt=self.in_doubt,
        )

    def play(self, policy: Policy, trouble: Trouble, build: Build) -> Baton:
        """Run the scene until nothing is left to do, without a sweeper. Raises Violation."""
        world = World(
            Weather(leap=0.0),
            policy,
            build=build,
            finder=self.finder,
            conversation_policy=self.conversation_policy,
        )
        world.assistant.words, world.carrier.unclear = self.words, list(self.unclear)
        if self.twice:
            world.box.copies = 2
        stage = Stage(world)
        stage.run_stager(self.before, world.process(0.0))
        world.pass_time(self.window_seconds)
        lives = [partial(stage.run_stager, self.numbers)]
        lives += [partial(stage.run_consumer, self.triggers)] * self.processors
        stage.busy = len(lives)
        world.trouble = trouble
        world.storm(
            [partial(stage.run_until_death, number, life) for number, life in enumerate(lives)]
        )
        world.trouble = lambda process: None
        finish_quietly(world)
        return world.baton


class Stage:
    """The actors, which wait for each other instead of letting time pass for new work."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._processes = [world.process(0.0) for _ in range(4)]
        self.busy = 0

    def run_until_death(self, number: int, life: Callable[[Process], None]) -> None:
        with suppress(Died):
            life(self._processes[number])
        self._mark_idle()

    def run_stager(self, numbers: Sequence[int], process: Process) -> None:
        stager = process.stager()
        for number in numbers:
            message = make_inbound(KEY, number)
            try:
                stager.stage(message)
                self._world.known.add(message.message_sid)
            except Died:  # its webhook is repeated
                self._world.hooks.append(message)

    def run_consumer(self, triggers: int, process: Process) -> None:
        consumer = process.consumer()
        for _ in range(triggers):
            while not consumer.consume(stopping=False):
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


def list_troubles(scene: Scene) -> Iterator[partial[Trouble]]:
    """Yield no fault, then for each call of each process three faults before that call.

    The process dies, is frozen for a moment, or is frozen for longer than every lease.
    """
    yield partial(Trouble)
    for process in range(scene.processors + 1):
        for seconds in (0.0, 2.0, LONG_SECONDS):
            for call in count(1):
                trouble = partial(Trouble, process, call, seconds)
                if not _is_reached(scene, trouble()):
                    break
                yield trouble


def _is_reached(scene: Scene, trouble: Trouble) -> bool:
    scene.play(Scripted([]), trouble, Build())
    return trouble.struck


def play_every_schedule(
    scene: Scene, *, limit: int, limit_in_trouble: int, build: Build | None = None
) -> int:
    """Play schedules with two preemptions, or one with a fault; return their number."""
    played = 0
    for trouble in list_troubles(scene):
        calm = not trouble.args
        played += explore(
            lambda policy, trouble=trouble: scene.play(policy, trouble(), build or Build()),
            preemptions=2 if calm else 1,
            limit=limit if calm else limit_in_trouble,
        )
    return played


SCENES = {
    "another message arrives": Scene(),
    "two other messages arrive": Scene(numbers=(1, 2)),
    "every trigger is delivered twice": Scene(numbers=(), twice=True),
    "the webhook is repeated": Scene(numbers=(0, 1)),
    "the customer is still typing": Scene(window_seconds=0.5, quiet_seconds=1.0),
    "an unclear part is sent again": Scene(in_doubt="at_least_once"),
    "the sender cannot be queried": Scene(numbers=(), finder="cannot tell"),
    "the reply has two parts": Scene(numbers=(), words=500),
    "the sender's answer is lost": Scene(numbers=(), in_doubt="if_missing", unclear=[True]),
    "the sender fails without an answer": Scene(
        numbers=(), in_doubt="if_missing", unclear=[False]
    ),
}
