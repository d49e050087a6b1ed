"""Promises about the lock: one owner at a time, taken over after expiry, always fenced."""

from collections.abc import Callable
from typing import Any

import pytest

from contracts.conversations.support import (
    ANSWER,
    CONFIGS,
    KEY,
    LATER,
    NOW,
    OTHER,
    acquire_grant,
    acquire_lock,
    create_conversation,
    get_conversation,
    make_fragment,
    make_parked,
    make_turn,
    read_everything,
    stage_messages,
    take_over_lock,
)
from holdfast.chat.errors import LockLost
from holdfast.chat.model import (
    ConversationNotFound,
    LockGrant,
    LockHeld,
    Status,
)
from holdfast.chat.outbox import PreparedReply, WritingReply
from holdfast.chat.ports import ConversationStore

Write = Callable[[ConversationStore, LockGrant], Any]

WRITES: dict[str, Write] = {
    "note": lambda store, grant: store.note(grant, WritingReply(("m1",)), "a stale thread"),
    "finish": lambda store, grant: store.finish(
        grant, make_turn("m1", "m2"), now=NOW + 70.0, remember_until=LATER
    ),
    "park": lambda store, grant: store.park(
        grant, make_parked(make_fragment("m1"), make_fragment("m2")), remember_until=LATER
    ),
    "release": lambda store, grant: store.release(grant, Status.ERROR),
}


def try_acquire(store: ConversationStore, owner: str = "second", **how: Any) -> object:
    """Try to acquire the lock, and return the result."""
    now = how.pop("now", NOW)
    return store.acquire(
        how.pop("key", KEY),
        owner=owner,
        trigger_id=how.pop("trigger_id", "another trigger"),
        now=now,
        expires_at=now + 60.0,
    )


class LockPromises:
    """Promises about the lock (MS-01, MS-05, MS-07, MS-08, MS-12, MS-30, I-MS-3, I-MS-4)."""

    @pytest.mark.requirement("R002-019", "R002-020", "R002-022", "R002-042")
    @pytest.mark.parametrize("status", ["", "new", "reply_sent", "processing_error", "parked"])
    def test_a_free_lock_is_taken(self, store: ConversationStore, status: str) -> None:
        create_conversation(store, status=status, **CONFIGS)
        result = acquire_lock(store, "me", trigger_id="t1", seconds=45.0)
        assert (result.grant.key, result.grant.owner) == (KEY, "me")
        assert result.grant.trigger_id == "t1"
        row = result.conversation
        assert row == get_conversation(store)
        assert (row.status, row.previous_status) == (Status.PROCESSING, status)
        assert (row.lock_trigger, row.lock_expires_at) == ("t1", NOW + 45.0)
        assert row.lock_fence == result.grant.fence
        assert row.channel_config == CONFIGS["channel_config"]
        assert row.is_locked(NOW + 44.0)

    @pytest.mark.requirement("R002-019", "R002-021")
    def test_a_lock_that_is_held_is_refused_and_stays(self, store: ConversationStore) -> None:
        create_conversation(store)
        acquire_grant(store, trigger_id="t1")
        before = read_everything(store)
        assert try_acquire(store) == LockHeld("t1", NOW + 60.0)
        assert try_acquire(store, now=NOW + 59.75) == LockHeld("t1", NOW + 60.0)
        assert try_acquire(store, "first", trigger_id="t1") == LockHeld("t1", NOW + 60.0)
        assert read_everything(store) == before

    @pytest.mark.requirement("R002-021")
    def test_an_unknown_conversation_is_not_created(self, store: ConversationStore) -> None:
        """(MS-12)"""
        create_conversation(store, OTHER)
        assert try_acquire(store) == ConversationNotFound()
        assert store.get(KEY) is None
        assert [row.key for row in store.conversations()] == [OTHER]

    # -- renewing

    # -- releasing

    # -- stale holders

    @pytest.mark.requirement("R002-075", "R002-077", "R002-086", "R002-096")
    @pytest.mark.parametrize("write", WRITES)
    def test_a_stale_holder_changes_nothing(self, store: ConversationStore, write: str) -> None:
        """(MS-07, MS-08)"""
        create_conversation(store, status="vip")
        stage_messages(store, "m1", "m2")
        stale, owner = take_over_lock(store)
        store.note(owner, PreparedReply(("m1",), ANSWER), "thread")
        before = read_everything(store)
        with pytest.raises(LockLost):
            WRITES[write](store, stale)
        assert read_everything(store) == before
        WRITES[write](store, owner)

    @pytest.mark.requirement("R002-075", "R002-096")
    @pytest.mark.parametrize("write", WRITES)
    @pytest.mark.parametrize("other", ["owner", "fence", "conversation"])
    def test_owner_and_fence_must_both_be_right(
        self, store: ConversationStore, write: str, other: str
    ) -> None:
        create_conversation(store)
        grant = acquire_grant(store)
        wrong = {
            "owner": LockGrant(KEY, "another", grant.trigger_id, grant.fence),
            "fence": LockGrant(KEY, grant.owner, grant.trigger_id, grant.fence + 1),
            "conversation": LockGrant(OTHER, grant.owner, grant.trigger_id, grant.fence),
        }[other]
        before = read_everything(store)
        with pytest.raises(LockLost):
            WRITES[write](store, wrong)
        assert store.renew(wrong, now=NOW, expires_at=NOW + 99.0) is False
        assert read_everything(store) == before
        assert store.get(OTHER) is None
