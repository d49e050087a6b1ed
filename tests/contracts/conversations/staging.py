"""Promises about staging: a message is stored once, until it is answered or parked."""

from dataclasses import replace

import pytest

from contracts.conversations.support import (
    CONFIGS,
    KEY,
    LATER,
    NOW,
    ODD_TEXT,
    OTHER,
    OpenStore,
    acquire_grant,
    answer_messages,
    create_conversation,
    get_conversation,
    list_staged_sids,
    make_fragment,
    read_everything,
    sort_sids,
    stage_messages,
)
from holdfast.chat.model import Conversation, ConversationKey, Fragment
from holdfast.chat.outbox import WritingReply
from holdfast.chat.ports import ConversationStore
from holdfast.testing import ManualClock


class CreationPromises:
    """Promises about new conversations (MS-12)."""

    def test_a_conversation_is_stored_with_its_configs_its_status_and_its_times(
        self, store: ConversationStore
    ) -> None:
        assert store.get(KEY) is None
        made = Conversation(KEY, **CONFIGS, status="new", created_at=NOW, updated_at=NOW + 0.5)
        assert store.create(made) is True
        assert store.get(KEY) == made

    def test_of_a_new_conversation_nothing_else_is_taken(
        self, store: ConversationStore
    ) -> None:
        given = Conversation(
            KEY,
            created_at=NOW,
            updated_at=NOW,
            message_count=7,
            outbox=WritingReply(("m1",)),
            lock_expires_at=NOW + 60.0,
            lock_trigger="t",
        )
        assert store.create(given)
        assert store.get(KEY) == Conversation(KEY, created_at=NOW, updated_at=NOW)

    def test_creating_an_existing_conversation_changes_nothing(
        self, store: ConversationStore
    ) -> None:
        create_conversation(store, status="new", **CONFIGS)
        answer_messages(store, "m1")
        before = read_everything(store)
        assert store.create(Conversation(KEY, status="other", created_at=NOW + 9)) is False
        assert read_everything(store) == before

    def test_a_conversation_is_known_by_address_and_id_together(
        self, store: ConversationStore
    ) -> None:
        alike = [
            KEY,
            ConversationKey(KEY.primary_channel, "b"),
            ConversationKey("+4915700000001", KEY.conversation_id),
        ]
        for number, key in enumerate(alike):
            create_conversation(store, key, status=f"{number}")
        assert [get_conversation(store, key).status for key in alike] == ["0", "1", "2"]
        assert store.get(ConversationKey("+4915700000001", "b")) is None

    def test_every_opening_of_the_store_sees_writes_of_another(
        self, open_store: OpenStore, clock: ManualClock
    ) -> None:
        first, other = open_store(clock), open_store(clock)
        create_conversation(first)
        stage_messages(first, "m1")
        assert get_conversation(other) == get_conversation(first)
        assert list_staged_sids(other) == ["m1"]


