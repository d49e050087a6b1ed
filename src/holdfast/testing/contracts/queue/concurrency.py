"""QueueConcurrencyPromises: with any number of workers, each message goes to one of them."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, ClassVar

import pytest

from holdfast.errors import LeaseLost
from holdfast.queue.message import AnyMessage
from holdfast.testing import ManualClock
from holdfast.testing.contracts.queue.support import (
    LEASE,
    AnyQueue,
    MakeQueue,
    assert_completed,
    iter_messages,
    make_frozen_clock,
    poll_all,
    poll_one,
    require_capabilities,
)

THREADS = 8


def run_in_parallel(work: Callable[[int], Any]) -> list[Any]:
    """Run `work(0)` to `work(7)` at the same moment, and return their results."""
    start = Barrier(THREADS)

    def start_together(number: int) -> Any:
        start.wait(30)
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(start_together, range(THREADS)))


class QueueConcurrencyPromises:
    """Promises about threads and workers that use the queue at the same time."""

    messages: ClassVar[int] = 400
    """How many messages the threads share."""

    @pytest.fixture(params=["one queue object", "a queue object for each"])
    def queues(self, request: pytest.FixtureRequest, make_queue: MakeQueue) -> list[AnyQueue]:
        """A queue for each thread, which may be the same object."""
        if request.param == "one queue object":
            return [make_queue()] * THREADS
        return [make_queue() for _ in range(THREADS)]

    @pytest.mark.requirement("R001-035", "R001-048")
    def test_each_message_is_delivered_once(self, queues: list[AnyQueue]) -> None:
        pushed = queues[0].push_many(AnyMessage(id=f"{n}") for n in range(self.messages))

        def work(number: int) -> list[str]:
            done = []
            for message in iter_messages(queues[number], 3):
                queues[number].ack(message)
                done.append(message.id)
            return done

        delivered = Counter(message_id for done in run_in_parallel(work) for message_id in done)
        assert delivered == Counter(pushed)
        assert_completed(queues[0], self.messages)

    def test_pushing_and_polling_at_once_loses_nothing(self, queues: list[AnyQueue]) -> None:
        share = self.messages // THREADS

        def work(number: int) -> list[str]:
            queue, done = queues[number], []
            for n in range(share):
                queue.push(AnyMessage(id=f"{number}-{n}"))
                for message in queue.poll():
                    queue.ack(message)
                    done.append(message.id)
            return done

        done = [message_id for ids in run_in_parallel(work) for message_id in ids]
        left = poll_all(queues[0])
        queues[0].ack_many(left)
        done += [message.id for message in left]
        assert sorted(done) == sorted(f"{t}-{n}" for t in range(THREADS) for n in range(share))

    @pytest.mark.requirement("R001-040")
    def test_an_expired_lease_is_taken_over_by_one_worker(
        self, queues: list[AnyQueue], clock: ManualClock
    ) -> None:
        for attempt in range(2, 5):
            if attempt == 2:
                queues[0].push(AnyMessage())
                poll_one(queues[0])
            clock.advance(LEASE + 1)
            takers = [m for batch in run_in_parallel(lambda n: queues[n].poll()) for m in batch]
            assert [message.attempts for message in takers] == [attempt]

    def test_of_many_acks_of_one_message_all_agree(self, queues: list[AnyQueue]) -> None:
        queues[0].push(AnyMessage())
        message = poll_one(queues[0])
        run_in_parallel(lambda _: queues[0].ack(message))
        assert_completed(queues[0], 1)

    def test_former_holder_and_successor_never_both_succeed(
        self, make_queue: MakeQueue, clock: ManualClock
    ) -> None:
        # The former holder's own clock stands still, so only the queue can decide.
        former_holder = make_queue(clock=make_frozen_clock(clock))
        require_capabilities(former_holder, "fence")
        former_holder.push_many(AnyMessage(id=f"{n}") for n in range(50))
        held = former_holder.poll(50)
        clock.advance(LEASE + 1)
        successors = [make_queue() for _ in range(THREADS)]

        def work(number: int) -> list[str]:
            if number == 0:
                return [m.id for m in held if _try_ack(former_holder, m)]
            taken = successors[number].poll(50)
            return [m.id for m in taken if _try_ack(successors[number], m)]

        acked = Counter(message_id for ids in run_in_parallel(work) for message_id in ids)
        assert set(acked.values()) == {1}
        assert len(acked) == 50
        assert_completed(former_holder, 50)

    def test_of_many_producers_of_one_id_one_succeeds(self, make_queue: MakeQueue) -> None:
        require_capabilities(make_queue(), "dedupe")
        queues = [make_queue(dedupe=True) for _ in range(THREADS)]
        for round_ in range(10):
            run_in_parallel(lambda n, r=round_: queues[n].push(AnyMessage(id=f"{r}")))
        assert queues[0].stats().ready == 10

    def test_of_many_redrives_at_once_each_dead_letter_is_counted_once(
        self, queues: list[AnyQueue]
    ) -> None:
        queues[0].push_many(AnyMessage() for _ in range(40))
        for message in iter_messages(queues[0]):
            queues[0].dead_letter(message, "no use")
        assert sum(run_in_parallel(lambda n: queues[n].redrive())) == 40
        assert (queues[0].stats().ready, queues[0].stats().failed) == (40, 0)

    def test_a_message_is_cancelled_or_completed_and_never_both(
        self, queues: list[AnyQueue]
    ) -> None:
        require_capabilities(queues[0], "cancel")
        ids = queues[0].push_many(AnyMessage(id=f"{n}") for n in range(48))

        def work(number: int) -> int:
            queue = queues[number]
            if number % 2:
                return sum(queue.cancel(message_id) for message_id in ids)
            return sum(_try_ack(queue, message) for message in iter_messages(queue, 1))

        results = run_in_parallel(work)
        assert sum(results) == 48
        assert_completed(queues[0], sum(results[::2]))
        assert queues[0].stats().failed == sum(results[1::2])


def _try_ack(queue: AnyQueue, message: Any) -> bool:
    try:
        queue.ack(message)
    except LeaseLost:
        return False
    return True
