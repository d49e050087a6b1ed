"""Promises of a conversation store to operators: history, listings, statuses, parking."""

from dataclasses import replace

import pytest

from contracts.conversations.support import (
    CONFIGS,
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
    sort_sids,
    stage_messages,
)
from holdfast.chat.model import (
    MAX_RECENT_CHARACTERS,
    MAX_RECENT_MESSAGES,
    ConversationKey,
    Fragment,
    LockGrant,
    ParkedBatch,
    Status,
    UnreadableFragment,
)
from holdfast.chat.outbox import Outbox, PreparedReply, WriterAnswer, WritingReply
from holdfast.chat.ports import ConversationStore


class HistoryPromises:
    """Promises about the history (MS-10, I-MS-6, I-MS-10)."""

    @pytest.mark.requirement("R002-069")
    def test_a_history_is_read_page_by_page_from_its_end(
        self, store: ConversationStore
    ) -> None:
        create_conversation(store)
        for number in range(55):
            answer_messages(store, f"m{number}")
        messages = store.history(KEY, limit=1_000)
        assert [message.seq for message in messages] == list(range(1, 111))
        assert [message.body for message in messages[::2]] == [f"asked m{n}" for n in range(55)]
        assert store.history(KEY) == messages[-50:]
        assert store.history(KEY, before=61) == messages[10:60]
        assert store.history(KEY, before=11) == messages[:10]
        assert store.history(KEY, before=1) == []
        assert store.history(KEY, limit=3) == messages[-3:]
        assert store.history(KEY, before=9_999, limit=2) == messages[-2:]
        assert get_conversation(store).message_count == 110
        assert get_conversation(store).messages == tuple(messages[-MAX_RECENT_MESSAGES:])

    def test_long_messages_are_complete_in_the_history_and_shortened_in_the_row(
        self, store: ConversationStore
    ) -> None:
        """The row stays below DynamoDB's limit, and the history is complete."""
        create_conversation(store)
        for number in range(6):
            text = f"{number}" * 30_000
            done = make_turn(f"m{number}", reply=f"r{number}")
            done = replace(done, user=replace(done.user, body=text))
            grant = acquire_grant(store, f"{number}")
            store.finish(grant, done, now=NOW, remember_until=LATER)
        messages = store.history(KEY)
        assert [len(message.body) for message in messages[::2]] == [30_000] * 6
        recent = get_conversation(store).messages
        assert sum(len(message.body) for message in recent) <= MAX_RECENT_CHARACTERS
        assert [message.seq for message in recent] == list(range(13 - len(recent), 13))
        assert len(recent) >= 2


class ConversationListingPromises:
    """Promises about the listings of conversations."""

    def test_all_conversations_are_listed(self, store: ConversationStore) -> None:
        assert list(store.conversations()) == []
        keys = [ConversationKey(f"+49157{n:08}", f"chat {n}") for n in range(130)]
        for key in keys:
            create_conversation(store, key)
        answer_messages(store, "m1", key=keys[3])
        rows = {row.key: row for row in store.conversations()}
        assert rows == {key: get_conversation(store, key) for key in keys}

    def test_conversations_are_found_by_their_id(self, store: ConversationStore) -> None:
        alike = ConversationKey("+4915700000001", KEY.conversation_id)
        for key in (KEY, alike, OTHER):
            create_conversation(store, key, **CONFIGS)
        rows = {row.key: row for row in store.conversations(KEY.conversation_id)}
        assert rows == {key: get_conversation(store, key) for key in (KEY, alike)}
        assert list(store.conversations("unknown")) == []


ENDS = ["finish", "release", "park"]


def end_turn(store: ConversationStore, how: str, grant: LockGrant) -> None:
    """End a turn in one of the ways that release the lock."""
    if how == "finish":
        store.finish(grant, make_turn("m1"), now=NOW, remember_until=LATER)
    elif how == "release":
        store.release(grant, Status.ERROR)
    else:
        store.park(grant, make_parked(*stage_messages(store, "m1")), remember_until=LATER)


class OperatorPromises:
    """Promises about the operator's status (MS-30)."""

    def test_the_status_of_an_unknown_conversation_cannot_be_set(
        self, store: ConversationStore
    ) -> None:
        assert store.set_status(KEY, Status.WITH_PERSON) is False
        assert store.get(KEY) is None


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

    # -- unparking

    # -- the operator reports that the reply was sent

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
