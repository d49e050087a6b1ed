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
    list_staged_sids,
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
    LockAcquired,
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

    def test_a_conversation_of_a_person_is_locked_too_for_its_batch_must_be_parked(
        self, store: ConversationStore
    ) -> None:
        create_conversation(store, status=Status.WITH_PERSON)
        assert acquire_lock(store).conversation.previous_status == Status.WITH_PERSON

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

    @pytest.mark.parametrize("after", [60.0, 61.0, 86_400.0])
    def test_a_lock_that_expired_is_taken_over(
        self, store: ConversationStore, after: float
    ) -> None:
        """(MS-01, MS-05)"""
        create_conversation(store, status="new")
        stale = acquire_grant(store, trigger_id="t1")
        result = try_acquire(store, now=NOW + after)
        assert isinstance(result, LockAcquired)
        assert result.grant.fence > stale.fence
        assert result.conversation == get_conversation(store)
        assert result.conversation.lock_trigger == "another trigger"
        assert result.conversation.lock_expires_at == NOW + after + 60.0

    def test_the_status_before_is_kept_over_any_number_of_takeovers(
        self, store: ConversationStore
    ) -> None:
        """(MS-30)"""
        create_conversation(store, status="vip")
        for number in range(3):
            result = acquire_lock(store, f"{number}", now=NOW + 60.0 * number)
            assert result.conversation.previous_status == "vip"
            assert result.conversation.status == Status.PROCESSING

    def test_a_worker_that_takes_over_finds_the_notes_of_the_previous_owner(
        self, store: ConversationStore
    ) -> None:
        create_conversation(store)
        store.note(acquire_grant(store), WritingReply(("m1",)), "thread")
        row = acquire_lock(store, "second", now=NOW + 60.0).conversation
        assert (row.outbox, row.thread_id) == (WritingReply(("m1",)), "thread")

    def test_the_fence_rises_with_every_acquisition(self, store: ConversationStore) -> None:
        """This holds after a release, a finish, parking and a takeover (I-MS-3)."""
        create_conversation(store)
        fences = []
        for number, write in enumerate(("release", "finish", "park", "note", "release")):
            grant = acquire_grant(store, f"{number}", now=NOW + 100.0 * number)
            fences.append(grant.fence)
            WRITES[write](store, grant)
        assert fences == sorted(set(fences))

    def test_conversations_have_locks_of_their_own(self, store: ConversationStore) -> None:
        create_conversation(store)
        create_conversation(store, OTHER)
        acquire_grant(store)
        acquire_grant(store, key=OTHER)

    # -- renewing

    def test_a_renewed_lock_is_held_longer(self, store: ConversationStore) -> None:
        create_conversation(store)
        grant = acquire_grant(store)
        assert store.renew(grant, now=NOW + 30.0, expires_at=NOW + 90.0) is True
        assert try_acquire(store, now=NOW + 89.75) == LockHeld("trigger", NOW + 90.0)
        assert get_conversation(store).lock_expires_at == NOW + 90.0
        assert isinstance(try_acquire(store, now=NOW + 90.0), LockAcquired)

    @pytest.mark.parametrize("after", [60.0, 61.0])
    def test_an_expired_lock_is_not_renewed(
        self, store: ConversationStore, after: float
    ) -> None:
        create_conversation(store)
        grant = acquire_grant(store)
        before = read_everything(store)
        assert store.renew(grant, now=NOW + after, expires_at=NOW + 200.0) is False
        assert read_everything(store) == before

    def test_a_lock_is_renewed_by_its_owner_alone(self, store: ConversationStore) -> None:
        create_conversation(store)
        stale, owner = take_over_lock(store)
        before = read_everything(store)
        assert store.renew(stale, now=NOW + 61.0, expires_at=NOW + 999.0) is False
        assert read_everything(store) == before
        store.release(owner, "")
        before = read_everything(store)
        assert store.renew(owner, now=NOW + 61.0, expires_at=NOW + 999.0) is False
        assert read_everything(store) == before

    def test_an_expired_lock_that_was_not_taken_over_still_allows_writes(
        self, store: ConversationStore
    ) -> None:
        create_conversation(store)
        stage_messages(store, "m1")
        store.finish(
            acquire_grant(store), make_turn("m1"), now=NOW + 999.0, remember_until=LATER
        )
        assert get_conversation(store).message_count == 2

    # -- releasing

    @pytest.mark.parametrize("status", [Status.ERROR, "", "vip", Status.REPLY_SENT])
    def test_a_released_lock_is_free_and_the_outbox_stays(
        self, store: ConversationStore, status: str
    ) -> None:
        create_conversation(store, status="before")
        stage_messages(store, "m1")
        grant = acquire_grant(store)
        store.note(grant, WritingReply(("m1",)), "thread")
        store.release(grant, status)
        row = get_conversation(store)
        assert row.status == status
        assert not row.is_locked(NOW)
        assert (row.outbox, row.thread_id) == (WritingReply(("m1",)), "thread")
        assert list_staged_sids(store) == ["m1"]
        assert acquire_lock(store, "second").conversation.previous_status == status

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

    @pytest.mark.parametrize("write", WRITES)
    @pytest.mark.parametrize("end", ["release", "finish", "park"])
    def test_a_released_lock_allows_no_writes(
        self, store: ConversationStore, write: str, end: str
    ) -> None:
        create_conversation(store)
        stage_messages(store, "m1", "m2", "m3")
        grant = acquire_grant(store)
        WRITES[end](store, grant)
        before = read_everything(store)
        with pytest.raises(LockLost):
            WRITES[write](store, grant)
        assert read_everything(store) == before

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
