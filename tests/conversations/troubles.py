"""One accident at one place, for schedules that are tried one by one."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from conversations.weather import Died, Weather
from conversations.world import KEYS, Build, Process, World, inbound, rest
from fs.schedule import Baton, Policy, Scripted, explore
from holdfast.conversations.terms import ChatTerms, Doubt

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
    """Who is on stage. One stager hands in `numbers`, in this order; the processors take
    what comes, some triggers twice."""

    numbers: Sequence[int] = (0, 1)
    processors: int = 2
    triggers: int = 2  # for each processor
    twice: bool = False
    window_seconds: float = 0.0
    quiet_seconds: float = 0.0
    in_doubt: Doubt = "at_most_once"

    @property
    def terms(self) -> ChatTerms:
        return ChatTerms(
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
        lives: list[Callable[[], None]] = [self._stager(world)]
        lives += [self._processor(world) for _ in range(self.processors)]
        world.customers = 1
        world.trouble = trouble
        world.storm(lives)
        world.trouble = lambda process: None
        rest(world)
        return world.baton

    def _stager(self, world: World) -> Callable[[], None]:
        stager = world.process(0.0).stager()

        def life() -> None:
            for number in self.numbers:
                message = inbound(KEY, number)
                try:
                    stager.stage(message)
                    world.known.add(message.message_sid)
                except Died:  # his webhooks come again
                    world.hooks.append(message)
            world.customers = 0
            world.baton.wake()

        return life

    def _processor(self, world: World) -> Callable[[], None]:
        consumer: Any = world.process(0.0).consumer()

        def life() -> None:
            for _ in range(self.triggers):
                while not consumer.consume(stopping=False):
                    if not world.idle():
                        return

        def mortal() -> None:
            try:
                life()
            except Died:
                pass

        if self.twice:
            world.box.copies = 2
        return mortal


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
