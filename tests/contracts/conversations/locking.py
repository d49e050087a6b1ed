"""Promises of a conversation store: the lock, the outbox and the end of a turn."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from contracts.conversations.support import (
    ANSWER,
    CONFIGS,
    KEY,
    LATER,
    NOW,
    ODD_TEXT,
    OTHER,
    PARTS,
    acquire_grant,
    acquire_lock,
    answer_messages,
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
    Channel,
    ConversationNotFound,
    LockGrant,
    LockHeld,
    Status,
)
from holdfast.chat.outbox import (
    PreparedReply,
    SendingReply,
    WriterAnswer,
    WritingReply,
)
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


class OutboxPromises:
    """Promises about the outbox (MS-06, MS-21, MS-22)."""

    @pytest.mark.parametrize("text", [ODD_TEXT, "", "y" * Channel.EMAIL.max_length])
    def test_a_reply_of_any_letters_is_noted(self, store: ConversationStore, text: str) -> None:
        create_conversation(store)
        outbox = SendingReply(("m1",), WriterAnswer(text), PARTS, NOW)
        store.note(acquire_grant(store), outbox, "")
        assert get_conversation(store).outbox == outbox


class FinishPromises:
    """Promises about finishing a turn (MS-06, MS-09, MS-10, MS-11, MS-20, I-MS-6)."""

    @pytest.mark.requirement(
        "R002-068",
        "R002-069",
        "R002-070",
        "R002-071",
        "R002-072",
        "R002-073",
        "R002-074",
        "R002-078",
        "R002-081",
    )
    def test_a_turn_is_finished_in_one_write(self, store: ConversationStore) -> None:
        create_conversation(store, status="before")
        stage_messages(store, "m1", "m2", "late")
        stage_messages(store, "m1", key=OTHER)
        grant = acquire_grant(store)
        store.note(grant, WritingReply(("m1", "m2")), "thread")
        done = make_turn("m1", "m2")
        store.finish(grant, done, now=NOW + 5.0, remember_until=LATER)
        row = get_conversation(store)
        pair = (replace(done.user, seq=1), replace(done.assistant, seq=2))
        assert row.messages == pair
        assert tuple(store.history(KEY)) == pair
        assert row.message_count == 2
        assert (row.prompt_tokens, row.completion_tokens) == (10, 3)
        assert (row.thread_id, row.thread_mark) == ("thread", "mark of r1")
        assert row.last_assistant_message_sid == "r1"
        assert store.processed(KEY, ["m1", "m2", "late"]) == {"m1", "m2"}
        assert list_staged_sids(store) == ["late"]
        assert list_staged_sids(store, OTHER) == ["m1"]
        assert row.outbox is None
        assert row.status == Status.REPLY_SENT
        assert not row.is_locked(NOW)
        assert (row.created_at, row.updated_at) == (NOW, NOW + 5.0)
        assert acquire_grant(store, "next").fence > grant.fence

    def test_a_batch_of_forty_is_one_write(self, store: ConversationStore) -> None:
        """This is the maximum of a turn, because DynamoDB accepts a hundred rows at once."""
        create_conversation(store)
        sids = [f"SM{number:032}" for number in range(40)]
        stage_messages(store, *sids)
        answer_messages(store, *sids)
        assert list_staged_sids(store) == []
        assert store.processed(KEY, sids) == set(sids)

    def test_any_letters_and_details_become_history(self, store: ConversationStore) -> None:
        create_conversation(store)
        done = make_turn("m1")
        user = replace(done.user, body=ODD_TEXT, details={"media": ["a/b"], "n": {"x": 1}})
        assistant = replace(done.assistant, body="z" * 7_000, details={})
        done = replace(done, user=user, assistant=assistant)
        store.finish(acquire_grant(store), done, now=NOW, remember_until=LATER)
        pair = [replace(user, seq=1), replace(assistant, seq=2)]
        assert store.history(KEY) == pair
        assert list(get_conversation(store).messages) == pair

    def test_a_reply_with_an_incomplete_character_still_becomes_history(
        self, store: ConversationStore
    ) -> None:
        """The reply was sent, so a character that cannot be stored must not block the rest."""
        create_conversation(store)
        done = make_turn("m1")
        done = replace(done, assistant=replace(done.assistant, body="good \ud83d bye"))
        grant = acquire_grant(store)
        store.note(grant, SendingReply(("m1",), WriterAnswer("good \ud83d bye"), (), NOW), "")
        store.finish(grant, done, now=NOW, remember_until=LATER)
        body = store.history(KEY)[1].body
        assert body.startswith("good ")
        assert body.endswith(" bye")

    # -- messages that are known to be answered

    def test_hundreds_of_messages_are_looked_up_at_once(self, store: ConversationStore) -> None:
        create_conversation(store)
        sids = [f"m{number:03}" for number in range(250)]
        for start in range(0, 240, 40):
            answer_messages(store, *sids[start : start + 40])
        known = store.processed(KEY, [*sids, *sids[:30], "m999"])
        assert known == set(sids[:240])
