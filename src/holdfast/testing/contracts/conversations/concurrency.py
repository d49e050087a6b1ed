"""ConversationConcurrencyPromises: whoever is there at once, one has the lock and every message is there once."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from holdfast.conversations.errors import LockLost, ParkedNotFound
from holdfast.conversations.model import Conversation, LockAcquired, LockHeld, Status
from holdfast.conversations.ports import ConversationStore
from holdfast.testing import ManualClock
from holdfast.testing.contracts.conversations.support import (
    KEY,
    LATER,
    NOW,
    OpenStore,
    begun,
    conversation,
    fragment,
    parked,
    stage,
    staged,
    turn,
    window,
)

THREADS = 8


def together(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """Run `work(0)`, `work(1)` … at the same moment; their results."""
    start = Barrier(threads)

    def one(number: int) -> Any:
        start.wait(30)
        return work(number)

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # else one is done before another one begins
    try:
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(one, range(threads)))
    finally:
        sys.setswitchinterval(usual)


def taken(store: ConversationStore, owner: int, now: float = NOW) -> Any:
    return store.acquire(
        KEY, owner=f"{owner}", trigger_id=f"t{owner}", now=now, expires_at=now + 60.0
    )


class ConversationConcurrencyPromises:
    """R002-009, R002-095, R002-096; MS-07; I-MS-2, I-MS-3, I-MS-6."""

    @pytest.fixture(params=["one store", "a store for each"])
    def crowd(
        self, request: pytest.FixtureRequest, open_store: OpenStore, clock: ManualClock
    ) -> list[ConversationStore]:
        if request.param == "one store":
            return [open_store(clock)] * THREADS
        return [open_store(clock) for _ in range(THREADS)]

    def test_of_many_who_acquire_one_wins(self, crowd: list[ConversationStore]) -> None:
        begun(crowd[0])
        said = together(lambda n: taken(crowd[n], n))
        [won] = [one for one in said if isinstance(one, LockAcquired)]
        lost = [one for one in said if isinstance(one, LockHeld)]
        assert lost == [LockHeld(won.grant.trigger_id, NOW + 60.0)] * (THREADS - 1)
        assert conversation(crowd[0]) == won.conversation

    def test_of_many_who_take_over_one_wins(self, crowd: list[ConversationStore]) -> None:
        begun(crowd[0], status="vip")
        zombie = taken(crowd[0], 99).grant
        said = together(lambda n: taken(crowd[n], n, NOW + 60.0))
        [won] = [one for one in said if isinstance(one, LockAcquired)]
        assert won.grant.fence == zombie.fence + 1
        assert conversation(crowd[0]).previous_status == "vip"

    def test_of_many_who_open_a_window_one_does(self, crowd: list[ConversationStore]) -> None:
        def opens(number: int) -> bool:
            wanted = window(f"w{number}", f"m{number}")
            return crowd[number].open_window(wanted, now=NOW, untriggered_before=NOW - 9.0)

        opened = together(opens)
        assert sum(opened) == 1
        assert crowd[0].window(KEY.conversation_id) == window(
            f"w{opened.index(True)}", f"m{opened.index(True)}"
        )

    def test_of_many_who_stage_one_message_one_does(
        self, crowd: list[ConversationStore]
    ) -> None:
        said = together(lambda n: crowd[n].stage(fragment("m1", body=f"{n}"), expires_at=LATER))
        assert sum(said) == 1
        [row] = crowd[0].staged(KEY.conversation_id)
        assert row == fragment("m1", body=f"{said.index(True)}")

    def test_of_many_who_create_one_does(self, crowd: list[ConversationStore]) -> None:
        said = together(lambda n: crowd[n].create(Conversation(KEY, status=f"{n}")))
        assert sum(said) == 1
        assert conversation(crowd[0]).status == f"{said.index(True)}"

    def test_a_grant_used_by_many_finishes_one_turn(
        self, crowd: list[ConversationStore]
    ) -> None:
        """I-MS-6: as if one request was delivered many times."""
        begun(crowd[0])
        stage(crowd[0], "m1")
        grant = taken(crowd[0], 0).grant

        def finish(number: int) -> bool:
            done = turn("m1", reply=f"r{number}")
            try:
                crowd[number].finish(grant, done, now=NOW, remember_until=LATER)
            except LockLost:
                return False
            return True

        said = together(finish)
        assert sum(said) == 1
        assert len(crowd[0].history(KEY)) == conversation(crowd[0]).message_count == 2
        assert conversation(crowd[0]).last_assistant_message_sid == f"r{said.index(True)}"

    def test_a_finish_and_a_takeover_at_once_agree_afterwards(
        self, crowd: list[ConversationStore]
    ) -> None:
        begun(crowd[0])
        stage(crowd[0], "m1")
        grant = taken(crowd[0], 99).grant

        def work(number: int) -> object:
            if number:
                return taken(crowd[number], number, NOW + 60.0)
            try:
                crowd[0].finish(grant, turn("m1"), now=NOW + 60.0, remember_until=LATER)
            except LockLost:
                return False
            return True

        finished, *others = together(work)
        assert sum(isinstance(one, LockAcquired) for one in others) == 1
        assert conversation(crowd[0]).status == Status.PROCESSING
        assert len(crowd[0].history(KEY)) == (2 if finished else 0)
        assert staged(crowd[0]) == ([] if finished else ["m1"])
        assert crowd[0].processed(KEY, ["m1"]) == ({"m1"} if finished else set())

    def test_messages_that_come_while_turns_end_are_all_there(
        self, crowd: list[ConversationStore]
    ) -> None:
        """I-MS-1: staged or answered, each of them, and none of them both."""
        begun(crowd[0])

        def work(number: int) -> object:
            if number:
                return stage(crowd[number], f"m{number}")
            grant = taken(crowd[0], 0).grant
            seen = tuple(staged(crowd[0])) or ("none",)
            crowd[0].finish(grant, turn(*seen), now=NOW, remember_until=LATER)
            return seen

        together(work)
        every = {f"m{number}" for number in range(1, THREADS)}
        answered = crowd[0].processed(KEY, every)
        assert set(staged(crowd[0])) == every - answered

    def test_of_many_who_unpark_one_does(self, crowd: list[ConversationStore]) -> None:
        one = parked(*stage(crowd[0], "m1"))
        together(lambda n: crowd[n].park(None, one, remember_until=LATER))
        assert list(crowd[0].parked()) == [one]

        def unpark(number: int) -> bool:
            try:
                crowd[number].unpark(
                    one.parked_id, back_to_stage=True, now=NOW, expires_at=LATER
                )
            except ParkedNotFound:
                return False
            return True

        assert sum(together(unpark)) == 1
        assert staged(crowd[0]) == ["m1"]
