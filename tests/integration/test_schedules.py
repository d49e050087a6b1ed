"""The real code of two or three actors, in all orders with few preemptions and many random ones.

Every file system call is a step. The promises are those of fs/stage.py: one holder at a
time, one ack, each task done once, every file whole and in one place.
"""

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from fs import audit
from fs.ground import LEASE, Queue, note
from fs.schedule import Baton, BatonLock, Policy, explore, wander
from fs.stage import VERBS, Actor, Stage
from holdfast.adapters.local.filesystem.segments import REMOVE_AFTER_MS
from holdfast.core.errors import LeaseLost
from holdfast.core.lease import LeaseState
from holdfast.core.message import lease_of

PREEMPTIONS = 2
LIMIT = 200  # schedules of one scenario; the rest is left to chance
SEEDS = range(20)

Setting = Callable[[Stage], tuple[list[Actor], Callable[[], None]]]
"""Prepares a stage; gives the actors and what must be true when they are done."""


def all_schedules(folder: Path, setting: Setting, **options: object) -> None:
    number = count()

    def play(policy: Policy) -> Baton:
        stage = Stage(folder / str(next(number)), policy, **options)
        actors, check = setting(stage)
        stage.baton.run(actors)
        check()
        return stage.baton

    explore(play, preemptions=PREEMPTIONS, limit=LIMIT)
    wander(play, SEEDS)


# -- one task, several workers


def test_one_of_two_claims_wins(fast_path: Path) -> None:
    def setting(stage: Stage) -> tuple[list[Actor], Callable[[], None]]:
        one, other = stage.worker(), stage.worker()
        one.push(note("a"))
        actors = [stage.work(one), stage.work(other)]
        return actors, lambda: stage.close("a")

    all_schedules(fast_path, setting)


def test_three_workers_share_two_tasks(fast_path: Path) -> None:
    def setting(stage: Stage) -> tuple[list[Actor], Callable[[], None]]:
        workers = [stage.worker() for _ in range(3)]
        workers[0].push_many([note("a"), note("b")])
        return [stage.work(w) for w in workers], lambda: stage.close("a", "b")

    all_schedules(fast_path, setting)


