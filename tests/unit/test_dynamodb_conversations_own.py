"""DynamoDBConversations: its rows, what they cost and how large they become."""

from collections.abc import Iterator
from dataclasses import replace
from threading import Event
from typing import Any

import pytest
from chat_ground import AI_CONFIG, CHANNEL_CONFIG, QuietKeeper
from dynamodb_chat_kit import (
    CANARY,
    KEY,
    LATER,
    NOW,
    TABLES,
    answered,
    begun,
    chat_service,
    conversation_row,
    emptied,
    fragment,
    granted,
    parked,
    rows,
    stage,
    staged,
    turn,
    window,
)
from dynamodb_faults import Client

from holdfast.adapters.aws.dynamodb.chat import DynamoDBConversations, create_tables
from holdfast.adapters.aws.dynamodb.chat.doctor import examine
from holdfast.adapters.aws.dynamodb.chat.tables import definitions, tables_of
from holdfast.adapters.aws.dynamodb.values import encode, size_of
from holdfast.conversations.errors import LockLost, PermanentError
from holdfast.conversations.messages import Trigger, inbound_of
from holdfast.conversations.model import Channel, ConversationKey, Status
from holdfast.conversations.outbox import PreparedReply, WriterAnswer, WritingReply
from holdfast.conversations.policy import ConversationPolicy
from holdfast.conversations.processor import BatchProcessor
from holdfast.conversations.staging import Stager
from holdfast.core.checks import CheckLevel
from holdfast.core.queue.message import lease_of
from holdfast.core.worker.context import LeaseContext
from holdfast.core.worker.outcome import Done
from holdfast.testing import ManualClock, MemoryQueue
from holdfast.testing.chat_providers import FakeProviders


@pytest.fixture(scope="module")
def moto() -> Iterator[Any]:
    with chat_service() as client:
        yield client


@pytest.fixture
def client(moto: Any) -> Any:
    return emptied(moto)


@pytest.fixture
def store(client: Any) -> DynamoDBConversations:
    return DynamoDBConversations(client=client, clock=ManualClock(auto_advance=True))


# -- what a batch costs


def test_a_batch_that_goes_well_costs_nine_calls(
    client: Any, store: DynamoDBConversations
) -> None:
    """R002-019, R002-029, R002-042, R002-068, R002-078: counted as botocore sends them."""
    clock, terms = ManualClock(), ConversationPolicy(quiet_seconds=0.0)
    queue = MemoryQueue(Trigger, name="q", clock=clock, lease_seconds=60.0, max_attempts=5)
    queues = dict.fromkeys(Channel, queue)
    stager = Stager(store, queues, terms=terms, clock=clock)
    processor = BatchProcessor(
        store, FakeProviders(), queues, keeper=QuietKeeper(clock), terms=terms, clock=clock
    )
    begun(store, channel_config=CHANNEL_CONFIG, ai_config=AI_CONFIG)
    for sid in ("m1", "m2", "m3"):
        data = {"message_sid": sid, "from": KEY.primary_channel, "body": sid}
        stager.stage(inbound_of({**data, "conversation_id": KEY.conversation_id}))
    clock.advance(terms.window_seconds)
    [trigger] = queue.poll()
    ctx = LeaseContext(queue, trigger, lease_of(trigger), Event(), clock)

    made: list[str] = []
    client.meta.events.register("before-call.dynamodb", _counting(made), unique_id="count")
    try:
        assert processor(trigger, ctx) == Done()
    finally:
        client.meta.events.unregister("before-call.dynamodb", unique_id="count")
    assert made == [
        "UpdateItem",  # acquire, and the row
        "Query",
        "BatchGetItem",
        "DeleteItem",
        "UpdateItem",
        "UpdateItem",
        "UpdateItem",
        "TransactWriteItems",
        "Query",
    ]
    assert [one.role for one in store.history(KEY)] == ["user", "assistant"]
    assert staged(store) == []


def _counting(made: list[str]) -> Any:
    def note(model: Any, **_: Any) -> None:
        made.append(model.name)

    return note


