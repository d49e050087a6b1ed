"""Pushes, purges, redrives and dedupe under all schedules with few preemptions."""

from contextlib import suppress
from pathlib import Path

import pytest
from interleaved_queue import Actor, Setting, Stage, all_schedules

from holdfast.errors import LeaseLost, QueueUnavailable
from holdfast.queue.info import CANCELLED
from holdfast.queues.files.claims import REMOVE_AFTER_MS
from support.files import audit
from support.files.queue_folder import LEASE, Queue, make_message
from support.interleaving import BatonLock

# -- operators


def test_two_redrives_bring_a_dead_letter_back_once(fast_path: Path) -> None:
    def setting(stage: Stage) -> Setting:
        first, second = stage.worker(), stage.worker()
        first.push(make_message("a"))
        first.dead_letter(first.poll()[0], "no use")
        redriven: list[int] = []
        actors: list[Actor] = [
            lambda: redriven.append(first.redrive()),
            lambda: redriven.append(second.redrive("a")),
        ]

        def check() -> None:
            assert sum(redriven) == 1
            stage.close("a")

        return actors, check

    all_schedules(fast_path, setting)


def test_two_redrives_by_threads_of_one_queue_count_once(fast_path: Path) -> None:
    """In one millisecond both would make the same name."""

    def setting(stage: Stage) -> Setting:
        queue = stage.worker()
        queue.push(make_message("a"))
        queue.dead_letter(queue.poll()[0], "no use")
        redriven: list[int] = []
        actors: list[Actor] = [lambda: redriven.append(queue.redrive())] * 2

        def check() -> None:
            assert sum(redriven) == 1
            stage.close("a")

        return actors, check

    all_schedules(fast_path, setting)


def test_a_redrive_that_beats_a_drop_keeps_the_checkpoint(fast_path: Path) -> None:
    def setting(stage: Stage) -> Setting:
        first, second = stage.worker(), stage.worker()
        first.push(make_message("a"))
        [message] = first.poll()
        first.save_checkpoint(message, {"page": 7})
        first.dead_letter(message, "no use")
        dropped: list[int] = []
        actors: list[Actor] = [lambda: dropped.append(second.drop("a")), lambda: redrive(first)]

        def check() -> None:
            back = first.poll()
            assert len(back) + sum(dropped) == 1
            assert [first.load_checkpoint(m) for m in back] in ([], [{"page": 7}])
            assert audit.find_faults(stage.ground.folder) == {}

        return actors, check

    all_schedules(fast_path, setting)


def redrive(queue: Queue) -> None:
    queue.redrive()


@pytest.mark.parametrize("is_leased", [False, True], ids=["waiting", "leased"])
@pytest.mark.parametrize("max_attempts", [9, 1], ids=["", "out of attempts"])
def test_a_cancel_and_a_worker_never_both_get_a_message(
    fast_path: Path, is_leased: bool, max_attempts: int
) -> None:
    """Without attempts left, the worker dead-letters the message that is being cancelled."""

    def setting(stage: Stage) -> Setting:
        worker, person = stage.worker(), stage.worker()
        worker.push(make_message("a"))
        worker.nack(worker.poll()[0], delay_seconds=0)
        if is_leased:
            worker.poll()
            stage.clock.advance(LEASE + 1)
        cancelled: list[int] = []
        actors: list[Actor] = [
            stage.work(worker),
            lambda: cancelled.append(person.cancel("a")),
        ]

        def check() -> None:
            [view] = person.find("a")
            is_cancelled = view.reason == CANCELLED
            assert cancelled == [int(is_cancelled)]
            assert ("cancelled" in {past.outcome for past in view.past}) == is_cancelled
            assert is_cancelled or sum(stage.acked.values()) == (max_attempts > 1)
            stage.close("a")

        return actors, check

    all_schedules(fast_path, setting, max_attempts=max_attempts)


