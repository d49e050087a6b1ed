"""Promises about parking: a batch waits for an operator, and nothing of it is lost."""

from dataclasses import replace

import pytest

from contracts.conversations.support import (
    KEY,
    LATER,
    NOW,
    ODD_TEXT,
    OTHER,
    OUTBOXES,
    acquire_grant,
    answer_messages,
    create_conversation,
    get_conversation,
    list_staged_sids,
    make_fragment,
    make_parked,
    make_turn,
    make_unreadable,
    read_everything,
    sort_sids,
    stage_messages,
    take_over_lock,
)
from holdfast.chat.errors import LockLost, ParkedNotFound
from holdfast.chat.model import Fragment, ParkedBatch, Status, UnreadableFragment
from holdfast.chat.outbox import Outbox, PreparedReply, WriterAnswer, WritingReply
from holdfast.chat.ports import ConversationStore


def unpark(
    store: ConversationStore,
    batch: ParkedBatch,
    *,
    back_to_stage: bool,
    now: float = NOW + 500.0,
) -> ParkedBatch:
    """Remove the batch from the parked ones."""
    return store.unpark(
        batch.parked_id, back_to_stage=back_to_stage, now=now, expires_at=LATER + 500.0
    )


class ParkingPromises:
    """Promises about parked batches (MS-18, MS-22, MS-30; I-MS-1)."""

    def test_a_batch_is_parked_in_one_write(self, store: ConversationStore) -> None:
        create_conversation(store, status="before")
        answer_messages(store, "m0")
        fragments = stage_messages(store, "m1", "m2", "late")
        stage_messages(store, "m1", key=OTHER)
        grant = acquire_grant(store)
        store.note(grant, WritingReply(("m1", "m2")), "thread")
        batch = make_parked(*fragments[:2], outbox=WritingReply(("m1", "m2")))
        store.park(grant, batch, remember_until=LATER)
        assert list(store.parked()) == [batch]
        assert list_staged_sids(store) == ["late"]
        assert list_staged_sids(store, OTHER) == ["m1"]
        assert store.processed(KEY, ["m1", "m2", "late"]) == {"m1", "m2"}
        row = get_conversation(store)
        assert (row.status, row.outbox) == (Status.PARKED, None)
        assert not row.is_locked(NOW)
        assert (row.message_count, row.thread_id) == (2, "thread")
        assert acquire_grant(store, "next").fence > grant.fence

    @pytest.mark.parametrize("mark", ["mark of the reply", ""])
    def test_the_threads_mark_moves_behind_the_reply_of_a_parked_batch(
        self, store: ConversationStore, mark: str
    ) -> None:
        """Otherwise a later batch with the same text would get this reply (MS-21)."""
        create_conversation(store)
        answer_messages(store, "m0")
        before = get_conversation(store).thread_mark
        grant = acquire_grant(store)
        outbox = PreparedReply(("m1",), WriterAnswer("reply", thread_mark=mark))
        batch = make_parked(*stage_messages(store, "m1"), outbox=outbox)
        store.park(grant, batch, remember_until=LATER)
        assert get_conversation(store).thread_mark == (mark or before)

    def test_parking_without_a_lock_skips_messages_that_were_answered_or_parked(
        self, store: ConversationStore
    ) -> None:
        """Two workers may read overlapping rows, and a webhook may stage a message again."""
        create_conversation(store)
        answer_messages(store, "answered")
        rows = stage_messages(store, "answered", "m1", "m2")
        store.park(None, make_parked(rows[1]), remember_until=LATER)
        store.park(None, make_parked(*rows), remember_until=LATER)
        parked_sids = sorted(sid for batch in store.parked() for sid in batch.sids)
        assert parked_sids == ["m1", "m2"]
        assert list_staged_sids(store) == []
        assert store.processed(KEY, ["answered", "m1", "m2"]) == {"answered", "m1", "m2"}

    def test_the_rest_of_a_partly_processed_batch_gets_an_id_of_its_own(
        self, store: ConversationStore
    ) -> None:
        """Another process may have parked the complete batch under the old id."""
        create_conversation(store)
        answer_messages(store, "m1")
        rows = stage_messages(store, "m1", "m2", "m3")
        complete = make_parked(*rows)
        store.park(None, complete, remember_until=LATER)
        assert list(store.parked()) == [make_parked(*rows[1:])]
        assert unpark(store, make_parked(*rows[1:]), back_to_stage=True).sids == ("m2", "m3")
        with pytest.raises(ParkedNotFound):
            unpark(store, complete, back_to_stage=True)

    def test_messages_that_are_parked_and_came_again_leave_the_stage_without_a_lock(
        self, store: ConversationStore
    ) -> None:
        """Their sids may be forgotten while the batch still waits for an operator."""
        create_conversation(store)
        batch, both = (
            make_parked(make_fragment("m1")),
            make_parked(make_fragment("m1"), make_fragment("m2")),
        )
        store.park(None, batch, remember_until=LATER)
        store.park(acquire_grant(store), both, remember_until=LATER)
        unpark(store, both, back_to_stage=True)
        store.park(None, replace(batch, reason="another"), remember_until=LATER)
        assert list(store.parked()) == [batch]
        assert list_staged_sids(store) == ["m2"]
        assert store.processed(KEY, ["m1", "m2"]) == {"m1"}

    def test_a_conversation_assigned_to_a_person_stays_assigned_when_parked(
        self, store: ConversationStore
    ) -> None:
        create_conversation(store, status=Status.WITH_PERSON)
        grant = acquire_grant(store)
        store.park(grant, make_parked(*stage_messages(store, "m1")), remember_until=LATER)
        assert get_conversation(store).status == Status.WITH_PERSON

    def test_a_conversation_stays_assigned_to_a_person_after_a_takeover(
        self, store: ConversationStore
    ) -> None:
        create_conversation(store, status=Status.WITH_PERSON)
        acquire_grant(store, "dies")
        grant = acquire_grant(store, now=NOW + 60.0)
        store.park(grant, make_parked(*stage_messages(store, "m1")), remember_until=LATER)
        assert get_conversation(store).status == Status.WITH_PERSON

    def test_without_a_grant_only_these_rows_are_touched(
        self, store: ConversationStore
    ) -> None:
        """The lock of another worker, and what it noted, stay."""
        create_conversation(store)
        fragments = stage_messages(store, "m1", "m2")
        grant = acquire_grant(store)
        store.note(grant, WritingReply(("m2",)), "thread")
        before = get_conversation(store)
        batch = make_parked(fragments[0])
        store.park(None, batch, remember_until=LATER)
        assert get_conversation(store) == before
        assert list(store.parked()) == [batch]
        assert list_staged_sids(store) == ["m2"]
        assert store.processed(KEY, ["m1", "m2"]) == {"m1"}
        store.release(grant, "")

    def test_messages_of_an_unknown_conversation_are_parked(
        self, store: ConversationStore
    ) -> None:
        batch = make_parked(*stage_messages(store, "m1"))
        store.park(None, batch, remember_until=LATER)
        assert list(store.parked()) == [batch]
        assert list_staged_sids(store) == []
        assert store.get(KEY) is None
        assert store.processed(KEY, ["m1"]) == {"m1"}

    def test_parking_the_same_again_changes_nothing(self, store: ConversationStore) -> None:
        create_conversation(store)
        batch = make_parked(*stage_messages(store, "m1"))
        store.park(None, batch, remember_until=LATER)
        before = read_everything(store)
        again = replace(batch, reason="another reason", parked_at=NOW + 9.0)
        store.park(None, again, remember_until=LATER)
        assert read_everything(store) == before

    def test_parking_with_a_lock_that_was_given_back_by_it_changes_nothing(
        self, store: ConversationStore
    ) -> None:
        create_conversation(store)
        grant = acquire_grant(store)
        batch = make_parked(*stage_messages(store, "m1"))
        store.park(grant, batch, remember_until=LATER)
        before = read_everything(store)
        with pytest.raises(LockLost):
            store.park(grant, batch, remember_until=LATER)
        assert read_everything(store) == before

    def test_what_is_parked_already_is_parked_with_a_lock(
        self, store: ConversationStore
    ) -> None:
        """The sweeper was faster. Then the lock is free, and one of the two batches is kept."""
        create_conversation(store)
        batch = make_parked(*stage_messages(store, "m1"))
        grant = acquire_grant(store)
        store.park(None, batch, remember_until=LATER)
        store.park(grant, replace(batch, reason="another"), remember_until=LATER)
        assert list(store.parked()) == [batch]
        assert get_conversation(store).status == Status.PARKED

    @pytest.mark.parametrize("outbox", [None, *OUTBOXES], ids=repr)
    def test_all_that_is_known_is_kept(
        self, store: ConversationStore, outbox: Outbox | None
    ) -> None:
        create_conversation(store)
        rows = (
            make_fragment("m1", body=ODD_TEXT, media=("image/png",), received_at=NOW - 9.75),
            make_unreadable(),
        )
        batch = make_parked(*rows, outbox=outbox, reason="unknown", parked_at=NOW + 0.5)
        store.park(acquire_grant(store), batch, remember_until=LATER)
        assert list(store.parked()) == [batch]

    def test_a_batch_of_forty_long_ones_is_parked(self, store: ConversationStore) -> None:
        create_conversation(store)
        rows = [make_fragment(f"m{n:02}", body=f"{n % 10}" * 9_000) for n in range(40)]
        for row in rows:
            store.stage(row, expires_at=LATER)
        batch = make_parked(*rows)
        store.park(acquire_grant(store), batch, remember_until=LATER)
        assert list(store.parked()) == [batch]
        assert list_staged_sids(store) == []

    def test_each_batch_is_listed(self, store: ConversationStore) -> None:
        assert list(store.parked()) == []
        batches = [make_parked(make_fragment(f"m{n}"), parked_at=NOW + n) for n in range(3)]
        batches.append(
            make_parked(make_fragment("m0", OTHER), make_fragment("m9", OTHER), key=OTHER)
        )
        for batch in batches:
            store.park(None, batch, remember_until=LATER)
        row = {batch.parked_id: batch for batch in store.parked()}
        assert row == {batch.parked_id: batch for batch in batches}

    # -- unparking

    def test_what_goes_back_to_stage_is_answered_once_more(
        self, store: ConversationStore
    ) -> None:
        create_conversation(store)
        rows = (make_fragment("m1", media=("image/png",)), make_fragment("m2", body=ODD_TEXT))
        batch = make_parked(*rows)
        store.park(acquire_grant(store), batch, remember_until=LATER)
        assert unpark(store, batch, back_to_stage=True) == batch
        assert list(store.parked()) == []
        row = {row.message_sid: row for row in store.staged(KEY.conversation_id)}
        assert row == {row.message_sid: replace(row, staged_at=NOW + 500.0) for row in rows}
        assert store.processed(KEY, ["m1", "m2"]) == set()
        assert get_conversation(store).status == Status.PARKED

    def test_what_is_dropped_stays_processed(self, store: ConversationStore) -> None:
        batch = make_parked(*stage_messages(store, "m1", "m2"))
        store.park(None, batch, remember_until=LATER)
        assert unpark(store, batch, back_to_stage=False) == batch
        assert list(store.parked()) == []
        assert list_staged_sids(store) == []
        assert store.processed(KEY, ["m1", "m2"]) == {"m1", "m2"}

    @pytest.mark.parametrize("back_to_stage", [True, False])
    def test_it_is_taken_out_once(self, store: ConversationStore, back_to_stage: bool) -> None:
        batch = make_parked(*stage_messages(store, "m1"))
        store.park(None, batch, remember_until=LATER)
        unpark(store, batch, back_to_stage=False)
        before = read_everything(store)
        with pytest.raises(ParkedNotFound):
            unpark(store, batch, back_to_stage=back_to_stage)
        assert read_everything(store) == before

    # -- the operator reports that the reply was sent

    def test_a_parked_reply_that_was_sent_becomes_history_and_is_unparked(
        self, store: ConversationStore
    ) -> None:
        create_conversation(store)
        batch, other = (
            make_parked(*stage_messages(store, "m1", "m2")),
            make_parked(*stage_messages(store, "m3")),
        )
        for each in (batch, other):
            store.park(None, each, remember_until=LATER)
        store.finish(
            acquire_grant(store),
            make_turn("m1", "m2"),
            now=NOW,
            remember_until=LATER,
            parked_id=batch.parked_id,
        )
        assert list(store.parked()) == [other]
        assert len(store.history(KEY)) == 2
        assert get_conversation(store).status == Status.REPLY_SENT
        assert store.processed(KEY, ["m1", "m2"]) == {"m1", "m2"}

    def test_a_batch_that_is_no_longer_parked_does_not_become_history(
        self, store: ConversationStore
    ) -> None:
        """Another operator decided about it, so nothing changes and the lock stays."""
        create_conversation(store)
        stage_messages(store, "m1")
        grant = acquire_grant(store)
        store.note(grant, WritingReply(("m1",)), "thread")
        before = read_everything(store)
        with pytest.raises(ParkedNotFound):
            store.finish(
                grant, make_turn("m1"), now=NOW, remember_until=LATER, parked_id="nothing"
            )
        assert read_everything(store) == before
        store.release(grant, "")

    def test_what_another_conversation_parked_is_not_taken_out(
        self, store: ConversationStore
    ) -> None:
        create_conversation(store)
        other = make_parked(make_fragment("m1", OTHER), key=OTHER)
        store.park(None, other, remember_until=LATER)
        grant = acquire_grant(store)
        with pytest.raises(ParkedNotFound):
            store.finish(
                grant, make_turn("m1"), now=NOW, remember_until=LATER, parked_id=other.parked_id
            )
        assert list(store.parked()) == [other]
        assert store.history(KEY) == []

    def test_a_stale_holder_cannot_unpark_a_batch(self, store: ConversationStore) -> None:
        create_conversation(store)
        batch = make_parked(*stage_messages(store, "m1"))
        store.park(None, batch, remember_until=LATER)
        stale, _ = take_over_lock(store)
        before = read_everything(store)
        with pytest.raises(LockLost):
            store.finish(
                stale,
                make_turn("m1"),
                now=NOW,
                remember_until=LATER,
                parked_id=batch.parked_id,
            )
        assert read_everything(store) == before

    def test_others_stay_parked(self, store: ConversationStore) -> None:
        first, second = make_parked(make_fragment("m1")), make_parked(make_fragment("m2"))
        for batch in (first, second):
            store.park(None, batch, remember_until=LATER)
        unpark(store, first, back_to_stage=True)
        assert list(store.parked()) == [second]
        assert store.processed(KEY, ["m1", "m2"]) == {"m2"}

    def test_a_message_that_was_staged_again_meanwhile_is_staged_once(
        self, store: ConversationStore
    ) -> None:
        batch = make_parked(*stage_messages(store, "m1", "m2"))
        store.park(None, batch, remember_until=LATER)
        stage_messages(store, "m1")
        unpark(store, batch, back_to_stage=True)
        assert list_staged_sids(store) == ["m1", "m2"]

    def test_it_may_be_parked_again(self, store: ConversationStore) -> None:
        batch = make_parked(*stage_messages(store, "m1"))
        for _ in range(2):
            store.park(None, batch, remember_until=LATER)
            assert list(store.parked()) == [batch]
            assert list_staged_sids(store) == []
            unpark(store, batch, back_to_stage=True)

    def test_an_unreadable_row_survives_parking_and_unparking(
        self, store: ConversationStore
    ) -> None:
        """The row is neither lost nor blocks the others (MS-18)."""
        batch = make_parked(make_fragment("m1"), make_unreadable())
        store.park(None, batch, remember_until=LATER)
        assert unpark(store, batch, back_to_stage=True) == batch
        rows = store.staged(KEY.conversation_id)
        assert sort_sids(rows) == ["broken", "m1"]
        kinds = {row.message_sid: type(row) for row in rows}
        assert kinds == {"m1": Fragment, "broken": UnreadableFragment}
        [waiting] = store.waiting()
        assert (waiting.fragments, waiting.oldest_staged_at) == (2, NOW + 500.0)
        [broken] = [row for row in rows if isinstance(row, UnreadableFragment)]
        assert broken.row["odd"] == "value"
        store.park(None, make_parked(broken), remember_until=LATER)
        assert list_staged_sids(store) == ["m1"]
        assert store.processed(KEY, ["broken"]) == {"broken"}
