"""A turn: its reply is noted step by step, and becomes history in one write."""

from dataclasses import replace

import pytest

from holdfast.conversations.errors import LockLost
from holdfast.conversations.model import Channel, Status
from holdfast.conversations.outbox import (
    Outbox,
    SendingReply,
    SentReply,
    WriterAnswer,
    WritingReply,
)
from holdfast.conversations.ports import ConversationStore
from holdfast.testing.contracts.conversations.support import (
    KEY,
    LATER,
    NOW,
    ODD_TEXT,
    OTHER,
    OUTBOXES,
    PARTS,
    all_of,
    answered,
    begun,
    conversation,
    fragment,
    granted,
    stage,
    staged,
    turn,
)


class OutboxPromises:
    """MS-06, MS-21, MS-22."""

    @pytest.mark.parametrize("outbox", OUTBOXES, ids=repr)
    def test_how_far_the_reply_has_come_is_found_as_it_was_written(
        self, store: ConversationStore, outbox: Outbox
    ) -> None:
        begun(store)
        grant = granted(store)
        store.note(grant, outbox, "thread")
        found = conversation(store)
        assert (found.outbox, found.thread_id) == (outbox, "thread")
        assert (found.status, found.message_count) == (Status.PROCESSING, 0)

    def test_each_note_takes_the_place_of_the_one_before(
        self, store: ConversationStore
    ) -> None:
        begun(store)
        grant = granted(store)
        for number, outbox in enumerate(OUTBOXES):
            store.note(grant, outbox, f"thread {number}")
            assert conversation(store).outbox == outbox
            assert conversation(store).thread_id == f"thread {number}"

    def test_a_note_neither_prolongs_the_lock_nor_gives_it_back(
        self, store: ConversationStore
    ) -> None:
        begun(store)
        was = granted(store)
        store.note(was, OUTBOXES[0], "")
        found = conversation(store)
        assert (found.lock_expires_at, found.lock_fence) == (NOW + 60.0, was.fence)
        assert found.locked(NOW)

    @pytest.mark.parametrize("text", [ODD_TEXT, "", "y" * Channel.EMAIL.longest])
    def test_a_reply_of_any_letters_is_noted(self, store: ConversationStore, text: str) -> None:
        begun(store)
        outbox = SendingReply(("m1",), WriterAnswer(text), PARTS, NOW)
        store.note(granted(store), outbox, "")
        assert conversation(store).outbox == outbox