@pytest.mark.parametrize("verb", ["ack", "nack", "release", "dead_letter"])
def test_a_cancel_and_the_holder_never_both_settle_a_message(
    fast_path: Path, verb: str
) -> None:
    def setting(stage: Stage) -> Setting:
        holder, person = stage.worker(), stage.worker()
        holder.push(make_message("a"))
        message = stage.poll(holder)
        cancelled: list[int] = []

        def renew_and_settle() -> None:
            with suppress(LeaseLost):
                holder.extend(message)
            stage.settle(holder, message, verb)

        actors: list[Actor] = [
            renew_and_settle,
            lambda: cancelled.append(person.cancel("a")),
        ]

        def check() -> None:
            [view] = person.find("a")
            assert cancelled == [int(view.reason == CANCELLED)]
            if verb in ("ack", "dead_letter"):
                assert sum(cancelled) == stage.lost
            else:
                assert cancelled == [1]  # also the message that has just been put back
            stage.close("a")

        return actors, check

    all_schedules(fast_path, setting)


def test_two_cancels_of_a_message_count_once(fast_path: Path) -> None:
    def setting(stage: Stage) -> Setting:
        first, second = stage.worker(), stage.worker()
        first.push(make_message("a"))
        cancelled: list[int] = []
        actors: list[Actor] = [
            lambda: cancelled.append(first.cancel("a")),
            lambda: cancelled.append(second.cancel("a")),
        ]

        def check() -> None:
            assert sum(cancelled) == 1
            stage.close("a")

        return actors, check

    all_schedules(fast_path, setting)


# -- producing


@pytest.mark.parametrize("dedupe", [False, True], ids=["", "dedupe"])
def test_a_push_into_a_segment_that_is_being_removed_arrives(
    fast_path: Path, dedupe: bool
) -> None:
    def setting(stage: Stage) -> Setting:
        producer, worker = stage.worker(), stage.worker()
        producer.push(make_message("a"))
        worker.ack(worker.poll()[0])
        actors: list[Actor] = [
            lambda: push(producer, "b"),
            stage.work(worker, times=2),
            stage.time(REMOVE_AFTER_MS / 1000 + 1),
        ]
        return actors, lambda: stage.close("a", "b")

    all_schedules(fast_path, setting, dedupe=dedupe)


def test_two_threads_of_one_producer_fill_one_segment(fast_path: Path) -> None:
    def setting(stage: Stage) -> Setting:
        queue = stage.worker()
        queue._producer._lock = BatonLock(stage.baton)  # type: ignore[assignment]

        def check() -> None:
            assert len(list((queue.folder / "pending").iterdir())) == 1
            stage.close("a", "b")

        return [lambda: push(queue, "a"), lambda: push(queue, "b")], check

    all_schedules(fast_path, setting)


def push_two(queue: Queue) -> None:
    queue.push_many([make_message("a"), make_message("b")])


def test_a_sweep_never_takes_what_is_being_pushed(fast_path: Path) -> None:
    def setting(stage: Stage) -> Setting:
        producer, second, sweeper = stage.worker(), stage.worker(), stage.worker()
        actors: list[Actor] = [
            lambda: push_two(producer),
            lambda: push(second, "c"),
            lambda: sweep(sweeper),
        ]
        return actors, lambda: stage.close("a", "b", "c")

    all_schedules(fast_path, setting)


def test_a_sweep_never_removes_the_reason_of_a_task_being_dead_lettered(
    fast_path: Path,
) -> None:
    def setting(stage: Stage) -> Setting:
        worker, sweeper = stage.worker(), stage.worker()
        worker.push(make_message("a"))
        message = stage.poll(worker)
        actors: list[Actor] = [
            lambda: stage.settle(worker, message, "dead_letter"),
            lambda: sweep(sweeper),
        ]
        return actors, lambda: stage.close("a")

    all_schedules(fast_path, setting)


def test_a_batch_that_takes_hours_is_swept_whole_or_published_whole(fast_path: Path) -> None:
    def setting(stage: Stage) -> Setting:
        producer, sweeper = stage.worker(), stage.worker()
        pushed: list[str] = []

        def push_slowly() -> None:
            with suppress(QueueUnavailable):
                push_two(producer)
                pushed.extend("ab")

        def sweep_hours_later() -> None:
            stage.clock.advance(7200)
            sweep(sweeper)

        return [push_slowly, sweep_hours_later], lambda: stage.close(*pushed)

    all_schedules(fast_path, setting)


