"""Crowds: whoever is there at once, each task counts once and one decides."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from holdfast.jobs.errors import AlreadySealed, JobClosed, JobExists
from holdfast.jobs.model import JobStatus
from holdfast.jobs.ports import JobStateRepository
from holdfast.testing import ManualClock
from holdfast.testing.contracts.jobs.support import (
    GIVEN_UP,
    OpenRepository,
    all_done,
    assert_books_agree,
    counters,
    decided,
    failed,
    job_of,
    new_job,
    sealed,
    started,
    succeeded,
)

THREADS = 8


def together(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """Run `work(0)`, `work(1)` … at the same moment; their results."""
    start = Barrier(threads)

    def one(number: int) -> Any:
        start.wait(30)
        return work(number)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, range(threads)))


class JobConcurrencyPromises:
    """R004-049, R004-069, R004-105; JB-01, JB-02, JB-26, JB-44, I-JB-1, I-JB-3."""

    @pytest.fixture(params=["one repository", "a repository for each"])
    def crowd(
        self,
        request: pytest.FixtureRequest,
        open_repository: OpenRepository,
        clock: ManualClock,
    ) -> list[JobStateRepository]:
        if request.param == "one repository":
            return [open_repository(clock)] * THREADS
        return [open_repository(clock) for _ in range(THREADS)]

    def test_three_increments_at_once_are_three(
        self, crowd: list[JobStateRepository], clock: ManualClock
    ) -> None:
        started(crowd[0], clock, 0)
        together(lambda n: crowd[n].increment_completed_tasks("job"), threads=3)
        assert counters(crowd[0]) == (3, 0)
        assert_books_agree(crowd[0])

    def test_the_same_results_from_all_sides_are_counted_once(
        self, crowd: list[JobStateRepository], clock: ManualClock
    ) -> None:
        tasks = sealed(crowd[0], clock, 24)
        results = [failed(t) if n % 3 == 0 else succeeded(t) for n, t in enumerate(tasks)]

        def report(number: int) -> int:
            ordered = results[number:] + results[:number]
            return sum(
                crowd[number].record_results("job", ordered[at : at + 5])
                for at in range(0, len(ordered), 5)
            )

        assert sum(together(report)) == 24
        assert counters(crowd[0]) == (16, 8)
        assert job_of(crowd[0]).all_counted
        assert_books_agree(crowd[0])

    def test_a_task_said_to_be_done_and_failed_at_once_is_one_of_them(
        self, crowd: list[JobStateRepository], clock: ManualClock
    ) -> None:
        [task] = sealed(crowd[0], clock, 1)
        says = [succeeded(task), failed(task)]
        counted = together(lambda n: crowd[n].record_results("job", [says[n % 2]]))
        assert sorted(counted) == [0] * (THREADS - 1) + [1]
        assert sum(counters(crowd[0])) == 1
        assert_books_agree(crowd[0])

    def test_of_many_who_claim_the_outcome_one_gets_it(
        self, crowd: list[JobStateRepository], clock: ManualClock
    ) -> None:
        all_done(crowd[0], clock)
        won = [job for job in together(lambda n: crowd[n].claim_outcome("job")) if job]
        assert len(won) == 1

    def test_the_last_workers_decide_once_whoever_was_last(
        self, crowd: list[JobStateRepository], clock: ManualClock
    ) -> None:
        """JB-02: each counts its task, then looks whether the job is done."""
        tasks = sealed(crowd[0], clock, THREADS)

        def last(number: int) -> bool:
            crowd[number].record_results("job", [succeeded(tasks[number])])
            return crowd[number].claim_outcome("job") is not None

        assert sum(together(last)) == 1

    def test_of_claiming_and_giving_up_one_wins(
        self, crowd: list[JobStateRepository], clock: ManualClock
    ) -> None:
        all_done(crowd[0], clock)

        def decide(number: int) -> JobStatus | None:
            if number % 2:
                return JobStatus.FAILED if crowd[number].give_up("job", GIVEN_UP) else None
            return JobStatus.COMPLETED if crowd[number].claim_outcome("job") else None

        [status] = [status for status in together(decide) if status]
        assert job_of(crowd[0]).callback.status is status

    def test_results_and_the_end_at_once_agree_afterwards(
        self, crowd: list[JobStateRepository], clock: ManualClock
    ) -> None:
        tasks = sealed(crowd[0], clock, THREADS)

        def work(number: int) -> int:
            if number == THREADS - 1:
                crowd[number].give_up("job", GIVEN_UP)
                return 0
            try:
                return crowd[number].record_results("job", [succeeded(tasks[number])])
            except JobClosed:
                return 0

        assert sum(together(work)) == counters(crowd[0])[0]
        assert_books_agree(crowd[0])

    def test_of_many_attempts_at_the_callback_one_begins(
        self, crowd: list[JobStateRepository], clock: ManualClock
    ) -> None:
        decided(crowd[0], clock)
        begun = together(lambda n: crowd[n].begin_callback("job", again_after_seconds=5.0))
        assert len([job for job in begun if job]) == 1
        assert job_of(crowd[0]).callback.attempts == 1

    def test_of_many_who_settle_one_did(
        self, crowd: list[JobStateRepository], clock: ManualClock
    ) -> None:
        decided(crowd[0], clock)
        said = together(lambda n: crowd[n].settle("job", JobStatus.COMPLETED, None))
        assert sorted(said) == [False] * (THREADS - 1) + [True]

    def test_of_many_who_save_one_id_one_did(
        self, crowd: list[JobStateRepository], clock: ManualClock
    ) -> None:
        def save(number: int) -> bool:
            try:
                crowd[number].save(new_job(clock, metadata={"of": number}))
            except JobExists:
                return False
            return True

        saved = together(save)
        assert sum(saved) == 1
        assert job_of(crowd[0]).metadata == {"of": saved.index(True)}

    def test_of_many_numbers_of_tasks_one_stays(
        self, crowd: list[JobStateRepository], clock: ManualClock
    ) -> None:
        started(crowd[0], clock, 0)

        def seal(number: int) -> bool:
            try:
                crowd[number].set_total_tasks("job", number)
            except AlreadySealed:
                return False
            return True

        said = together(seal)
        assert sum(said) == 1
        job = job_of(crowd[0])
        assert job.state.total_tasks == job.remaining_tasks == said.index(True)
