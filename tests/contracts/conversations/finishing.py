"""Promises about a turn: each step is noted, and the turn becomes history in one write."""

from dataclasses import replace

import pytest

from contracts.conversations.support import (
    KEY,
    LATER,
    NOW,
    ODD_TEXT,
    OTHER,
    OUTBOXES,
    PARTS,
    acquire_grant,
    answer_messages,
    create_conversation,
    get_conversation,
    list_staged_sids,
    make_fragment,
    make_turn,
    read_everything,
    stage_messages,
)
from holdfast.chat.errors import LockLost
from holdfast.chat.model import Channel, Status
from holdfast.chat.outbox import (
    Outbox,
    SendingReply,
    SentReply,
    WriterAnswer,
    WritingReply,
)
from holdfast.chat.ports import ConversationStore


class OutboxPromises:
    """Promises about the outbox (MS-06, MS-21, MS-22)."""

    @pytest.mark.parametrize("outbox", OUTBOXES, ids=repr)
    def test_how_far_the_reply_has_come_is_found_as_it_was_written(
        self, store: ConversationStore, outbox: Outbox
    ) -> None:
        create_conversation(store)
        grant = acquire_grant(store)
        store.note(grant, outbox, "thread")
        row = get_conversation(store)
        assert (row.outbox, row.thread_id) == (outbox, "thread")
        assert (row.status, row.message_count) == (Status.PROCESSING, 0)

    def test_each_note_replaces_the_previous_note(self, store: ConversationStore) -> None:
        create_conversation(store)
        grant = acquire_grant(store)
        for number, outbox in enumerate(OUTBOXES):
            store.note(grant, outbox, f"thread {number}")
            assert get_conversation(store).outbox == outbox
            assert get_conversation(store).thread_id == f"thread {number}"

    def test_a_note_neither_prolongs_the_lock_nor_gives_it_back(
        self, store: ConversationStore
    ) -> None:
        create_conversation(store)
        grant = acquire_grant(store)
        store.note(grant, OUTBOXES[0], "")
        row = get_conversation(store)
        assert (row.lock_expires_at, row.lock_fence) == (NOW + 60.0, grant.fence)
        assert row.is_locked(NOW)

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

    def test_a_second_turn_goes_on_where_the_first_ended(
        self, store: ConversationStore
    ) -> None:
        create_conversation(store)
        answer_messages(store, "m1")
        grant = acquire_grant(store)
        second = make_turn("m2", at=NOW + 9.0, reply="r2", thread_id="another thread")
        store.finish(grant, second, now=NOW + 9.0, remember_until=LATER)
        row = get_conversation(store)
        history = store.history(KEY)
        assert [message.seq for message in history] == [1, 2, 3, 4]
        assert [message.role for message in history] == ["user", "assistant"] * 2
        assert list(row.messages) == history[2:]
        assert row.message_count == 4
        assert (row.prompt_tokens, row.completion_tokens) == (20, 6)
        assert (row.thread_id, row.thread_mark) == ("another thread", "mark of r2")
        assert row.last_assistant_message_sid == "r2"

    def test_finishing_twice_is_finishing_once(self, store: ConversationStore) -> None:
        """After a lost response the caller repeats the call (MS-06)."""
        create_conversation(store)
        grant = acquire_grant(store)
        store.finish(grant, make_turn("m1"), now=NOW, remember_until=LATER)
        before = read_everything(store)
        with pytest.raises(LockLost):
            store.finish(grant, make_turn("m1"), now=NOW, remember_until=LATER)
        assert read_everything(store) == before

    def test_a_batch_of_forty_is_one_write(self, store: ConversationStore) -> None:
        """This is the maximum of a turn, because DynamoDB accepts a hundred rows at once."""
        create_conversation(store)
        sids = [f"SM{number:032}" for number in range(40)]
        stage_messages(store, *sids)
        answer_messages(store, *sids)
        assert list_staged_sids(store) == []
        assert store.processed(KEY, sids) == set(sids)

    def test_a_turn_whose_messages_are_not_staged_any_more_is_finished(
        self, store: ConversationStore
    ) -> None:
        """A worker that takes over a sent reply finishes, whatever was removed meanwhile."""
        create_conversation(store)
        grant = acquire_grant(store)
        sent = SentReply(("m1",), WriterAnswer("text"), PARTS)
        store.note(grant, sent, "")
        store.finish(grant, make_turn("m1"), now=NOW, remember_until=LATER)
        assert get_conversation(store).message_count == 2

    def test_a_message_may_be_remembered_twice(self, store: ConversationStore) -> None:
        create_conversation(store)
        answer_messages(store, "m1", "m2")
        answer_messages(store, "m2", "m3")
        assert store.processed(KEY, ["m1", "m2", "m3", "m4"]) == {"m1", "m2", "m3"}

    def test_any_letters_and_details_become_history(self, store: ConversationStore) -> None:
        create_conversation(store)
        done = make_turn("m1")
        user = replace(done.user, body=ODD_TEXT, details={"media": ["a/b"], "n": {"x": 1}})
        assistant = replace(done.assistant, body="z" * 7_000, details={})
        done = replace(done, user=user, assistant=assistant)
        store.finish(acquire_grant(store), done, now=NOW, remember_until=LATER)
        pair = [replace(user, seq=1), replace(assistant, seq=2)]
        assert store.history(KEY) == pair
        recent = get_conversation(store).messages
        assert (recent[0], recent[1].body) == (pair[0], "z" * 159 + "…")

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

    def test_a_message_that_comes_again_is_known(self, store: ConversationStore) -> None:
        """The message may be staged, and is known to be answered (MS-20)."""
        create_conversation(store)
        stage_messages(store, "m1")
        answer_messages(store, "m1")
        assert store.stage(make_fragment("m1"), expires_at=LATER)
        assert store.processed(KEY, ["m1"]) == {"m1"}

    def test_what_is_processed_is_so_for_its_conversation(
        self, store: ConversationStore
    ) -> None:
        create_conversation(store)
        create_conversation(store, OTHER)
        answer_messages(store, "m1")
        assert store.processed(OTHER, ["m1"]) == set()
        alike = replace(KEY, primary_channel="+4915700000001")
        assert store.processed(alike, ["m1"]) == set()
        assert store.processed(KEY, []) == set()

    def test_hundreds_of_messages_are_looked_up_at_once(self, store: ConversationStore) -> None:
        create_conversation(store)
        sids = [f"m{number:03}" for number in range(250)]
        for start in range(0, 240, 40):
            answer_messages(store, *sids[start : start + 40])
        known = store.processed(KEY, [*sids, *sids[:30], "m999"])
        assert known == set(sids[:240])
