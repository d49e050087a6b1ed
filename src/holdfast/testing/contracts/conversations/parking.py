"""ParkingPromises: a batch that no retry helps waits for a person, and nothing of it is lost."""

from dataclasses import replace

import pytest

from holdfast.conversations.errors import LockLost, ParkedNotFound
from holdfast.conversations.model import Fragment, ParkedBatch, Status, UnreadableFragment
from holdfast.conversations.outbox import Outbox, PreparedReply, WriterAnswer, WritingReply
from holdfast.conversations.ports import ConversationStore
from holdfast.testing.contracts.conversations.support import (
    KEY,
    LATER,
    NOW,
    ODD_TEXT,
    OTHER,
    OUTBOXES,
    all_of,
    answered,
    begun,
    conversation,
    damaged,
    fragment,
    granted,
    parked,
    sids_of,
    stage,
    staged,
    taken_over,
    turn,
)


def unparked(
    store: ConversationStore, one: ParkedBatch, *, back_to_stage: bool, now: float = NOW + 500.0
) -> ParkedBatch:
    return store.unpark(
        one.parked_id, back_to_stage=back_to_stage, now=now, expires_at=LATER + 500.0
    )


class ParkingPromises:
    """MS-18, MS-22, MS-30; I-MS-1."""

    def test_a_batch_is_parked_in_one_write(self, store: ConversationStore) -> None:
        begun(store, status="before")
        answered(store, "m0")
        fragments = stage(store, "m1", "m2", "late")
        stage(store, "m1", key=OTHER)
        grant = granted(store)
        store.note(grant, WritingReply(("m1", "m2")), "thread")
        one = parked(*fragments[:2], outbox=WritingReply(("m1", "m2")))
        store.park(grant, one, remember_until=LATER)
        assert list(store.parked()) == [one]
        assert staged(store) == ["late"]
        assert staged(store, OTHER) == ["m1"]
        assert store.processed(KEY, ["m1", "m2", "late"]) == {"m1", "m2"}
        found = conversation(store)
        assert (found.status, found.outbox) == (Status.PARKED, None)
        assert not found.locked(NOW)
        assert (found.message_count, found.thread_id) == (2, "thread")
        assert granted(store, "next").fence > grant.fence

    @pytest.mark.parametrize("mark", ["mark of the reply", ""])
    def test_the_threads_mark_moves_behind_the_reply_of_a_parked_batch(
        self, store: ConversationStore, mark: str
    ) -> None:
        """MS-21: else a later batch with the same words would be given its reply."""
        begun(store)
        answered(store, "m0")
        before = conversation(store).thread_mark
        grant = granted(store)
        outbox = PreparedReply(("m1",), WriterAnswer("reply", thread_mark=mark))
        one = parked(*stage(store, "m1"), outbox=outbox)
        store.park(grant, one, remember_until=LATER)
        assert conversation(store).thread_mark == (mark or before)

    def test_without_a_lock_what_was_answered_or_parked_meanwhile_is_not_parked_again(
        self, store: ConversationStore
    ) -> None:
        """Two who find no conversation read overlapping rows; a webhook stages anew."""
        begun(store)
        answered(store, "answered")
        rows = stage(store, "answered", "m1", "m2")
        store.park(None, parked(rows[1]), remember_until=LATER)
        store.park(None, parked(*rows), remember_until=LATER)
        once = sorted(sid for one in store.parked() for sid in one.sids)
        assert once == ["m1", "m2"]
        assert staged(store) == []
        assert store.processed(KEY, ["answered", "m1", "m2"]) == {"answered", "m1", "m2"}

    def test_what_is_left_of_a_partly_processed_batch_has_the_id_of_what_is_left(
        self, store: ConversationStore
    ) -> None:
        """The whole batch may be parked under the old id, by a process with its own view."""
        begun(store)
        answered(store, "m1")
        rows = stage(store, "m1", "m2", "m3")
        whole = parked(*rows)
        store.park(None, whole, remember_until=LATER)
        assert list(store.parked()) == [parked(*rows[1:])]
        assert unparked(store, parked(*rows[1:]), back_to_stage=True).sids == ("m2", "m3")
        with pytest.raises(ParkedNotFound):
            unparked(store, whole, back_to_stage=True)

    def test_messages_that_are_parked_and_came_again_leave_the_stage_without_a_lock(
        self, store: ConversationStore
    ) -> None:
        """Their sids may be forgotten while the batch still waits for a person."""
        begun(store)
        one, both = parked(fragment("m1")), parked(fragment("m1"), fragment("m2"))
        store.park(None, one, remember_until=LATER)
        store.park(granted(store), both, remember_until=LATER)
        unparked(store, both, back_to_stage=True)
        store.park(None, replace(one, reason="another"), remember_until=LATER)
        assert list(store.parked()) == [one]
        assert staged(store) == ["m2"]
        assert store.processed(KEY, ["m1", "m2"]) == {"m1"}

    def test_a_conversation_of_a_person_stays_his(self, store: ConversationStore) -> None:
        begun(store, status=Status.WITH_PERSON)
        grant = granted(store)
        store.park(grant, parked(*stage(store, "m1")), remember_until=LATER)
        assert conversation(store).status == Status.WITH_PERSON

    def test_it_stays_his_after_a_takeover_too(self, store: ConversationStore) -> None:
        begun(store, status=Status.WITH_PERSON)
        granted(store, "dies")
        grant = granted(store, now=NOW + 60.0)
        store.park(grant, parked(*stage(store, "m1")), remember_until=LATER)
        assert conversation(store).status == Status.WITH_PERSON

    def test_without_a_grant_only_these_rows_are_touched(
        self, store: ConversationStore
    ) -> None:
        """The lock of somebody else, and what he noted, stay."""
        begun(store)
        fragments = stage(store, "m1", "m2")
        grant = granted(store)
        store.note(grant, WritingReply(("m2",)), "thread")
        was = conversation(store)
        one = parked(fragments[0])
        store.park(None, one, remember_until=LATER)
        assert conversation(store) == was
        assert list(store.parked()) == [one]
        assert staged(store) == ["m2"]
        assert store.processed(KEY, ["m1", "m2"]) == {"m1"}
        store.release(grant, "")

    def test_messages_of_an_unknown_conversation_are_parked(
        self, store: ConversationStore
    ) -> None:
        one = parked(*stage(store, "m1"))
        store.park(None, one, remember_until=LATER)
        assert list(store.parked()) == [one]
        assert staged(store) == []
        assert store.get(KEY) is None
        assert store.processed(KEY, ["m1"]) == {"m1"}

    def test_parking_the_same_again_changes_nothing(self, store: ConversationStore) -> None:
        begun(store)
        one = parked(*stage(store, "m1"))
        store.park(None, one, remember_until=LATER)
        was = all_of(store)
        again = replace(one, reason="another reason", parked_at=NOW + 9.0)
        store.park(None, again, remember_until=LATER)
        assert all_of(store) == was

    def test_parking_with_a_lock_that_was_given_back_by_it_changes_nothing(
        self, store: ConversationStore
    ) -> None:
        begun(store)
        grant = granted(store)
        one = parked(*stage(store, "m1"))
        store.park(grant, one, remember_until=LATER)
        was = all_of(store)
        with pytest.raises(LockLost):
            store.park(grant, one, remember_until=LATER)
        assert all_of(store) == was

    def test_what_is_parked_already_is_parked_with_a_lock(
        self, store: ConversationStore
    ) -> None:
        """The sweeper was faster: the lock is free then, and one of the two is kept."""
        begun(store)
        one = parked(*stage(store, "m1"))
        grant = granted(store)
        store.park(None, one, remember_until=LATER)
        store.park(grant, replace(one, reason="another"), remember_until=LATER)
        assert list(store.parked()) == [one]
        assert conversation(store).status == Status.PARKED

    @pytest.mark.parametrize("outbox", [None, *OUTBOXES], ids=repr)
    def test_all_that_is_known_is_kept(
        self, store: ConversationStore, outbox: Outbox | None
    ) -> None:
        begun(store)
        rows = (
            fragment("m1", body=ODD_TEXT, media=("image/png",), received_at=NOW - 9.75),
            damaged(),
        )
        one = parked(*rows, outbox=outbox, reason="nobody knows", parked_at=NOW + 0.5)
        store.park(granted(store), one, remember_until=LATER)
        assert list(store.parked()) == [one]

    def test_a_batch_of_forty_long_ones_is_parked(self, store: ConversationStore) -> None:
        begun(store)
        rows = [fragment(f"m{n:02}", body=f"{n % 10}" * 9_000) for n in range(40)]
        for row in rows:
            store.stage(row, expires_at=LATER)
        one = parked(*rows)
        store.park(granted(store), one, remember_until=LATER)
        assert list(store.parked()) == [one]
        assert staged(store) == []

    def test_each_batch_is_listed(self, store: ConversationStore) -> None:
        assert list(store.parked()) == []
        ones = [parked(fragment(f"m{n}"), parked_at=NOW + n) for n in range(3)]
        ones.append(parked(fragment("m0", OTHER), fragment("m9", OTHER), key=OTHER))
        for one in ones:
            store.park(None, one, remember_until=LATER)
        found = {one.parked_id: one for one in store.parked()}
        assert found == {one.parked_id: one for one in ones}

    # -- taking it out

    def test_what_goes_back_to_stage_is_answered_once_more(
        self, store: ConversationStore
    ) -> None:
        begun(store)
        rows = (fragment("m1", media=("image/png",)), fragment("m2", body=ODD_TEXT))
        one = parked(*rows)
        store.park(granted(store), one, remember_until=LATER)
        assert unparked(store, one, back_to_stage=True) == one
        assert list(store.parked()) == []
        found = {row.message_sid: row for row in store.staged(KEY.conversation_id)}
        assert found == {row.message_sid: replace(row, staged_at=NOW + 500.0) for row in rows}
        assert store.processed(KEY, ["m1", "m2"]) == set()
        assert conversation(store).status == Status.PARKED

    def test_what_is_dropped_stays_processed(self, store: ConversationStore) -> None:
        one = parked(*stage(store, "m1", "m2"))
        store.park(None, one, remember_until=LATER)
        assert unparked(store, one, back_to_stage=False) == one
        assert list(store.parked()) == []
        assert staged(store) == []
        assert store.processed(KEY, ["m1", "m2"]) == {"m1", "m2"}

    @pytest.mark.parametrize("back_to_stage", [True, False])
    def test_it_is_taken_out_once(self, store: ConversationStore, back_to_stage: bool) -> None:
        one = parked(*stage(store, "m1"))
        store.park(None, one, remember_until=LATER)
        unparked(store, one, back_to_stage=False)
        was = all_of(store)
        with pytest.raises(ParkedNotFound):
            unparked(store, one, back_to_stage=back_to_stage)
        assert all_of(store) == was

    # -- it was sent, says a person

    def test_what_was_sent_after_all_becomes_history_and_is_not_parked_any_more(
        self, store: ConversationStore
    ) -> None:
        begun(store)
        one, other = parked(*stage(store, "m1", "m2")), parked(*stage(store, "m3"))
        for each in (one, other):
            store.park(None, each, remember_until=LATER)
        store.finish(
            granted(store),
            turn("m1", "m2"),
            now=NOW,
            remember_until=LATER,
            parked_id=one.parked_id,
        )
        assert list(store.parked()) == [other]
        assert len(store.history(KEY)) == 2
        assert conversation(store).status == Status.REPLY_SENT
        assert store.processed(KEY, ["m1", "m2"]) == {"m1", "m2"}

    def test_what_is_parked_no_more_does_not_become_history(
        self, store: ConversationStore
    ) -> None:
        """Somebody else decided about it: nothing is changed, and the lock is kept."""
        begun(store)
        stage(store, "m1")
        grant = granted(store)
        store.note(grant, WritingReply(("m1",)), "thread")
        was = all_of(store)
        with pytest.raises(ParkedNotFound):
            store.finish(grant, turn("m1"), now=NOW, remember_until=LATER, parked_id="nothing")
        assert all_of(store) == was
        store.release(grant, "")

    def test_what_another_conversation_parked_is_not_taken_out(
        self, store: ConversationStore
    ) -> None:
        begun(store)
        other = parked(fragment("m1", OTHER), key=OTHER)
        store.park(None, other, remember_until=LATER)
        grant = granted(store)
        with pytest.raises(ParkedNotFound):
            store.finish(
                grant, turn("m1"), now=NOW, remember_until=LATER, parked_id=other.parked_id
            )
        assert list(store.parked()) == [other]
        assert store.history(KEY) == []

    def test_a_zombie_does_not_take_out_what_is_parked(self, store: ConversationStore) -> None:
        begun(store)
        one = parked(*stage(store, "m1"))
        store.park(None, one, remember_until=LATER)
        zombie, _ = taken_over(store)
        was = all_of(store)
        with pytest.raises(LockLost):
            store.finish(
                zombie,
                turn("m1"),
                now=NOW,
                remember_until=LATER,
                parked_id=one.parked_id,
            )
        assert all_of(store) == was

    def test_others_stay_parked(self, store: ConversationStore) -> None:
        first, second = parked(fragment("m1")), parked(fragment("m2"))
        for one in (first, second):
            store.park(None, one, remember_until=LATER)
        unparked(store, first, back_to_stage=True)
        assert list(store.parked()) == [second]
        assert store.processed(KEY, ["m1", "m2"]) == {"m2"}

    def test_a_message_that_was_staged_again_meanwhile_is_staged_once(
        self, store: ConversationStore
    ) -> None:
        one = parked(*stage(store, "m1", "m2"))
        store.park(None, one, remember_until=LATER)
        stage(store, "m1")
        unparked(store, one, back_to_stage=True)
        assert staged(store) == ["m1", "m2"]

    def test_it_may_be_parked_again(self, store: ConversationStore) -> None:
        one = parked(*stage(store, "m1"))
        for _ in range(2):
            store.park(None, one, remember_until=LATER)
            assert list(store.parked()) == [one]
            assert staged(store) == []
            unparked(store, one, back_to_stage=True)

    def test_a_row_nobody_can_read_survives_both(self, store: ConversationStore) -> None:
        """MS-18: it is neither lost nor in the way of those beside it."""
        one = parked(fragment("m1"), damaged())
        store.park(None, one, remember_until=LATER)
        assert unparked(store, one, back_to_stage=True) == one
        rows = store.staged(KEY.conversation_id)
        assert sids_of(rows) == ["broken", "m1"]
        kinds = {row.message_sid: type(row) for row in rows}
        assert kinds == {"m1": Fragment, "broken": UnreadableFragment}
        [waiting] = store.waiting()
        assert (waiting.fragments, waiting.oldest_staged_at) == (2, NOW + 500.0)
        [broken] = [row for row in rows if isinstance(row, UnreadableFragment)]
        assert broken.row["odd"] == "value"
        store.park(None, parked(broken), remember_until=LATER)
        assert staged(store) == ["m1"]
        assert store.processed(KEY, ["broken"]) == {"broken"}
