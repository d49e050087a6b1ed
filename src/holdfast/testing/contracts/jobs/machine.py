"""Any order of calls, from two openings of one store, against the model.

Each call is made to both. They must answer alike, raise alike, and leave the same jobs and
tasks behind.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from holdfast.core.errors import HoldfastError
from holdfast.jobs.model import (
    Callback,
    CallbackState,
    ExportJob,
    JobError,
    JobState,
    JobStatus,
    TaskResult,
    TaskStatus,
    TaskToken,
)
from holdfast.jobs.ports import JobStateRepository
from holdfast.testing import ManualClock
from holdfast.testing.contracts.jobs.support import (
    GIVEN_UP,
    OpenRepository,
    assert_books_agree,
    tasks_of,
)
from holdfast.testing.memory_jobs import JobMemory, MemoryJobs

STEPS = 30
TASKS = 4  # of a job
KEEP = 1_000_000.0
SLOTS = st.integers(0, 1)  # two jobs
WHO = st.integers(0, 1)  # two openings of the store
TOKENS = st.sampled_from([TaskToken("token one"), TaskToken("token two")])
ERRORS = st.sampled_from([None, GIVEN_UP])
SECONDS = st.sampled_from([0.25, 1.0, 30.0])
TASK = st.integers(0, TASKS)  # the last one is unknown, unless all were added
BATCH = st.lists(st.tuples(TASK, st.booleans()), max_size=6)

_numbers = count()


class JobMachine(RuleBasedStateMachine):
    def __init__(self, open_repository: OpenRepository, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.stores = [open_repository(clock, keep_seconds=KEEP) for _ in range(2)]
        self.model = MemoryJobs(JobMemory(), clock, keep_seconds=KEEP)
        number = next(_numbers)  # the store may be one for all examples
        self.ids = [f"{number}-first", f"{number}-second"]

    def teardown(self) -> None:
        for store in self.stores:
            store.close()

    def both(self, who: int, call: Callable[[JobStateRepository], Any]) -> None:
        real, expected = _said(self.stores[who], call), _said(self.model, call)
        assert real == expected

    # -- a life that leads somewhere, most of the time

    @initialize(slot=SLOTS, token=st.none() | TOKENS, tasks=st.integers(0, TASKS))
    def begin(self, slot: int, token: TaskToken | None, tasks: int) -> None:
        self.save(slot, 0, token)
        self.add_tasks(slot, 0, tasks)
        self.update_status(slot, 0, JobStatus.DOWNLOADING, None)

    @rule(slot=SLOTS, who=WHO, fail=st.booleans())
    def finish_all(self, slot: int, who: int, fail: bool) -> None:
        if self.model.find_by_id(self.ids[slot]):
            rows = self.model.tasks(self.ids[slot])
            self.seal(slot, who, len(rows))
            self._record(slot, who, [(row.task_id, not fail) for row in rows])
            self.claim(slot, who)

    # -- every call there is

    @rule(slot=SLOTS, who=WHO, token=st.none() | TOKENS)
    def save(self, slot: int, who: int, token: TaskToken | None) -> None:
        job = ExportJob.create(self.ids[slot], "e", "u", None, token, now=self.clock.time())
        self.both(who, lambda jobs: jobs.save(job))

    @rule(slot=SLOTS, who=WHO, status=st.sampled_from(JobStatus), error=ERRORS)
    def update_status(
        self, slot: int, who: int, status: JobStatus, error: JobError | None
    ) -> None:
        error = error if status is JobStatus.FAILED else None
        self.both(who, lambda jobs: jobs.update_job_status(self.ids[slot], status, error))

    @rule(slot=SLOTS, who=WHO, status=st.sampled_from(JobStatus), off=st.integers(0, 2))
    def update_state(self, slot: int, who: int, status: JobStatus, off: int) -> None:
        job = self.model.find_by_id(self.ids[slot])
        state = job.state if job else JobState()
        # Now and then it was read before somebody else counted.
        state = replace(state, status=status, completed_tasks=state.completed_tasks + off // 2)
        self.both(who, lambda jobs: jobs.update_job_state(self.ids[slot], state))

    @rule(slot=SLOTS, who=WHO, task=st.none() | TASK, success=st.booleans())
    def increment(self, slot: int, who: int, task: int | None, success: bool) -> None:
        job_id = self.ids[slot]
        task_id = None if task is None else _task_id(job_id, task)
        name = "increment_completed_tasks" if success else "increment_failed_tasks"
        self.both(who, lambda jobs: getattr(jobs, name)(job_id, task_id))

    @rule(slot=SLOTS, who=WHO, total=st.integers(0, TASKS))
    def seal(self, slot: int, who: int, total: int) -> None:
        job = self.model.find_by_id(self.ids[slot])
        if job and job.sealed and job.callback.state is not CallbackState.NONE:
            return  # sealed and decided: either refusal will do
        self.both(who, lambda jobs: jobs.set_total_tasks(self.ids[slot], total))

    @rule(slot=SLOTS, who=WHO, tasks=st.integers(0, TASKS))
    def add_tasks(self, slot: int, who: int, tasks: int) -> None:
        job = self.model.find_by_id(self.ids[slot])
        if job and job.sealed and job.callback.state is not CallbackState.NONE:
            return
        added = tasks_of(self.ids[slot], tasks)
        self.both(who, lambda jobs: jobs.add_tasks(self.ids[slot], added))

    @rule(slot=SLOTS, who=WHO, batch=BATCH)
    def record(self, slot: int, who: int, batch: list[tuple[int, bool]]) -> None:
        self._record(slot, who, [(_task_id(self.ids[slot], n), good) for n, good in batch])

    def _record(self, slot: int, who: int, batch: list[tuple[str, bool]]) -> None:
        job_id = self.ids[slot]
        results = [TaskResult(job_id, task_id, good, 3) for task_id, good in batch]
        self.both(who, lambda jobs: jobs.record_results(job_id, results))

    @rule(slot=SLOTS, who=WHO)
    def note_progress(self, slot: int, who: int) -> None:
        self.both(who, lambda jobs: jobs.note_progress(self.ids[slot]))

    @rule(slot=SLOTS, who=WHO)
    def claim(self, slot: int, who: int) -> None:
        self.both(who, lambda jobs: jobs.claim_outcome(self.ids[slot]))

    @rule(slot=SLOTS, who=WHO)
    def give_up(self, slot: int, who: int) -> None:
        self.both(who, lambda jobs: jobs.give_up(self.ids[slot], GIVEN_UP))

    @rule(slot=SLOTS, who=WHO, seconds=SECONDS)
    def begin_callback(self, slot: int, who: int, seconds: float) -> None:
        self.both(
            who, lambda jobs: jobs.begin_callback(self.ids[slot], again_after_seconds=seconds)
        )

    @rule(slot=SLOTS, who=WHO, in_doubt=st.booleans())
    def end_callback(self, slot: int, who: int, in_doubt: bool) -> None:
        self.both(who, lambda jobs: jobs.end_callback(self.ids[slot], in_doubt=in_doubt))

    @rule(slot=SLOTS, who=WHO)
    def settle(self, slot: int, who: int) -> None:
        job = self.model.find_by_id(self.ids[slot])
        callback = job.callback if job else Callback()
        self.both(
            who, lambda jobs: jobs.settle(self.ids[slot], callback.status, callback.error)
        )

    @rule(slot=SLOTS, who=WHO, token=TOKENS)
    def attach(self, slot: int, who: int, token: TaskToken) -> None:
        job = self.model.find_by_id(self.ids[slot])
        if job and job.task_token == token and job.callback.state is not CallbackState.NONE:
            return  # decided, and the same token: a refusal will do as well
        self.both(who, lambda jobs: jobs.attach_token(self.ids[slot], token))

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    # -- what must hold after each of them

    @invariant()
    def the_store_holds_what_the_model_holds(self) -> None:
        for job_id in self.ids:
            job = self.stores[0].find_by_id(job_id)
            assert _seen(job) == _seen(self.model.find_by_id(job_id))
            if job is not None:
                assert_books_agree(self.stores[1], job_id)
                for status in (None, *TaskStatus):
                    assert _rows(self.stores[0], job_id, status) == _rows(
                        self.model, job_id, status
                    )

    @invariant()
    def each_job_is_found_by_its_status(self) -> None:
        for status in JobStatus:
            found = [job.job_id for job in self.stores[0].find_by_status(status)]
            mine = [job.job_id for job in self.model.find_by_status(status)]
            assert sorted(job_id for job_id in found if job_id in self.ids) == sorted(mine)


def _task_id(job_id: str, number: int) -> str:
    return tasks_of(job_id, 1, first=number)[0].task_id


def _said(jobs: JobStateRepository, call: Callable[[JobStateRepository], Any]) -> object:
    """What was answered, or the kind of refusal."""
    try:
        answer = call(jobs)
    except HoldfastError as error:
        return type(error)
    return _seen(answer) if isinstance(answer, ExportJob) else answer


def _seen(job: ExportJob | None) -> ExportJob | None:
    """What is promised of a job, to the letter.

    `updated_at` is left to tests of its own: a call that changes nothing may move it. And
    of a callback that is out nothing but that is of interest.
    """
    if job is None:
        return None
    sent = job.callback.state is CallbackState.SENT
    callback = Callback(CallbackState.SENT) if sent else job.callback
    return replace(job, updated_at=0.0, callback=callback)


def _rows(jobs: JobStateRepository, job_id: str, status: TaskStatus | None) -> object:
    """Rows that stand for an increment without a task have ids of the store's choosing."""
    listed = {task.task_id for task in tasks_of(job_id, TASKS + 1)}
    found = jobs.tasks(job_id, status=status)
    strange = [task.status for task in found if task.task_id not in listed]
    return [task for task in found if task.task_id in listed], sorted(strange)


def run_machine(open_repository: OpenRepository, clock: ManualClock, examples: int) -> None:
    run_state_machine_as_test(
        lambda: JobMachine(open_repository, clock),
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
