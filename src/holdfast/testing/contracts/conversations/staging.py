"""StagingPromises: a message is there once, until it is answered, parked or forgotten."""

from dataclasses import replace

import pytest

from holdfast.conversations.model import Conversation, ConversationKey, Fragment
from holdfast.conversations.outbox import WritingReply
from holdfast.conversations.ports import ConversationStore
from holdfast.testing import ManualClock
from holdfast.testing.contracts.conversations.support import (
    CONFIGS,
    KEY,
    LATER,
    NOW,
    ODD_TEXT,
    OTHER,
    OpenStore,
    all_of,
    answered,
    begun,
    conversation,
    fragment,
    granted,
    sids_of,
    stage,
    staged,
)


class CreationPromises:
    """R002-042, R002-045, R002-046, R002-047; MS-12."""

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
        whole = Conversation(
            KEY,
            created_at=NOW,
            updated_at=NOW,
            message_count=7,
            outbox=WritingReply(("m1",)),
            lock_expires_at=NOW + 60.0,
            lock_trigger="t",
        )
        assert store.create(whole)
        assert store.get(KEY) == Conversation(KEY, created_at=NOW, updated_at=NOW)

    def test_one_that_is_there_stays_as_it_is(self, store: ConversationStore) -> None:
        begun(store, status="new", **CONFIGS)
        answered(store, "m1")
        was = all_of(store)
        assert store.create(Conversation(KEY, status="other", created_at=NOW + 9)) is False
        assert all_of(store) == was

    def test_a_conversation_is_known_by_address_and_id_together(
        self, store: ConversationStore
    ) -> None:
        alike = [
            KEY,
            ConversationKey(KEY.primary_channel, "b"),
            ConversationKey("+4915700000001", KEY.conversation_id),
        ]
        for number, key in enumerate(alike):
            begun(store, key, status=f"{number}")
        assert [conversation(store, key).status for key in alike] == ["0", "1", "2"]
        assert store.get(ConversationKey("+4915700000001", "b")) is None

    def test_every_opening_sees_what_another_one_wrote(
        self, open_store: OpenStore, clock: ManualClock
    ) -> None:
        one, other = open_store(clock), open_store(clock)
        begun(one)
        stage(one, "m1")
        assert conversation(other) == conversation(one)
        assert staged(other) == ["m1"]


class StagingPromises:
    """R002-008, R002-029, R002-030; MS-17, MS-20; I-MS-1."""

    many: int = 3_000
    """Staged rows of one conversation; fewer where each costs a call over the network."""

    def test_a_fragment_is_staged_as_it_came(self, store: ConversationStore) -> None:
        came = fragment("m1", received_at=NOW - 3.25, staged_at=NOW + 0.125)
        came = replace(came, media=("image/png", "audio/ogg"))
        assert store.stage(came, expires_at=LATER) is True
        assert store.staged(KEY.conversation_id) == [came]

    @pytest.mark.parametrize("body", [ODD_TEXT, "", " ", "x" * 64_000, "🙂" * 10_000])
    def test_a_text_is_kept_to_the_letter(self, store: ConversationStore, body: str) -> None:
        store.stage(fragment(body=body), expires_at=LATER)
        [found] = store.staged(KEY.conversation_id)
        assert isinstance(found, Fragment)
        assert found.body == body

    def test_a_message_is_staged_once_and_the_first_stays(
        self, store: ConversationStore
    ) -> None:
        [first] = stage(store, "m1")
        again = fragment("m1", body="another text", staged_at=NOW + 60.0)
        assert store.stage(again, expires_at=LATER + 60.0) is False
        assert store.staged(KEY.conversation_id) == [first]

    def test_staged_rows_are_those_of_their_conversation(
        self, store: ConversationStore
    ) -> None:
        stage(store, "m1", "m2")
        stage(store, "m1", "m3", key=OTHER)
        assert staged(store) == ["m1", "m2"]
        assert staged(store, OTHER) == ["m1", "m3"]
        assert store.staged("nobody") == []

    def test_a_message_needs_no_conversation_to_be_staged(
        self, store: ConversationStore
    ) -> None:
        stage(store, "m1")
        assert store.get(KEY) is None
        assert staged(store) == ["m1"]

    def test_every_staged_row_is_found_however_many_there_are(
        self, store: ConversationStore
    ) -> None:
        sids = [f"m{number:05}" for number in range(self.many)]
        stage(store, *sids)
        assert staged(store) == sids

    def test_every_staged_row_is_found_however_long_they_are(
        self, store: ConversationStore
    ) -> None:
        """Several times what one page of DynamoDB holds."""
        fragments = [fragment(f"m{n:02}", body=f"{n % 10}" * 60_000) for n in range(40)]
        for one in fragments:
            store.stage(one, expires_at=LATER)
        found = {row.message_sid: row for row in store.staged(KEY.conversation_id)}
        assert found == {one.message_sid: one for one in fragments}

    def test_dropped_rows_are_gone_and_others_stay(self, store: ConversationStore) -> None:
        """MS-09: those that were answered before."""
        sids = [f"m{number:03}" for number in range(120)]
        stage(store, *sids, "stays")
        stage(store, "m000", key=OTHER)
        store.drop_staged(KEY.conversation_id, [*sids, "never there"])
        assert staged(store) == ["stays"]
        assert staged(store, OTHER) == ["m000"]
        store.drop_staged(KEY.conversation_id, sids)
        store.drop_staged(KEY.conversation_id, [])
        assert staged(store) == ["stays"]

    def test_what_was_dropped_may_be_staged_again(self, store: ConversationStore) -> None:
        stage(store, "m1")
        store.drop_staged(KEY.conversation_id, ["m1"])
        stage(store, "m1")
        assert staged(store) == ["m1"]

    def test_a_message_is_staged_while_others_are_answered(
        self, store: ConversationStore
    ) -> None:
        """MS-03, MS-04: it is not of the batch, and stays."""
        begun(store)
        grant = granted(store)
        store.note(grant, WritingReply(("m1",)), "thread")
        stage(store, "late")
        assert staged(store) == ["late"]

    # -- for the sweeper

    def test_who_waits_is_listed_with_the_oldest_of_his_messages(
        self, store: ConversationStore
    ) -> None:
        """I-MS-5."""
        assert list(store.waiting()) == []
        for sid, staged_at in (("m1", NOW + 5.0), ("m2", NOW), ("m3", NOW + 9.0)):
            store.stage(fragment(sid, staged_at=staged_at), expires_at=LATER)
        stage(store, "m1", key=OTHER)
        found = {one.key: one for one in store.waiting()}
        assert set(found) == {KEY, OTHER}
        assert (found[KEY].fragments, found[KEY].oldest_staged_at) == (3, NOW)
        assert (found[OTHER].fragments, found[OTHER].oldest_staged_at) == (1, NOW)

    def test_who_was_answered_waits_no_more(self, store: ConversationStore) -> None:
        begun(store)
        stage(store, "m1", "m2", "m3")
        answered(store, "m1", "m2")
        [left] = store.waiting()
        assert (left.key, left.fragments) == (KEY, 1)
        answered(store, "m3")
        assert list(store.waiting()) == []

    def test_a_listing_may_be_left_halfway_and_writes_go_on_meanwhile(
        self, store: ConversationStore
    ) -> None:
        begun(store)
        begun(store, OTHER)
        stage(store, "m1")
        stage(store, "m1", key=OTHER)
        for listing in (store.waiting(), store.conversations()):
            next(listing)
            answered(store, "m1")
            stage(store, "m1")
        assert sids_of(store.staged(KEY.conversation_id)) == ["m1"]