def test_a_store_that_did_not_acquire_the_lock_finishes_all_the_same(
    client: Any, store: DynamoDBConversations
) -> None:
    """What the row held when it was acquired is read again; nothing depends on memory."""
    begun(store)
    answered(store, "m1")
    grant = granted(store)
    other = DynamoDBConversations(client=client, clock=ManualClock())
    other.finish(grant, turn("m2"), now=NOW, remember_until=LATER)
    assert [one.seq for one in store.history(KEY)] == [1, 2, 3, 4]
    with pytest.raises(LockLost):
        other.finish(grant, turn("m3"), now=NOW, remember_until=LATER)


def test_grants_that_are_remembered_are_not_many(store: DynamoDBConversations) -> None:
    """Those who were never given back are forgotten: a process that runs for a year."""
    begun(store)
    grants = [granted(store, f"{n}", now=NOW + 60.0 * n) for n in range(66)]
    assert len(store._rows._held) < 66
    store.finish(grants[-1], turn("m1"), now=NOW, remember_until=LATER)
    with pytest.raises(LockLost):
        store.finish(grants[0], turn("m2"), now=NOW, remember_until=LATER)
    assert len(store.history(KEY)) == 2


# -- rows


def test_a_row_has_the_seed_s_names(client: Any, store: DynamoDBConversations) -> None:
    """R002-068…074, D-11: one list, appended by one write, with status, thread and tokens."""
    begun(store, channel_config={"sender": "s"}, ai_config={"assistant_id": "a"})
    grant = granted(store)
    locked = conversation_row(client)
    assert locked["conversation_status"] == "processing_reply"
    assert (locked["lock_owner"], locked["lock_trigger"]) == ("owner", "t")
    assert (locked["lock_fence"], locked["lock_expires_at"]) == (1, NOW + 60.0)
    store.note(grant, WritingReply(("m1",)), "thread")
    assert conversation_row(client)["outbox"] == {"state": "writing", "sids": ["m1"]}
    store.finish(grant, turn("m1"), now=NOW + 2.0, remember_until=LATER)
    row = conversation_row(client)
    assert [one["role"] for one in row.pop("messages")] == ["user", "assistant"]
    del row["write_id"]
    assert row == {
        "primary_channel": KEY.primary_channel,
        "conversation_id": "chat",
        "channel_config": {"sender": "s"},
        "ai_config": {"assistant_id": "a"},
        "conversation_status": "reply_sent",
        "openai_thread_id": "thread",
        "thread_mark": "mark",
        "last_assistant_message_sid": "reply to m1",
        "message_count": 2,
        "prompt_tokens": 10,
        "completion_tokens": 3,
        "lock_fence": 1,
        "created_at": NOW,
        "updated_at": NOW + 2.0,
    }


def test_rows_expire_in_whole_seconds_and_not_too_early(
    client: Any, store: DynamoDBConversations
) -> None:
    """D-25, R002-009, R002-094: DynamoDB reads `expires_at` in whole seconds."""
    begun(store)
    store.stage(fragment("m1"), expires_at=NOW + 10.25)
    store.open_window(window(), now=NOW, untriggered_before=NOW)
    grant = granted(store)
    store.finish(grant, turn("m2"), now=NOW, remember_until=NOW + 20.75)
    assert rows(client, TABLES.stage)[0]["expires_at"] == NOW + 11
    assert rows(client, TABLES.windows)[0]["expires_at"] == NOW + 101
    kept = {row["entry"]: row.get("expires_at") for row in rows(client, TABLES.messages)}
    assert kept == {
        "message#000000000001": None,  # the history stays
        "message#000000000002": None,
        "sid#m2": NOW + 21,
    }
    assert "expires_at" not in conversation_row(client)
    assert store.window(KEY.conversation_id) == window()


@pytest.mark.parametrize("letter", ["🙂", "x"])
def test_ids_as_long_as_staging_takes_them_are_kept(
    store: DynamoDBConversations, letter: str
) -> None:
    key = ConversationKey(letter * 256, letter * 256)
    sid = letter * 256
    [made] = [replace(fragment(sid), key=key)]
    store.create(replace(_conversation(store), key=key))
    store.stage(made, expires_at=LATER)
    said = store.acquire(key, owner="o", trigger_id="t", now=NOW, expires_at=NOW + 60.0)
    store.finish(said.grant, turn(sid), now=NOW, remember_until=LATER)  # type: ignore[union-attr]
    assert store.processed(key, [sid, sid[:-1] + "y"]) == {sid}
    assert store.staged(key.conversation_id) == []
    assert len(store.history(key)) == 2


