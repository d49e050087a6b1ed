"""A chat in one process, on a clock that stands still: people write, triggers come, we look."""

from threading import Event

from holdfast.conversations.messages import Trigger, inbound_of
from holdfast.conversations.model import Channel, Conversation, ConversationKey
from holdfast.conversations.operator import Operator
from holdfast.conversations.policy import ConversationPolicy
from holdfast.conversations.processor import BatchProcessor
from holdfast.conversations.staging import Stager, StagingResult
from holdfast.conversations.sweeper import Sweeper
from holdfast.core.events import Event as Told
from holdfast.core.events import Events
from holdfast.core.lease.keeper import LeaseKeeper
from holdfast.core.queue.message import lease_of
from holdfast.core.worker.context import LeaseContext
from holdfast.core.worker.handler import Result
from holdfast.core.worker.settle import settle
from holdfast.testing import ManualClock, MemoryConversations, MemoryQueue
from holdfast.testing.chat_providers import FakeProviders

KEY = ConversationKey("whatsapp:you", "c")
CHANNEL_CONFIG = {"whatsapp_credentials_id": "twilio-secret", "sender": "whatsapp:us"}
AI_CONFIG = {"ai_api_key_reference": "openai-secret", "model": "m"}


class QuietKeeper(LeaseKeeper):
    """Renews when the test calls `tick`: a thread would race with the clock."""

    def start(self) -> None:
        pass


class Ground:
    """What the test sees is real: stager, processor, store and queue."""

    def __init__(self, *, conversation: bool = True, **terms: object) -> None:
        self.clock = ManualClock()
        self.told: list[Told] = []
        self.events = Events(self.told.append)
        self.store = MemoryConversations(clock=self.clock)
        self.queue = MemoryQueue(
            Trigger, name="whatsapp", clock=self.clock, lease_seconds=60.0, max_attempts=5
        )
        self.queues = dict.fromkeys(Channel, self.queue)
        self.terms = ConversationPolicy(**{"quiet_seconds": 0.0, **terms})
        self.providers = FakeProviders()
        self.keeper = QuietKeeper(self.clock, self.events)
        self.stopping = Event()
        wired = {"terms": self.terms, "clock": self.clock, "events": self.events}
        self.stager = Stager(self.store, self.queues, **wired)
        self._wired = wired
        self.use(self.store)
        if conversation:
            self.open()

    def use(self, store: MemoryConversations, keeper: LeaseKeeper | None = None) -> None:
        """Have triggers handled, parked ones swept and decided about, over this store."""
        parts = (store, self.queues)
        self.sweeper = Sweeper(*parts, **self._wired)
        self.desk = Operator(*parts, **self._wired)
        self.processor = BatchProcessor(
            store, self.providers, self.queues, keeper=keeper or self.keeper, **self._wired
        )

    def open(self, key: ConversationKey = KEY, **changes: object) -> None:
        configs = {"channel_config": CHANNEL_CONFIG, "ai_config": AI_CONFIG}
        self.store.create(Conversation(key, **{**configs, **changes}))

    # -- what people do

    def say(self, sid: str, body: str = "hello", **more: object) -> StagingResult:
        data = {"message_sid": sid, "from": KEY.primary_channel, "conversation_id": "c"}
        return self.stager.stage(inbound_of({**data, "body": body, **more}))

    # -- what the machines do

    def poll(self) -> Trigger | None:
        return next(iter(self.queue.poll()), None)

    def handle(self, trigger: Trigger) -> Result:
        lease = lease_of(trigger)
        ctx = LeaseContext(self.queue, trigger, lease, self.stopping, self.clock)
        outcome = self.processor(trigger, ctx)
        settle(self.queue, trigger, outcome, self.events)
        return outcome

    def turn(self, after_seconds: float | None = None) -> Result:
        """Let the window pass, and the trigger that is due be handled."""
        wait = self.terms.window_seconds if after_seconds is None else after_seconds
        self.clock.advance(wait)
        trigger = self.poll()
        assert trigger is not None, "no trigger came"
        return self.handle(trigger)

    def rest(self, seconds: float = 3600.0) -> None:
        """Until nothing is in the queue any more."""
        until, handled = self.clock.time() + seconds, 0
        while self.clock.time() < until:
            while (trigger := self.poll()) is not None and handled < 200:
                self.handle(trigger)
                handled += 1
            stats = self.queue.stats()
            if not stats.ready + stats.delayed + stats.leased:
                return
            self.clock.advance(1.0)
        raise AssertionError("the queue did not come to rest")

    # -- what is to be seen

    @property
    def conversation(self) -> Conversation:
        found = self.store.get(KEY)
        assert found is not None
        return found

    @property
    def history(self) -> list[tuple[str, str]]:
        return [(one.role, one.body) for one in self.store.history(KEY)]

    @property
    def parked_reasons(self) -> list[str]:
        return [one.reason for one in self.store.parked()]

    def names(self) -> list[str]:
        return [type(one).__name__ for one in self.told]
