"""Rows that others wrote: the seed's own staging and Lambda, people, and whatever damaged
them. They are read as far as they can be, and nothing in them is lost."""

from collections.abc import Iterator
from typing import Any

import pytest
from dynamodb_chat_kit import (
    CANARY,
    KEY,
    LATER,
    NOW,
    TABLES,
    acquired,
    answered,
    begun,
    chat_service,
    conversation_row,
    emptied,
    granted,
    parked,
    put,
    rows,
    staged,
    window,
)

from holdfast.adapters.aws.dynamodb.chat import DynamoDBConversations
from holdfast.conversations.errors import PermanentError
from holdfast.conversations.model import (
    ConversationKey,
    Fragment,
    Status,
    UnreadableFragment,
    WaitingConversation,
)
from holdfast.testing import ManualClock


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


STAGED = {
    "conversation_id": KEY.conversation_id,
    "message_sid": "m1",
    "primary_channel": KEY.primary_channel,
    "body": CANARY,
    "received_at": "2027-01-15T08:00:00Z",
}

# -- the stage


@pytest.mark.parametrize(
    "received_at",
    [
        "2027-01-15T08:00:00Z",
        "2027-01-15T09:00:00+01:00",
        "2027-01-15 08:00:00",
        "Fri, 15 Jan 2027 08:00:00 +0000",
        "1800000000",
        1_800_000_000_000,
    ],
)
def test_a_row_of_the_seed_s_staging_is_a_fragment(
    client: Any, store: DynamoDBConversations, received_at: Any
) -> None:
    """R002-033, R002-036, MS-19: whatever form its time has, and without `staged_at`."""
    put(client, TABLES.stage, STAGED | {"received_at": received_at})
    assert store.staged("chat") == [Fragment(KEY, "m1", CANARY, NOW, NOW)]
    assert list(store.waiting()) == [
        WaitingConversation(KEY, 1, NOW),
    ]


def test_a_message_without_words_is_a_fragment(
    client: Any, store: DynamoDBConversations
) -> None:
    """MS-18: a picture alone."""
    put(client, TABLES.stage, STAGED | {"body": None, "media": ["image/png", 7]})
    assert store.staged("chat") == [Fragment(KEY, "m1", "", NOW, NOW, ("image/png",))]


