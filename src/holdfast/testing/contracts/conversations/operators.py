"""For people: what was said, who is with whom, and taking over."""

from dataclasses import replace

import pytest

from holdfast.conversations.model import ConversationKey, LockGrant, LockHeld, Status
from holdfast.conversations.ports import ConversationStore
from holdfast.conversations.recent_history import MAX_TAIL, MOST_MESSAGES
from holdfast.testing.contracts.conversations.support import (
    CONFIGS,
    KEY,
    LATER,
    NOW,
    OTHER,
    acquired,
    all_of,
    answered,
    begun,
    conversation,
    granted,
    parked,
    stage,
    turn,
)


class HistoryPromises:
    """R002-068, R002-069; MS-10; I-MS-6, I-MS-10; D-26."""

    def test_a_history_is_read_page_by_page_from_its_end(
        self, store: ConversationStore
    ) -> None:
        begun(store)
        for number in range(55):
            answered(store, f"m{number}")
        every = store.history(KEY, limit=1_000)
        assert [one.seq for one in every] == list(range(1, 111))
        assert [one.body for one in every[::2]] == [f"asked m{n}" for n in range(55)]
        assert store.history(KEY) == every[-50:]
        assert store.history(KEY, before=61) == every[10:60]
        assert store.history(KEY, before=11) == every[:10]
        assert store.history(KEY, before=1) == []
        assert store.history(KEY, limit=3) == every[-3:]
        assert store.history(KEY, before=9_999, limit=2) == every[-2:]
        assert conversation(store).message_count == 110
        assert conversation(store).messages == tuple(every[-MOST_MESSAGES:])

    def test_who_never_wrote_has_no_history(self, store: ConversationStore) -> None:
        begun(store, OTHER)
        answered(store, "m1", key=OTHER)
        assert store.history(KEY) == []
        begun(store)
        assert store.history(KEY) == []
        assert len(store.history(OTHER)) == 2

    def test_long_messages_are_whole_in_the_history_and_short_in_the_row(
        self, store: ConversationStore
    ) -> None:
        """The row stays below what DynamoDB takes; nothing is lost by it."""
        begun(store)
        for number in range(6):
            text = f"{number}" * 30_000
            done = turn(f"m{number}", reply=f"r{number}")
            done = replace(done, user=replace(done.user, body=text))
            grant = granted(store, f"{number}")
            store.finish(grant, done, now=NOW, remember_until=LATER)
        every = store.history(KEY)
        assert [len(one.body) for one in every[::2]] == [30_000] * 6
        tail = conversation(store).messages
        assert sum(len(one.body) for one in tail) <= MAX_TAIL
        assert [one.seq for one in tail] == list(range(13 - len(tail), 13))
        assert len(tail) >= 2


class ConversationListingPromises:
    def test_all_conversations_are_listed(self, store: ConversationStore) -> None:
        assert list(store.conversations()) == []
        keys = [ConversationKey(f"+49157{n:08}", f"chat {n}") for n in range(130)]
        for key in keys:
            begun(store, key)
        answered(store, "m1", key=keys[3])
        found = {one.key: one for one in store.conversations()}
        assert found == {key: conversation(store, key) for key in keys}

    def test_those_of_one_id_are_found(self, store: ConversationStore) -> None:
        alike = ConversationKey("+4915700000001", KEY.conversation_id)
        for key in (KEY, alike, OTHER):
            begun(store, key, **CONFIGS)
        found = {one.key: one for one in store.conversations(KEY.conversation_id)}
        assert found == {key: conversation(store, key) for key in (KEY, alike)}
        assert list(store.conversations("nobody")) == []


ENDS = ["finish", "release", "park"]


def end(store: ConversationStore, how: str, grant: LockGrant) -> None:
    if how == "finish":
        store.finish(grant, turn("m1"), now=NOW, remember_until=LATER)
    elif how == "release":
        store.release(grant, Status.ERROR)
    else:
        store.park(grant, parked(*stage(store, "m1")), remember_until=LATER)


class OperatorPromises:
    """MS-30."""

    def test_a_lock_that_is_given_back_as_it_was_leaves_the_status_or_a_persons_word(
        self, store: ConversationStore
    ) -> None:
        begun(store, status=Status.WITH_PERSON)
        store.release(granted(store), None)
        assert conversation(store).status == Status.WITH_PERSON
        grant = granted(store, "second")
        store.set_status(KEY, "vip")
        store.release(grant, None)
        assert conversation(store).status == "vip"

    def test_a_person_takes_over_and_hands_back(self, store: ConversationStore) -> None:
        begun(store)
        for status in (Status.WITH_PERSON, "vip", ""):
            assert store.set_status(KEY, status) is True
            assert conversation(store).status == status

    def test_an_unknown_conversation_is_nobody_s(self, store: ConversationStore) -> None:
        assert store.set_status(KEY, Status.WITH_PERSON) is False
        assert store.get(KEY) is None

    def test_a_status_changes_nothing_else(self, store: ConversationStore) -> None:
        begun(store, **CONFIGS)
        answered(store, "m1")
        was = conversation(store)
        store.set_status(KEY, Status.WITH_PERSON)
        store.set_status(KEY, was.status)
        found = conversation(store)
        assert replace(found, updated_at=0.0) == replace(was, updated_at=0.0)

    @pytest.mark.parametrize("how", ENDS)
    def test_while_a_batch_is_answered_the_lock_stays_and_then_the_person_has_it(
        self, store: ConversationStore, how: str
    ) -> None:
        begun(store, status="before")
        grant = granted(store)
        assert store.set_status(KEY, Status.WITH_PERSON) is True
        found = conversation(store)
        assert (found.status, found.previous_status) == (
            Status.PROCESSING,
            Status.WITH_PERSON,
        )
        said = store.acquire(KEY, owner="b", trigger_id="t", now=NOW, expires_at=NOW + 1)
        assert said == LockHeld("trigger", NOW + 60.0)
        end(store, how, grant)
        assert conversation(store).status == Status.WITH_PERSON
        assert not conversation(store).locked(NOW)

    @pytest.mark.parametrize(
        ("how", "status"),
        [
            ("finish", Status.REPLY_SENT),
            ("release", Status.ERROR),
            ("park", Status.PARKED),
        ],
    )
    def test_who_handed_back_while_a_batch_was_answered_has_it_no_more(
        self, store: ConversationStore, how: str, status: str
    ) -> None:
        begun(store, status=Status.WITH_PERSON)
        grant = granted(store)
        store.set_status(KEY, Status.REPLY_SENT)
        end(store, how, grant)
        assert conversation(store).status == status

    def test_a_person_s_word_outlives_whoever_had_the_lock(
        self, store: ConversationStore
    ) -> None:
        begun(store, status="before")
        granted(store, "dies")
        store.set_status(KEY, Status.WITH_PERSON)
        said = acquired(store, now=NOW + 60.0)
        assert said.conversation.previous_status == Status.WITH_PERSON
        store.release(said.grant, Status.ERROR)
        assert conversation(store).status == Status.WITH_PERSON

    def test_reading_changes_nothing(self, store: ConversationStore) -> None:
        begun(store)
        stage(store, "m1")
        answered(store, "m0")
        was = all_of(store)
        assert all_of(store) == was