def _conversation(store: DynamoDBConversations) -> Any:
    begun(store)
    return store.get(KEY)


@pytest.mark.parametrize("key", [ConversationKey("", "c"), ConversationKey("+49", "c" * 2_000)])
def test_ids_that_no_row_can_have_are_unknown(
    store: DynamoDBConversations, key: ConversationKey
) -> None:
    assert store.get(key) is None
    assert store.set_status(key, "vip") is False
    said = store.acquire(key, owner="o", trigger_id="t", now=NOW, expires_at=NOW)
    assert type(said).__name__ == "ConversationNotFound"


# -- sizes


def _row_size(client: Any) -> int:
    return size_of(encode(conversation_row(client)))


def test_a_row_does_not_grow_with_its_history(
    client: Any, store: DynamoDBConversations
) -> None:
    """I-MS-10, MS-10, D-26: four bytes a letter, and each text longer than the tail keeps.
    After the tail is full a turn adds nothing but the digits of its numbers; so what holds
    for the sixth turn holds for the ten thousandth."""
    begun(store, channel_config={"notes": "x" * 60_000})
    sizes = []
    for number in range(12):
        answered(store, f"m{number:05}", asked="🙂" * 9_000, answer="🙃" * 9_000)
        sizes.append(_row_size(client))
    digits = 4 * 20  # of the numbers from 10 to 10,000, in each of the tail's messages
    assert max(sizes[5:]) - min(sizes[5:]) <= digits
    assert max(sizes) < 200_000
    assert store.get(KEY).message_count == 24  # type: ignore[union-attr]


def test_a_row_that_others_filled_takes_the_turn_all_the_same(
    client: Any, store: DynamoDBConversations
) -> None:
    """MS-10: the reply is out. It is the tail that gives way, not the history."""
    begun(store, ai_config={"prompt": "x" * 370_000})
    for number in range(3):
        answered(store, f"m{number}", asked="y" * 8_000)
    assert _row_size(client) < 400 * 1024
    assert [len(one.body) for one in store.history(KEY)[::2]] == [8_000] * 3


def test_a_batch_longer_than_a_row_is_whole_in_the_history(
    client: Any, store: DynamoDBConversations
) -> None:
    """MS-10: a hundred thousand letters, of four bytes each."""
    begun(store)
    long = "🙂" * 160_000
    answered(store, "m1", asked="first")
    answered(store, "m2", asked=long, answer=long[:75_001])
    answered(store, "m3", asked="last")
    history = store.history(KEY)
    assert [one.seq for one in history] == [1, 2, 3, 4, 5, 6]
    assert [len(one.body) for one in history] == [5, 6, 160_000, 75_001, 4, 6]
    assert history[2].body == long
    assert store.history(KEY, before=5, limit=2) == history[2:4]
    assert store.history(KEY, before=4, limit=1) == history[2:3]
    assert max(size_of(encode(row)) for row in rows(client, TABLES.messages)) < 400 * 1024


def test_a_reply_that_no_row_can_hold_is_not_sent(store: DynamoDBConversations) -> None:
    """MS-10, MS-22: it is refused before the send, for good, and nothing of it is told."""
    begun(store)
    grant = granted(store)
    store.note(grant, WritingReply(("m1",)), "")
    with pytest.raises(PermanentError) as refused:
        store.note(grant, PreparedReply(("m1",), WriterAnswer(CANARY * 30_000)), "")
    assert CANARY not in str(refused.value)
    assert store.get(KEY).outbox == WritingReply(("m1",))  # type: ignore[union-attr]


def test_a_turn_of_more_messages_than_one_write_holds_is_refused(
    store: DynamoDBConversations,
) -> None:
    begun(store)
    grant = granted(store)
    sids = [f"m{n}" for n in range(49)]
    with pytest.raises(PermanentError):
        store.finish(grant, turn(*sids), now=NOW, remember_until=LATER)
    assert store.history(KEY) == []


