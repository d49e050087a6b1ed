"""DynamoDBConversations: its rows, their cost and their size."""

from dataclasses import replace
from threading import Event
from typing import Any

import pytest
from conversation_rows import (
    CANARY,
    TABLES,
    answer_messages,
    make_turn,
    read_conversation_row,
    read_rows,
)

from contracts.conversations.support import (
    KEY,
    LATER,
    NOW,
    acquire_grant,
    create_conversation,
    list_staged_sids,
    make_fragment,
    make_parked,
    make_window,
    stage_messages,
)
from holdfast.chat.checks import CONVERSATION_STORE
from holdfast.chat.dynamodb import DynamoDBConversations, create_tables
from holdfast.chat.dynamodb.tables import define_tables, tables_from_prefix
from holdfast.chat.errors import LockLost, PermanentError
from holdfast.chat.messages import Trigger, parse_inbound
from holdfast.chat.model import Channel, ConversationKey, ConversationPolicy, Status
from holdfast.chat.outbox import PreparedReply, SendingReply, WriterAnswer, WritingReply
from holdfast.chat.processor import BatchProcessor
from holdfast.chat.staging import Stager
from holdfast.doctor.checks import CheckLevel
from holdfast.doctor.stores import check_tables
from holdfast.queue.message import get_lease
from holdfast.store.dynamodb.values import encode, measure_size
from holdfast.testing import ManualClock, MemoryQueue
from holdfast.worker.outcome import Done
from holdfast.worker.runner import Context
from support.chat.application import AI_CONFIG, CHANNEL_CONFIG, QuietKeeper
from support.chat.providers import FakeProviders
from support.dynamodb.faults import RecordingClient

# -- the cost of a batch


@pytest.mark.requirement("R002-019", "R002-029", "R002-042", "R002-068", "R002-078")
def test_a_batch_without_faults_costs_twelve_calls(
    client: Any, store: DynamoDBConversations
) -> None:
    """Counted as botocore sends them."""
    clock, policy = ManualClock(), ConversationPolicy(quiet_seconds=0.0)
    queue = MemoryQueue(Trigger, name="q", clock=clock, lease_seconds=60.0, max_attempts=5)
    queues = dict.fromkeys(Channel, queue)
    stager = Stager(store, queues, policy=policy, clock=clock)
    processor = BatchProcessor(
        store, FakeProviders(), queues, keeper=QuietKeeper(clock), policy=policy, clock=clock
    )
    create_conversation(store, channel_config=CHANNEL_CONFIG, ai_config=AI_CONFIG)
    for sid in ("m1", "m2", "m3"):
        data = {"message_sid": sid, "from": KEY.primary_channel, "body": sid}
        stager.stage(parse_inbound({**data, "conversation_id": KEY.conversation_id}))
    clock.advance(policy.window_seconds)
    [trigger] = queue.poll()
    ctx = Context(queue, trigger, get_lease(trigger), Event(), clock)

    operations: list[str] = []
    client.meta.events.register(
        "before-call.dynamodb", _record_operations(operations), unique_id="count"
    )
    try:
        assert processor(trigger, ctx) == Done()
    finally:
        client.meta.events.unregister("before-call.dynamodb", unique_id="count")
    assert operations == [
        "GetItem",
        "UpdateItem",  # acquires the lock
        "Query",
        "BatchGetItem",
        "DeleteItem",
        "UpdateItem",
        "UpdateItem",
        "UpdateItem",
        "GetItem",
        "TransactWriteItems",
        "BatchWriteItem",
        "Query",
    ]
    assert [message.role for message in store.history(KEY)] == ["user", "assistant"]
    assert list_staged_sids(store) == []


def _record_operations(operations: list[str]) -> Any:
    def note(model: Any, **_: Any) -> None:
        operations.append(model.name)

    return note


def test_a_store_that_did_not_acquire_the_lock_can_finish(
    client: Any, store: DynamoDBConversations
) -> None:
    """The row is read again, so nothing depends on the memory of one process."""
    create_conversation(store)
    answer_messages(store, "m1")
    grant = acquire_grant(store)
    other = DynamoDBConversations(client=client, clock=ManualClock())
    other.finish(grant, make_turn("m2"), now=NOW, remember_until=LATER)
    assert [message.seq for message in store.history(KEY)] == [1, 2, 3, 4]
    with pytest.raises(LockLost):
        other.finish(grant, make_turn("m3"), now=NOW, remember_until=LATER)


