"""Leases under all orders of few preemptions, and many random ones, of the real code.

Every file system call is a step. The promises are those of fs/stage.py: one holder at a
time, one ack, each task done once, every file whole and in one place.
"""

from contextlib import suppress
from pathlib import Path

import pytest

from fs import audit
from fs.ground import LEASE, note
from fs.schedule import BatonLock
from fs.stage import ENDS_IN, VERBS, Setting, Stage, all_schedules
from holdfast.core.errors import LeaseLost
from holdfast.core.lease.lease import LeaseState
from holdfast.core.queue.message import lease_of

# -- one task, several workers


def test_one_of_two_claims_wins(fast_path: Path) -> None:
    def setting(stage: Stage) -> Setting:
        one, other = stage.worker(), stage.worker()
        one.push(note("a"))
        actors = [stage.work(one), stage.work(other)]
        return actors, lambda: stage.close("a")

    all_schedules(fast_path, setting)


def test_a_claim_that_takes_long_counts_from_before_it_was_asked_for(fast_path: Path) -> None:
    def setting(stage: Stage) -> Setting:
        one, other = stage.worker(), stage.worker()
        one.push(note("a"))
        actors = [stage.work(one), stage.work(other), stage.time(LEASE - 1, 1)]
        return actors, lambda: stage.close("a")

    all_schedules(fast_path, setting)


def test_two_threads_of_one_worker_never_hold_the_same_task(fast_path: Path) -> None:
    """In one millisecond they would make the same name, and each believe it is its own."""

    def setting(stage: Stage) -> Setting:
        queue = stage.worker()
        queue._claiming = BatonLock(stage.baton)  # type: ignore[assignment]
        queue.push_many([note("a"), note("b")])
        actors = [stage.work(queue), stage.work(queue)]
        return actors, lambda: stage.close("a", "b")

    all_schedules(fast_path, setting)


def test_three_workers_share_two_tasks(fast_path: Path) -> None:
    def setting(stage: Stage) -> Setting:
        workers = [stage.worker() for _ in range(3)]
        workers[0].push_many([note("a"), note("b")])
        return [stage.work(w) for w in workers], lambda: stage.close("a", "b")

    all_schedules(fast_path, setting)


@pytest.mark.parametrize("repeats", [False, True], ids=["", "every rename is sent twice"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_holder_settles_while_its_time_runs_out_and_another_polls(
    fast_path: Path, verb: str, repeats: bool
) -> None:
    def setting(stage: Stage) -> Setting:
        stage.repeats = repeats
        holder, thief = stage.worker(), stage.worker()
        holder.push(note("a"))
        stage.clock.advance(1)
        message = stage.poll(holder)

        def settle() -> None:
            stage.baton.step()  # at work
            stage.settle(holder, message, verb)

        return [settle, stage.work(thief), stage.time(LEASE)], lambda: stage.close("a")

    all_schedules(fast_path, setting)


def test_a_renewal_and_a_theft_compete_for_one_name(fast_path: Path) -> None:
    def setting(stage: Stage) -> Setting:
        holder, thief = stage.worker(), stage.worker()
        holder.push(note("a"))
        stage.clock.advance(1)
        message = stage.poll(holder)

        def hold_on() -> None:
            with suppress(LeaseLost):
                holder.extend(message)
            stage.baton.step()  # at work
            stage.settle(holder, message, "ack")

        actors = [hold_on, stage.work(thief), stage.time(LEASE - 1, 1)]
        return actors, lambda: stage.close("a")

    all_schedules(fast_path, setting)


def test_two_thieves_and_a_zombie_settle_once(fast_path: Path) -> None:
    def setting(stage: Stage) -> Setting:
        zombie, one, other = stage.worker(), stage.worker(), stage.worker()
        zombie.push(note("a"))
        message = stage.poll(zombie)
        stage.clock.advance(LEASE)

        def ack_late() -> None:
            zombie._ack([lease_of(message)])  # as one on a wrong clock might try

        actors = [stage.work(one), stage.work(other), ack_late]
        return actors, lambda: stage.close("a")

    all_schedules(fast_path, setting)


def test_a_zombie_saves_its_checkpoint_beside_its_successors(fast_path: Path) -> None:
    def setting(stage: Stage) -> Setting:
        zombie, thief, third = stage.worker(), stage.worker(), stage.ground.queue()
        zombie.push(note("a"))
        message = stage.poll(zombie)

        def save() -> None:
            with suppress(LeaseLost):
                zombie.save_checkpoint(message, {"by": "zombie"})

        def steal() -> None:
            if stolen := stage.poll(thief):
                thief.save_checkpoint(stolen, {"by": "thief"})

        def check() -> None:
            stage.clock.advance(LEASE)
            [last] = third.poll()
            if lease_of(last).fence == 3:
                assert third.load_checkpoint(last) == {"by": "thief"}

        return [save, steal, stage.time(LEASE)], check

    all_schedules(fast_path, setting)


# -- one process: its worker settles while its keeper renews


@pytest.mark.parametrize("verb", VERBS)
def test_a_settled_message_is_never_reported_lost_by_a_renewal(
    fast_path: Path, verb: str
) -> None:
    def setting(stage: Stage) -> Setting:
        queue = stage.worker()
        queue.push(note("a"))
        stage.clock.advance(1)
        message = stage.poll(queue)
        lease = lease_of(message)
        lease.handle.lock = BatonLock(stage.baton)

        def renew() -> None:
            asked_at = stage.clock.monotonic()
            [answer] = queue.renew([lease], LEASE)
            now = stage.clock.monotonic()
            lease.answered(answer, asked_at=asked_at, now=now, seconds=LEASE)

        def check() -> None:
            assert lease.state is LeaseState.RELEASED
            assert stage.lost == 0
            [(state, _, _)] = audit.tasks(queue.folder)
            assert state == ENDS_IN[verb], "a renewal undid what was settled"
            stage.close("a")

        return [lambda: stage.settle(queue, message, verb), renew, renew], check

    all_schedules(fast_path, setting)


def test_a_checkpoint_is_never_taken_for_a_zombies_because_of_a_renewal(
    fast_path: Path,
) -> None:
    def setting(stage: Stage) -> Setting:
        queue = stage.worker()
        queue.push(note("a"))
        message = stage.poll(queue)
        lease = lease_of(message)
        lease.handle.lock = BatonLock(stage.baton)
        stage.clock.advance(1)

        def save() -> None:
            queue.save_checkpoint(message, {"page": 1})

        def renew() -> None:
            queue.renew([lease], LEASE)

        return [save, renew], lambda: None

    all_schedules(fast_path, setting)
