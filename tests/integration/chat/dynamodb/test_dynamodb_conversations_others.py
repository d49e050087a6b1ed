"""Rows that other software or operators wrote, and damaged rows.

They are read as far as possible, and nothing in them is lost.
"""

from typing import Any

import pytest
from conversation_rows import (
    CANARY,
    TABLES,
    answer_messages,
    make_turn,
    put_row,
    read_conversation_row,
    read_rows,
)

from contracts.conversations.support import (
    ANSWER,
    KEY,
    LATER,
    NOW,
    acquire_grant,
    acquire_lock,
    create_conversation,
    list_staged_sids,
    make_parked,
    make_window,
)
from holdfast.chat.dynamodb import DynamoDBConversations
from holdfast.chat.errors import LockLost, PermanentError
from holdfast.chat.model import (
    ConversationKey,
    Fragment,
    LockHeld,
    Status,
    UnreadableFragment,
    WaitingConversation,
)
from holdfast.chat.outbox import SendingReply, to_plain_data
from holdfast.store.dynamodb.values import encode
from support.dynamodb.faults import InterleavingClient

STAGED = {
    "conversation_id": KEY.conversation_id,
    "message_sid": "m1",
    "primary_channel": KEY.primary_channel,
    "body": CANARY,
    "received_at": "2027-01-15T08:00:00Z",
}

# -- the stage


@pytest.mark.requirement("R002-033", "R002-036")
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
    """Its time may have any form, and `staged_at` may be
    missing (MS-19).
    """
    put_row(client, TABLES.stage, STAGED | {"received_at": received_at})
    assert store.staged("chat") == [Fragment(KEY, "m1", CANARY, NOW, NOW)]
    assert list(store.waiting()) == [
        WaitingConversation(KEY, 1, NOW),
    ]


def test_a_message_without_words_is_a_fragment(
    client: Any, store: DynamoDBConversations
) -> None:
    """A picture without a text (MS-18)."""
    put_row(client, TABLES.stage, STAGED | {"body": None, "media": ["image/png", 7]})
    assert store.staged("chat") == [Fragment(KEY, "m1", "", NOW, NOW, ("image/png",))]


DAMAGED: dict[str, dict[str, Any]] = {
    "no channel": {"primary_channel": None},
    "an empty channel": {"primary_channel": ""},
    "a number for a body": {"body": 7},
    "no time": {"received_at": None},
    "a text that is not a time": {"received_at": "canary-of-a-body, or yesterday"},
    "a time in a list": {"received_at": [NOW]},
}


@pytest.mark.requirement("R002-039", "R002-040")
@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_row_that_is_not_a_message_is_recognised_and_can_be_parked(
    client: Any, store: DynamoDBConversations, damage: dict[str, Any]
) -> None:
    """It does not raise, does not block other rows and is not
    lost (MS-18).
    """
    put_row(client, TABLES.stage, STAGED | damage)
    put_row(client, TABLES.stage, STAGED | {"message_sid": "m2"})
    staged_by_sid = {staged.message_sid: staged for staged in store.staged("chat")}
    unreadable = staged_by_sid["m1"]
    assert isinstance(unreadable, UnreadableFragment)
    assert unreadable.row == STAGED | damage
    assert CANARY not in unreadable.problem + repr(unreadable)
    assert isinstance(staged_by_sid["m2"], Fragment)
    assert sum(staged.fragments for staged in store.waiting()) == 2
    store.park(None, make_parked(unreadable), remember_until=LATER)
    [batch] = store.parked()
    assert batch.staged == (unreadable,)
    assert list_staged_sids(store) == ["m2"]


def test_values_that_json_lacks_are_parked_as_text(
    client: Any, store: DynamoDBConversations
) -> None:
    """Bytes and sets."""
    row = {
        "conversation_id": {"S": "chat"},
        "message_sid": {"S": "m1"},
        "picture": {"B": b"\xff\x00"},
        "tags": {"SS": ["a"]},
    }
    client.put_item(TableName=TABLES.stage, Item=row)
    [unreadable] = store.staged("chat")
    store.park(None, make_parked(unreadable), remember_until=LATER)
    [[kept]] = [batch.staged for batch in store.parked()]
    assert isinstance(kept, UnreadableFragment)
    assert kept.row["picture"] == "/wA="
    assert kept.row["tags"] == ["a"]


def test_a_row_of_maximum_size_is_parked_shortened(
    client: Any, store: DynamoDBConversations
) -> None:
    """With its name and reason, the row would exceed the maximum size (MS-18)."""
    put_row(client, TABLES.stage, STAGED | {"received_at": None, "body": "x" * 400_000})
    [unreadable] = store.staged("chat")
    store.park(None, make_parked(unreadable), remember_until=LATER)
    [[kept]] = [batch.staged for batch in store.parked()]
    assert isinstance(kept, UnreadableFragment)
    assert kept.row["body"] == "x" * 10_000
    assert list_staged_sids(store) == []


