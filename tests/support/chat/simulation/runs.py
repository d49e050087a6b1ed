"""The activities of processes, and one complete simulation."""

from functools import partial
from random import Random
from typing import get_args

from holdfast.chat.messages import Inbound
from holdfast.chat.model import ConversationKey
from holdfast.chat.policy import Doubt
from holdfast.errors import QueueUnavailable, StoreUnavailable
from support.chat.simulation.checked_store import Violation
from support.chat.simulation.fault_rates import Died, Weather
from support.chat.simulation.world import KEYS, Build, World
from support.interleaving import Wandering

DOUBTS: tuple[Doubt, ...] = get_args(Doubt)


def make_inbound(key: ConversationKey, number: int) -> Inbound:
    """Return the numbered message of a conversation; its body is its sid."""
    sid = f"{key.conversation_id}-{number:02}"
    return Inbound(
        message_sid=sid,
        primary_channel=key.primary_channel,
        conversation_id=key.conversation_id,
        recipient=key.conversation_id,
        body=sid,
        received_at=1_700_000_000.0 + number,
    )


def run_stager(world: World) -> None:
    """Stage messages until there are no more. After a crash another process continues."""
    weather, fate = world.weather, world.fate
    process = world.process(weather.kill_stager)
    stager = process.stager()
    while world.hooks and not world.over:
        if fate.strikes(0.3):  # customers do not type faster
            world.pass_time(fate.random.choice((0.2, 1.0, 3.0)))
        message = world.hooks.pop(fate.random.randrange(len(world.hooks)))
        try:
            stager.stage(message)
            world.known.add(message.message_sid)
            if fate.strikes(weather.hook_twice):
                world.hooks.append(message)
        except (StoreUnavailable, QueueUnavailable):
            world.hooks.append(message)
        except Died:
            if weather.hooks_return or fate.strikes(0.5):
                world.hooks.append(message)
            process = world.process(weather.kill_stager)
            stager = process.stager()
    world.customers -= 1


def run_consumer(world: World, triggers: int) -> None:
    """Handle this many triggers, or until no more will arrive."""
    weather, fate = world.weather, world.fate
    process = world.process(weather.kill_processor)
    consumer = process.consumer()
    for _ in range(triggers):
        try:
            while not consumer.consume(fate.strikes(weather.stopping)):
                if not world.idle():
                    return
        except (StoreUnavailable, QueueUnavailable):
            pass
        except Died:
            if world.over:
                return
            process = world.process(weather.kill_processor)
            consumer = process.consumer()


def run_sweeper(world: World, times: int) -> None:
    """Sweep this many times, with a pause after each."""
    process = world.process(world.weather.kill_sweeper)
    sweeper = process.sweeper()
    for _ in range(times):
        try:
            if sweeper:
                sweeper.sweep()
            world.pass_time(10.0)
        except (StoreUnavailable, QueueUnavailable):
            pass
        except Died:
            process = world.process(world.weather.kill_sweeper)
            sweeper = process.sweeper()


# -- the complete simulation


def simulate(weather: Weather, seed: int, build: Build | None = None) -> World:
    """Run a simulation until nothing is left to do, and then repeat one old message.

    Raises Violation, with the seed that reproduces it.
    """
    world = World(
        weather,
        Wandering(seed),
        seed,
        build=build,
        in_doubt=DOUBTS[seed % 3],
        finder="cannot tell" if seed // 3 % 2 else "finds",
    )
    try:
        _run_world(world, Random(seed))
    except Violation as violation:
        violation.add_note(f"seed {seed}, {weather}")
        raise
    return world


def _run_world(world: World, random: Random) -> None:
    keys = random.choice(
        (KEYS, KEYS, KEYS[:1], KEYS[2:])
    )  # a single conversation gets more messages
    world.hooks = [make_inbound(random.choice(keys), n) for n in range(random.randint(5, 15))]
    again = random.choice(world.hooks)
    world.customers = 2
    lives = [partial(run_stager, world), partial(run_stager, world)]
    lives += [partial(run_consumer, world, 8) for _ in range(3)]
    if world.weather.sweeper:
        lives.append(partial(run_sweeper, world, 6))
    world.storm(lives)
    finish_quietly(world)
    world.hooks.append(
        again
    )  # a webhook is delivered again, long after its message was answered
    finish_quietly(world)


def finish_quietly(world: World) -> None:
    """Let the world come to rest without further faults, and check the result."""
    try:
        world.calm()
        world.check_rest()
    except Died:  # the actor that ran caught the violation
        raise Violation(world.witness.violations[0]) from None
