"""Promises to operators: the history, the listings, and assigning a conversation."""

from dataclasses import replace

import pytest

from contracts.conversations.support import (
    CONFIGS,
    KEY,
    LATER,
    NOW,
    OTHER,
    acquire_grant,
    acquire_lock,
    answer_messages,
    create_conversation,
    get_conversation,
    make_parked,
    make_turn,
    read_everything,
    stage_messages,
)
from holdfast.chat.model import (
    MAX_RECENT_BODY,
    MAX_RECENT_MESSAGES,
    ConversationKey,
    LockGrant,
    LockHeld,
    Status,
)
from holdfast.chat.ports import ConversationStore


class HistoryPromises:
    """Promises about the history (MS-10, I-MS-6, I-MS-10)."""

    @pytest.mark.requirement("R002-069")
    def test_a_history_is_read_page_by_page_from_its_end(
        self, store: ConversationStore
    ) -> None:
        create_conversation(store)
        for number in range(55):
            answer_messages(store, f"m{number}")
        messages = store.history(KEY, limit=1_000)
        assert [message.seq for message in messages] == list(range(1, 111))
        assert [message.body for message in messages[::2]] == [f"asked m{n}" for n in range(55)]
        assert store.history(KEY) == messages[-50:]
        assert store.history(KEY, before=61) == messages[10:60]
        assert store.history(KEY, before=11) == messages[:10]
        assert store.history(KEY, before=1) == []
        assert store.history(KEY, limit=3) == messages[-3:]
        assert store.history(KEY, before=9_999, limit=2) == messages[-2:]
        assert get_conversation(store).message_count == 110
        assert get_conversation(store).messages == tuple(messages[-MAX_RECENT_MESSAGES:])

    def test_a_conversation_without_turns_has_no_history(
        self, store: ConversationStore
    ) -> None:
        create_conversation(store, OTHER)
        answer_messages(store, "m1", key=OTHER)
        assert store.history(KEY) == []
        create_conversation(store)
        assert store.history(KEY) == []
        assert len(store.history(OTHER)) == 2

    def test_long_messages_are_complete_in_the_history_and_shortened_in_the_row(
        self, store: ConversationStore
    ) -> None:
        """The row stays below DynamoDB's limit, and the history is complete."""
        create_conversation(store)
        for number in range(6):
            text = f"{number}" * 30_000
            done = make_turn(f"m{number}", reply=f"r{number}")
            done = replace(done, user=replace(done.user, body=text))
            grant = acquire_grant(store, f"{number}")
            store.finish(grant, done, now=NOW, remember_until=LATER)
        messages = store.history(KEY)
        assert [len(message.body) for message in messages[::2]] == [30_000] * 6
        recent = get_conversation(store).messages
        assert [message.seq for message in recent] == [11, 12]
        assert max(len(message.body) for message in recent) == MAX_RECENT_BODY


class ConversationListingPromises:
    """Promises about the listings of conversations."""

    def test_all_conversations_are_listed(self, store: ConversationStore) -> None:
        assert list(store.conversations()) == []
        keys = [ConversationKey(f"+49157{n:08}", f"chat {n}") for n in range(130)]
        for key in keys:
            create_conversation(store, key)
        answer_messages(store, "m1", key=keys[3])
        rows = {row.key: row for row in store.conversations()}
        assert rows == {key: get_conversation(store, key) for key in keys}

    def test_conversations_are_found_by_their_id(self, store: ConversationStore) -> None:
        alike = ConversationKey("+4915700000001", KEY.conversation_id)
        for key in (KEY, alike, OTHER):
            create_conversation(store, key, **CONFIGS)
        rows = {row.key: row for row in store.conversations(KEY.conversation_id)}
        assert rows == {key: get_conversation(store, key) for key in (KEY, alike)}
        assert list(store.conversations("unknown")) == []


ENDS = ["finish", "release", "park"]