def test_rows_without_a_channel_wait_with_those_that_have_one(
    client: Any, store: DynamoDBConversations
) -> None:
    put_row(client, TABLES.stage, STAGED)
    put_row(client, TABLES.stage, STAGED | {"message_sid": "m2", "primary_channel": None})
    put_row(client, TABLES.stage, {"conversation_id": "other", "message_sid": "m1"})
    assert sorted(store.waiting(), key=lambda waiting: waiting.fragments) == [
        WaitingConversation(ConversationKey("", "other"), 1, 0.0),
        WaitingConversation(KEY, 2, NOW),
    ]


# -- windows


@pytest.mark.requirement("R002-009")
def test_a_trigger_lock_of_the_seed_s_staging_counts_until_it_expires(
    client: Any, store: DynamoDBConversations
) -> None:
    """It holds only its expiry (MS-13)."""
    put_row(client, TABLES.windows, {"conversation_id": "chat", "expires_at": int(NOW)})
    stored = store.window("chat")
    assert stored is not None
    assert (stored.expires_at, stored.triggered) == (NOW, True)
    new_window = make_window("w", "m1", expires_at=NOW + 9.0)
    assert store.open_window(new_window, now=NOW, untriggered_before=NOW) is False
    assert store.open_window(new_window, now=NOW + 0.5, untriggered_before=NOW) is True


@pytest.mark.requirement("R002-079")
def test_a_trigger_lock_that_names_no_trigger_is_closed_by_the_next(
    client: Any, store: DynamoDBConversations
) -> None:
    """Otherwise messages that arrive before it expires would not be seen (MS-03)."""
    put_row(client, TABLES.windows, {"conversation_id": "chat", "expires_at": int(LATER)})
    store.close_window("chat", "any")
    assert store.window("chat") is None


# -- conversations

BARE = {"primary_channel": KEY.primary_channel, "conversation_id": "chat"}


@pytest.mark.requirement("R002-021")
def test_a_row_of_nothing_but_its_key_is_a_conversation(
    client: Any, store: DynamoDBConversations
) -> None:
    """`attribute_not_exists(conversation_status)`; the row has no `messages` yet."""
    put_row(client, TABLES.conversations, BARE)
    conversation = acquire_lock(store).conversation
    assert (conversation.previous_status, conversation.messages, conversation.outbox) == (
        "",
        (),
        None,
    )
    store.release(acquire_grant(store, "second", now=NOW + 60.0), "")
    answer_messages(store, "m1")
    assert [message.seq for message in store.history(KEY)] == [1, 2]


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
    put_row(client, TABLES.conversations, BARE | odd)
    conversation = store.get(KEY)
    assert conversation is not None
    assert (conversation.channel_config, conversation.ai_config, conversation.status) == (
        {},
        {},
        "",
    )
    assert (conversation.messages, conversation.message_count) == ((), 0)
    assert (conversation.created_at, conversation.updated_at) == (0.0, NOW)
    answer_messages(store, "m1")
    conversation = store.get(KEY)
    assert conversation is not None
    assert (
        conversation.message_count,
        conversation.prompt_tokens,
        conversation.completion_tokens,
    ) == (2, 10, 3)


def test_a_time_with_more_digits_than_a_float_does_not_block_the_conversation(
    client: Any, store: DynamoDBConversations
) -> None:
    """Python's Decimal(time.time()) has up to thirty. Conditions compare the exact number."""
    exact = {"updated_at": {"N": "1799999999.12345600128173828125"}}
    client.put_item(TableName=TABLES.conversations, Item=encode(BARE) | exact)
    assert store.get(KEY).updated_at == 1799999999.123456  # type: ignore[union-attr]
    answer_messages(store, "m1")
    assert [message.seq for message in store.history(KEY)] == [1, 2]


def test_a_lock_without_an_end_is_taken_over(client: Any, store: DynamoDBConversations) -> None:
    """The seed's Lambda was killed, and no process would ever break its lock (MS-01)."""
    put_row(client, TABLES.conversations, BARE | {"conversation_status": "processing_reply"})
    outcome = acquire_lock(store)
    assert (outcome.grant.fence, outcome.conversation.previous_status) == (1, "")
    store.release(outcome.grant, Status.ERROR)
    assert read_conversation_row(client)["conversation_status"] == "processing_error"


def test_a_lock_that_an_older_version_renews_is_held(
    client: Any, store: DynamoDBConversations
) -> None:
    """It writes the renewals to the conversation's row, also while this version runs."""
    create_conversation(store)
    grant = acquire_grant(store)
    assert store.renew(grant, now=NOW, expires_at=NOW + 60.0)
    lock = {"lock_owner": "older", "lock_fence": 2, "lock_trigger": "t2"}
    lock |= {"conversation_status": "processing_reply", "lock_expires_at": NOW + 200.0}
    put_row(client, TABLES.conversations, read_conversation_row(client) | lock)
    assert store.renew(grant, now=NOW, expires_at=NOW + 90.0) is False
    outcome = store.acquire(
        KEY, owner="o", trigger_id="t", now=NOW + 199.0, expires_at=NOW + 259.0
    )
    assert outcome == LockHeld("t2", NOW + 200.0)


