"""Jobs are made once, by `save` alone, and come back as they were."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from holdfast.jobs.errors import JobExists, JobNotFound
from holdfast.jobs.model import JobState, JobStatus, TaskToken
from holdfast.jobs.ports import JobStateRepository
from holdfast.testing import ManualClock
from holdfast.testing.contracts.jobs.support import (
    GIVEN_UP,
    TOKEN,
    OpenRepository,
    counters,
    job_of,
    new_job,
    rows,
    started,
    succeeded,
    tasks_of,
)

NOBODY = "nobody"
METADATA = {
    "text": "日本語 \U0001f642 \n",
    "empty": "",
    "number": 3,
    "negative": -1,
    "large": 2**53,
    "fraction": 0.1,
    "yes": True,
    "no": False,
    "nothing": None,
    "list": [1, "two", [3.5], {}],
    "map": {"inner": {"deep": [None]}, "with.dot": 1},
}
HOSTILE_IDS = [
    "日本語のタスク",
    "a'; DROP TABLE jobs; --",
    "a\nb",
    "../../x",
    "#status",
    "x" * 255,
]
WRITES: dict[str, Callable[[JobStateRepository], object]] = {
    "update_job_status": lambda r: r.update_job_status(NOBODY, JobStatus.DOWNLOADING),
    "update_job_status to the first one": lambda r: r.update_job_status(
        NOBODY, JobStatus.PROCESSING
    ),
    "update_job_state": lambda r: r.update_job_state(NOBODY, JobState(JobStatus.DOWNLOADING)),
    "increment_completed_tasks": lambda r: r.increment_completed_tasks(NOBODY),
    "increment_completed_tasks of a task": lambda r: r.increment_completed_tasks(NOBODY, "t"),
    "increment_failed_tasks": lambda r: r.increment_failed_tasks(NOBODY),
    "increment_failed_tasks of a task": lambda r: r.increment_failed_tasks(NOBODY, "t"),
    "set_total_tasks": lambda r: r.set_total_tasks(NOBODY, 3),
    "set_total_tasks to none": lambda r: r.set_total_tasks(NOBODY, 0),
    "add_tasks": lambda r: r.add_tasks(NOBODY, tasks_of(NOBODY, 3)),
    "add_tasks without any": lambda r: r.add_tasks(NOBODY, []),
    "tasks": lambda r: r.tasks(NOBODY),
    "record_results": lambda r: r.record_results(
        NOBODY, [succeeded(task) for task in tasks_of(NOBODY, 3)]
    ),
    "record_results without any": lambda r: r.record_results(NOBODY, []),
    "note_progress": lambda r: r.note_progress(NOBODY),
    "claim_outcome": lambda r: r.claim_outcome(NOBODY),
    "give_up": lambda r: r.give_up(NOBODY, GIVEN_UP),
    "begin_callback": lambda r: r.begin_callback(NOBODY, again_after_seconds=0.0),
    "end_callback": lambda r: r.end_callback(NOBODY, in_doubt=True),
    "settle": lambda r: r.settle(NOBODY, JobStatus.FAILED, GIVEN_UP),
    "attach_token": lambda r: r.attach_token(NOBODY, TOKEN),
}


class SavePromises:
    """R004-048, R004-051…065, R004-082…087, R004-187, R004-188; JB-14, JB-36."""

    def test_a_job_comes_back_as_it_was_saved(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        job = new_job(clock, task_token=TOKEN, metadata=METADATA)
        repository.save(job)
        assert repository.find_by_id("job") == job
        assert job_of(repository).status is JobStatus.PROCESSING
        assert job_of(repository).state.total_tasks == 0

    def test_a_job_without_token_and_metadata_comes_back_without(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        repository.save(new_job(clock))
        job = job_of(repository)
        assert not job.has_task_token()
        assert job.metadata == {}
        assert (job.error, job.completed_at, job.ttl) == (None, None, None)
        assert job.created_at == job.updated_at == job.last_progress_at == clock.time()

    def test_the_longest_token_there_may_be_comes_back_whole(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        token = TaskToken("AQ" * 1024)
        repository.save(new_job(clock, task_token=token))
        assert job_of(repository).task_token == token

    def test_a_job_is_there_for_whoever_opens_the_store_later(
        self, open_repository: OpenRepository, clock: ManualClock
    ) -> None:
        """R004-051: state survives the process that wrote it."""
        with open_repository(clock) as first:
            tasks = started(first, clock)
            first.record_results("job", [succeeded(tasks[0])])
        second = open_repository(clock)
        assert counters(second) == (1, 0)
        assert [task.task_id for task in rows(second)] == [task.task_id for task in tasks]

    def test_saving_an_id_again_is_refused_and_changes_nothing(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = started(repository, clock, task_token=TOKEN)
        repository.record_results("job", [succeeded(tasks[0])])
        before = job_of(repository)
        clock.advance(1.0)
        with pytest.raises(JobExists):
            repository.save(replace(new_job(clock), user_id="somebody else"))
        assert job_of(repository) == before
        assert len(rows(repository)) == 3

    def test_there_is_no_job_that_nobody_saved(self, repository: JobStateRepository) -> None:
        assert repository.find_by_id(NOBODY) is None

    @pytest.mark.parametrize("write", WRITES)
    def test_no_call_makes_up_a_job(
        self, repository: JobStateRepository, clock: ManualClock, write: str
    ) -> None:
        with pytest.raises(JobNotFound):
            WRITES[write](repository)
        assert repository.find_by_id(NOBODY) is None
        assert [job for status in JobStatus for job in repository.find_by_status(status)] == []
        # Nor rows, which a job of that id would find later and count as its own.
        repository.save(new_job(clock, NOBODY))
        assert repository.tasks(NOBODY) == []

    @pytest.mark.parametrize("job_id", HOSTILE_IDS)
    def test_any_text_is_an_id(
        self, repository: JobStateRepository, clock: ManualClock, job_id: str
    ) -> None:
        tasks = started(repository, clock, 1, job_id=job_id)
        assert repository.record_results(job_id, [succeeded(tasks[0])]) == 1
        assert counters(repository, job_id) == (1, 0)

    def test_jobs_do_not_share_tasks_or_counters(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        mine = started(repository, clock, job_id="job")
        started(repository, clock, job_id="job2")
        repository.record_results("job", [succeeded(task) for task in mine])
        assert counters(repository, "job") == (3, 0)
        assert counters(repository, "job2") == (0, 0)
        assert repository.record_results("job2", [succeeded(mine[0])]) == 0
