"""WindowPromises: one is open at a time, and none stays in the way of a conversation for ever."""

from dataclasses import replace

import pytest

from holdfast.conversations.model import Window
from holdfast.conversations.ports import ConversationStore
from holdfast.testing.contracts.conversations.support import KEY, NOW, OTHER, window

LONG_AGO = NOW - 1_000.0


def opens(
    store: ConversationStore,
    wanted: Window,
    *,
    now: float = NOW,
    untriggered_before: float = LONG_AGO,
) -> bool:
    return store.open_window(wanted, now=now, untriggered_before=untriggered_before)


class WindowPromises:
    """R002-009, R002-079, R002-094; MS-13, MS-14, MS-15."""

    def test_the_first_message_opens_a_window(self, store: ConversationStore) -> None:
        assert store.window(KEY.conversation_id) is None
        assert opens(store, window()) is True
        assert store.window(KEY.conversation_id) == window()

    def test_the_second_message_finds_it_open(self, store: ConversationStore) -> None:
        opens(store, window())
        assert opens(store, window("w2", "m2")) is False
        assert store.window(KEY.conversation_id) == window()

    def test_conversations_have_windows_of_their_own(self, store: ConversationStore) -> None:
        opens(store, window())
        other = replace(window("w2", "m2"), conversation_id=OTHER.conversation_id)
        assert opens(store, other) is True
        assert store.window(KEY.conversation_id) == window()
        assert store.window(OTHER.conversation_id) == other

    # -- what is not in the way, by value

    @pytest.mark.parametrize("triggered", [False, True])
    def test_a_window_that_expired_is_not_in_the_way(
        self, store: ConversationStore, triggered: bool
    ) -> None:
        """MS-13: its row is still there."""
        opens(store, window(expires_at=NOW + 100.0, triggered=triggered))
        assert opens(store, window("w2", "m2"), now=NOW + 99.75) is False
        assert opens(store, window("w2", "m2"), now=NOW + 100.0) is False
        assert opens(store, window("w2", "m2"), now=NOW + 100.25) is True
        assert store.window(KEY.conversation_id) == window("w2", "m2")

    def test_a_message_that_comes_again_opens_its_own_window_again(
        self, store: ConversationStore
    ) -> None:
        """MS-14: whoever opened it died before the trigger was sent."""
        opens(store, window("w1", "m1"))
        assert opens(store, window("w2", "m1")) is True
        assert store.window(KEY.conversation_id) == window("w2", "m1")

    def test_its_own_window_is_in_the_way_once_the_trigger_is_sent(
        self, store: ConversationStore
    ) -> None:
        opens(store, window("w1", "m1"))
        store.mark_triggered(window("w1", "m1"))
        assert opens(store, window("w2", "m1")) is False
        assert store.window(KEY.conversation_id) == window("w1", "m1", triggered=True)

    def test_a_window_without_trigger_is_not_in_the_way_for_long(
        self, store: ConversationStore
    ) -> None:
        """MS-14: another message finds it."""
        opens(store, window("w1", "m1", opened_at=NOW))
        wanted = window("w2", "m2", opened_at=NOW + 50.0)
        assert opens(store, wanted, now=NOW + 50.0, untriggered_before=NOW - 0.25) is False
        assert opens(store, wanted, now=NOW + 50.0, untriggered_before=NOW) is False
        assert opens(store, wanted, now=NOW + 50.0, untriggered_before=NOW + 0.25) is True
        assert store.window(KEY.conversation_id) == wanted

    def test_a_window_with_trigger_is_in_the_way_until_it_expires(
        self, store: ConversationStore
    ) -> None:
        opens(store, window("w1", "m1"))
        store.mark_triggered(window("w1", "m1"))
        assert opens(store, window("w2", "m2"), untriggered_before=NOW + 50.0) is False

    # -- its trigger, its end

    def test_a_trigger_that_is_sent_is_noted(self, store: ConversationStore) -> None:
        opens(store, window())
        for _ in range(2):
            store.mark_triggered(window())
            assert store.window(KEY.conversation_id) == window(triggered=True)

    def test_the_trigger_of_another_window_is_not_noted(self, store: ConversationStore) -> None:
        store.mark_triggered(window())
        assert store.window(KEY.conversation_id) is None
        opens(store, window("w2", "m2"))
        store.mark_triggered(window())
        assert store.window(KEY.conversation_id) == window("w2", "m2")

    def test_after_a_window_closed_the_next_message_opens_another(
        self, store: ConversationStore
    ) -> None:
        opens(store, window())
        store.mark_triggered(window())
        store.close_window(KEY.conversation_id, "w1")
        assert opens(store, window("w2", "m2")) is True

    def test_the_window_of_another_trigger_is_not_closed(
        self, store: ConversationStore
    ) -> None:
        """MS-15: a trigger that comes late does not end the wait of the next batch."""
        store.close_window(KEY.conversation_id, "w1")
        opens(store, window("w2", "m2"))
        store.close_window(KEY.conversation_id, "w1")
        store.close_window(OTHER.conversation_id, "w2")
        assert store.window(KEY.conversation_id) == window("w2", "m2")
        assert opens(store, window("w3", "m3")) is False

    def test_closing_twice_is_closing_once(self, store: ConversationStore) -> None:
        opens(store, window())
        for _ in range(2):
            store.close_window(KEY.conversation_id, "w1")
        assert opens(store, window("w2", "m2")) is True
