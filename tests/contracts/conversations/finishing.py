"""Promises about a turn: each step is noted, and the turn becomes history in one write."""

from dataclasses import replace

import pytest

from contracts.conversations.support import (
    KEY,
    LATER,
    NOW,
    ODD_TEXT,
    OTHER,
    PARTS,
    acquire_grant,
    answer_messages,
    create_conversation,
    get_conversation,
    list_staged_sids,
    make_turn,
    stage_messages,
)
from holdfast.chat.model import Channel, Status
from holdfast.chat.outbox import (
    SendingReply,
    WriterAnswer,
    WritingReply,
)
from holdfast.chat.ports import ConversationStore


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