class StagingPromises:
    """Promises about staged messages (MS-17, MS-20, I-MS-1)."""

    many: int = 3_000
    """The staged rows of one conversation; fewer if each needs a call over the network."""

    @pytest.mark.requirement("R002-008")
    def test_a_fragment_is_staged_as_it_came(self, store: ConversationStore) -> None:
        inbound = make_fragment("m1", received_at=NOW - 3.25, staged_at=NOW + 0.125)
        inbound = replace(inbound, media=("image/png", "audio/ogg"))
        assert store.stage(inbound, expires_at=LATER) is True
        assert store.staged(KEY.conversation_id) == [inbound]

    @pytest.mark.parametrize("body", [ODD_TEXT, "", " ", "x" * 64_000, "🙂" * 10_000])
    def test_a_text_is_kept_to_the_letter(self, store: ConversationStore, body: str) -> None:
        store.stage(make_fragment(body=body), expires_at=LATER)
        [row] = store.staged(KEY.conversation_id)
        assert isinstance(row, Fragment)
        assert row.body == body

    def test_a_message_is_staged_once_and_the_first_stays(
        self, store: ConversationStore
    ) -> None:
        [first] = stage_messages(store, "m1")
        again = make_fragment("m1", body="another text", staged_at=NOW + 60.0)
        assert store.stage(again, expires_at=LATER + 60.0) is False
        assert store.staged(KEY.conversation_id) == [first]

    def test_staged_rows_are_those_of_their_conversation(
        self, store: ConversationStore
    ) -> None:
        stage_messages(store, "m1", "m2")
        stage_messages(store, "m1", "m3", key=OTHER)
        assert list_staged_sids(store) == ["m1", "m2"]
        assert list_staged_sids(store, OTHER) == ["m1", "m3"]
        assert store.staged("unknown") == []

    def test_a_message_needs_no_conversation_to_be_staged(
        self, store: ConversationStore
    ) -> None:
        stage_messages(store, "m1")
        assert store.get(KEY) is None
        assert list_staged_sids(store) == ["m1"]

    @pytest.mark.requirement("R002-029", "R002-030")
    def test_every_staged_row_is_found_however_many_there_are(
        self, store: ConversationStore
    ) -> None:
        sids = [f"m{number:05}" for number in range(self.many)]
        stage_messages(store, *sids)
        assert list_staged_sids(store) == sids

    def test_every_staged_row_is_found_however_long_they_are(
        self, store: ConversationStore
    ) -> None:
        """They need several pages of DynamoDB."""
        fragments = [make_fragment(f"m{n:02}", body=f"{n % 10}" * 60_000) for n in range(40)]
        for fragment in fragments:
            store.stage(fragment, expires_at=LATER)
        rows = {row.message_sid: row for row in store.staged(KEY.conversation_id)}
        assert rows == {fragment.message_sid: fragment for fragment in fragments}

    def test_dropped_rows_are_gone_and_others_stay(self, store: ConversationStore) -> None:
        """They were answered before (MS-09)."""
        sids = [f"m{number:03}" for number in range(120)]
        stage_messages(store, *sids, "stays")
        stage_messages(store, "m000", key=OTHER)
        store.drop_staged(KEY.conversation_id, [*sids, "never there"])
        assert list_staged_sids(store) == ["stays"]
        assert list_staged_sids(store, OTHER) == ["m000"]
        store.drop_staged(KEY.conversation_id, sids)
        store.drop_staged(KEY.conversation_id, [])
        assert list_staged_sids(store) == ["stays"]

    def test_what_was_dropped_may_be_staged_again(self, store: ConversationStore) -> None:
        stage_messages(store, "m1")
        store.drop_staged(KEY.conversation_id, ["m1"])
        stage_messages(store, "m1")
        assert list_staged_sids(store) == ["m1"]

    def test_a_message_is_staged_while_others_are_answered(
        self, store: ConversationStore
    ) -> None:
        """It does not belong to the batch, and stays (MS-03, MS-04)."""
        create_conversation(store)
        grant = acquire_grant(store)
        store.note(grant, WritingReply(("m1",)), "thread")
        stage_messages(store, "late")
        assert list_staged_sids(store) == ["late"]

    # -- for the sweeper

    def test_a_waiting_conversation_is_listed_with_its_oldest_message(
        self, store: ConversationStore
    ) -> None:
        """(I-MS-5)"""
        assert list(store.waiting()) == []
        for sid, staged_at in (("m1", NOW + 5.0), ("m2", NOW), ("m3", NOW + 9.0)):
            store.stage(make_fragment(sid, staged_at=staged_at), expires_at=LATER)
        stage_messages(store, "m1", key=OTHER)
        waiting = {row.key: row for row in store.waiting()}
        assert set(waiting) == {KEY, OTHER}
        assert (waiting[KEY].fragments, waiting[KEY].oldest_staged_at) == (3, NOW)
        assert (waiting[OTHER].fragments, waiting[OTHER].oldest_staged_at) == (1, NOW)

    def test_an_answered_conversation_is_no_longer_listed_as_waiting(
        self, store: ConversationStore
    ) -> None:
        create_conversation(store)
        stage_messages(store, "m1", "m2", "m3")
        answer_messages(store, "m1", "m2")
        [left] = store.waiting()
        assert (left.key, left.fragments) == (KEY, 1)
        answer_messages(store, "m3")
        assert list(store.waiting()) == []

    def test_a_listing_may_be_left_halfway_and_writes_go_on_meanwhile(
        self, store: ConversationStore
    ) -> None:
        create_conversation(store)
        create_conversation(store, OTHER)
        stage_messages(store, "m1")
        stage_messages(store, "m1", key=OTHER)
        for listing in (store.waiting(), store.conversations()):
            next(listing)
            answer_messages(store, "m1")
            stage_messages(store, "m1")
        assert sort_sids(store.staged(KEY.conversation_id)) == ["m1"]
