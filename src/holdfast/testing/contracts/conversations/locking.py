"""The lock: one owner at a time, taken over when it expired, fenced for ever."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.conversations.errors import LockLost
from holdfast.conversations.model import (
    ConversationNotFound,
    LockAcquired,
    LockGrant,
    LockHeld,
    Status,
)
from holdfast.conversations.outbox import PreparedReply, WritingReply
from holdfast.conversations.ports import ConversationStore
from holdfast.testing.contracts.conversations.support import (
    ANSWER,
    CONFIGS,
    KEY,
    LATER,
    NOW,
    OTHER,
    acquired,
    all_of,
    begun,
    conversation,
    fragment,
    granted,
    parked,
    stage,
    staged,
    taken_over,
    turn,
)

Write = Callable[[ConversationStore, LockGrant], Any]

WRITES: dict[str, Write] = {
    "note": lambda store, grant: store.note(grant, WritingReply(("m1",)), "his thread"),
    "finish": lambda store, grant: store.finish(
        grant, turn("m1", "m2"), now=NOW + 70.0, remember_until=LATER
    ),
    "park": lambda store, grant: store.park(
        grant, parked(fragment("m1"), fragment("m2")), remember_until=LATER
    ),
    "release": lambda store, grant: store.release(grant, Status.ERROR),
}


def asked(store: ConversationStore, owner: str = "second", **how: Any) -> object:
    now = how.pop("now", NOW)
    return store.acquire(
        how.pop("key", KEY),
        owner=owner,
        trigger_id=how.pop("trigger_id", "another trigger"),
        now=now,
        expires_at=now + 60.0,
    )


class LockPromises:
    """R002-019…023, R002-075, R002-081, R002-086, R002-095, R002-096; MS-01, MS-05,
    MS-07, MS-08, MS-12, MS-30; I-MS-3, I-MS-4."""

    @pytest.mark.parametrize("status", ["", "new", "reply_sent", "processing_error", "parked"])
    def test_a_free_lock_is_taken(self, store: ConversationStore, status: str) -> None:
        begun(store, status=status, **CONFIGS)
        said = acquired(store, "me", trigger_id="t1", seconds=45.0)
        assert (said.grant.key, said.grant.owner) == (KEY, "me")
        assert said.grant.trigger_id == "t1"
        found = said.conversation
        assert found == conversation(store)
        assert (found.status, found.previous_status) == (Status.PROCESSING, status)
        assert (found.lock_trigger, found.lock_expires_at) == ("t1", NOW + 45.0)
        assert found.lock_fence == said.grant.fence
        assert found.channel_config == CONFIGS["channel_config"]
        assert found.locked(NOW + 44.0)

    def test_a_conversation_of_a_person_is_locked_too_for_its_batch_must_be_parked(
        self, store: ConversationStore
    ) -> None:
        begun(store, status=Status.WITH_PERSON)
        assert acquired(store).conversation.previous_status == Status.WITH_PERSON

    def test_a_lock_that_is_held_is_refused_and_stays(self, store: ConversationStore) -> None:
        begun(store)
        granted(store, trigger_id="t1")
        was = all_of(store)
        assert asked(store) == LockHeld("t1", NOW + 60.0)
        assert asked(store, now=NOW + 59.75) == LockHeld("t1", NOW + 60.0)
        assert asked(store, "first", trigger_id="t1") == LockHeld("t1", NOW + 60.0)
        assert all_of(store) == was

    def test_an_unknown_conversation_is_not_made_up(self, store: ConversationStore) -> None:
        """MS-12."""
        begun(store, OTHER)
        assert asked(store) == ConversationNotFound()
        assert store.get(KEY) is None
        assert [found.key for found in store.conversations()] == [OTHER]

    @pytest.mark.parametrize("after", [60.0, 61.0, 86_400.0])
    def test_a_lock_that_expired_is_taken_over(
        self, store: ConversationStore, after: float
    ) -> None:
        """MS-01, MS-05."""
        begun(store, status="new")
        zombie = granted(store, trigger_id="t1")
        said = asked(store, now=NOW + after)
        assert isinstance(said, LockAcquired)
        assert said.grant.fence > zombie.fence
        assert said.conversation == conversation(store)
        assert said.conversation.lock_trigger == "another trigger"
        assert said.conversation.lock_expires_at == NOW + after + 60.0

    def test_the_status_before_is_kept_over_any_number_of_takeovers(
        self, store: ConversationStore
    ) -> None:
        """MS-30."""
        begun(store, status="vip")
        for number in range(3):
            said = acquired(store, f"{number}", now=NOW + 60.0 * number)
            assert said.conversation.previous_status == "vip"
            assert said.conversation.status == Status.PROCESSING

    def test_what_the_one_before_noted_is_there_for_who_takes_over(
        self, store: ConversationStore
    ) -> None:
        begun(store)
        store.note(granted(store), WritingReply(("m1",)), "thread")
        found = acquired(store, "second", now=NOW + 60.0).conversation
        assert (found.outbox, found.thread_id) == (WritingReply(("m1",)), "thread")

    def test_the_fence_rises_with_every_acquisition(self, store: ConversationStore) -> None:
        """I-MS-3: whether it was released, finished, parked or taken over."""
        begun(store)
        fences = []
        for number, write in enumerate(("release", "finish", "park", "note", "release")):
            grant = granted(store, f"{number}", now=NOW + 100.0 * number)
            fences.append(grant.fence)
            WRITES[write](store, grant)
        assert fences == sorted(set(fences))

    def test_conversations_have_locks_of_their_own(self, store: ConversationStore) -> None:
        begun(store)
        begun(store, OTHER)
        granted(store)
        granted(store, key=OTHER)

    # -- holding on

    def test_a_renewed_lock_is_held_longer(self, store: ConversationStore) -> None:
        begun(store)
        grant = granted(store)
        assert store.renew(grant, now=NOW + 30.0, expires_at=NOW + 90.0) is True
        assert asked(store, now=NOW + 89.75) == LockHeld("trigger", NOW + 90.0)
        assert conversation(store).lock_expires_at == NOW + 90.0
        assert isinstance(asked(store, now=NOW + 90.0), LockAcquired)

    @pytest.mark.parametrize("after", [60.0, 61.0])
    def test_an_expired_lock_is_not_renewed(
        self, store: ConversationStore, after: float
    ) -> None:
        begun(store)
        grant = granted(store)
        was = all_of(store)
        assert store.renew(grant, now=NOW + after, expires_at=NOW + 200.0) is False
        assert all_of(store) == was

    def test_a_lock_is_renewed_by_its_owner_alone(self, store: ConversationStore) -> None:
        begun(store)
        zombie, owner = taken_over(store)
        was = all_of(store)
        assert store.renew(zombie, now=NOW + 61.0, expires_at=NOW + 999.0) is False
        assert all_of(store) == was
        store.release(owner, "")
        was = all_of(store)
        assert store.renew(owner, now=NOW + 61.0, expires_at=NOW + 999.0) is False
        assert all_of(store) == was

    def test_a_lock_that_expired_and_nobody_took_is_still_good_for_writing(
        self, store: ConversationStore
    ) -> None:
        begun(store)
        stage(store, "m1")
        store.finish(granted(store), turn("m1"), now=NOW + 999.0, remember_until=LATER)
        assert conversation(store).message_count == 2

    # -- giving it back

    @pytest.mark.parametrize("status", [Status.ERROR, "", "vip", Status.REPLY_SENT])
    def test_a_released_lock_is_free_and_the_outbox_stays(
        self, store: ConversationStore, status: str
    ) -> None:
        begun(store, status="before")
        stage(store, "m1")
        grant = granted(store)
        store.note(grant, WritingReply(("m1",)), "thread")
        store.release(grant, status)
        found = conversation(store)
        assert found.status == status
        assert not found.locked(NOW)
        assert (found.outbox, found.thread_id) == (WritingReply(("m1",)), "thread")
        assert staged(store) == ["m1"]
        assert acquired(store, "second").conversation.previous_status == status

    # -- zombies

    @pytest.mark.parametrize("write", WRITES)
    def test_a_zombie_changes_nothing(self, store: ConversationStore, write: str) -> None:
        """MS-07, MS-08."""
        begun(store, status="vip")
        stage(store, "m1", "m2")
        zombie, owner = taken_over(store)
        store.note(owner, PreparedReply(("m1",), ANSWER), "thread")
        was = all_of(store)
        with pytest.raises(LockLost):
            WRITES[write](store, zombie)
        assert all_of(store) == was
        WRITES[write](store, owner)

    @pytest.mark.parametrize("write", WRITES)
    @pytest.mark.parametrize("end", ["release", "finish", "park"])
    def test_a_lock_that_was_given_back_is_good_for_nothing(
        self, store: ConversationStore, write: str, end: str
    ) -> None:
        begun(store)
        stage(store, "m1", "m2", "m3")
        grant = granted(store)
        WRITES[end](store, grant)
        was = all_of(store)
        with pytest.raises(LockLost):
            WRITES[write](store, grant)
        assert all_of(store) == was

    @pytest.mark.parametrize("write", WRITES)
    @pytest.mark.parametrize("other", ["owner", "fence", "conversation"])
    def test_owner_and_fence_must_both_be_right(
        self, store: ConversationStore, write: str, other: str
    ) -> None:
        begun(store)
        grant = granted(store)
        wrong = {
            "owner": LockGrant(KEY, "another", grant.trigger_id, grant.fence),
            "fence": LockGrant(KEY, grant.owner, grant.trigger_id, grant.fence + 1),
            "conversation": LockGrant(OTHER, grant.owner, grant.trigger_id, grant.fence),
        }[other]
        was = all_of(store)
        with pytest.raises(LockLost):
            WRITES[write](store, wrong)
        assert store.renew(wrong, now=NOW, expires_at=NOW + 99.0) is False
        assert all_of(store) == was
        assert store.get(OTHER) is None
