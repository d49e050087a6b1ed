"""Promises about storing and finding jobs and tasks."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from contracts.jobs.support import (
    CLOSED,
    GIVEN_UP,
    MANY,
    TOKEN,
    JobPromises,
    OpenRepository,
    assert_counters_match_rows,
    decide_job,
    make_failure,
    make_success,
    make_tasks,
    new_job,
    read_counters,
    read_job,
    read_rows,
    start_job,
    start_sealed_job,
)
from holdfast.exports.errors import AlreadySealed, JobClosed, JobExists, JobNotFound
from holdfast.exports.model import ExportTask, JobState, JobStatus, TaskStatus, TaskToken
from holdfast.exports.ports import JobStateRepository

UNKNOWN = "unknown"
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
    "update_job_status": lambda r: r.update_job_status(UNKNOWN, JobStatus.DOWNLOADING),
    "update_job_status to the first one": lambda r: r.update_job_status(
        UNKNOWN, JobStatus.PROCESSING
    ),
    "update_job_state": lambda r: r.update_job_state(UNKNOWN, JobState(JobStatus.DOWNLOADING)),
    "increment_completed_tasks": lambda r: r.increment_completed_tasks(UNKNOWN),
    "increment_completed_tasks of a task": lambda r: r.increment_completed_tasks(UNKNOWN, "t"),
    "increment_failed_tasks": lambda r: r.increment_failed_tasks(UNKNOWN),
    "increment_failed_tasks of a task": lambda r: r.increment_failed_tasks(UNKNOWN, "t"),
    "set_total_tasks": lambda r: r.set_total_tasks(UNKNOWN, 3),
    "set_total_tasks to none": lambda r: r.set_total_tasks(UNKNOWN, 0),
    "add_tasks": lambda r: r.add_tasks(UNKNOWN, make_tasks(UNKNOWN, 3)),
    "add_tasks without any": lambda r: r.add_tasks(UNKNOWN, []),
    "tasks": lambda r: r.tasks(UNKNOWN),
    "record_results": lambda r: r.record_results(
        UNKNOWN, [make_success(task) for task in make_tasks(UNKNOWN, 3)]
    ),
    "record_results without any": lambda r: r.record_results(UNKNOWN, []),
    "note_progress": lambda r: r.note_progress(UNKNOWN),
    "claim_outcome": lambda r: r.claim_outcome(UNKNOWN),
    "give_up": lambda r: r.give_up(UNKNOWN, GIVEN_UP),
    "begin_callback": lambda r: r.begin_callback(UNKNOWN, again_after_seconds=0.0),
    "end_callback": lambda r: r.end_callback(UNKNOWN, in_doubt=True),
    "settle": lambda r: r.settle(UNKNOWN, JobStatus.FAILED, GIVEN_UP),
    "note_token_closed": lambda r: r.note_token_closed(UNKNOWN, TOKEN, CLOSED),
    "give_up_closed": lambda r: r.give_up_closed(UNKNOWN, grace_seconds=0.0),
    "attach_token": lambda r: r.attach_token(UNKNOWN, TOKEN),
}


class SavePromises(JobPromises):
    """The promises of `save` and `find_by_id`.

    (JB-14, JB-36).
    """

    @pytest.mark.requirement("R004-187", "R004-188")
    def test_a_job_comes_back_as_it_was_saved(self) -> None:
        job = new_job(self.clock, task_token=TOKEN, metadata=METADATA)
        self.jobs.save(job)
        assert self.jobs.find_by_id("job") == job
        assert read_job(self.jobs).status is JobStatus.PROCESSING
        assert read_job(self.jobs).state.total_tasks == 0

    @pytest.mark.requirement("R004-062")
    def test_a_job_without_token_and_metadata_comes_back_without(self) -> None:
        self.jobs.save(new_job(self.clock))
        job = read_job(self.jobs)
        assert not job.has_task_token()
        assert job.metadata == {}
        assert (job.error, job.completed_at, job.ttl) == (None, None, None)
        assert job.created_at == job.updated_at == job.last_progress_at == self.clock.time()

    def test_a_token_of_the_maximum_length_comes_back_whole(self) -> None:
        token = TaskToken("AQ" * 1024)
        self.jobs.save(new_job(self.clock, task_token=token))
        assert read_job(self.jobs).task_token == token

    @pytest.mark.requirement("R004-051")
    def test_a_job_is_readable_after_the_store_was_opened_again(
        self, open_repository: OpenRepository
    ) -> None:
        """State survives the process that wrote it."""
        with open_repository(self.clock) as first:
            tasks = start_job(first, self.clock)
            first.record_results("job", [make_success(tasks[0])])
        second = open_repository(self.clock)
        assert read_counters(second) == (1, 0)
        assert [task.task_id for task in read_rows(second)] == [task.task_id for task in tasks]

    @pytest.mark.requirement("R004-187")
    def test_saving_an_id_again_is_refused_and_changes_nothing(self) -> None:
        tasks = start_job(self.jobs, self.clock, task_token=TOKEN)
        self.jobs.record_results("job", [make_success(tasks[0])])
        before = read_job(self.jobs)
        self.clock.advance(1.0)
        with pytest.raises(JobExists):
            self.jobs.save(replace(new_job(self.clock), user_id="another"))
        assert read_job(self.jobs) == before
        assert len(read_rows(self.jobs)) == 3

    @pytest.mark.requirement("R004-188")
    def test_a_job_that_was_never_saved_does_not_exist(self) -> None:
        assert self.jobs.find_by_id(UNKNOWN) is None

    @pytest.mark.parametrize("write", WRITES)
    def test_only_save_creates_a_job(self, write: str) -> None:
        with pytest.raises(JobNotFound):
            WRITES[write](self.jobs)
        assert self.jobs.find_by_id(UNKNOWN) is None
        assert [job for status in JobStatus for job in self.jobs.find_by_status(status)] == []
        # No task rows either, because a later job of that id would count them as its own.
        self.jobs.save(new_job(self.clock, UNKNOWN))
        assert self.jobs.tasks(UNKNOWN) == []

    @pytest.mark.parametrize("job_id", HOSTILE_IDS)
    def test_any_text_is_an_id(self, job_id: str) -> None:
        tasks = start_job(self.jobs, self.clock, 1, job_id=job_id)
        assert self.jobs.record_results(job_id, [make_success(tasks[0])]) == 1
        assert read_counters(self.jobs, job_id) == (1, 0)

    def test_jobs_do_not_share_tasks_or_counters(self) -> None:
        tasks = start_job(self.jobs, self.clock, job_id="job")
        start_job(self.jobs, self.clock, job_id="job2")
        self.jobs.record_results("job", [make_success(task) for task in tasks])
        assert read_counters(self.jobs, "job") == (3, 0)
        assert read_counters(self.jobs, "job2") == (0, 0)
        assert self.jobs.record_results("job2", [make_success(tasks[0])]) == 0


JOBS = 40
LARGE = "x" * 40_000
"""Metadata. Forty of these are more than the megabyte that DynamoDB returns at once."""


class LookupPromises(JobPromises):
    """The promises of `find_by_status` (JB-23)."""

    @pytest.mark.requirement("R004-198")
    @pytest.mark.parametrize("status", JobStatus)
    def test_an_empty_store_has_no_jobs_of_any_status(self, status: JobStatus) -> None:
        assert self.jobs.find_by_status(status) == []

    @pytest.mark.requirement("R004-091", "R004-193", "R004-199")
    def test_jobs_are_found_whole_with_and_without_token(self) -> None:
        with_token = new_job(self.clock, "with", task_token=TOKEN, metadata={"a": [1]})
        without_token = new_job(self.clock, "without")
        self.jobs.save(with_token)
        self.jobs.save(without_token)
        start_job(self.jobs, self.clock, job_id="another")
        jobs = self.jobs.find_by_status(JobStatus.PROCESSING)
        assert sorted(jobs, key=lambda job: job.job_id) == [with_token, without_token]
        assert [j.job_id for j in self.jobs.find_by_status(JobStatus.DOWNLOADING)] == [
            "another"
        ]

    @pytest.mark.requirement("R004-193", "R004-195")
    def test_all_pages_are_read(self) -> None:
        for n in range(JOBS):
            self.jobs.save(new_job(self.clock, f"{n:02}", metadata={"large": LARGE}))
        jobs = self.jobs.find_by_status(JobStatus.PROCESSING)
        assert sorted(job.job_id for job in jobs) == [f"{n:02}" for n in range(JOBS)]

    @pytest.mark.requirement("R004-127")
    def test_a_job_is_found_by_its_current_status(self) -> None:
        decide_job(self.jobs, self.clock)
        assert [j.job_id for j in self.jobs.find_by_status(JobStatus.DOWNLOADING)] == ["job"]
        self.jobs.settle("job", JobStatus.FAILED, GIVEN_UP)
        assert self.jobs.find_by_status(JobStatus.DOWNLOADING) == []
        [job] = self.jobs.find_by_status(JobStatus.FAILED)
        assert (job.error, job.task_token) == (GIVEN_UP, None)


class ListingPromises(JobPromises):
    """The promises about task rows (JB-15, JB-16)."""

    def test_a_task_comes_back_as_it_was_added(self) -> None:
        self.jobs.save(new_job(self.clock))
        full = ExportTask.create(
            "job", "https://a.example/ä?x=1&y", "ä/b c", "sha256:00", 2**40
        )
        bare = ExportTask.create("job", "https://a.example/", "k")
        self.jobs.add_tasks("job", (task for task in (full, bare)))
        assert sorted(read_rows(self.jobs), key=lambda t: t.key) == [bare, full]

    def test_listing_a_job_twice_keeps_what_is_finished(self) -> None:
        tasks = start_job(self.jobs, self.clock, 3)
        self.jobs.record_results("job", [make_success(tasks[0]), make_failure(tasks[1])])
        before = read_rows(self.jobs)
        self.jobs.add_tasks("job", [*tasks, *tasks])
        assert read_rows(self.jobs) == before
        assert_counters_match_rows(self.jobs)

    def test_tasks_are_stored_as_pending_even_with_another_status(self) -> None:
        """A finished row that was not counted would make the job wait for ever."""
        self.jobs.save(new_job(self.clock))
        [task] = make_tasks("job", 1)
        self.jobs.add_tasks("job", [replace(task, status=TaskStatus.COMPLETED)])
        assert read_rows(self.jobs) == [task]

    def test_more_tasks_than_a_transaction_takes_are_all_stored(self) -> None:
        self.jobs.save(new_job(self.clock))
        tasks = make_tasks("job", MANY)
        self.jobs.add_tasks("job", tasks[100:180])
        self.jobs.add_tasks("job", tasks)
        assert self.jobs.tasks("job") == tasks

    def test_a_sealed_job_takes_no_tasks_not_even_its_own(self) -> None:
        tasks = start_sealed_job(self.jobs, self.clock, 3)
        before = read_job(self.jobs)
        for more in (
            tasks,
            make_tasks("job", 1, first=100),
            make_tasks("job", MANY, first=100),
        ):
            with pytest.raises(AlreadySealed):
                self.jobs.add_tasks("job", more)
        assert read_job(self.jobs) == before
        assert read_rows(self.jobs) == tasks

    @pytest.mark.parametrize("ended", [False, True])
    def test_a_job_whose_outcome_is_decided_takes_no_tasks(self, ended: bool) -> None:
        tasks = start_job(self.jobs, self.clock, 3)
        self.jobs.give_up("job", GIVEN_UP)
        if ended:
            self.jobs.settle("job", JobStatus.FAILED, GIVEN_UP)
        with pytest.raises(JobClosed):
            self.jobs.add_tasks("job", make_tasks("job", 1, first=100))
        assert read_rows(self.jobs) == tasks

    # -- pages

    def test_pages_begin_behind_the_last_task_of_the_one_before(self) -> None:
        tasks = start_job(self.jobs, self.clock, 5)
        assert self.jobs.tasks("job", limit=2) == tasks[:2]
        assert self.jobs.tasks("job", limit=2, after=tasks[1].task_id) == tasks[2:4]
        assert self.jobs.tasks("job", limit=2, after=tasks[3].task_id) == tasks[4:]
        assert self.jobs.tasks("job", limit=5) == tasks
        assert self.jobs.tasks("job", after=tasks[4].task_id) == []

    def test_a_page_may_begin_behind_a_task_that_is_not_there(self) -> None:
        tasks = start_job(self.jobs, self.clock, 3)
        assert self.jobs.tasks("job", after="0") == tasks
        assert self.jobs.tasks("job", after=tasks[0].task_id + "x") == tasks[1:]
        assert self.jobs.tasks("job", after="zzz") == []

    def test_a_status_is_asked_for_across_pages(self) -> None:
        tasks = start_job(self.jobs, self.clock, 9)
        self.jobs.record_results("job", [make_success(task) for task in tasks[1::3]])
        self.jobs.record_results("job", [make_failure(task) for task in tasks[2::3]])
        pending = [task.task_id for task in tasks[0::3]]
        first = self.jobs.tasks("job", status=TaskStatus.PENDING, limit=2)
        assert [task.task_id for task in first] == pending[:2]
        last = self.jobs.tasks("job", status=TaskStatus.PENDING, limit=2, after=pending[1])
        assert [task.task_id for task in last] == pending[2:]
        for status, expected in (
            (TaskStatus.COMPLETED, tasks[1::3]),
            (TaskStatus.FAILED, tasks[2::3]),
        ):
            listed = self.jobs.tasks("job", status=status)
            assert [task.task_id for task in listed] == [task.task_id for task in expected]

    def test_few_tasks_of_a_status_are_found_among_many(self) -> None:
        """A page of the store may contain no requested task and still not be the last one."""
        tasks = start_job(self.jobs, self.clock, MANY)
        wanted = [tasks[-1], tasks[MANY // 2]]
        self.jobs.record_results("job", [make_failure(task) for task in wanted])
        listed = self.jobs.tasks("job", status=TaskStatus.FAILED, limit=2)
        assert [task.task_id for task in listed] == [
            tasks[MANY // 2].task_id,
            tasks[-1].task_id,
        ]
