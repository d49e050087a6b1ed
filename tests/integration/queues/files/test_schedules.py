"""Leases under all schedules with few preemptions, and many random ones, of the real code.

Every file system call is a step. The promises are those of `Stage`: one holder at a
time, one ack, each task done once, and every file complete and in one place.
"""

from contextlib import suppress
from pathlib import Path

import pytest
from interleaved_queue import ENDS_IN, VERBS, Setting, Stage, all_schedules

from holdfast.errors import LeaseLost
from holdfast.lease.lease import LeaseState
from holdfast.queue.message import get_lease
from support.files import audit
from support.files.queue_folder import LEASE, make_message
from support.interleaving import BatonLock

# -- one task, several workers


def test_one_of_two_claims_wins(fast_path: Path) -> None:
    def setting(stage: Stage) -> Setting:
        first, second = stage.worker(), stage.worker()
        first.push(make_message("a"))
        actors = [stage.work(first), stage.work(second)]
        return actors, lambda: stage.close("a")

    all_schedules(fast_path, setting)


def test_a_claim_that_takes_long_counts_from_before_it_was_asked_for(fast_path: Path) -> None:
    def setting(stage: Stage) -> Setting:
        first, second = stage.worker(), stage.worker()
        first.push(make_message("a"))
        actors = [stage.work(first), stage.work(second), stage.time(LEASE - 1, 1)]
        return actors, lambda: stage.close("a")

    all_schedules(fast_path, setting)


def test_two_threads_of_one_worker_never_hold_the_same_task(fast_path: Path) -> None:
    """In one millisecond both would make the same name, and each would think it its own."""

    def setting(stage: Stage) -> Setting:
        queue = stage.worker()
        queue._claim_lock = BatonLock(stage.baton)  # type: ignore[assignment]
        queue.push_many([make_message("a"), make_message("b")])
        actors = [stage.work(queue), stage.work(queue)]
        return actors, lambda: stage.close("a", "b")

    all_schedules(fast_path, setting)


def test_three_workers_share_two_tasks(fast_path: Path) -> None:
    def setting(stage: Stage) -> Setting:
        workers = [stage.worker() for _ in range(3)]
        workers[0].push_many([make_message("a"), make_message("b")])
        return [stage.work(w) for w in workers], lambda: stage.close("a", "b")

    all_schedules(fast_path, setting)


@pytest.mark.parametrize("repeats", [False, True], ids=["", "every rename is sent twice"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_holder_settles_while_its_time_runs_out_and_another_polls(
    fast_path: Path, verb: str, repeats: bool
) -> None:
    def setting(stage: Stage) -> Setting:
        stage.repeats = repeats
        holder, successor = stage.worker(), stage.worker()
        holder.push(make_message("a"))
        stage.clock.advance(1)
        message = stage.poll(holder)

        def settle() -> None:
            stage.baton.step()  # at work
            stage.settle(holder, message, verb)

        return [settle, stage.work(successor), stage.time(LEASE)], lambda: stage.close("a")

    all_schedules(fast_path, setting)


@pytest.mark.requirement("R001-037")
def test_a_renewal_and_a_takeover_compete_for_one_name(fast_path: Path) -> None:
    def setting(stage: Stage) -> Setting:
        holder, successor = stage.worker(), stage.worker()
        holder.push(make_message("a"))
        stage.clock.advance(1)
        message = stage.poll(holder)

        def hold_on() -> None:
            with suppress(LeaseLost):
                holder.extend(message)
            stage.baton.step()  # at work
            stage.settle(holder, message, "ack")

        actors = [hold_on, stage.work(successor), stage.time(LEASE - 1, 1)]
        return actors, lambda: stage.close("a")

    all_schedules(fast_path, setting)


def test_two_takeovers_and_a_stale_holder_settle_once(fast_path: Path) -> None:
    def setting(stage: Stage) -> Setting:
        stale_holder, first, second = stage.worker(), stage.worker(), stage.worker()
        stale_holder.push(make_message("a"))
        message = stage.poll(stale_holder)
        stage.clock.advance(LEASE)

        def ack_late() -> None:
            stale_holder._ack([get_lease(message)])  # as a worker with a wrong clock might try

        actors = [stage.work(first), stage.work(second), ack_late]
        return actors, lambda: stage.close("a")

    all_schedules(fast_path, setting)


def test_a_stale_holder_saves_its_checkpoint_beside_its_successors(fast_path: Path) -> None:
    def setting(stage: Stage) -> Setting:
        stale_holder, successor, third = stage.worker(), stage.worker(), stage.ground.queue()
        stale_holder.push(make_message("a"))
        message = stage.poll(stale_holder)

        def save() -> None:
            with suppress(LeaseLost):
                stale_holder.save_checkpoint(message, {"by": "stale holder"})

        def take_over() -> None:
            if taken_over := stage.poll(successor):
                successor.save_checkpoint(taken_over, {"by": "successor"})

        def check() -> None:
            stage.clock.advance(LEASE)
            [last] = third.poll()
            if get_lease(last).fence == 3:
                assert third.load_checkpoint(last) == {"by": "successor"}

        return [save, take_over, stage.time(LEASE)], check

    all_schedules(fast_path, setting)


# -- one process: its worker settles while its keeper renews


@pytest.mark.parametrize("verb", VERBS)
def test_a_settled_message_is_never_reported_lost_by_a_renewal(
    fast_path: Path, verb: str
) -> None:
    def setting(stage: Stage) -> Setting:
        queue = stage.worker()
        queue.push(make_message("a"))
        stage.clock.advance(1)
        message = stage.poll(queue)
        lease = get_lease(message)
        lease.handle.lock = BatonLock(stage.baton)

        def renew() -> None:
            asked_at = stage.clock.monotonic()
            [answer] = queue.renew([lease], LEASE)
            now = stage.clock.monotonic()
            lease.apply_renewal(answer, asked_at=asked_at, now=now, seconds=LEASE)

        def check() -> None:
            assert lease.state is LeaseState.RELEASED
            assert stage.lost == 0
            [(state, _, _)] = audit.list_tasks(queue.folder)
            assert state == ENDS_IN[verb], "a renewal undid what was settled"
            stage.close("a")

        return [lambda: stage.settle(queue, message, verb), renew, renew], check

    all_schedules(fast_path, setting)


def test_a_checkpoint_is_never_refused_as_stale_because_of_a_renewal(
    fast_path: Path,
) -> None:
    def setting(stage: Stage) -> Setting:
        queue = stage.worker()
        queue.push(make_message("a"))
        message = stage.poll(queue)
        lease = get_lease(message)
        lease.handle.lock = BatonLock(stage.baton)
        stage.clock.advance(1)

        def save() -> None:
            queue.save_checkpoint(message, {"page": 1})

        def renew() -> None:
            queue.renew([lease], LEASE)

        return [save, renew], lambda: None

    all_schedules(fast_path, setting)