def test_numbers_of_the_history_that_are_taken_are_passed_over(
    client: Any, store: DynamoDBConversations
) -> None:
    """Somebody deleted the conversation's row, and it began anew: its history is still
    there, and the next turn neither overwrites it nor fails for ever."""
    begun(store)
    answered(store, "m1", asked="before")
    row = conversation_row(client)
    key = {name: {"S": row[name]} for name in ("primary_channel", "conversation_id")}
    client.delete_item(TableName=TABLES.conversations, Key=key)
    begun(store)
    answered(store, "m2", asked="after")
    assert [one.seq for one in store.history(KEY)] == [1, 2, 3, 4]
    assert [one.body for one in store.history(KEY)[::2]] == ["before", "after"]
    assert store.get(KEY).message_count == 4  # type: ignore[union-attr]


# -- parking what does not fit in one write


def test_large_batches_are_parked_in_slices_and_come_back_whole(
    client: Any, store: DynamoDBConversations
) -> None:
    """I-MS-1: longer than a row, and together longer than one write may be."""
    many = [fragment(f"m{n:03}", body=f"{n % 10}" * 240_000) for n in range(12)]
    for one in many:
        store.stage(one, expires_at=LATER)
    batch = parked(*many)
    noting = Client(client)
    DynamoDBConversations(client=noting, clock=ManualClock()).park(
        None, batch, remember_until=LATER
    )
    sizes = [len(call["TransactItems"]) for call in noting.made("transact_write_items")]
    assert len(sizes) > 1
    assert max(sizes) <= 100
    assert max(size_of(encode(row)) for row in rows(client, TABLES.parked)) < 400 * 1024
    assert list(store.parked()) == [batch]
    assert staged(store) == []
    back = store.unpark(batch.parked_id, back_to_stage=True, now=NOW, expires_at=LATER)
    assert back == batch
    assert list(store.parked()) == []
    assert rows(client, TABLES.parked) == []
    assert staged(store) == [one.message_sid for one in many]
    assert store.processed(KEY, [one.message_sid for one in many]) == set()


def test_a_batch_of_forty_is_parked_in_one_write(
    client: Any, store: DynamoDBConversations
) -> None:
    begun(store)
    noting = Client(client)
    many = stage(store, *(f"m{n}" for n in range(40)))
    watched = DynamoDBConversations(client=noting, clock=ManualClock())
    watched.park(granted(watched), parked(*many), remember_until=LATER)
    [call] = noting.made("transact_write_items")
    assert len(call["TransactItems"]) <= 100
    assert store.get(KEY).status == Status.PARKED  # type: ignore[union-attr]


# -- tables


def test_tables_are_made_with_keys_and_expiry_and_doctor_is_content(client: Any) -> None:
    """D-25: R002-008, R002-009, R002-094."""
    names = [one["TableName"] for one in definitions(tables_of("acme-"))]
    assert create_tables(client, "acme-") == names
    assert create_tables(client, "acme-") == []
    found = list(examine(client, "acme-"))
    assert {one.level for one in found} == {CheckLevel.OK}
    assert sum(one.check == "expiry" for one in found) == 3
    begun(DynamoDBConversations("acme-", client=client))
    assert rows(client, "acme-conversations")


def test_doctor_tells_what_is_missing_and_how_to_make_it(client: Any) -> None:
    wanted = definitions(tables_of("half-"))
    wanted[2]["KeySchema"], wanted[2]["AttributeDefinitions"] = (
        wanted[1]["KeySchema"],
        wanted[1]["AttributeDefinitions"],
    )
    for one in wanted[:4]:
        client.create_table(**one)
    found = list(examine(client, "half-"))
    gone = [one for one in found if one.level is CheckLevel.FAIL]
    assert [one.found.split()[0] for one in gone] == [
        "half-conversations-trigger-lock",
        "half-conversations-parked",
    ]
    assert "holdfast chat tables --create" in gone[1].remedy
    never = [one for one in found if one.check == "expiry" and one.level is CheckLevel.WARN]
    assert len(never) == 3
    assert all("expires_at" in one.remedy for one in never)
