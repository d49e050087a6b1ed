"""A chat in one process, with a manual clock, for unit tests."""

from threading import Event

from holdfast.chat.messages import Trigger, parse_inbound
from holdfast.chat.model import Channel, Conversation, ConversationKey
from holdfast.chat.operator import Operator
from holdfast.chat.policy import ConversationPolicy
from holdfast.chat.processor import BatchProcessor
from holdfast.chat.staging import Stager, StagingResult
from holdfast.chat.sweeper import Sweeper
from holdfast.events import Event as HoldfastEvent
from holdfast.events import Events
from holdfast.lease.keeper import LeaseKeeper
from holdfast.queue.message import get_lease
from holdfast.testing import ManualClock, MemoryConversations, MemoryQueue
from holdfast.worker.context import Context
from holdfast.worker.handler import Result
from holdfast.worker.settle import settle
from support.chat.fake_providers import FakeProviders

KEY = ConversationKey("whatsapp:you", "c")
CHANNEL_CONFIG = {"whatsapp_credentials_id": "twilio-secret", "sender": "whatsapp:us"}
AI_CONFIG = {"ai_api_key_reference": "openai-secret", "model": "m"}


class QuietKeeper(LeaseKeeper):
    """A keeper that renews when the test calls `tick`; a thread would race with the clock."""

    def start(self) -> None:
        pass


class Ground:
    """A chat application with real components, and fakes for providers, store and queue."""

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
        self.queues = dict.fromkeys(Channel, self.queue)
        self.policy = ConversationPolicy(**{"quiet_seconds": 0.0, **policy})
        self.providers = FakeProviders()
        self.keeper = QuietKeeper(self.clock, self.events)
        self.stopping = Event()
        wired = {"policy": self.policy, "clock": self.clock, "events": self.events}
        self.stager = Stager(self.store, self.queues, **wired)
        self._wired = wired
        self.use(self.store)
        if conversation:
            self.open()

    def use(self, store: MemoryConversations, keeper: LeaseKeeper | None = None) -> None:
        """Build processor, sweeper and operator on this store."""
        parts = (store, self.queues)
        self.sweeper = Sweeper(*parts, **self._wired)
        self.operator = Operator(*parts, **self._wired)
        self.processor = BatchProcessor(
            store, self.providers, self.queues, keeper=keeper or self.keeper, **self._wired
        )

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
        lease = get_lease(trigger)
        ctx = Context(self.queue, trigger, lease, self.stopping, self.clock)
        outcome = self.processor(trigger, ctx)
        settle(self.queue, trigger, outcome, self.events)
        return outcome

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
