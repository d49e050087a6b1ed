"""One accident at one place, for schedules that are tried one by one."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from conversations.lives import inbound, rest
from conversations.weather import Died, Weather
from conversations.world import KEYS, Build, Process, World
from fs.schedule import Baton, Policy, Scripted, explore
from holdfast.conversations.policy import ConversationPolicy, Doubt

KEY = KEYS[0]
LONG_SECONDS = 100.0  # longer than the lock and the trigger's lease


@dataclass
class Trouble:
    """Before its k-th call this process dies, or is frozen for so long; 0 is a death."""

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
    """Who is on stage. The messages `before` were handed in, and their window is over. One
    stager hands in `numbers`, in this order; the processors take what comes."""

    before: Sequence[int] = (0,)
    numbers: Sequence[int] = (1,)
    processors: int = 2
    triggers: int = 2  # for each processor
    twice: bool = False  # every trigger comes twice
    window_seconds: float = 0.0
    quiet_seconds: float = 0.0
    in_doubt: Doubt = "at_most_once"

    @property
    def terms(self) -> ConversationPolicy:
        return ConversationPolicy(
            window_seconds=self.window_seconds,
            quiet_seconds=self.quiet_seconds,
            max_wait_seconds=8.0,
            lock_seconds=40.0,
            grace_seconds=20.0,
            in_doubt=self.in_doubt,
        )

    def play(self, policy: Policy, trouble: Trouble, build: Build) -> Baton:
        """One life, to its rest. Raises Violation. Nobody sweeps."""
        world = World(Weather(leap=0.0), policy, build=build, terms=self.terms)
        if self.twice:
            world.box.copies = 2
        stage = Stage(world)
        stage.stages(self.before, world.process(0.0))
        world.pass_time(self.window_seconds)
        lives = [partial(stage.stages, self.numbers)]
        lives += [partial(stage.consumes, self.triggers)] * self.processors
        stage.busy = len(lives)
        world.trouble = trouble
        world.storm([partial(stage.mortal, number, life) for number, life in enumerate(lives)])
        world.trouble = lambda process: None
        rest(world)
        return world.baton


class Stage:
    """Those who act wait for each other: nobody lets time pass only to have work."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._processes = [world.process(0.0) for _ in range(4)]
        self.busy = 0

    def mortal(self, number: int, life: Callable[[Process], None]) -> None:
        with suppress(Died):
            life(self._processes[number])
        self._rests()

    def stages(self, numbers: Sequence[int], process: Process) -> None:
        stager = process.stager()
        for number in numbers:
            message = inbound(KEY, number)
            try:
                stager.stage(message)
                self._world.known.add(message.message_sid)
            except Died:  # his webhooks come again
                self._world.hooks.append(message)

    def consumes(self, triggers: int, process: Process) -> None:
        consumer = process.consumer()
        for _ in range(triggers):
            while not consumer.consume(stopping=False):
                self._rests()
                self._world.baton.wait_until(lambda: not self.busy or self._visible)
                self.busy += 1
                if not self._visible:
                    return

    def _rests(self) -> None:
        self.busy -= 1
        self._world.baton.wake()

    @property
    def _visible(self) -> bool:
        return self._world.box.seconds_to_next == 0


def troubles(scene: Scene) -> Iterator[partial[Trouble]]:
    """None; then each process before each of its calls: dead, or frozen for a moment, or
    for longer than every lease."""
    yield partial(Trouble)
    for process in range(scene.processors + 1):
        for seconds in (0.0, 2.0, LONG_SECONDS):
            for call in count(1):
                trouble = partial(Trouble, process, call, seconds)
                if not _reached(scene, trouble()):
                    break
                yield trouble


def _reached(scene: Scene, trouble: Trouble) -> bool:
    scene.play(Scripted([]), trouble, Build())
    return trouble.struck


def every_schedule(
    scene: Scene, *, limit: int, limit_in_trouble: int, build: Build | None = None
) -> int:
    """Two preemptions without trouble, one with. How many were played."""
    played = 0
    for trouble in troubles(scene):
        calm = not trouble.args
        played += explore(
            lambda policy, trouble=trouble: scene.play(policy, trouble(), build or Build()),
            preemptions=2 if calm else 1,
            limit=limit if calm else limit_in_trouble,
        )
    return played


SCENES = {
    "another message comes": Scene(),
    "two other messages come": Scene(numbers=(1, 2)),
    "every trigger comes twice": Scene(numbers=(), twice=True),
    "the webhook comes again": Scene(numbers=(0, 1)),
    "the customer is still typing": Scene(window_seconds=0.5, quiet_seconds=1.0),
    "in doubt it is sent again": Scene(in_doubt="at_least_once"),
}