def test_a_renewal_writes_one_unit_and_a_note_writes_two(
    client: Any, store: DynamoDBConversations
) -> None:
    """DynamoDB charges a write by the kilobytes of its item, whatever changes in it."""
    create_conversation(store, channel_config=CHANNEL_CONFIG, ai_config=AI_CONFIG)
    answer_messages(store, "m1", asked="asked " * 100, answer="answer " * 60)
    grant = acquire_grant(store)
    answer = WriterAnswer("answer " * 60, "mark", prompt_tokens=100, completion_tokens=50)
    sids = tuple(f"SM{n:032}" for n in range(3))
    store.note(grant, SendingReply(sids, answer, (), NOW), "thread-of-the-conversation")
    row = read_conversation_row(client)
    assert _measure_row(client) < 2 * 1024
    assert store.renew(grant, now=NOW, expires_at=NOW + 90.0)
    assert read_conversation_row(client) == row
    [renewal] = [r for r in read_rows(client, TABLES.messages) if r["entry"] == "renewal"]
    assert measure_size(encode(renewal)) < 1024
    assert store.get(KEY).lock_expires_at == NOW + 90.0  # type: ignore[union-attr]


# -- rows


@pytest.mark.requirement(
    "R002-068", "R002-069", "R002-070", "R002-071", "R002-072", "R002-073", "R002-074"
)
def test_a_row_has_the_seed_s_names(client: Any, store: DynamoDBConversations) -> None:
    """One write appends to the list and sets status, thread and tokens."""
    create_conversation(store, channel_config={"sender": "s"}, ai_config={"assistant_id": "a"})
    grant = acquire_grant(store)
    locked = read_conversation_row(client)
    assert locked["conversation_status"] == "processing_reply"
    assert (locked["lock_owner"], locked["lock_trigger"]) == ("first", "trigger")
    assert (locked["lock_fence"], locked["lock_expires_at"]) == (1, NOW + 60.0)
    store.note(grant, WritingReply(("m1",)), "thread")
    assert read_conversation_row(client)["outbox"] == {"state": "writing", "sids": ["m1"]}
    store.finish(grant, make_turn("m1"), now=NOW + 2.0, remember_until=LATER)
    row = read_conversation_row(client)
    assert [message["role"] for message in row.pop("messages")] == ["user", "assistant"]
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


@pytest.mark.requirement("R002-009", "R002-094")
def test_rows_expire_in_whole_seconds_and_not_too_early(
    client: Any, store: DynamoDBConversations
) -> None:
    """DynamoDB reads `expires_at` in whole seconds."""
    create_conversation(store)
    store.stage(make_fragment("m1"), expires_at=NOW + 10.25)
    window = make_window(expires_at=NOW + 100.5)
    store.open_window(window, now=NOW, untriggered_before=NOW)
    grant = acquire_grant(store)
    store.finish(grant, make_turn("m2"), now=NOW, remember_until=NOW + 20.75)
    assert read_rows(client, TABLES.stage)[0]["expires_at"] == NOW + 11
    assert read_rows(client, TABLES.windows)[0]["expires_at"] == NOW + 101
    expiry_by_entry = {
        row["entry"]: row.get("expires_at") for row in read_rows(client, TABLES.messages)
    }
    assert expiry_by_entry == {
        "message#000000000001": None,  # the history stays
        "message#000000000002": None,
        "sid#m2": NOW + 21,
    }
    assert "expires_at" not in read_conversation_row(client)
    assert store.window(KEY.conversation_id) == window


@pytest.mark.parametrize("letter", ["🙂", "x"])
def test_the_longest_ids_that_staging_accepts_are_stored(
    store: DynamoDBConversations, letter: str
) -> None:
    key = ConversationKey(letter * 256, letter * 256)
    sid = letter * 256
    [list_calls] = [replace(make_fragment(sid), key=key)]
    store.create(replace(_create_and_get(store), key=key))
    store.stage(list_calls, expires_at=LATER)
    outcome = store.acquire(key, owner="o", trigger_id="t", now=NOW, expires_at=NOW + 60.0)
    store.finish(outcome.grant, make_turn(sid), now=NOW, remember_until=LATER)  # type: ignore[union-attr]
    assert store.processed(key, [sid, sid[:-1] + "y"]) == {sid}
    assert store.staged(key.conversation_id) == []
    assert len(store.history(key)) == 2


def _create_and_get(store: DynamoDBConversations) -> Any:
    create_conversation(store)
    return store.get(KEY)


