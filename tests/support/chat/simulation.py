"""The simulated world: a time with faults, then a time without, in which all work must end.

Actors are threads, and only the actor that has the baton runs. At each call of a port another
actor may continue, time may pass, a process may die, or a call may be lost. One seed decides
all of this.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import Random
from threading import Event
from typing import Any

from holdfast.chat.errors import PermanentError, SendUnclear, TransientError
from holdfast.chat.messages import Inbound, Trigger
from holdfast.chat.model import (
    ConversationKey,
    ConversationPolicy,
    ConversationProfile,
    LockAcquired,
    LockGrant,
    Status,
    WaitingConversation,
)
from holdfast.chat.outbox import SendingReply, UnclearReply
from holdfast.errors import QueueUnavailable, StoreUnavailable
from holdfast.lease.lease import RENEWED, Lease, Refused, Renewal
from holdfast.queue.message import attach_lease, get_lease
from holdfast.store.sqlite.rows import RowConnection
from holdfast.testing import ManualClock, MemoryConversations
from support.chat.accounting import ChatAccounting
from support.chat.application import Build, Chat, Port, QuietKeeper, make_message
from support.chat.providers import FakeProviders, FakeSender, FakeWriter
from support.interleaving import Baton, Policy

KEYS = tuple(ConversationKey(f"whatsapp:+1555000{n}", f"c{n}") for n in range(3))
LOCK_SECONDS = 40.0
RENEWAL_SECONDS = 10.0  # a third of the shortest lease
_UNAVAILABLE = {"store": StoreUnavailable, "queue": QueueUnavailable}


class Violation(AssertionError):
    """A promise is broken."""


class Died(BaseException):
    """The process is dead, so none of its handlers and `finally` blocks has an effect."""


# -- the faults


@dataclass(frozen=True, slots=True)
class Weather:
    """The probabilities of faults for each call of a port, and the rules of the run.

    Without a sweeper a run has only one kind of fault, because a processor that continues
    after it lost its trigger, and then fails, leaves its messages to the sweeper.

    sweeper          a sweeper runs; without it, everything must be finished all the same
    hooks_return     a message whose stager failed or died is always delivered again
    strict_receipts  only the newest receipt of a trigger can settle it
    """

    leap: float = 0.06  # time passes
    long_leap: float = 0.0  # longer than any lease
    frozen: float = 0.0  # a process does not renew meanwhile
    kill_processor: float = 0.0
    kill_stager: float = 0.0
    kill_sweeper: float = 0.0
    drop: float = 0.0
    lose_reply: float = 0.0
    twice: float = 0.0  # a trigger is delivered to two consumers at once
    lose_trigger: float = 0.0  # an operator purges the queue
    hook_twice: float = 0.2  # a message is delivered again
    writer_fails: float = 0.0
    sender_fails: float = 0.0
    stopping: float = 0.0  # the worker is being stopped
    max_attempts: int = 1_000
    sweeper: bool = False
    hooks_return: bool = True
    strict_receipts: bool = True
    strangers: bool = False  # one conversation is unknown and is not created
    park_after_seconds: float = 3 * 86_400.0


class Fate:
    """The random decisions. If `calm` is set, no fault happens."""

    def __init__(self, seed: int, weather: Weather) -> None:
        self.random = Random(seed)
        self.weather = weather
        self.calm = False

    def strikes(self, chance: float) -> bool:
        return not self.calm and self.random.random() < chance

    def leap_seconds(self) -> float:
        if self.random.random() < self.weather.long_leap:
            return LOCK_SECONDS * self.random.uniform(1.1, 3.0)
        return self.random.choice((0.1, 0.5, 2.0, 12.0))

    def fail_writer(self, point: str) -> None:
        """Raise an error of the writer, before or after it wrote."""
        chance = self.weather.writer_fails
        if point == "answer":
            if self.strikes(chance / 2):
                raise TransientError("the answer was lost on its way")
        elif self.strikes(chance):
            raise self.random.choice((TransientError("busy"), ValueError()))
        elif self.strikes(chance / 10):
            raise PermanentError("the assistant refuses")

    def fail_sender(self, point: str) -> None:
        """Raise an error of the sender, before or after it sent."""
        share = {"send": 3 / 4, "sent": 1 / 4}.get(point, 1 / 2)
        if not self.strikes(self.weather.sender_fails * share):
            return
        unclear, away = SendUnclear("no response"), TransientError("away")
        match point:
            case "send":
                refused = PermanentError("no such number")
                raise self.random.choice((away, away, away, refused, unclear, unclear))
            case "sent":
                raise unclear
        raise away


# -- the queue and the store


@dataclass
class StoredTrigger:
    """A trigger in the queue, with its visibility."""

    trigger: Trigger
    due: float
    receipts: int = 0


class TriggerBox:
    """A queue of triggers with visibility, without order, which may deliver twice."""

    name = "triggers"
    renew_batch = 10
    lease_seconds = 30.0
    capabilities: frozenset[str] = frozenset()

    def __init__(self, clock: ManualClock, fate: Fate) -> None:
        self.clock, self._fate = clock, fate
        self.max_attempts = fate.weather.max_attempts
        self.copies = 1  # of each trigger that is pushed
        self._triggers: dict[int, StoredTrigger] = {}
        self._numbers = count()

    def push(self, trigger: Trigger, *, delay_seconds: float = 0.0) -> str:
        due = self.clock.monotonic() + delay_seconds
        for _ in range(self.copies):
            self._triggers[next(self._numbers)] = StoredTrigger(trigger, due)
        return trigger.id

    def poll(self) -> list[Trigger]:
        """Return any visible trigger and hide it from others, except sometimes."""
        now, fate = self.clock.monotonic(), self._fate
        visible = [number for number, item in self._triggers.items() if item.due <= now]
        if not visible:
            return []
        number = fate.random.choice(visible)
        stored = self._triggers[number]
        stored.receipts += 1
        if stored.receipts > self.max_attempts or fate.strikes(fate.weather.lose_trigger):
            del self._triggers[number]
            return []
        if not fate.strikes(fate.weather.twice):
            stored.due = now + self.lease_seconds
        trigger = stored.trigger.model_copy()
        lease = Lease(
            self,
            (number, stored.receipts),
            message_id=trigger.id,
            attempt=stored.receipts,
            fence=stored.receipts,
            claimed_at=now,
            seconds=self.lease_seconds,
        )
        attach_lease(trigger, lease)
        return [trigger]

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        return [self._renew(lease, seconds) for lease in leases]

    def _renew(self, lease: Lease, seconds: float) -> Renewal:
        if (stored := self._find(lease)) is None:
            return Refused("it was received again, or it is gone")
        stored.due = self.clock.monotonic() + seconds
        return RENEWED

    def ack(self, trigger: Trigger) -> None:
        if self._find_to_settle(trigger):
            del self._triggers[get_lease(trigger).handle[0]]

    def dead_letter(self, trigger: Trigger, reason: str, *, detail: str | None) -> None:
        self.ack(trigger)

    def nack(self, trigger: Trigger, *, delay_seconds: float | None, **_: object) -> None:
        if delay_seconds is None:
            delay_seconds = min(60.0, 2.0 ** get_lease(trigger).attempt)
        if stored := self._find_to_settle(trigger):
            stored.due = self.clock.monotonic() + delay_seconds

    def release(self, trigger: Trigger) -> None:
        self.nack(trigger, delay_seconds=0.0)

    def _find_to_settle(self, trigger: Trigger) -> StoredTrigger | None:
        lease = get_lease(trigger)
        lease.release()
        if self._fate.weather.strict_receipts or self._fate.random.random() < 0.5:
            return self._find(lease)
        return self._triggers.get(lease.handle[0])  # AWS documents that an old receipt may work

    def _find(self, lease: Lease) -> StoredTrigger | None:
        number, receipt = lease.handle
        stored = self._triggers.get(number)
        return stored if stored and stored.receipts == receipt else None

    @property
    def seconds_to_next(self) -> float | None:
        """Return the time until a trigger is visible, or None if the queue is empty."""
        if not self._triggers:
            return None
        first = min(stored.due for stored in self._triggers.values())
        return max(0.0, first - self.clock.monotonic())


class ExpiringConversations(MemoryConversations):
    """Conversations whose expired rows stay until a test removes them, as in DynamoDB."""

    def forget_expired(self, now: float) -> None:
        """Remove every expired row, as a table does sooner or later."""
        with self._database.begin_write() as rows:
            for table in ("processed", "stage", "windows"):
                rows.delete(table, [{"expires_at <": now}])

    def _delete_expired(self, rows: RowConnection, now: float) -> None:
        pass


class Witness:
    """A store that forwards every call, and checks the promises after it.

    A violation is recorded and raised, because the running actor might catch it. `truth` is
    the store itself, and `store` the same unless a test uses a faulty one.
    """

    def __init__(
        self, store: Any, world: "World", account: Callable[..., ChatAccounting]
    ) -> None:
        self.store, self._world, self._account = store, world, account
        self.violations: list[str] = []
        self.turns = 0
        self._owners: dict[ConversationKey, tuple[LockGrant, float]] = {}
        self._fences: Counter[ConversationKey] = Counter()
        self._unclear: Counter[tuple[str, int]] = Counter()  # sids and parts sent again
        self._listings: list[list[WaitingConversation]] = []

    def accuse(self, text: str) -> None:
        """Record a violation, and raise it."""
        self.violations.append(text)
        raise Violation(text)

    def waiting(self) -> list[WaitingConversation]:
        """Return the current listing, or an older one."""
        self._listings.append(list(self.store.waiting()))
        if self._world.fate.strikes(0.5):
            return self._world.fate.random.choice(self._listings[-4:])
        return self._listings[-1]

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, name)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "note":
            self._count_unclear(*args)
        result = getattr(self.store, name)(*args, **kwargs)
        if args and isinstance(args[0], LockGrant) and result is not False:
            self._check_owner(name, args[0], kwargs)
        if isinstance(result, LockAcquired):
            self._check_acquired(result.grant, kwargs["expires_at"])
        self.turns += name == "finish"
        if name in ("finish", "park", "release", "drop_staged"):
            self.check_all()
        return result

    def _check_acquired(self, grant: LockGrant, expires_at: float) -> None:
        _, held_until = self._owners.get(grant.key, (None, 0.0))
        if held_until > self._world.clock.time():
            self.accuse("I-MS-3: a second owner while the first lock is held")
        if grant.fence <= self._fences[grant.key]:
            self.accuse("I-MS-3: the fence does not rise")
        self._fences[grant.key] = grant.fence
        self._owners[grant.key] = grant, expires_at

    def _check_owner(self, name: str, grant: LockGrant, how: dict[str, Any]) -> None:
        owner, _ = self._owners.get(grant.key, (None, 0.0))
        if owner != grant:
            self.accuse(f"I-MS-3: {name} was accepted from a caller that is not the owner")
        if name in ("finish", "release", "park"):
            del self._owners[grant.key]
        elif name == "renew":
            self._owners[grant.key] = grant, how["expires_at"]

    def _count_unclear(self, grant: LockGrant, after: object, _: str) -> None:
        """Count a part that may have been sent and is sent again, as `at_least_once` allows."""
        resends = self._world.policy.in_doubt == "at_least_once"
        if not (resends and isinstance(after, SendingReply)):
            return
        conversation = self._world.memory.get(grant.key)
        before, part = conversation and conversation.outbox, len(after.parts)
        if isinstance(before, SendingReply | UnclearReply) and part == len(before.parts):
            self._unclear.update((sid, part) for sid in after.sids)

    def check_all(self) -> ChatAccounting:
        """Check what holds at any time."""
        account = self._account(max_sent=lambda *part: 1 + self._unclear[part])
        for problem in account.find_wrong():
            self.accuse(problem)
        for history in account.histories:
            if any(message.body != _sort_lines(message.body) for message in history[::2]):
                self.accuse("I-MS-7: not merged in the order of the messages")
        for conversation in account.conversations:
            if conversation.status != Status.PROCESSING and conversation.key in self._owners:
                self.accuse("I-MS-3: the lock is free although its owner did not release it")
        return account


def _sort_lines(text: str) -> str:
    return "\n".join(sorted(text.split("\n")))


# -- the world


class World:
    """The simulation with all its processes, providers and the store."""

    def __init__(
        self,
        fate: Fate,
        schedule: Policy,
        policy: ConversationPolicy,
        *,
        build: Build | None = None,
        can_tell: bool = True,
    ) -> None:
        self.fate, self.weather, self.policy = fate, fate.weather, policy
        self.build = build or Build()
        self.clock = ManualClock()
        self.memory = ExpiringConversations(clock=self.clock)
        self.writer = FakeWriter(self._reply, secret_fields=(), fault=self.fate.fail_writer)
        self.sender = FakeSender(
            can_tell=can_tell,
            secret_fields=(),
            clock=self.clock,
            lag_seconds=lambda: self.fate.random.choice((0.0, 5.0, 29.0)),
            fault=self.fate.fail_sender,
        )
        asked, sent = self.writer.ledger.lines(), self.sender.ledger.lines()
        account = partial(ChatAccounting, self.memory, sent, asked)
        self.witness = Witness(self.build.store(self.memory), self, account)
        self.box = TriggerBox(self.clock, self.fate)
        self.baton = Baton(schedule)
        self.processes: list[Process] = []
        self.hooks: list[Inbound] = []  # to be delivered, perhaps again
        self.known: set[str] = set()  # sids whose staging was confirmed
        self.trouble: Callable[[Process], None] = lambda process: None
        self.customers = 0  # stagers at work
        self.pages = 1  # of each reply; every sixth has two
        self.story: list[tuple[float, int, str]] = []  # the time, process and name of calls
        self._replies = count(1)

    def _reply(self, text: str) -> str:
        number = next(self._replies)
        pages = 2 if number % 6 == 0 else self.pages
        texts = [f"#{number}.{page} on: {text}" for page in range(pages)]
        return "\n\n".join(page.ljust(1_300 if pages > 1 else 0, ".") for page in texts)

    @property
    def over(self) -> bool:
        """Check whether a promise is broken, so that the run can end."""
        return bool(self.witness.violations)

    def pass_time(self, seconds: float, frozen: "Process | None" = None) -> None:
        """Advance in small steps, so that processes that are not frozen renew in time."""
        running = [item for item in self.processes if item.alive and item is not frozen]
        running = [item for item in running if not self.fate.strikes(self.weather.frozen)]
        while seconds > 0:
            step = min(seconds, RENEWAL_SECONDS)
            self.clock.advance(step)
            seconds -= step
            for process in running:
                if process.keeper.held:
                    process.keeper.tick()
        self.baton.wake()
        if self.fate.strikes(0.1):  # a table removes expired rows at any time
            self.memory.forget_expired(self.clock.time())

    def process(self, kill: float = 0.0) -> "Process":
        """Start a process."""
        process = Process(self, kill)
        self.processes.append(process)
        return process

    # -- the time without faults

    def finish(self) -> None:
        """Let the world come to rest without further faults, and check the result."""
        try:
            self._calm()
            self._check_rest()
        except Died:  # the actor that ran caught the violation
            raise Violation(self.witness.violations[0]) from None

    def _calm(self, max_seconds: float = 6_000.0) -> None:
        self.fate.calm = True
        until, since = self.clock.monotonic() + max_seconds, self.clock.time()
        process = self.process()
        chat, sweeper = process.chat, process.sweeper
        while self.clock.monotonic() < until:
            while self.hooks:
                chat.stager.stage(self.hooks.pop())
            if process.consume():
                self._check_expired_locks(since)
                continue
            seconds = self.box.seconds_to_next
            if seconds is None and not (sweeper and list(self.memory.waiting())):
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

    def _check_rest(self) -> None:
        """Check what must hold when nothing is left to do (I-MS-1, I-MS-4, I-MS-5).

        If triggers may be lost, an expired lock may be left on a conversation without staged
        messages. The next worker takes it over.
        """
        account = self.witness.check_all()
        for problem in account.find_unfinished(self.known, may_lock=self.weather.sweeper):
            self.witness.accuse(problem)
        in_time = self.weather.park_after_seconds > 10_000.0
        if in_time and any("in time" in batch.reason for batch in account.parked):
            self.witness.accuse("I-MS-1: parked only because no worker came")


class Process:
    """A process until it is killed. Its components are real, and its ports are simulated."""

    def __init__(self, world: World, kill: float) -> None:
        self.world, self._kill = world, kill
        self.alive, self.number, self.calls = True, len(world.processes), 0
        self.keeper = QuietKeeper(world.clock)
        known = KEYS[:2] if world.weather.strangers else KEYS
        self.chat = Chat(
            Port(self._make_call, "store", world.witness),
            Port(self._make_call, "queue", world.box),
            FakeProviders(
                Port(self._make_call, "writer", world.writer),
                Port(self._make_call, "sender", world.sender),
            ),
            keeper=self.keeper,
            clock=ProcessClock(self),
            policy=world.policy,
            profiles={key.conversation_id: ConversationProfile() for key in known},
            build=world.build,
        )
        self.sweeper = self.chat.sweeper if world.weather.sweeper else None

    def consume(self, *, stopping: bool = False) -> bool:
        """Handle one trigger, or return False if there is none."""
        event = Event()
        if stopping:
            event.set()
        triggers = self.chat.queue.poll()
        for trigger in triggers:
            self.keeper.hold(get_lease(trigger))
            self.chat.handle(trigger, event)
        return bool(triggers)

    def begin_step(self) -> None:
        """Let other processes run, let time pass, or kill this process."""
        world, fate = self.world, self.world.fate
        if not self.alive or world.over:
            raise Died
        if fate.strikes(world.weather.leap):
            world.pass_time(fate.leap_seconds())
        self.calls += 1
        world.trouble(self)  # others may continue before this process, even if it was frozen
        world.baton.step()
        if world.over:
            raise Died
        if fate.strikes(self._kill):
            self.die()

    def die(self) -> None:
        self._record("dies")
        self.alive = False
        raise Died

    def _make_call(self, label: str, call: Callable[[], Any]) -> Any:
        """Make a step of the call. The request or the response may be lost."""
        self.begin_step()
        strikes, weather = self.world.fate.strikes, self.world.weather
        error = _UNAVAILABLE.get(label.partition(".")[0])
        if error and strikes(weather.drop):
            raise error(f"{label} did not get through")
        try:
            answer = call()
        finally:
            self._record(label)
        if error and strikes(weather.lose_reply):
            raise error(f"the response to {label} did not get through")
        return answer

    def _record(self, label: str) -> None:
        self.world.story.append((self.world.clock.monotonic(), self.number, label))
        if label in ("queue.push", "queue.nack", "queue.release"):
            self.world.baton.wake()


class ProcessClock:
    """The world's clock, as a process reads it. A wait is a step in which time passes."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.time, self.monotonic = process.world.clock.time, process.world.clock.monotonic

    def wait(self, event: Event, seconds: float) -> bool:
        self._process.begin_step()
        if not event.is_set():
            self._process.world.pass_time(seconds)
        return event.is_set()


def make_numbered(key: ConversationKey, number: int) -> Inbound:
    """Return the numbered message of a conversation."""
    sid = f"{key.conversation_id}-{number:02}"
    return make_message(key, sid, 1_700_000_000.0 + number)