def test_an_hour_that_is_purged_under_an_ack_is_made_again(fast_path: Path) -> None:
    def setting(stage: Stage) -> Setting:
        worker, keeper = stage.worker(), stage.worker()
        worker.push_many([make_message("a"), make_message("b")])
        worker.ack(worker.poll()[0])
        message = stage.poll(worker)
        actors: list[Actor] = [
            lambda: stage.settle(worker, message, "ack"),
            lambda: purge(keeper),
        ]
        return actors, lambda: None if stage.lost else check_ends(stage)

    all_schedules(fast_path, setting)


def push(queue: Queue, message_id: str) -> None:
    queue.push(make_message(message_id))


def purge(queue: Queue) -> None:
    queue.purge(0)


def check_ends(stage: Stage) -> None:
    assert stage.lost == 0
    assert audit.find_faults(stage.ground.folder) == {}


# -- dedupe


def test_two_pushes_of_one_id_leave_one_task(fast_path: Path) -> None:
    def setting(stage: Stage) -> Setting:
        first, second = stage.worker(), stage.worker()
        actors: list[Actor] = [lambda: push(first, "a"), lambda: push(second, "a")]
        return actors, lambda: stage.close("a")

    all_schedules(fast_path, setting, dedupe=True)


def test_a_sweep_of_ids_never_frees_one_that_is_being_pushed(fast_path: Path) -> None:
    def setting(stage: Stage) -> Setting:
        first, second, sweeper = stage.worker(), stage.worker(), stage.worker()
        actors: list[Actor] = [lambda: push(first, "a"), lambda: sweep(sweeper)]

        def check() -> None:
            push(second, "a")
            stage.close("a")

        return actors, check

    all_schedules(fast_path, setting, dedupe=True)


def sweep(queue: Queue) -> None:
    queue.operator.sweep()


def test_a_dead_letter_frees_its_id_and_only_its_own(fast_path: Path) -> None:
    def setting(stage: Stage) -> Setting:
        worker, pusher = stage.worker(), stage.worker()
        worker.push(make_message("a"))
        message = stage.poll(worker)
        actors: list[Actor] = [
            lambda: stage.settle(worker, message, "dead_letter"),
            lambda: push(pusher, "a"),
        ]

        def check() -> None:
            push(pusher, "a")
            push(pusher, "a")
            assert [state for state, _, _ in audit.list_tasks(pusher.folder)] == [
                "pending",
                "failed",
            ]

        return actors, check

    all_schedules(fast_path, setting, dedupe=True)


def test_a_redrive_that_loses_to_a_drop_leaves_nothing(
    fast_path: Path,
) -> None:
    def setting(stage: Stage) -> Setting:
        first, second = stage.worker(), stage.worker()
        for _ in range(2):  # the first lost its id to the second
            first.push(make_message("a"))
            first.dead_letter(first.poll()[0], "no use")
        actors: list[Actor] = [lambda: redrive(first), lambda: drop(second)]
        return actors, lambda: check_ends(stage)

    all_schedules(fast_path, setting, dedupe=True)


def drop(queue: Queue) -> None:
    queue.drop("a")


LIVE = ("pending", "leased", "completed")


def check_one_lives(queue: Queue) -> None:
    """Check that after a push of the id exactly one task of it is alive."""
    queue.push(make_message("a"))
    states = [state for state, _, _ in audit.list_tasks(queue.folder) if state in LIVE]
    assert len(states) == 1
    assert audit.find_faults(queue.folder) == {}


@pytest.mark.parametrize("verb", ["ack", "nack", "release", "dead_letter"])
def test_a_check_of_records_never_frees_the_id_of_a_task_that_moves(
    fast_path: Path, verb: str
) -> None:
    def setting(stage: Stage) -> Setting:
        worker, sweeper, pusher = stage.worker(), stage.worker(), stage.worker()
        worker.push(make_message("a"))
        message = stage.poll(worker)

        def settle_and_poll() -> None:
            stage.settle(worker, message, verb)
            worker.poll()

        actors: list[Actor] = [settle_and_poll, lambda: sweep(sweeper)]
        return actors, lambda: check_one_lives(pusher)

    all_schedules(fast_path, setting, dedupe=True)