class FinishPromises:
    """R002-066…075, R002-078, R002-081, R002-089, R002-096; MS-06, MS-09, MS-10, MS-11,
    MS-20; I-MS-6."""

    def test_a_turn_is_finished_in_one_write(self, store: ConversationStore) -> None:
        begun(store, status="before")
        stage(store, "m1", "m2", "late")
        stage(store, "m1", key=OTHER)
        grant = granted(store)
        store.note(grant, WritingReply(("m1", "m2")), "thread")
        done = turn("m1", "m2")
        store.finish(grant, done, now=NOW + 5.0, remember_until=LATER)
        found = conversation(store)
        pair = (replace(done.user, seq=1), replace(done.assistant, seq=2))
        assert found.messages == pair
        assert tuple(store.history(KEY)) == pair
        assert found.message_count == 2
        assert (found.prompt_tokens, found.completion_tokens) == (10, 3)
        assert (found.thread_id, found.thread_mark) == ("thread", "mark of r1")
        assert found.last_assistant_message_sid == "r1"
        assert store.processed(KEY, ["m1", "m2", "late"]) == {"m1", "m2"}
        assert staged(store) == ["late"]
        assert staged(store, OTHER) == ["m1"]
        assert found.outbox is None
        assert found.status == Status.REPLY_SENT
        assert not found.locked(NOW)
        assert (found.created_at, found.updated_at) == (NOW, NOW + 5.0)
        assert granted(store, "next").fence > grant.fence

    def test_a_second_turn_goes_on_where_the_first_ended(
        self, store: ConversationStore
    ) -> None:
        begun(store)
        answered(store, "m1")
        grant = granted(store)
        second = turn("m2", at=NOW + 9.0, reply="r2", thread_id="another thread")
        store.finish(grant, second, now=NOW + 9.0, remember_until=LATER)
        found = conversation(store)
        assert [one.seq for one in found.messages] == [1, 2, 3, 4]
        assert [one.role for one in found.messages] == ["user", "assistant"] * 2
        assert found.messages == tuple(store.history(KEY))
        assert found.message_count == 4
        assert (found.prompt_tokens, found.completion_tokens) == (20, 6)
        assert (found.thread_id, found.thread_mark) == ("another thread", "mark of r2")
        assert found.last_assistant_message_sid == "r2"

    def test_finishing_twice_is_finishing_once(self, store: ConversationStore) -> None:
        """MS-06: an answer that was lost on its way is asked for again."""
        begun(store)
        grant = granted(store)
        store.finish(grant, turn("m1"), now=NOW, remember_until=LATER)
        was = all_of(store)
        with pytest.raises(LockLost):
            store.finish(grant, turn("m1"), now=NOW, remember_until=LATER)
        assert all_of(store) == was

    def test_a_batch_of_forty_is_one_write(self, store: ConversationStore) -> None:
        """The most a turn may have: DynamoDB takes a hundred rows at once."""
        begun(store)
        sids = [f"SM{number:032}" for number in range(40)]
        stage(store, *sids)
        answered(store, *sids)
        assert staged(store) == []
        assert store.processed(KEY, sids) == set(sids)

    def test_a_turn_whose_messages_are_not_staged_any_more_is_finished(
        self, store: ConversationStore
    ) -> None:
        """Who takes over with a reply sent finishes, whatever was cleaned up meanwhile."""
        begun(store)
        grant = granted(store)
        sent = SentReply(("m1",), WriterAnswer("text"), PARTS)
        store.note(grant, sent, "")
        store.finish(grant, turn("m1"), now=NOW, remember_until=LATER)
        assert conversation(store).message_count == 2

    def test_a_message_may_be_remembered_twice(self, store: ConversationStore) -> None:
        begun(store)
        answered(store, "m1", "m2")
        answered(store, "m2", "m3")
        assert store.processed(KEY, ["m1", "m2", "m3", "m4"]) == {"m1", "m2", "m3"}

    def test_any_letters_and_details_become_history(self, store: ConversationStore) -> None:
        begun(store)
        done = turn("m1")
        user = replace(done.user, body=ODD_TEXT, details={"media": ["a/b"], "n": {"x": 1}})
        assistant = replace(done.assistant, body="z" * 7_000, details={})
        done = replace(done, user=user, assistant=assistant)
        store.finish(granted(store), done, now=NOW, remember_until=LATER)
        pair = [replace(user, seq=1), replace(assistant, seq=2)]
        assert store.history(KEY) == pair
        assert list(conversation(store).messages) == pair

    def test_a_reply_with_half_a_character_is_history_all_the_same(
        self, store: ConversationStore
    ) -> None:
        """It is out: what cannot be stored must not keep the rest from being stored."""
        begun(store)
        done = turn("m1")
        done = replace(done, assistant=replace(done.assistant, body="good \ud83d bye"))
        grant = granted(store)
        store.note(grant, SendingReply(("m1",), WriterAnswer("good \ud83d bye"), (), NOW), "")
        store.finish(grant, done, now=NOW, remember_until=LATER)
        body = store.history(KEY)[1].body
        assert body.startswith("good ")
        assert body.endswith(" bye")

    # -- what is known to be answered

    def test_a_message_that_comes_again_is_known(self, store: ConversationStore) -> None:
        """MS-20: it may be staged, and is known to be answered."""
        begun(store)
        stage(store, "m1")
        answered(store, "m1")
        assert store.stage(fragment("m1"), expires_at=LATER)
        assert store.processed(KEY, ["m1"]) == {"m1"}

    def test_what_is_processed_is_so_for_its_conversation(
        self, store: ConversationStore
    ) -> None:
        begun(store)
        begun(store, OTHER)
        answered(store, "m1")
        assert store.processed(OTHER, ["m1"]) == set()
        alike = replace(KEY, primary_channel="+4915700000001")
        assert store.processed(alike, ["m1"]) == set()
        assert store.processed(KEY, []) == set()

    def test_hundreds_of_messages_are_looked_up_at_once(self, store: ConversationStore) -> None:
        begun(store)
        sids = [f"m{number:03}" for number in range(250)]
        for first in range(0, 240, 40):
            answered(store, *sids[first : first + 40])
        known = store.processed(KEY, [*sids, *sids[:30], "m999"])
        assert known == set(sids[:240])
