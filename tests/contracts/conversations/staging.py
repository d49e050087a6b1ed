"""Promises of a conversation store: new conversations, staged messages and windows."""

from dataclasses import replace

import pytest

from contracts.conversations.support import (
    KEY,
    LATER,
    NOW,
    ODD_TEXT,
    OTHER,
    answer_messages,
    create_conversation,
    get_conversation,
    list_staged_sids,
    make_fragment,
    make_window,
    sort_sids,
    stage_messages,
)
from holdfast.chat.model import Conversation, ConversationKey, Fragment, Window
from holdfast.chat.outbox import WritingReply
from holdfast.chat.ports import ConversationStore


class CreationPromises:
    """Promises about new conversations (MS-12)."""

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

    # -- for the sweeper

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


LONG_AGO = NOW - 1_000.0


def try_open(
    store: ConversationStore,
    wanted: Window,
    *,
    now: float = NOW,
    untriggered_before: float = LONG_AGO,
) -> bool:
    """Try to open a window."""
    return store.open_window(wanted, now=now, untriggered_before=untriggered_before)


class WindowPromises:
    """Promises about windows (MS-13, MS-14, MS-15)."""

    # -- windows that do not block another one

    @pytest.mark.requirement("R002-009")
    @pytest.mark.parametrize("triggered", [False, True])
    def test_an_expired_window_does_not_block_another(
        self, store: ConversationStore, triggered: bool
    ) -> None:
        """Its row is still stored (MS-13)."""
        try_open(store, make_window(expires_at=NOW + 100.0, triggered=triggered))
        assert try_open(store, make_window("w2", "m2"), now=NOW + 99.75) is False
        assert try_open(store, make_window("w2", "m2"), now=NOW + 100.0) is False
        assert try_open(store, make_window("w2", "m2"), now=NOW + 100.25) is True
        assert store.window(KEY.conversation_id) == make_window("w2", "m2")

    def test_a_message_that_comes_again_opens_its_own_window_again(
        self, store: ConversationStore
    ) -> None:
        """The process that opened it crashed before it sent the trigger (MS-14)."""
        try_open(store, make_window("w1", "m1"))
        assert try_open(store, make_window("w2", "m1")) is True
        assert store.window(KEY.conversation_id) == make_window("w2", "m1")

    def test_a_window_blocks_its_own_message_once_the_trigger_is_sent(
        self, store: ConversationStore
    ) -> None:
        try_open(store, make_window("w1", "m1"))
        store.mark_triggered(make_window("w1", "m1"))
        assert try_open(store, make_window("w2", "m1")) is False
        assert store.window(KEY.conversation_id) == make_window("w1", "m1", triggered=True)

    def test_a_window_without_a_trigger_blocks_others_only_for_a_while(
        self, store: ConversationStore
    ) -> None:
        """Another message may replace it (MS-14)."""
        try_open(store, make_window("w1", "m1", opened_at=NOW))
        wanted = make_window("w2", "m2", opened_at=NOW + 50.0)
        assert try_open(store, wanted, now=NOW + 50.0, untriggered_before=NOW - 0.25) is False
        assert try_open(store, wanted, now=NOW + 50.0, untriggered_before=NOW) is False
        assert try_open(store, wanted, now=NOW + 50.0, untriggered_before=NOW + 0.25) is True
        assert store.window(KEY.conversation_id) == wanted

    def test_a_window_with_a_trigger_blocks_others_until_it_expires(
        self, store: ConversationStore
    ) -> None:
        try_open(store, make_window("w1", "m1"))
        store.mark_triggered(make_window("w1", "m1"))
        assert try_open(store, make_window("w2", "m2"), untriggered_before=NOW + 50.0) is False

    # -- the trigger and the end of a window

    def test_the_trigger_of_another_window_is_not_noted(self, store: ConversationStore) -> None:
        store.mark_triggered(make_window())
        assert store.window(KEY.conversation_id) is None
        try_open(store, make_window("w2", "m2"))
        store.mark_triggered(make_window())
        assert store.window(KEY.conversation_id) == make_window("w2", "m2")

    @pytest.mark.requirement("R002-079")
    def test_after_a_window_closed_the_next_message_opens_another(
        self, store: ConversationStore
    ) -> None:
        try_open(store, make_window())
        store.mark_triggered(make_window())
        store.close_window(KEY.conversation_id, "w1")
        assert try_open(store, make_window("w2", "m2")) is True

    @pytest.mark.requirement("R002-079")
    def test_the_window_of_another_trigger_is_not_closed(
        self, store: ConversationStore
    ) -> None:
        """A late trigger does not end the wait of the next batch (MS-15)."""
        store.close_window(KEY.conversation_id, "w1")
        try_open(store, make_window("w2", "m2"))
        store.close_window(KEY.conversation_id, "w1")
        store.close_window(OTHER.conversation_id, "w2")
        assert store.window(KEY.conversation_id) == make_window("w2", "m2")
        assert try_open(store, make_window("w3", "m3")) is False
