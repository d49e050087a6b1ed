"""With many callers at once, each task counts once and one caller decides."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from contracts.jobs.support import (
    GIVEN_UP,
    JobPromises,
    OpenRepository,
    assert_counters_match_rows,
    decide_job,
    finish_all_tasks,
    make_failure,
    make_success,
    new_job,
    read_counters,
    read_job,
    start_job,
    start_sealed_job,
)
from holdfast.exports.errors import AlreadySealed, JobClosed, JobExists
from holdfast.exports.model import JobStatus
from holdfast.exports.ports import JobStateRepository

THREADS = 8


def run_together(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """Run `work(0)`, `work(1)` … at the same moment, and return their results."""
    start = Barrier(threads)

    def run(number: int) -> Any:
        start.wait(30)
        return work(number)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, range(threads)))


class JobConcurrencyPromises(JobPromises):
    """The promises for threads and processes.

    (JB-01, JB-02, JB-26, JB-44).
    """

    @pytest.fixture(params=["one repository", "a repository for each"])
    def crowd(
        self, request: pytest.FixtureRequest, open_repository: OpenRepository
    ) -> list[JobStateRepository]:
        """Return a repository for each thread."""
        if request.param == "one repository":
            return [open_repository(self.clock)] * THREADS
        return [open_repository(self.clock) for _ in range(THREADS)]

    @pytest.mark.requirement("R004-015", "R004-049", "R004-069")
    def test_three_increments_at_once_are_three(self, crowd: list[JobStateRepository]) -> None:
        start_job(crowd[0], self.clock, 0)
        run_together(lambda n: crowd[n].increment_completed_tasks("job"), threads=3)
        assert read_counters(crowd[0]) == (3, 0)
        assert_counters_match_rows(crowd[0])

    @pytest.mark.requirement("R004-057", "R004-058", "R004-069")
    def test_the_same_results_from_all_sides_are_counted_once(
        self, crowd: list[JobStateRepository]
    ) -> None:
        tasks = start_sealed_job(crowd[0], self.clock, 24)
        results = [
            make_failure(t) if n % 3 == 0 else make_success(t) for n, t in enumerate(tasks)
        ]

        def report(number: int) -> int:
            ordered = results[number:] + results[:number]
            return sum(
                crowd[number].record_results("job", ordered[at : at + 5])
                for at in range(0, len(ordered), 5)
            )

        assert sum(run_together(report)) == 24
        assert read_counters(crowd[0]) == (16, 8)
        assert read_job(crowd[0]).all_counted
        assert_counters_match_rows(crowd[0])

    def test_a_task_reported_as_done_and_failed_at_once_is_counted_once(
        self, crowd: list[JobStateRepository]
    ) -> None:
        [task] = start_sealed_job(crowd[0], self.clock, 1)
        results = [make_success(task), make_failure(task)]
        counted = run_together(lambda n: crowd[n].record_results("job", [results[n % 2]]))
        assert sorted(counted) == [0] * (THREADS - 1) + [1]
        assert sum(read_counters(crowd[0])) == 1
        assert_counters_match_rows(crowd[0])

    def test_one_of_many_callers_claims_the_outcome(
        self, crowd: list[JobStateRepository]
    ) -> None:
        finish_all_tasks(crowd[0], self.clock)
        won = [job for job in run_together(lambda n: crowd[n].claim_outcome("job")) if job]
        assert len(won) == 1

    @pytest.mark.requirement("R004-123")
    def test_workers_that_finish_last_together_decide_once(
        self, crowd: list[JobStateRepository]
    ) -> None:
        """Each worker counts its task, then checks whether the job is done (JB-02)."""
        tasks = start_sealed_job(crowd[0], self.clock, THREADS)

        def finish(number: int) -> bool:
            crowd[number].record_results("job", [make_success(tasks[number])])
            return crowd[number].claim_outcome("job") is not None

        assert sum(run_together(finish)) == 1

    def test_either_claiming_or_giving_up_wins(self, crowd: list[JobStateRepository]) -> None:
        finish_all_tasks(crowd[0], self.clock)

        def decide(number: int) -> JobStatus | None:
            if number % 2:
                return JobStatus.FAILED if crowd[number].give_up("job", GIVEN_UP) else None
            return JobStatus.COMPLETED if crowd[number].claim_outcome("job") else None

        [status] = [status for status in run_together(decide) if status]
        assert read_job(crowd[0]).callback.status is status

    def test_results_and_the_end_at_once_agree_afterwards(
        self, crowd: list[JobStateRepository]
    ) -> None:
        tasks = start_sealed_job(crowd[0], self.clock, THREADS)

        def work(number: int) -> int:
            if number == THREADS - 1:
                crowd[number].give_up("job", GIVEN_UP)
                return 0
            try:
                return crowd[number].record_results("job", [make_success(tasks[number])])
            except JobClosed:
                return 0

        assert sum(run_together(work)) == read_counters(crowd[0])[0]
        assert_counters_match_rows(crowd[0])

    def test_one_of_many_attempts_at_the_callback_begins(
        self, crowd: list[JobStateRepository]
    ) -> None:
        decide_job(crowd[0], self.clock)
        begun = run_together(lambda n: crowd[n].begin_callback("job", again_after_seconds=5.0))
        assert len([job for job in begun if job]) == 1
        assert read_job(crowd[0]).callback.attempts == 1

    def test_one_of_many_callers_settles(self, crowd: list[JobStateRepository]) -> None:
        decide_job(crowd[0], self.clock)
        settled = run_together(lambda n: crowd[n].settle("job", JobStatus.COMPLETED, None))
        assert sorted(settled) == [False] * (THREADS - 1) + [True]

    def test_one_of_many_callers_saves_an_id(self, crowd: list[JobStateRepository]) -> None:
        def save(number: int) -> bool:
            try:
                crowd[number].save(new_job(self.clock, metadata={"thread": number}))
            except JobExists:
                return False
            return True

        saved = run_together(save)
        assert sum(saved) == 1
        assert read_job(crowd[0]).metadata == {"thread": saved.index(True)}

    def test_one_of_many_numbers_of_tasks_stays(self, crowd: list[JobStateRepository]) -> None:
        start_job(crowd[0], self.clock, 0)

        def seal(number: int) -> bool:
            try:
                crowd[number].set_total_tasks("job", number)
            except AlreadySealed:
                return False
            return True

        sealed = run_together(seal)
        assert sum(sealed) == 1
        job = read_job(crowd[0])
        assert job.state.total_tasks == job.remaining_tasks == sealed.index(True)
