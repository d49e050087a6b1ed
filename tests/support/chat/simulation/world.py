"""The simulated world: a time with faults, then a time without, in which all work must end.

Actors are threads, and only the actor that has the baton runs. At each call of a port another
actor may continue, time may pass, a process may die, or a call may be lost. One seed decides
all of this.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from holdfast.chat.messages import Inbound
from holdfast.chat.model import Channel, ConversationKey, Status, WaitingConversation
from holdfast.chat.policy import ConversationPolicy, ConversationProfile, Doubt
from holdfast.chat.ports import ConversationStore
from holdfast.chat.processor import BatchProcessor
from holdfast.chat.staging import Stager
from holdfast.chat.sweeper import Sweeper
from holdfast.testing import ManualClock
from support.chat.expiring_store import ExpiringConversations
from support.chat.simulation.checked_store import Witness
from support.chat.simulation.fault_rates import Died, Fate, Weather
from support.chat.simulation.process import (
    Consumer,
    KeeperByHand,
    ProcessClock,
    ProviderPort,
    QueuePort,
    StorePort,
)
from support.chat.simulation.providers import Assistant, Carrier, Finder, Providers
from support.chat.simulation.trigger_queue import TriggerBox
from support.interleaving import Baton, Policy

KEYS = tuple(ConversationKey(f"whatsapp:+1555000{n}", f"c{n}") for n in range(3))
STRANGER = KEYS[2]
LOCK_SECONDS = 40.0
RENEWAL_SECONDS = 10.0  # a third of the shortest lease


@dataclass(frozen=True)
class Build:
    """The components of the actors, which tests replace to remove an element."""

    store: Callable[[ConversationStore], Any] = lambda store: store
    processor: type[BatchProcessor] = BatchProcessor
    stager: type[Stager] = Stager
    sweeper: type[Sweeper] | None = Sweeper


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


Line = tuple[float, int, str, tuple[object, ...], object]
"""Time, process number, call, arguments and result."""


class World:
    """The simulation with all its processes, providers and the store."""

    def __init__(
        self,
        weather: Weather,
        policy: Policy,
        seed: int = 0,
        *,
        build: Build | None = None,
        in_doubt: Doubt = "at_most_once",
        finder: Finder = "finds",
        conversation_policy: ConversationPolicy | None = None,
    ) -> None:
        self.weather, self.build = weather, build or Build()
        self.fate = Fate(seed, weather)
        self.clock = ManualClock()
        self.conversation_policy = conversation_policy or choose_policy(
            weather, in_doubt, self.fate.random
        )
        self.memory = ExpiringConversations(clock=self.clock)
        resends = self.conversation_policy.in_doubt == "at_least_once"
        seen_store = self.build.store(self.memory)
        self.witness = Witness(seen_store, self.memory, self.clock, resends=resends)
        self.assistant = Assistant(self.fate, self.witness.record_question)
        self.witness.assistant = self.assistant
        self.carrier = Carrier(self.fate, finder, self.clock, self.witness.record_sent)
        self.box = TriggerBox(self.clock, self.fate)
        self.baton = Baton(policy)
        self.processes: list[Process] = []
        self.hooks: list[Inbound] = []  # to be delivered, perhaps again
        self.known: set[str] = set()  # sids whose staging was confirmed
        self.trouble: Callable[[Process], None] = lambda process: None
        self.customers = 0  # stagers at work
        self.steps = 0
        self.story: list[Line] = []
        self._listings: list[list[WaitingConversation]] = []

    @property
    def over(self) -> bool:
        """Check whether a promise is broken, so that the run can end."""
        return bool(self.witness.violations)

    # -- time and listings

    def pass_time(self, seconds: float, frozen: "Process | None" = None) -> None:
        """Advance in small steps, so that processes that are not frozen renew in time."""
        running = [item for item in self.processes if item.alive and item is not frozen]
        running = [item for item in running if not self.fate.strikes(self.weather.frozen)]
        while seconds > 0:
            step = min(seconds, RENEWAL_SECONDS)
            self.clock.advance(step)
            seconds -= step
            for process in running:
                process.keeper.tick()
        self.baton.wake()
        if self.fate.strikes(0.1):  # a table removes expired rows at any time
            self.memory.forget_expired(self.clock.time())

    def waiting(self) -> list[WaitingConversation]:
        """Return the current listing, or an older one."""
        self._listings.append(list(self.witness.store.waiting()))
        if self.fate.strikes(0.5):
            return self.fate.random.choice(self._listings[-4:])
        return self._listings[-1]

    # -- actors

    def process(self, kill: float) -> "Process":
        process = Process(self, kill)
        self.processes.append(process)
        return process

    def storm(self, lives: list[Callable[[], None]]) -> None:
        self.baton.run(lives)

    def idle(self) -> bool:
        """Wait for work, or return False if none will arrive."""
        if self.customers:
            self.baton.wait_until(lambda: not self.customers or self.box.seconds_to_next == 0)
            return True
        seconds = self.box.seconds_to_next
        if seconds is not None:
            self.pass_time(min(30.0, max(0.1, seconds)))
        return seconds is not None

    # -- the time without faults

    def calm(self, max_seconds: float = 6_000.0) -> None:
        """Run without faults until nothing is left to do."""
        self.fate.calm = True
        until = self.clock.monotonic() + max_seconds
        since = self.clock.time()
        process = self.process(0.0)
        stager, consumer, sweeper = process.stager(), process.consumer(), process.sweeper()
        while self.clock.monotonic() < until:
            while self.hooks:
                stager.stage(self.hooks.pop())
            if consumer.consume(stopping=False):
                self._check_expired_locks(since)
                continue
            seconds = self.box.seconds_to_next
            if seconds is None and not (sweeper and self._has_staged()):
                return
            self.pass_time(min(10.0, 10.0 if seconds is None else max(0.1, seconds)))
            if sweeper:
                sweeper.sweep()
        self.witness.accuse("I-MS-5: work does not end")

    def _check_expired_locks(self, since: float) -> None:
        max_late_seconds = self.box.lease_seconds + 2 * 60.0 + 20.0
        for row in self.memory.conversations():
            late = self.clock.time() - max(since, row.lock_expires_at) > max_late_seconds
            staged = self.memory.staged(row.key.conversation_id)
            if staged and late and row.status == Status.PROCESSING:
                self.witness.accuse("I-MS-4: a lock expired and was not taken over")

    def _has_staged(self) -> bool:
        return any(self.memory.staged(key.conversation_id) for key in KEYS)

    def check_rest(self) -> None:
        """Check what must hold when nothing is left to do (I-MS-1, I-MS-4, I-MS-5)."""
        if self._has_staged():
            self.witness.accuse("I-MS-5: a message is staged, but no trigger will arrive")
        answered = set()
        for key in KEYS:
            history = self.memory.history(key, limit=1_000)
            answered.update(
                sid for message in history for sid in message.details.get("sids", ())
            )
        for conversation in self.memory.conversations():
            # If triggers may be lost, an expired lock may be left on a conversation without
            # staged messages. The next worker takes it over.
            strict = not self.weather.sweeper
            if conversation.status == Status.PROCESSING and strict:
                self.witness.accuse("I-MS-4: the lock is held, but no worker is active")
            if conversation.outbox is not None:
                self.witness.accuse("I-MS-6: a reply is left in the outbox")
        for parked in self.memory.parked():
            answered.update(parked.sids)
            in_time = self.weather.park_after_seconds > 10_000.0
            if in_time and parked.reason == "it was not answered in time":
                self.witness.accuse("I-MS-1: parked only because no worker came")
        if lost := self.known - answered:
            self.witness.accuse(f"I-MS-1: neither answered nor parked: {sorted(lost)}")
        self.witness.check_all()


@dataclass
class Process:
    """A process until it is killed. Its components are real, and its ports are simulated."""

    world: World
    kill: float
    alive: bool = True
    keeper: KeeperByHand = field(init=False)

    def __post_init__(self) -> None:
        world = self.world
        self.number = len(world.processes)
        self.keeper = KeeperByHand(world.clock)
        self.store: Any = StorePort(self, world.witness.call, world.waiting)
        self.queue = QueuePort(self, world.box)
        self.queues: Any = {Channel.WHATSAPP: self.queue}

    # -- Connection

    def before(self, name: str) -> None:
        world, fate = self.world, self.world.fate
        if not self.alive or world.over:
            raise Died
        world.steps += 1
        world.baton.step()
        if fate.strikes(world.weather.leap):
            world.pass_time(fate.leap_seconds(LOCK_SECONDS))
        world.trouble(self)
        if fate.strikes(self.kill):
            self.die()

    def die(self) -> None:
        self.record("dies", (), None)
        self.alive = False
        raise Died

    def is_lost(self, name: str, *, after: bool) -> bool:
        weather = self.world.weather
        return self.world.fate.strikes(weather.lose_reply if after else weather.drop)

    def record(self, name: str, args: tuple[object, ...], answer: object) -> None:
        self.world.story.append((self.world.clock.monotonic(), self.number, name, args, answer))
        if name in ("push", "nack"):
            self.world.baton.wake()

    # -- its roles

    def stager(self) -> Stager:
        known = not self.world.weather.strangers
        profiles = (
            {"*": ConversationProfile()}
            if known
            else {key.conversation_id: ConversationProfile() for key in KEYS[:2]}
        )
        world = self.world
        return world.build.stager(
            self.store,
            self.queues,
            policy=world.conversation_policy,
            profiles=profiles,
            clock=world.clock,
        )

    def consumer(self) -> Consumer:
        world = self.world
        providers = Providers(
            ProviderPort(self, world.assistant, ("open_thread", "write")),
            ProviderPort(self, world.carrier, ("find",)),
        )
        processor = world.build.processor(
            self.store,
            providers,
            self.queues,
            keeper=self.keeper,  # type: ignore[arg-type]
            policy=world.conversation_policy,
            max_attempts=5,
            clock=ProcessClock(self, world.clock, world.pass_time),  # type: ignore[arg-type]
        )
        return Consumer(processor, self.queue, self.keeper, world.clock)

    def sweeper(self) -> Sweeper | None:
        world = self.world
        if not world.weather.sweeper or world.build.sweeper is None:
            return None
        return world.build.sweeper(
            self.store, self.queues, policy=world.conversation_policy, clock=world.clock
        )
