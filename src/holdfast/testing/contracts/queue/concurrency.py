"""QueueConcurrencyPromises: whoever is there at once, each message goes to one of them and none is lost."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from holdfast.core.errors import LeaseLost
from holdfast.core.queue.message import AnyMessage
from holdfast.testing import ManualClock
from holdfast.testing.contracts.queue.support import (
    LEASE,
    AnyQueue,
    MakeQueue,
    every,
    must_have_completed,
    need,
    poll_all,
    poll_one,
    standing_still,
)

THREADS = 8
MESSAGES = 400


def together(work: Callable[[int], Any]) -> list[Any]:
    """Run `work(0)` to `work(7)` at the same moment; their results."""
    start = Barrier(THREADS)

    def one(number: int) -> Any:
        start.wait(30)
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(one, range(THREADS)))


class QueueConcurrencyPromises:
    @pytest.fixture(params=["one queue object", "a queue object for each"])
    def queues(self, request: pytest.FixtureRequest, make_queue: MakeQueue) -> list[AnyQueue]:
        if request.param == "one queue object":
            return [make_queue()] * THREADS
        return [make_queue() for _ in range(THREADS)]

    def test_each_message_is_delivered_once(self, queues: list[AnyQueue]) -> None:
        pushed = queues[0].push_many(AnyMessage(id=f"{n}") for n in range(MESSAGES))

        def work(number: int) -> list[str]:
            done = []
            for message in every(queues[number], 3):
                queues[number].ack(message)
                done.append(message.id)
            return done

        delivered = Counter(one for done in together(work) for one in done)
        assert delivered == Counter(pushed)
        must_have_completed(queues[0], MESSAGES)

    def test_pushing_and_polling_at_once_loses_nothing(self, queues: list[AnyQueue]) -> None:
        share = MESSAGES // THREADS

        def work(number: int) -> list[str]:
            queue, done = queues[number], []
            for n in range(share):
                queue.push(AnyMessage(id=f"{number}-{n}"))
                for message in queue.poll():
                    queue.ack(message)
                    done.append(message.id)
            return done

        done = [one for some in together(work) for one in some]
        left = poll_all(queues[0])
        queues[0].ack_many(left)
        done += [message.id for message in left]
        assert sorted(done) == sorted(f"{t}-{n}" for t in range(THREADS) for n in range(share))

    def test_a_lease_that_ran_out_is_taken_over_by_one(
        self, queues: list[AnyQueue], clock: ManualClock
    ) -> None:
        for attempt in range(2, 5):
            if attempt == 2:
                queues[0].push(AnyMessage())
                poll_one(queues[0])
            clock.advance(LEASE + 1)
            takers = [m for found in together(lambda n: queues[n].poll()) for m in found]
            assert [message.attempts for message in takers] == [attempt]

    def test_of_many_acks_of_one_message_all_agree(self, queues: list[AnyQueue]) -> None:
        queues[0].push(AnyMessage())
        message = poll_one(queues[0])
        together(lambda _: queues[0].ack(message))
        must_have_completed(queues[0], 1)

    def test_owner_and_thief_never_both_succeed(
        self, make_queue: MakeQueue, clock: ManualClock
    ) -> None:
        # The owner's own clock stands still: only the queue can decide between the two.
        owner = make_queue(clock=standing_still(clock))
        need(owner, "fence")
        owner.push_many(AnyMessage(id=f"{n}") for n in range(50))
        held = owner.poll(50)
        clock.advance(LEASE + 1)
        thieves = [make_queue() for _ in range(THREADS)]

        def work(number: int) -> list[str]:
            if number == 0:
                return [m.id for m in held if _acked(owner, m)]
            stolen = thieves[number].poll(50)
            return [m.id for m in stolen if _acked(thieves[number], m)]

        acked = Counter(one for some in together(work) for one in some)
        assert set(acked.values()) == {1}
        assert len(acked) == 50
        must_have_completed(owner, 50)

    def test_of_many_producers_of_one_id_one_succeeds(self, make_queue: MakeQueue) -> None:
        need(make_queue(), "dedupe")
        queues = [make_queue(dedupe=True) for _ in range(THREADS)]
        for round_ in range(10):
            together(lambda n, r=round_: queues[n].push(AnyMessage(id=f"{r}")))
        assert queues[0].stats().ready == 10

    def test_of_many_redrives_at_once_each_dead_letter_is_counted_once(
        self, queues: list[AnyQueue]
    ) -> None:
        queues[0].push_many(AnyMessage() for _ in range(40))
        for message in every(queues[0]):
            queues[0].dead_letter(message, "no use")
        assert sum(together(lambda n: queues[n].redrive())) == 40
        assert (queues[0].stats().ready, queues[0].stats().failed) == (40, 0)


def _acked(queue: AnyQueue, message: Any) -> bool:
    try:
        queue.ack(message)
    except LeaseLost:
        return False
    return True
