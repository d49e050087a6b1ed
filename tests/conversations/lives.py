"""What processes do with their lives, and one life of a whole world."""

from functools import partial
from random import Random

from conversations.weather import Died, Weather
from conversations.witness import Violation
from conversations.world import KEYS, Build, World
from fs.schedule import Wandering
from holdfast.conversations.messages import Inbound
from holdfast.conversations.model import ConversationKey
from holdfast.core.errors import QueueUnavailable, StoreUnavailable


def inbound(key: ConversationKey, number: int) -> Inbound:
    sid = f"{key.conversation_id}-{number:02}"
    return Inbound(
        message_sid=sid,
        primary_channel=key.primary_channel,
        conversation_id=key.conversation_id,
        recipient=key.conversation_id,
        body=sid,
        received_at=1_700_000_000.0 + number,
    )


def stages(world: World) -> None:
    """Takes what comes in until nothing does. Who dies is followed by another one."""
    weather, fate = world.weather, world.fate
    process = world.process(weather.kill_stager)
    stager = process.stager()
    while world.hooks and not world.over:
        if fate.strikes(0.3):  # customers type no faster
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


def consumes(world: World, triggers: int) -> None:
    """Until it had so many, or nothing comes any more."""
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


def sweeps(world: World, times: int) -> None:
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


# -- the whole


def simulate(weather: Weather, seed: int, build: Build | None = None) -> World:
    """One life of a world, from its first message to its rest, and an echo. Raises
    Violation, with the seed that brings it back."""
    world = World(
        weather,
        Wandering(seed),
        seed,
        build=build,
        in_doubt="at_least_once" if seed % 2 else "at_most_once",
        finder="cannot tell" if seed // 2 % 2 else "finds",
    )
    try:
        _live(world, Random(seed))
    except Violation as violation:
        violation.add_note(f"seed {seed}, {weather}")
        raise
    return world


def _live(world: World, random: Random) -> None:
    keys = random.choice((KEYS, KEYS, KEYS[:1], KEYS[2:]))  # alone, one is busier
    world.hooks = [inbound(random.choice(keys), n) for n in range(random.randint(5, 15))]
    again = random.choice(world.hooks)
    world.customers = 2
    lives = [partial(stages, world), partial(stages, world)]
    lives += [partial(consumes, world, 8) for _ in range(3)]
    if world.weather.sweeper:
        lives.append(partial(sweeps, world, 6))
    world.storm(lives)
    rest(world)
    world.hooks.append(again)  # long after it was answered, a webhook is delivered once more
    rest(world)


def rest(world: World) -> None:
    try:
        world.calm()
        world.check_rest()
    except Died:  # whoever was on stage caught the violation
        raise Violation(world.witness.violations[0]) from None