@pytest.mark.parametrize("repeats", [False, True], ids=["", "every rename is sent twice"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_holder_settles_while_its_time_runs_out_and_another_polls(
    fast_path: Path, verb: str, repeats: bool
) -> None:
    def setting(stage: Stage) -> tuple[list[Actor], Callable[[], None]]:
        stage.repeats = repeats
        holder, thief = stage.worker(), stage.worker()
        holder.push(note("a"))
        stage.clock.advance(1)
        message = stage.poll(holder)
        actors = [
            lambda: stage.settle(holder, message, verb),
            stage.work(thief),
            stage.time(LEASE),
        ]
        return actors, lambda: stage.close("a")

    all_schedules(fast_path, setting)


def test_a_renewal_and_a_theft_compete_for_one_name(fast_path: Path) -> None:
    def setting(stage: Stage) -> tuple[list[Actor], Callable[[], None]]:
        holder, thief = stage.worker(), stage.worker()
        holder.push(note("a"))
        stage.clock.advance(1)
        message = stage.poll(holder)

        def hold_on() -> None:
            with suppress(LeaseLost):
                holder.extend(message)
            stage.settle(holder, message, "ack")

        actors = [hold_on, stage.work(thief), stage.time(LEASE - 1, 1)]
        return actors, lambda: stage.close("a")

    all_schedules(fast_path, setting)


def test_two_thieves_and_a_zombie_settle_once(fast_path: Path) -> None:
    def setting(stage: Stage) -> tuple[list[Actor], Callable[[], None]]:
        zombie, one, other = stage.worker(), stage.worker(), stage.worker()
        zombie.push(note("a"))
        message = stage.poll(zombie)
        stage.clock.advance(LEASE)
        # What its own clock forbids it, a zombie on a wrong clock might try.
        zombie_acks = lambda: zombie._ack([lease_of(message)])  # noqa: E731, SLF001
        actors = [stage.work(one), stage.work(other), lambda: None if zombie_acks() else None]
        return actors, lambda: stage.close("a")

    all_schedules(fast_path, setting)


def test_a_zombie_saves_its_checkpoint_beside_its_successors(fast_path: Path) -> None:
    def setting(stage: Stage) -> tuple[list[Actor], Callable[[], None]]:
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
    def setting(stage: Stage) -> tuple[list[Actor], Callable[[], None]]:
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
            stage.close("a")

        return [lambda: stage.settle(queue, message, verb), renew, renew], check

    all_schedules(fast_path, setting)


# -- people


def test_two_redrives_bring_a_dead_letter_back_once(fast_path: Path) -> None:
    def setting(stage: Stage) -> tuple[list[Actor], Callable[[], None]]:
        one, other = stage.worker(), stage.worker()
        one.push(note("a"))
        one.dead_letter(one.poll()[0], "no use")
        redriven: list[int] = []
        actors: list[Actor] = [
            lambda: redriven.append(one.redrive()),
            lambda: redriven.append(other.redrive("a")),
        ]

        def check() -> None:
            assert sum(redriven) == 1
            stage.close("a")

        return actors, check

    all_schedules(fast_path, setting)


def test_a_redrive_that_beats_a_drop_keeps_the_checkpoint(fast_path: Path) -> None:
    def setting(stage: Stage) -> tuple[list[Actor], Callable[[], None]]:
        one, other = stage.worker(), stage.worker()
        one.push(note("a"))
        [message] = one.poll()
        one.save_checkpoint(message, {"page": 7})
        one.dead_letter(message, "no use")
        dropped: list[int] = []
        actors: list[Actor] = [lambda: dropped.append(other.drop("a")), lambda: redrive(one)]

        def check() -> None:
            back = one.poll()
            assert len(back) + sum(dropped) == 1
            assert [one.load_checkpoint(m) for m in back] in ([], [{"page": 7}])
            assert audit.faults(stage.ground.folder) == {}

        return actors, check

    all_schedules(fast_path, setting)


def redrive(queue: Queue) -> None:
    queue.redrive()


# -- producing


def test_a_push_into_a_segment_that_is_being_removed_arrives(fast_path: Path) -> None:
    def setting(stage: Stage) -> tuple[list[Actor], Callable[[], None]]:
        producer, worker = stage.worker(), stage.worker()
        producer.push(note("a"))
        worker.ack(worker.poll()[0])
        actors: list[Actor] = [
            lambda: push(producer, "b"),
            stage.work(worker, times=2),
            stage.time(REMOVE_AFTER_MS / 1000 + 1),
        ]
        return actors, lambda: stage.close("a", "b")

    all_schedules(fast_path, setting)


def test_an_hour_that_is_purged_under_an_ack_is_made_again(fast_path: Path) -> None:
    def setting(stage: Stage) -> tuple[list[Actor], Callable[[], None]]:
        worker, keeper = stage.worker(), stage.worker()
        worker.push_many([note("a"), note("b")])
        worker.ack(worker.poll()[0])
        message = stage.poll(worker)
        actors: list[Actor] = [
            lambda: stage.settle(worker, message, "ack"),
            lambda: purge(keeper),
        ]
        return actors, lambda: None if stage.lost else check_ends(stage)

    all_schedules(fast_path, setting)


def push(queue: Queue, message_id: str) -> None:
    queue.push(note(message_id))


def purge(queue: Queue) -> None:
    queue.purge(0)


def check_ends(stage: Stage) -> None:
    assert stage.lost == 0
    assert audit.faults(stage.ground.folder) == {}


# -- dedupe


def test_two_pushes_of_one_id_leave_one_task(fast_path: Path) -> None:
    def setting(stage: Stage) -> tuple[list[Actor], Callable[[], None]]:
        one, other = stage.worker(), stage.worker()
        actors: list[Actor] = [lambda: push(one, "a"), lambda: push(other, "a")]
        return actors, lambda: stage.close("a")

    all_schedules(fast_path, setting, dedupe=True)


def test_a_sweep_of_ids_never_frees_one_that_is_being_pushed(fast_path: Path) -> None:
    def setting(stage: Stage) -> tuple[list[Actor], Callable[[], None]]:
        one, other, sweeper = stage.worker(), stage.worker(), stage.worker()
        actors: list[Actor] = [lambda: push(one, "a"), lambda: sweep(sweeper)]

        def check() -> None:
            push(other, "a")
            stage.close("a")

        return actors, check

    all_schedules(fast_path, setting, dedupe=True)


def sweep(queue: Queue) -> None:
    queue.sweep()


def test_a_dead_letter_frees_its_id_and_only_its_own(fast_path: Path) -> None:
    def setting(stage: Stage) -> tuple[list[Actor], Callable[[], None]]:
        worker, pusher = stage.worker(), stage.worker()
        worker.push(note("a"))
        message = stage.poll(worker)
        actors: list[Actor] = [
            lambda: stage.settle(worker, message, "dead_letter"),
            lambda: push(pusher, "a"),
        ]

        def check() -> None:
            push(pusher, "a")
            push(pusher, "a")
            assert [state for state, _, _ in audit.tasks(pusher.folder)] == [
                "pending",
                "failed",
            ]

        return actors, check

    all_schedules(fast_path, setting, dedupe=True)
