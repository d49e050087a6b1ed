"""chat: measure a turn without the writer and the sender."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import Any

from bench.report import Bar, Result, at_most
from bench.scale.measuring import read_measurements
from bench.session import Figures, Session, in_fresh_process
from holdfast.chat.messages import Trigger, parse_inbound
from holdfast.chat.model import (
    Channel,
    Conversation,
    ConversationKey,
    ConversationPolicy,
    HistoryMessage,
    LockAcquired,
    Turn,
)
from holdfast.chat.outbox import SentPart, WriterAnswer
from holdfast.chat.ports import ConversationStore, Secret
from holdfast.chat.processor import BatchProcessor
from holdfast.chat.sqlite_conversations import SQLiteConversations
from holdfast.chat.staging import Stager
from holdfast.lease.keeper import LeaseKeeper
from holdfast.queue.manager import QueueManager
from holdfast.queue.message import get_lease
from holdfast.queues.opening import open_queue
from holdfast.worker.outcome import Done
from holdfast.worker.runner import Context

EARLIER = (0, 10_000)  # messages in the history before
FRAGMENTS = 3  # of a batch
CONVERSATIONS = 2
POLICY = ConversationPolicy(window_seconds=0.0, quiet_seconds=0.0)


class InstantProviders:
    """Writer, sender and secrets that cost nothing."""

    secret_fields: tuple[str, ...] = ()
    repeatable = True

    def __init__(self) -> None:
        self.secrets = self
        self.sent = 0

    def writer(self, name: str) -> "InstantProviders":
        """Return this object."""
        return self

    sender = writer

    def get(self, reference: str) -> Secret:
        """Return an empty secret."""
        return Secret(reference, {})

    def open_thread(self, config: Any, secret: Any) -> str:
        """Return a thread id."""
        return "thread"

    def write(self, question: Any, config: Any, secret: Any, **_: Any) -> WriterAnswer:
        """Return a fixed reply."""
        return WriterAnswer(
            "Your parcel is on its way and will be with you tomorrow.", "item", 90, 15
        )

    @contextmanager
    def connect(self, part: Any, secret: Any, **_: Any) -> Iterator[Callable[[], SentPart]]:
        """Yield a function that sends nothing."""
        yield self._send

    def _send(self) -> SentPart:
        self.sent += 1
        return SentPart(f"SM{self.sent:032}", "queued")


class Chat:
    """Stager and processor on a store and a queue, in one thread."""

    def __init__(self, store: ConversationStore, queue: QueueManager[Trigger]) -> None:
        self.store, self.queue = store, queue
        self.keeper = LeaseKeeper()
        queues = dict.fromkeys(Channel, queue)
        self.stager = Stager(store, queues, policy=POLICY)
        self.processor = BatchProcessor(
            store, InstantProviders(), queues, keeper=self.keeper, policy=POLICY
        )
        self.sent = 0

    def open(self, number: int) -> ConversationKey:
        """Create a conversation and return its key."""
        key = ConversationKey(f"whatsapp:+4930{number:07}", f"conversation-{number}")
        configs = {"channel_config": {"provider": "x"}, "ai_config": {"provider": "x"}}
        self.store.create(Conversation(key, **configs))
        return key

    def stage(self, key: ConversationKey, body: str = "Where is my parcel, please?") -> None:
        """Stage a message of the customer."""
        self.sent += 1
        self.stager.stage(
            parse_inbound(
                {
                    "message_sid": f"SM{self.sent:032}",
                    "from": key.primary_channel,
                    "conversation_id": key.conversation_id,
                    "body": body,
                }
            )
        )

    def answer(self) -> None:
        """Handle the next trigger and ack it."""
        [trigger] = self.queue.poll(wait_seconds=10.0)
        ctx = Context(self.queue, trigger, get_lease(trigger), Event(), self.queue.clock)
        assert self.processor(trigger, ctx) == Done()
        self.queue.ack(trigger)


def run_chat(session: Session) -> Result:
    """Measure turns on SQLite, and count the calls of one on DynamoDB."""
    title = "A turn of a conversation, without the writer and the sender"
    for earlier in EARLIER:
        in_fresh_process(write_history, session.arena.scratch / f"{earlier}.db", earlier)
    contenders = {
        _label(durability, earlier): partial(_measure, session, durability, earlier)
        for durability in ("process", "power")
        for earlier in EARLIER
    }
    measured = session.measure(title, contenders)
    turn = read_measurements()["flows"]["turn"]
    calls = {
        name.removeprefix("dynamodb."): number
        for name, number in turn.items()
        if name.startswith("dynamodb.") and name[9].isupper()
    }
    short, long = (_label("power", earlier) for earlier in EARLIER)
    promise = f"a batch after {EARLIER[-1]:,} messages costs at most 1.2 × one after none"
    return Result(
        title,
        ("", "batches/s", "staged messages/s"),
        measured.make_rows(("rate", "{:,.0f}"), ("staged", "{:,.0f}")),
        [
            Bar(
                "at least 200 batches/s on SQLite, one core", measured.median(short), 200, "/s"
            ),
            at_most("calls of DynamoDB for a batch", sum(calls.values()), 12),
            at_most(promise, measured.ratio(short, long), 1.2, "×"),
        ],
        measured,
        f"A batch is {FRAGMENTS} messages. With `power`, the default, what must outlast a "
        "power cut is on the disk before anything is sent. On DynamoDB a batch takes "
        + ", ".join(f"{number} {name}" for name, number in sorted(calls.items()))
        + f" and {turn['dynamodb.write']:g} write units.",
    )


def _label(durability: str, earlier: int) -> str:
    return f"durability {durability}, {earlier:,} earlier messages"


def _measure(session: Session, durability: str, earlier: int) -> Figures:
    with session.arena.room(durability) as path:
        shutil.copy(session.arena.scratch / f"{earlier}.db", path / "chat.db")
        return in_fresh_process(measure_turns, path, durability, session.size(600, 60))


def measure_turns(path: Path, durability: str, turns: int) -> Figures:
    """Measure how fast batches are answered and messages are staged, each by itself."""
    with open_chat(path, durability) as chat:
        keys = [chat.open(number) for number in range(CONVERSATIONS)]
        answering = staging = 0.0
        for number in range(turns):
            began = perf_counter()
            for _ in range(FRAGMENTS):
                chat.stage(keys[number % CONVERSATIONS])
            staging += perf_counter() - began
            began = perf_counter()
            chat.answer()
            answering += perf_counter() - began
    return {"rate": turns / answering, "staged": FRAGMENTS * turns / staging}


@contextmanager
def open_chat(path: Path, durability: Any) -> Iterator[Chat]:
    """Open a chat with a new queue and an existing store."""
    queue = open_queue(f"file:{path}/chat/triggers", Trigger)  # with default settings
    with SQLiteConversations(path / "chat.db", durability=durability) as store:
        chat = Chat(store, queue)
        try:
            yield chat
        finally:
            chat.keeper.stop()


def write_history(path: Path, messages: int) -> None:
    """Write a history with only the last write of each turn."""
    with SQLiteConversations(path, durability="process") as store:
        chat = Chat(store, open_queue("memory:none", Trigger))
        for key in [chat.open(number) for number in range(CONVERSATIONS)]:
            for number in range(messages // 2):
                _write_turn(store, key, number)


def _write_turn(store: ConversationStore, key: ConversationKey, number: int) -> None:
    locked = store.acquire(key, owner="o", trigger_id="t", now=1.0, expires_at=2.0)
    assert isinstance(locked, LockAcquired)
    user = HistoryMessage("user", "Where is my parcel, please?", 1.0, f"IN{number}")
    reply = HistoryMessage("assistant", "On its way to you.", 1.0, f"OUT{number}")
    turn = Turn((f"IN{number}",), user, reply, "thread", "item", 90, 15)
    store.finish(locked.grant, turn, now=1.0, remember_until=9e9)
