"""Promises about windows: one is open at a time, and none blocks a conversation forever."""

from dataclasses import replace

import pytest

from contracts.conversations.support import KEY, NOW, OTHER, make_window
from holdfast.chat.model import Window
from holdfast.chat.ports import ConversationStore

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

    def test_the_first_message_opens_a_window(self, store: ConversationStore) -> None:
        assert store.window(KEY.conversation_id) is None
        assert try_open(store, make_window()) is True
        assert store.window(KEY.conversation_id) == make_window()

    def test_the_second_message_finds_it_open(self, store: ConversationStore) -> None:
        try_open(store, make_window())
        assert try_open(store, make_window("w2", "m2")) is False
        assert store.window(KEY.conversation_id) == make_window()

    def test_conversations_have_windows_of_their_own(self, store: ConversationStore) -> None:
        try_open(store, make_window())
        other = replace(make_window("w2", "m2"), conversation_id=OTHER.conversation_id)
        assert try_open(store, other) is True
        assert store.window(KEY.conversation_id) == make_window()
        assert store.window(OTHER.conversation_id) == other

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

    def test_a_trigger_that_is_sent_is_noted(self, store: ConversationStore) -> None:
        try_open(store, make_window())
        for _ in range(2):
            store.mark_triggered(make_window())
            assert store.window(KEY.conversation_id) == make_window(triggered=True)

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

    def test_closing_twice_is_closing_once(self, store: ConversationStore) -> None:
        try_open(store, make_window())
        for _ in range(2):
            store.close_window(KEY.conversation_id, "w1")
        assert try_open(store, make_window("w2", "m2")) is True