@pytest.mark.parametrize("key", [ConversationKey("", "c"), ConversationKey("+49", "c" * 2_000)])
def test_ids_that_no_row_can_have_are_unknown(
    store: DynamoDBConversations, key: ConversationKey
) -> None:
    assert store.get(key) is None
    assert store.set_status(key, "vip") is False
    outcome = store.acquire(key, owner="o", trigger_id="t", now=NOW, expires_at=NOW)
    assert type(outcome).__name__ == "ConversationNotFound"


# -- sizes


def _measure_row(client: Any) -> int:
    return measure_size(encode(read_conversation_row(client)))


def test_a_row_does_not_grow_with_its_history(
    client: Any, store: DynamoDBConversations
) -> None:
    """Only digits of its numbers are added, so a size that holds for the third turn holds for
    the ten thousandth (I-MS-10, MS-10).
    """
    create_conversation(store, channel_config={"notes": "x" * 200})
    sizes = []
    for number in range(6):
        answer_messages(store, f"m{number:05}", asked="🙂" * 9_000, answer="🙃" * 9_000)
        sizes.append(_measure_row(client))
    assert max(sizes[2:]) - min(sizes[2:]) <= 10
    assert max(sizes) < 2_500  # of which the two texts take 1,280
    assert store.get(KEY).message_count == 12  # type: ignore[union-attr]


def test_a_row_that_other_software_filled_still_accepts_the_turn(
    client: Any, store: DynamoDBConversations
) -> None:
    """The reply has been sent, so recent messages are dropped from the row, not from the
    history (MS-10).
    """
    create_conversation(store, ai_config={"prompt": "x" * 370_000})
    for number in range(3):
        answer_messages(store, f"m{number}", asked="y" * 8_000)
    assert _measure_row(client) < 400 * 1024
    assert [len(message.body) for message in store.history(KEY)[::2]] == [8_000] * 3


def test_a_batch_longer_than_a_row_is_complete_in_the_history(
    client: Any, store: DynamoDBConversations
) -> None:
    """A hundred thousand characters of four bytes each (MS-10)."""
    create_conversation(store)
    long = "🙂" * 160_000
    answer_messages(store, "m1", asked="first")
    answer_messages(store, "m2", asked=long, answer=long[:75_001])
    answer_messages(store, "m3", asked="last")
    history = store.history(KEY)
    assert [message.seq for message in history] == [1, 2, 3, 4, 5, 6]
    assert [len(message.body) for message in history] == [5, 6, 160_000, 75_001, 4, 6]
    assert history[2].body == long
    assert store.history(KEY, before=5, limit=2) == history[2:4]
    assert store.history(KEY, before=4, limit=1) == history[2:3]
    assert (
        max(measure_size(encode(row)) for row in read_rows(client, TABLES.messages))
        < 400 * 1024
    )


def test_a_reply_that_no_row_can_hold_is_not_sent(store: DynamoDBConversations) -> None:
    """It is refused permanently before it is sent, and the error does not show it (MS-10,
    MS-22).
    """
    create_conversation(store)
    grant = acquire_grant(store)
    store.note(grant, WritingReply(("m1",)), "")
    with pytest.raises(PermanentError) as refused:
        store.note(grant, PreparedReply(("m1",), WriterAnswer(CANARY * 30_000)), "")
    assert CANARY not in str(refused.value)
    assert store.get(KEY).outbox == WritingReply(("m1",))  # type: ignore[union-attr]


def test_a_turn_of_more_messages_than_one_write_holds_is_refused(
    store: DynamoDBConversations,
) -> None:
    create_conversation(store)
    grant = acquire_grant(store)
    sids = [f"m{n}" for n in range(98)]
    with pytest.raises(PermanentError, match="takes 101 writes"):
        store.finish(grant, make_turn(*sids), now=NOW, remember_until=LATER)
    assert store.history(KEY) == []


def test_a_message_named_twice_in_a_turn_is_written_once(
    client: Any, clock: ManualClock
) -> None:
    """DynamoDB refuses a transaction that writes a row twice."""
    recorded = RecordingClient(client)
    store = DynamoDBConversations(client=recorded, clock=clock)
    create_conversation(store)
    stage_messages(store, "m1")
    answer_messages(store, "m1", "m1")
    assert store.processed(KEY, ["m1"]) == {"m1"}
    [transaction] = recorded.list_calls("transact_write_items")
    assert len(transaction["TransactItems"]) == 4
    [deletes] = recorded.list_calls("batch_write_item")
    assert len(deletes["RequestItems"][TABLES.stage]) == 1