def test_what_an_older_version_notes_right_before_a_takeover_is_seen(
    client: Any, store: DynamoDBConversations
) -> None:
    """It writes no version. Without its note the reply would be sent again (MS-06)."""
    create_conversation(store)
    acquire_grant(store)
    sending = SendingReply(("m1",), ANSWER, (), NOW)

    def note() -> None:
        noted = {"outbox": to_plain_data(sending), "updated_at": NOW + 59.5}
        put_row(client, TABLES.conversations, read_conversation_row(client) | noted)

    interleaving = DynamoDBConversations(client=InterleavingClient(client, note))
    taken = acquire_lock(interleaving, "other", now=NOW + 60.0)
    assert taken.conversation.outbox == sending


SEED_MESSAGES = [
    {"role": "user", "content": "hello", "timestamp": "2027-01-15T08:00:00Z"},
    {"role": "assistant", "body": "hi", "message_sid": "SM1", "tokens": 3},
]


@pytest.mark.requirement("R002-069")
def test_messages_that_only_the_row_has_become_history_with_the_first_turn(
    client: Any, store: DynamoDBConversations
) -> None:
    """The row keeps only recent messages, so older ones are copied before."""
    messages = [m for _ in range(15) for m in SEED_MESSAGES]
    put_row(client, TABLES.conversations, BARE | {"messages": messages})
    assert [message.body for message in store.history(KEY, limit=4)] == ["hello", "hi"] * 2
    assert store.get(KEY).message_count == 30  # type: ignore[union-attr]
    answer_messages(store, "m1", asked="new")
    history = store.history(KEY, limit=100)
    assert [message.seq for message in history] == list(range(1, 33))
    assert [message.body for message in history[-4:]] == ["hello", "hi", "new", "answer"]
    assert (history[0].at, history[1].message_sid) == (NOW, "SM1")
    assert history[1].details == {"tokens": 3}
    conversation = store.get(KEY)
    assert conversation is not None
    assert conversation.message_count == 32
    assert [message.seq for message in conversation.messages] == [31, 32]


def test_a_worker_that_loses_the_lock_while_it_copies_messages_changes_nothing_else(
    client: Any, store: DynamoDBConversations
) -> None:
    put_row(client, TABLES.conversations, BARE | {"messages": SEED_MESSAGES})
    grant = acquire_grant(store)
    interleaving = InterleavingClient(
        client, lambda: acquire_grant(store, "other", now=NOW + 60.0)
    )
    with pytest.raises(LockLost):
        DynamoDBConversations(client=interleaving).finish(
            grant, make_turn("m1"), now=NOW, remember_until=LATER
        )
    row = read_conversation_row(client)
    assert (row["lock_owner"], row["lock_fence"]) == ("other", 2)
    assert row["messages"] == SEED_MESSAGES
    assert store.processed(KEY, ["m1"]) == set()


def test_an_unreadable_outbox_is_not_treated_as_missing(
    client: Any, store: DynamoDBConversations
) -> None:
    """Otherwise a reply that was sent would be sent again (MS-06)."""
    put_row(client, TABLES.conversations, BARE | {"outbox": {"state": "teleporting"}})
    with pytest.raises(PermanentError):
        store.get(KEY)


def test_a_conversation_whose_outbox_cannot_be_read_is_not_locked(
    client: Any, store: DynamoDBConversations
) -> None:
    """During a deployment a newer process may read it, and must not wait for the lock."""
    outbox = {"outbox": {"state": "teleporting"}}
    put_row(client, TABLES.conversations, BARE | outbox | {"conversation_status": "vip"})
    with pytest.raises(PermanentError):
        store.acquire(KEY, owner="o", trigger_id="t", now=NOW, expires_at=NOW + 60.0)
    row = read_conversation_row(client)
    assert (row["conversation_status"], row["outbox"]) == ("vip", {"state": "teleporting"})
    assert "lock_owner" not in row


def test_config_that_dynamodb_cannot_store_is_refused_permanently(
    store: DynamoDBConversations,
) -> None:
    with pytest.raises(PermanentError) as refused:
        create_conversation(store, ai_config={"temperature": float("nan"), "prompt": CANARY})
    assert CANARY not in str(refused.value)
    with pytest.raises(PermanentError):
        create_conversation(store, ai_config={"prompt": CANARY * 30_000})
    assert store.get(KEY) is None


def test_parked_rows_that_an_operator_wrote_are_listed(
    client: Any, store: DynamoDBConversations
) -> None:
    put_row(client, TABLES.parked, {"conversation_id": "chat", "parked_id": "by hand"})
    [batch] = store.parked()
    assert (batch.parked_id, batch.staged, batch.reason) == ("by hand", (), "")
    store.unpark("by hand", back_to_stage=True, now=NOW, expires_at=LATER)
    assert read_rows(client, TABLES.parked) == []
