"""The real components of a chat, over any store, queue, providers and clock."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any

from holdfast.chat.messages import Inbound, Trigger, parse_inbound
from holdfast.chat.model import (
    Channel,
    Conversation,
    ConversationKey,
    ConversationPolicy,
    ConversationProfile,
)
from holdfast.chat.operator import Operator
from holdfast.chat.ports import ConversationStore
from holdfast.chat.processor import BatchProcessor
from holdfast.chat.staging import Stager, StagingResult, Sweeper
from holdfast.events import Event as HoldfastEvent
from holdfast.events import Events
from holdfast.lease.keeper import LeaseKeeper
from holdfast.queue.message import get_lease
from holdfast.testing import ManualClock, MemoryConversations, MemoryQueue
from holdfast.worker.handler import Result
from holdfast.worker.outcome import retry_after_error, to_outcome
from holdfast.worker.runner import Context
from holdfast.worker.settle import settle
from support.chat.providers import FakeProviders, FakeSender

KEY = ConversationKey("whatsapp:you", "c")
CHANNEL_CONFIG = {"whatsapp_credentials_id": "twilio-secret", "sender": "whatsapp:us"}
AI_CONFIG = {"ai_api_key_reference": "openai-secret", "model": "m"}
PROFILE = ConversationProfile(CHANNEL_CONFIG, AI_CONFIG)
_GIVE_UP = Event()  # a call that fails is not repeated; the message is delivered again
_GIVE_UP.set()


@dataclass(frozen=True)
class Build:
    """The kinds of the components, which tests replace to remove an element."""

    store: Callable[[ConversationStore], Any] = lambda store: store
    processor: type[BatchProcessor] = BatchProcessor
    sweeper: type[Sweeper] | None = Sweeper


class Chat:
    """The components of one process."""

    def __init__(
        self,
        store: Any,
        queue: Any,
        providers: FakeProviders,
        *,
        keeper: LeaseKeeper,
        clock: Any,
        policy: ConversationPolicy,
        profiles: Mapping[str, ConversationProfile] | None = None,
        max_attempts: int = 5,
        events: Events | None = None,
        build: Build | None = None,
    ) -> None:
        self.queue, self.clock, self.events = queue, clock, events or Events()
        build, queues = build or Build(), dict.fromkeys(Channel, queue)
        shared: dict[str, Any] = {"policy": policy, "clock": clock, "events": events}
        self.stager = Stager(store, queues, profiles=profiles, **shared)
        self.operator = Operator(store, queues, **shared)
        self.sweeper = build.sweeper(store, queues, **shared) if build.sweeper else None
        self.processor = build.processor(
            store, providers, queues, keeper=keeper, max_attempts=max_attempts, **shared
        )

    def handle(self, trigger: Trigger, stopping: Event) -> Result:
        """Handle and settle a trigger, as a worker does."""
        ctx = Context(self.queue, trigger, get_lease(trigger), stopping, self.clock)
        try:
            outcome = to_outcome(self.processor(trigger, ctx))
        except Exception as error:
            outcome = retry_after_error(error)
        settle(self.queue, trigger, outcome, self.events, give_up=_GIVE_UP)
        return outcome


def make_message(key: ConversationKey, sid: str, received_at: float | None = None) -> Inbound:
    """Return a message whose body shows its sid, as `ChatAccounting` expects it."""
    return Inbound(
        message_sid=sid,
        primary_channel=key.primary_channel,
        conversation_id=key.conversation_id,
        recipient=key.conversation_id,
        body=f"<{sid}>",
        received_at=received_at,
    )


class Port:
    """A store, a queue or a provider, each of whose calls goes through `make_call`.

    Renewals do not, because the keeper makes them while the other components wait.
    """

    def __init__(
        self, make_call: Callable[[str, Callable[[], Any]], Any], name: str, port: Any
    ) -> None:
        self._make_call, self._name, self._port = make_call, name, port

    def __getattr__(self, method: str) -> Any:
        value = getattr(self._port, method)
        if not callable(value) or method == "renew":
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            label = f"{self._name}.{method}"
            if method == "note":
                label += f"({type(args[1]).__name__})"
            return self._make_call(label, partial(value, *args, **kwargs))

        return call

    @contextmanager
    def connect(self, *args: Any, **kwargs: Any) -> Iterator[Callable[[], Any]]:
        """Make two calls: the connection, and the one that sends over it."""
        with ExitStack() as opened:
            enter = partial(opened.enter_context, self._port.connect(*args, **kwargs))
            send = self._make_call(f"{self._name}.connect", enter)
            yield lambda: self._make_call(f"{self._name}.send", send)


# -- one process, for unit tests


class QuietKeeper(LeaseKeeper):
    """A keeper that renews when the test calls `tick`; a thread would race with the clock."""

    def start(self) -> None:
        pass


class Ground:
    """A chat in one process, with a manual clock and fakes for providers, store and queue."""

    def __init__(
        self, *, conversation: bool = True, clock: ManualClock | None = None, **policy: object
    ) -> None:
        self.clock = clock or ManualClock(auto_advance=True)
        self.emitted: list[HoldfastEvent] = []
        self.events = Events(self.emitted.append)
        self.store = MemoryConversations(clock=self.clock)
        self.queue = MemoryQueue(
            Trigger, name="whatsapp", clock=self.clock, lease_seconds=60.0, max_attempts=5
        )
        self.policy = ConversationPolicy(**{"quiet_seconds": 0.0, **policy})
        self.providers = FakeProviders(the_sender=FakeSender(clock=self.clock))
        self.keeper = QuietKeeper(self.clock, self.events)
        self.stopping = Event()
        self.use(self.store)
        self.stager = self.chat.stager
        if conversation:
            self.open()

    def use(self, store: MemoryConversations, keeper: LeaseKeeper | None = None) -> None:
        """Build processor, sweeper and operator on this store."""
        self.chat = Chat(
            store,
            self.queue,
            self.providers,
            keeper=keeper or self.keeper,
            clock=self.clock,
            policy=self.policy,
            events=self.events,
        )
        self.sweeper, self.operator = self.chat.sweeper, self.chat.operator
        self.processor = self.chat.processor

    def open(self, key: ConversationKey = KEY, **changes: object) -> None:
        """Create a conversation."""
        configs = {"channel_config": CHANNEL_CONFIG, "ai_config": AI_CONFIG}
        self.store.create(Conversation(key, **{**configs, **changes}))

    # -- the customer

    def say(self, sid: str, body: str = "hello", **more: object) -> StagingResult:
        """Stage a message of the customer."""
        data = {"message_sid": sid, "from": KEY.primary_channel, "conversation_id": "c"}
        return self.stager.stage(parse_inbound({**data, "body": body, **more}))

    # -- the workers

    def poll(self) -> Trigger | None:
        """Return the next visible trigger."""
        return next(iter(self.queue.poll()), None)

    def handle(self, trigger: Trigger) -> Result:
        """Handle and settle a trigger."""
        return self.chat.handle(trigger, self.stopping)

    def turn(self, after_seconds: float | None = None) -> Result:
        """Let the window pass, and handle the trigger that is due."""
        wait = self.policy.window_seconds if after_seconds is None else after_seconds
        self.clock.advance(wait)
        trigger = self.poll()
        assert trigger is not None, "no trigger arrived"
        return self.handle(trigger)

    def run_until_quiet(self, seconds: float = 3600.0) -> None:
        """Handle triggers until the queue is empty."""
        until, handled = self.clock.time() + seconds, 0
        while self.clock.time() < until:
            while (trigger := self.poll()) is not None and handled < 200:
                self.handle(trigger)
                handled += 1
            stats = self.queue.stats()
            if not stats.ready + stats.delayed + stats.leased:
                return
            self.clock.advance(1.0)
        raise AssertionError("the queue did not become empty")

    # -- the results

    @property
    def conversation(self) -> Conversation:
        """Return the conversation, which must exist."""
        row = self.store.get(KEY)
        assert row is not None
        return row

    @property
    def history(self) -> list[tuple[str, str]]:
        """Return role and body of each message."""
        return [(message.role, message.body) for message in self.store.history(KEY)]

    @property
    def parked_reasons(self) -> list[str]:
        """Return the reason of each parked batch."""
        return [batch.reason for batch in self.store.parked()]

    def names(self) -> list[str]:
        """Return the type names of all emitted events."""
        return [type(event).__name__ for event in self.emitted]