def end_turn(store: ConversationStore, how: str, grant: LockGrant) -> None:
    """End a turn in one of the ways that release the lock."""
    if how == "finish":
        store.finish(grant, make_turn("m1"), now=NOW, remember_until=LATER)
    elif how == "release":
        store.release(grant, Status.ERROR)
    else:
        store.park(grant, make_parked(*stage_messages(store, "m1")), remember_until=LATER)


class OperatorPromises:
    """Promises about the operator's status (MS-30)."""

    def test_a_release_without_a_status_restores_the_previous_or_the_operators_status(
        self, store: ConversationStore
    ) -> None:
        create_conversation(store, status=Status.WITH_PERSON)
        store.release(acquire_grant(store), None)
        assert get_conversation(store).status == Status.WITH_PERSON
        grant = acquire_grant(store, "second")
        store.set_status(KEY, "vip")
        store.release(grant, None)
        assert get_conversation(store).status == "vip"

    def test_a_conversation_can_be_assigned_to_a_person_and_back(
        self, store: ConversationStore
    ) -> None:
        create_conversation(store)
        for status in (Status.WITH_PERSON, "vip", ""):
            assert store.set_status(KEY, status) is True
            assert get_conversation(store).status == status

    def test_the_status_of_an_unknown_conversation_cannot_be_set(
        self, store: ConversationStore
    ) -> None:
        assert store.set_status(KEY, Status.WITH_PERSON) is False
        assert store.get(KEY) is None

    def test_a_status_changes_nothing_else(self, store: ConversationStore) -> None:
        create_conversation(store, **CONFIGS)
        answer_messages(store, "m1")
        before = get_conversation(store)
        store.set_status(KEY, Status.WITH_PERSON)
        store.set_status(KEY, before.status)
        row = get_conversation(store)
        assert replace(row, updated_at=0.0) == replace(before, updated_at=0.0)

    @pytest.mark.parametrize("how", ENDS)
    def test_a_status_set_during_a_turn_takes_effect_when_the_lock_is_released(
        self, store: ConversationStore, how: str
    ) -> None:
        create_conversation(store, status="before")
        grant = acquire_grant(store)
        assert store.set_status(KEY, Status.WITH_PERSON) is True
        row = get_conversation(store)
        assert (row.status, row.previous_status) == (
            Status.PROCESSING,
            Status.WITH_PERSON,
        )
        result = store.acquire(KEY, owner="b", trigger_id="t", now=NOW, expires_at=NOW + 1)
        assert result == LockHeld("trigger", NOW + 60.0)
        end_turn(store, how, grant)
        assert get_conversation(store).status == Status.WITH_PERSON
        assert not get_conversation(store).is_locked(NOW)

    @pytest.mark.parametrize(
        ("how", "status"),
        [
            ("finish", Status.REPLY_SENT),
            ("release", Status.ERROR),
            ("park", Status.PARKED),
        ],
    )
    def test_a_person_who_hands_back_during_a_turn_no_longer_has_the_conversation(
        self, store: ConversationStore, how: str, status: str
    ) -> None:
        create_conversation(store, status=Status.WITH_PERSON)
        grant = acquire_grant(store)
        store.set_status(KEY, Status.REPLY_SENT)
        end_turn(store, how, grant)
        assert get_conversation(store).status == status

    def test_an_operators_status_survives_a_takeover_of_the_lock(
        self, store: ConversationStore
    ) -> None:
        create_conversation(store, status="before")
        acquire_grant(store, "dies")
        store.set_status(KEY, Status.WITH_PERSON)
        result = acquire_lock(store, now=NOW + 60.0)
        assert result.conversation.previous_status == Status.WITH_PERSON
        store.release(result.grant, Status.ERROR)
        assert get_conversation(store).status == Status.WITH_PERSON

    def test_reading_changes_nothing(self, store: ConversationStore) -> None:
        create_conversation(store)
        stage_messages(store, "m1")
        answer_messages(store, "m0")
        before = read_everything(store)
        assert read_everything(store) == before