DAMAGED: dict[str, dict[str, Any]] = {
    "no channel": {"primary_channel": None},
    "an empty channel": {"primary_channel": ""},
    "a number for a body": {"body": 7},
    "no time": {"received_at": None},
    "a time that is none": {"received_at": "canary-of-a-body, or yesterday"},
    "a time in a list": {"received_at": [NOW]},
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_row_that_is_no_message_is_told_apart_and_can_be_parked(
    client: Any, store: DynamoDBConversations, damage: dict[str, Any]
) -> None:
    """MS-18, R002-039, R002-040: it neither raises nor stands in the way, nor is it lost."""
    put(client, TABLES.stage, STAGED | damage)
    put(client, TABLES.stage, STAGED | {"message_sid": "m2"})
    found = {one.message_sid: one for one in store.staged("chat")}
    broken = found["m1"]
    assert isinstance(broken, UnreadableFragment)
    assert broken.row == STAGED | damage
    assert CANARY not in broken.problem + repr(broken)
    assert isinstance(found["m2"], Fragment)
    assert sum(one.fragments for one in store.waiting()) == 2
    store.park(None, parked(broken), remember_until=LATER)
    [kept] = store.parked()
    assert kept.staged == (broken,)
    assert staged(store) == ["m2"]


def test_what_only_dynamodb_knows_is_parked_as_text(
    client: Any, store: DynamoDBConversations
) -> None:
    """Bytes and sets, which no JSON has."""
    row = {
        "conversation_id": {"S": "chat"},
        "message_sid": {"S": "m1"},
        "picture": {"B": b"\xff\x00"},
        "tags": {"SS": ["a"]},
    }
    client.put_item(TableName=TABLES.stage, Item=row)
    [broken] = store.staged("chat")
    store.park(None, parked(broken), remember_until=LATER)
    [[kept]] = [one.staged for one in store.parked()]
    assert isinstance(kept, UnreadableFragment)
    assert kept.row["picture"] == "/wA="
    assert kept.row["tags"] == ["a"]


def test_a_row_filled_to_the_brim_is_parked_shortened(
    client: Any, store: DynamoDBConversations
) -> None:
    """MS-18: with a name and a reason beside it, it is larger than a row may be."""
    put(client, TABLES.stage, STAGED | {"received_at": None, "body": "x" * 400_000})
    [broken] = store.staged("chat")
    store.park(None, parked(broken), remember_until=LATER)
    [[kept]] = [one.staged for one in store.parked()]
    assert isinstance(kept, UnreadableFragment)
    assert kept.row["body"] == "x" * 10_000
    assert staged(store) == []


def test_rows_without_a_channel_wait_with_those_that_have_one(
    client: Any, store: DynamoDBConversations
) -> None:
    put(client, TABLES.stage, STAGED)
    put(client, TABLES.stage, STAGED | {"message_sid": "m2", "primary_channel": None})
    put(client, TABLES.stage, {"conversation_id": "other", "message_sid": "m1"})
    assert sorted(store.waiting(), key=lambda one: one.fragments) == [
        WaitingConversation(ConversationKey("", "other"), 1, 0.0),
        WaitingConversation(KEY, 2, NOW),
    ]


# -- windows


def test_a_trigger_lock_of_the_seed_s_staging_counts_until_it_expires(
    client: Any, store: DynamoDBConversations
) -> None:
    """R002-009, MS-13: it says when it ends, and nothing else."""
    put(client, TABLES.windows, {"conversation_id": "chat", "expires_at": int(NOW)})
    found = store.window("chat")
    assert found is not None
    assert (found.expires_at, found.triggered) == (NOW, True)
    mine = window("w", "m1", expires_at=NOW + 9.0)
    assert store.open_window(mine, now=NOW, untriggered_before=NOW) is False
    assert store.open_window(mine, now=NOW + 0.5, untriggered_before=NOW) is True


def test_a_trigger_lock_that_names_no_trigger_is_closed_by_the_next(
    client: Any, store: DynamoDBConversations
) -> None:
    """R002-079, MS-03: or whoever comes until it expires is not seen by anybody."""
    put(client, TABLES.windows, {"conversation_id": "chat", "expires_at": int(LATER)})
    store.close_window("chat", "any")
    assert store.window("chat") is None


# -- conversations

BARE = {"primary_channel": KEY.primary_channel, "conversation_id": "chat"}


def test_a_row_of_nothing_but_its_key_is_a_conversation(
    client: Any, store: DynamoDBConversations
) -> None:
    """R002-021: `attribute_not_exists(conversation_status)`; D-11: no `messages` yet."""
    put(client, TABLES.conversations, BARE)
    found = acquired(store).conversation
    assert (found.previous_status, found.messages, found.outbox) == ("", (), None)
    store.release(granted(store, "second", now=NOW + 60.0), "")
    answered(store, "m1")
    assert [one.seq for one in store.history(KEY)] == [1, 2]


def test_odd_values_are_read_as_empty_and_do_not_keep_a_turn_from_ending(
    client: Any, store: DynamoDBConversations
) -> None:
    odd = {
        "channel_config": "sender",
        "ai_config": None,
        "conversation_status": 7,
        "messages": "none",
        "message_count": "many",
        "updated_at": "2027-01-15T08:00:00Z",
        "created_at": "long ago",
        "lock_expires_at": "soon",
        "prompt_tokens": "few",
    }
    put(client, TABLES.conversations, BARE | odd)
    found = store.get(KEY)
    assert found is not None
    assert (found.channel_config, found.ai_config, found.status) == ({}, {}, "")
    assert (found.messages, found.message_count) == ((), 0)
    assert (found.created_at, found.updated_at) == (0.0, NOW)
    answered(store, "m1")
    found = store.get(KEY)
    assert found is not None
    assert (found.message_count, found.prompt_tokens, found.completion_tokens) == (2, 10, 3)


def test_a_lock_without_an_end_is_taken_over(client: Any, store: DynamoDBConversations) -> None:
    """MS-01: the seed's Lambda was killed, and nobody would ever break its lock."""
    put(client, TABLES.conversations, BARE | {"conversation_status": "processing_reply"})
    said = acquired(store)
    assert (said.grant.fence, said.conversation.previous_status) == (1, "")
    store.release(said.grant, Status.ERROR)
    assert conversation_row(client)["conversation_status"] == "processing_error"


SEED_MESSAGES = [
    {"role": "user", "content": "hello", "timestamp": "2027-01-15T08:00:00Z"},
    {"role": "assistant", "body": "hi", "message_sid": "SM1", "tokens": 3},
]


def test_messages_that_only_the_row_has_become_history_with_the_first_turn(
    client: Any, store: DynamoDBConversations
) -> None:
    """R002-069, D-26: the tail forgets; so they are kept before it does."""
    many = [m for _ in range(15) for m in SEED_MESSAGES]
    put(client, TABLES.conversations, BARE | {"messages": many})
    assert [one.body for one in store.history(KEY, limit=4)] == ["hello", "hi"] * 2
    assert store.get(KEY).message_count == 30  # type: ignore[union-attr]
    answered(store, "m1", asked="new")
    history = store.history(KEY, limit=100)
    assert [one.seq for one in history] == list(range(1, 33))
    assert [one.body for one in history[-4:]] == ["hello", "hi", "new", "answer"]
    assert (history[0].at, history[1].message_sid) == (NOW, "SM1")
    assert history[1].details == {"tokens": 3}
    found = store.get(KEY)
    assert found is not None
    assert found.message_count == 32
    assert [one.seq for one in found.messages] == list(range(13, 33))


def test_an_outbox_that_cannot_be_read_is_not_taken_for_none(
    client: Any, store: DynamoDBConversations
) -> None:
    """MS-06: or a reply that is out would be sent again."""
    put(client, TABLES.conversations, BARE | {"outbox": {"state": "teleporting"}})
    with pytest.raises(PermanentError):
        store.get(KEY)


def test_a_conversation_whose_outbox_cannot_be_read_is_not_locked(
    client: Any, store: DynamoDBConversations
) -> None:
    """During a deployment a newer process may read it: it must not wait for the lock."""
    outbox = {"outbox": {"state": "teleporting"}}
    put(client, TABLES.conversations, BARE | outbox | {"conversation_status": "vip"})
    with pytest.raises(PermanentError):
        store.acquire(KEY, owner="o", trigger_id="t", now=NOW, expires_at=NOW + 60.0)
    row = conversation_row(client)
    assert (row["conversation_status"], row["outbox"]) == ("vip", {"state": "teleporting"})
    assert "lock_owner" not in row


def test_config_that_dynamodb_cannot_keep_is_refused_for_good(
    store: DynamoDBConversations,
) -> None:
    with pytest.raises(PermanentError) as refused:
        begun(store, ai_config={"temperature": float("nan"), "prompt": CANARY})
    assert CANARY not in str(refused.value)
    with pytest.raises(PermanentError):
        begun(store, ai_config={"prompt": CANARY * 30_000})
    assert store.get(KEY) is None


def test_parked_rows_of_a_person_s_making_are_listed(
    client: Any, store: DynamoDBConversations
) -> None:
    put(client, TABLES.parked, {"conversation_id": "chat", "parked_id": "by hand"})
    [found] = store.parked()
    assert (found.parked_id, found.staged, found.reason) == ("by hand", (), "")
    store.unpark("by hand", back_to_stage=True, now=NOW, expires_at=LATER)
    assert rows(client, TABLES.parked) == []