def test_a_late_dead_lettering_never_frees_the_id_of_a_redriven_task(
    fast_path: Path,
) -> None:
    def setting(stage: Stage) -> Setting:
        worker, person, pusher = stage.worker(), stage.worker(), stage.worker()
        worker.push(make_message("a"))
        message = stage.poll(worker)
        actors: list[Actor] = [
            lambda: stage.settle(worker, message, "dead_letter"),
            lambda: redrive(person),
            lambda: sweep(person),
        ]
        return actors, lambda: check_one_lives(pusher)

    all_schedules(fast_path, setting, dedupe=True)


def test_a_redriven_task_that_dies_again_at_once_frees_its_id(fast_path: Path) -> None:
    """Its new mark is not the one that the redrive removes."""

    def setting(stage: Stage) -> Setting:
        worker, person, pusher = stage.worker(), stage.worker(), stage.worker()
        pusher.push(make_message("b"))
        pusher.push(make_message("b"))  # so that the check of records is not due
        worker.push(make_message("a"))
        worker.dead_letter(next(m for m in worker.poll(2) if m.id == "a"), "no use")

        def work() -> None:
            for message in worker.poll():
                worker.dead_letter(message, "no use again")

        actors: list[Actor] = [lambda: redrive(person), work]

        def check() -> None:
            work()
            assert len([t for t in audit.list_tasks(pusher.folder) if t[0] == "failed"]) == 1
            pusher.push(make_message("a"))
            assert [message.id for message in pusher.poll()] == ["a"]

        return actors, check

    all_schedules(fast_path, setting, dedupe=True)


def test_two_redrives_of_one_id_leave_it_taken(fast_path: Path) -> None:
    def setting(stage: Stage) -> Setting:
        first, second, pusher = stage.worker(), stage.worker(), stage.worker()
        first.push(make_message("a"))
        first.dead_letter(first.poll()[0], "no use")
        actors: list[Actor] = [lambda: redrive(first), lambda: redrive(second)]
        return actors, lambda: check_one_lives(pusher)

    all_schedules(fast_path, setting, dedupe=True)


def test_a_purge_and_a_push_of_one_id_leave_one_live_task(fast_path: Path) -> None:
    def setting(stage: Stage) -> Setting:
        person, pusher = stage.worker(), stage.worker()
        person.push(make_message("a"))
        person.ack(person.poll()[0])
        actors: list[Actor] = [lambda: purge(person), lambda: push(pusher, "a")]
        return actors, lambda: check_one_lives(pusher)

    all_schedules(fast_path, setting, dedupe=True)


def test_a_drop_and_a_push_of_one_id_leave_one_live_task(fast_path: Path) -> None:
    def setting(stage: Stage) -> Setting:
        person, worker, pusher = stage.worker(), stage.worker(), stage.worker()
        worker.push(make_message("a"))
        message = stage.poll(worker)
        actors: list[Actor] = [
            lambda: stage.settle(worker, message, "dead_letter"),
            lambda: drop(person),
            lambda: push(pusher, "a"),
        ]
        return actors, lambda: check_one_lives(pusher)

    all_schedules(fast_path, setting, dedupe=True)


def test_a_redrive_and_a_push_of_one_id_leave_one_live_task(fast_path: Path) -> None:
    def setting(stage: Stage) -> Setting:
        person, pusher = stage.worker(), stage.worker()
        person.push(make_message("a"))
        person.dead_letter(person.poll()[0], "no use")
        actors: list[Actor] = [lambda: redrive(person), lambda: push(pusher, "a")]

        def check() -> None:
            states = [state for state, _, _ in audit.list_tasks(pusher.folder)]
            assert states.count("pending") == 1

        return actors, check

    all_schedules(fast_path, setting, dedupe=True)
