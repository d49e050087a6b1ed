"""Promises under concurrency: one caller has the lock, and every message exists once."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from contracts.conversations.support import (
    KEY,
    LATER,
    NOW,
    OpenStore,
    create_conversation,
    get_conversation,
    list_staged_sids,
    make_fragment,
    make_parked,
    make_turn,
    make_window,
    stage_messages,
)
from holdfast.chat.errors import LockLost, ParkedNotFound
from holdfast.chat.model import Conversation, LockAcquired, LockHeld, Status
from holdfast.chat.ports import ConversationStore
from holdfast.testing import ManualClock

THREADS = 8


def run_together(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """Run `work(0)`, `work(1)` … at the same time, and return their results."""
    start = Barrier(threads)

    def run(number: int) -> Any:
        start.wait(30)
        return work(number)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # otherwise one call would end before the next begins
    try:
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(run, range(threads)))
    finally:
        sys.setswitchinterval(interval)


def try_acquire(store: ConversationStore, owner: int, now: float = NOW) -> Any:
    """Try to acquire the lock, and return the result."""
    return store.acquire(
        KEY, owner=f"{owner}", trigger_id=f"t{owner}", now=now, expires_at=now + 60.0
    )


class ConversationConcurrencyPromises:
    """Promises to many callers at once (MS-07, I-MS-2, I-MS-3, I-MS-6)."""

    @pytest.fixture(params=["one store", "a store for each"])
    def crowd(
        self, request: pytest.FixtureRequest, open_store: OpenStore, clock: ManualClock
    ) -> list[ConversationStore]:
        """Return one store for each thread, shared or opened separately."""
        if request.param == "one store":
            return [open_store(clock)] * THREADS
        return [open_store(clock) for _ in range(THREADS)]

    @pytest.mark.requirement("R002-095")
    def test_of_many_acquiring_callers_one_gets_the_lock(
        self, crowd: list[ConversationStore]
    ) -> None:
        create_conversation(crowd[0])
        results = run_together(lambda n: try_acquire(crowd[n], n))
        [winner] = [result for result in results if isinstance(result, LockAcquired)]
        lost = [result for result in results if isinstance(result, LockHeld)]
        assert lost == [LockHeld(winner.grant.trigger_id, NOW + 60.0)] * (THREADS - 1)
        assert get_conversation(crowd[0]) == winner.conversation

    def test_of_many_callers_that_take_over_one_gets_the_lock(
        self, crowd: list[ConversationStore]
    ) -> None:
        create_conversation(crowd[0], status="vip")
        stale = try_acquire(crowd[0], 99).grant
        results = run_together(lambda n: try_acquire(crowd[n], n, NOW + 60.0))
        [winner] = [result for result in results if isinstance(result, LockAcquired)]
        assert winner.grant.fence == stale.fence + 1
        assert get_conversation(crowd[0]).previous_status == "vip"

    @pytest.mark.requirement("R002-009")
    def test_of_many_callers_that_open_a_window_one_succeeds(
        self, crowd: list[ConversationStore]
    ) -> None:
        def open_window(number: int) -> bool:
            wanted = make_window(f"w{number}", f"m{number}")
            return crowd[number].open_window(wanted, now=NOW, untriggered_before=NOW - 9.0)

        opened = run_together(open_window)
        assert sum(opened) == 1
        assert crowd[0].window(KEY.conversation_id) == make_window(
            f"w{opened.index(True)}", f"m{opened.index(True)}"
        )

    def test_of_many_callers_that_stage_one_message_one_succeeds(
        self, crowd: list[ConversationStore]
    ) -> None:
        results = run_together(
            lambda n: crowd[n].stage(make_fragment("m1", body=f"{n}"), expires_at=LATER)
        )
        assert sum(results) == 1
        [row] = crowd[0].staged(KEY.conversation_id)
        assert row == make_fragment("m1", body=f"{results.index(True)}")

    def test_of_many_callers_that_create_a_conversation_one_succeeds(
        self, crowd: list[ConversationStore]
    ) -> None:
        results = run_together(lambda n: crowd[n].create(Conversation(KEY, status=f"{n}")))
        assert sum(results) == 1
        assert get_conversation(crowd[0]).status == f"{results.index(True)}"

    def test_a_grant_used_by_many_finishes_one_turn(
        self, crowd: list[ConversationStore]
    ) -> None:
        """One request may be delivered many times (I-MS-6)."""
        create_conversation(crowd[0])
        stage_messages(crowd[0], "m1")
        grant = try_acquire(crowd[0], 0).grant

        def finish(number: int) -> bool:
            done = make_turn("m1", reply=f"r{number}")
            try:
                crowd[number].finish(grant, done, now=NOW, remember_until=LATER)
            except LockLost:
                return False
            return True

        results = run_together(finish)
        assert sum(results) == 1
        assert len(crowd[0].history(KEY)) == get_conversation(crowd[0]).message_count == 2
        assert (
            get_conversation(crowd[0]).last_assistant_message_sid == f"r{results.index(True)}"
        )

    def test_a_finish_and_a_takeover_at_once_agree_afterwards(
        self, crowd: list[ConversationStore]
    ) -> None:
        create_conversation(crowd[0])
        stage_messages(crowd[0], "m1")
        grant = try_acquire(crowd[0], 99).grant

        def work(number: int) -> object:
            if number:
                return try_acquire(crowd[number], number, NOW + 60.0)
            try:
                crowd[0].finish(grant, make_turn("m1"), now=NOW + 60.0, remember_until=LATER)
            except LockLost:
                return False
            return True

        finished, *others = run_together(work)
        assert sum(isinstance(result, LockAcquired) for result in others) == 1
        assert get_conversation(crowd[0]).status == Status.PROCESSING
        assert len(crowd[0].history(KEY)) == (2 if finished else 0)
        assert list_staged_sids(crowd[0]) == ([] if finished else ["m1"])
        assert crowd[0].processed(KEY, ["m1"]) == ({"m1"} if finished else set())

    def test_messages_that_come_while_turns_end_are_all_there(
        self, crowd: list[ConversationStore]
    ) -> None:
        """Each message is either staged or answered, and never both (I-MS-1)."""
        create_conversation(crowd[0])

        def work(number: int) -> object:
            if number:
                return stage_messages(crowd[number], f"m{number}")
            grant = try_acquire(crowd[0], 0).grant
            seen = tuple(list_staged_sids(crowd[0])) or ("none",)
            crowd[0].finish(grant, make_turn(*seen), now=NOW, remember_until=LATER)
            return seen

        run_together(work)
        all_sids = {f"m{number}" for number in range(1, THREADS)}
        answered = crowd[0].processed(KEY, all_sids)
        assert set(list_staged_sids(crowd[0])) == all_sids - answered

    def test_of_many_callers_that_unpark_a_batch_one_succeeds(
        self, crowd: list[ConversationStore]
    ) -> None:
        batch = make_parked(*stage_messages(crowd[0], "m1"))
        run_together(lambda n: crowd[n].park(None, batch, remember_until=LATER))
        assert list(crowd[0].parked()) == [batch]

        def unpark(number: int) -> bool:
            try:
                crowd[number].unpark(
                    batch.parked_id, back_to_stage=True, now=NOW, expires_at=LATER
                )
            except ParkedNotFound:
                return False
            return True

        assert sum(run_together(unpark)) == 1
        assert list_staged_sids(crowd[0]) == ["m1"]