def test_history_numbers_that_are_taken_are_skipped(
    client: Any, store: DynamoDBConversations
) -> None:
    """The conversation's row was deleted and created again. Its history is still there, and the
    next turn neither overwrites it nor fails forever.
    """
    create_conversation(store)
    answer_messages(store, "m1", asked="before")
    row = read_conversation_row(client)
    key = {name: {"S": row[name]} for name in ("primary_channel", "conversation_id")}
    client.delete_item(TableName=TABLES.conversations, Key=key)
    create_conversation(store)
    answer_messages(store, "m2", asked="after")
    assert [message.seq for message in store.history(KEY)] == [1, 2, 3, 4]
    assert [message.body for message in store.history(KEY)[::2]] == ["before", "after"]
    assert store.get(KEY).message_count == 4  # type: ignore[union-attr]


# -- parking batches that do not fit into one write


@pytest.mark.parametrize(
    "large",
    [{"body": "x" * 240_000}, {"media": ("image/" + "x" * 250,) * 940}],
    ids=["text", "attachments"],
)
def test_large_batches_are_parked_in_slices_and_come_back_complete(
    client: Any, store: DynamoDBConversations, large: dict[str, Any]
) -> None:
    """The messages are larger than a row, and together larger than one transaction (I-MS-1)."""
    messages = [make_fragment(f"m{n:03}", **large) for n in range(12)]
    for message in messages:
        store.stage(message, expires_at=LATER)
    batch = make_parked(*messages)
    recorder = RecordingClient(client)
    DynamoDBConversations(client=recorder, clock=ManualClock()).park(
        None, batch, remember_until=LATER
    )
    sizes = [len(call["TransactItems"]) for call in recorder.list_calls("transact_write_items")]
    assert len(sizes) > 1
    assert max(sizes) <= 100
    assert (
        max(measure_size(encode(row)) for row in read_rows(client, TABLES.parked)) < 400 * 1024
    )
    assert list(store.parked()) == [batch]
    assert list_staged_sids(store) == []
    unparked = store.unpark(batch.parked_id, back_to_stage=True, now=NOW, expires_at=LATER)
    assert unparked == batch
    assert list(store.parked()) == []
    assert read_rows(client, TABLES.parked) == []
    assert list_staged_sids(store) == [message.message_sid for message in messages]
    assert store.processed(KEY, [message.message_sid for message in messages]) == set()


def test_a_batch_of_forty_is_parked_in_one_write(
    client: Any, store: DynamoDBConversations
) -> None:
    create_conversation(store)
    recorder = RecordingClient(client)
    messages = stage_messages(store, *(f"m{n}" for n in range(40)))
    recorded_store = DynamoDBConversations(client=recorder, clock=ManualClock())
    recorded_store.park(
        acquire_grant(recorded_store), make_parked(*messages), remember_until=LATER
    )
    [call] = recorder.list_calls("transact_write_items")
    assert len(call["TransactItems"]) <= 100
    assert store.get(KEY).status == Status.PARKED  # type: ignore[union-attr]


# -- tables


@pytest.mark.requirement("R002-008", "R002-009", "R002-094")
def test_tables_are_created_with_keys_and_expiry_and_pass_the_checks(client: Any) -> None:
    names = [entry["TableName"] for entry in define_tables(tables_from_prefix("acme-"))]
    assert create_tables(client, "acme-") == names
    assert create_tables(client, "acme-") == []
    results = list(check_tables(CONVERSATION_STORE, "dynamodb:acme-", client))
    assert {entry.level for entry in results} == {CheckLevel.OK}
    assert sum(entry.check == "expiry" for entry in results) == 3
    create_conversation(DynamoDBConversations("acme-", client=client))
    assert read_rows(client, "acme-conversations")


def test_doctor_reports_missing_tables_and_how_to_create_them(client: Any) -> None:
    wanted = define_tables(tables_from_prefix("half-"))
    wanted[2]["KeySchema"], wanted[2]["AttributeDefinitions"] = (
        wanted[1]["KeySchema"],
        wanted[1]["AttributeDefinitions"],
    )
    for one in wanted[:4]:
        client.create_table(**one)
    found = list(check_tables(CONVERSATION_STORE, "dynamodb:half-", client))
    gone = [one for one in found if one.level is CheckLevel.FAIL]
    assert [one.found.split()[0] for one in gone] == [
        "half-conversations-trigger-lock",
        "half-conversations-parked",
    ]
    assert "holdfast chat tables --create" in gone[1].remedy
    never = [one for one in found if one.check == "expiry" and one.level is CheckLevel.WARN]
    assert len(never) == 3
    assert all("expires_at" in one.remedy for one in never)
