"""Compare any order of calls, from two openings of one store, with the model.

Each call is made to both. They must return the same, raise the same, and leave the same
jobs and tasks.
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

from contracts.jobs.model import JobModel
from contracts.jobs.support import (
    CLOSED,
    GIVEN_UP,
    OpenRepository,
    assert_counters_match_rows,
    make_tasks,
)
from holdfast.errors import HoldfastError
from holdfast.exports.model import (
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
from holdfast.exports.ports import JobStateRepository
from holdfast.testing import ManualClock

STEPS = 30
TASKS = 4  # of a job
KEEP = 1_000_000.0
SLOTS = st.integers(0, 1)  # two jobs
OPENINGS = st.integers(0, 1)  # two openings of the store
TOKENS = st.sampled_from([TaskToken(f"token {name}") for name in ("one", "two", "three")])
ERRORS = st.sampled_from([None, GIVEN_UP])
SECONDS = st.sampled_from([0.25, 1.0, 30.0])
GENERATIONS = st.none() | st.integers(0, 2)
TASK = st.integers(0, TASKS)  # the last one is unknown, unless all were added
BATCH = st.lists(st.tuples(TASK, st.booleans()), max_size=6)

_numbers = count()


class JobMachine(RuleBasedStateMachine):
    """Calls a store and the model alike, and compares them after each call."""

    def __init__(self, open_repository: OpenRepository, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.stores = [open_repository(clock, keep_seconds=KEEP) for _ in range(2)]
        self.model = JobModel(clock, keep_seconds=KEEP)
        number = next(_numbers)  # all examples may share one store
        self.ids = [f"{number}-first", f"{number}-second"]

    def teardown(self) -> None:
        """Close the store."""
        for store in self.stores:
            store.close()

    def _compare(self, opening: int, call: Callable[[JobStateRepository], Any]) -> None:
        assert _call(self.stores[opening], call) == _call(self.model, call)

    # -- sequences that finish a job, so that most examples get far

    @initialize(slot=SLOTS, token=st.none() | TOKENS, tasks=st.integers(0, TASKS))
    def begin(self, slot: int, token: TaskToken | None, tasks: int) -> None:
        """Begin a job with tasks."""
        self.save(slot, 0, token)
        self.add_tasks(slot, 0, tasks)
        self.update_status(slot, 0, JobStatus.DOWNLOADING, None)

    @rule(slot=SLOTS, opening=OPENINGS, fail=st.booleans())
    def finish_all(self, slot: int, opening: int, fail: bool) -> None:
        """Seal a job, finish all its tasks and claim its outcome."""
        if self.model.find_by_id(self.ids[slot]):
            rows = self.model.tasks(self.ids[slot])
            self.seal(slot, opening, len(rows))
            self._record(slot, opening, [(row.task_id, not fail) for row in rows])
            self.claim(slot, opening)

    # -- every call of the port

    @rule(slot=SLOTS, opening=OPENINGS, token=st.none() | TOKENS)
    def save(self, slot: int, opening: int, token: TaskToken | None) -> None:
        """Call `save`."""
        job = ExportJob.create(self.ids[slot], "e", "u", None, token, now=self.clock.time())
        self._compare(opening, lambda jobs: jobs.save(job))

    @rule(slot=SLOTS, opening=OPENINGS, status=st.sampled_from(JobStatus), error=ERRORS)
    def update_status(
        self, slot: int, opening: int, status: JobStatus, error: JobError | None
    ) -> None:
        """Call `update_job_status`."""
        error = error if status is JobStatus.FAILED else None
        self._compare(
            opening, lambda jobs: jobs.update_job_status(self.ids[slot], status, error)
        )

    @rule(
        slot=SLOTS, opening=OPENINGS, status=st.sampled_from(JobStatus), off=st.integers(0, 2)
    )
    def update_state(self, slot: int, opening: int, status: JobStatus, off: int) -> None:
        """Call `update_job_state`."""
        job = self.model.find_by_id(self.ids[slot])
        state = job.state if job else JobState()
        # Sometimes the state was read before another process counted.
        state = replace(state, status=status, completed_tasks=state.completed_tasks + off // 2)
        self._compare(opening, lambda jobs: jobs.update_job_state(self.ids[slot], state))

    @rule(slot=SLOTS, opening=OPENINGS, task=st.none() | TASK, success=st.booleans())
    def increment(self, slot: int, opening: int, task: int | None, success: bool) -> None:
        """Call one of the two increments."""
        job_id = self.ids[slot]
        task_id = None if task is None else _task_id(job_id, task)
        name = "increment_completed_tasks" if success else "increment_failed_tasks"
        self._compare(opening, lambda jobs: getattr(jobs, name)(job_id, task_id))

    @rule(slot=SLOTS, opening=OPENINGS, total=st.integers(0, TASKS))
    def seal(self, slot: int, opening: int, total: int) -> None:
        """Call `set_total_tasks`."""
        job = self.model.find_by_id(self.ids[slot])
        if job and job.sealed and job.callback.state is not CallbackState.NONE:
            return  # sealed and decided, so either error is right
        self._compare(opening, lambda jobs: jobs.set_total_tasks(self.ids[slot], total))

    @rule(slot=SLOTS, opening=OPENINGS, tasks=st.integers(0, TASKS))
    def add_tasks(self, slot: int, opening: int, tasks: int) -> None:
        """Call `add_tasks`."""
        job = self.model.find_by_id(self.ids[slot])
        if job and job.sealed and job.callback.state is not CallbackState.NONE:
            return
        added = make_tasks(self.ids[slot], tasks)
        self._compare(opening, lambda jobs: jobs.add_tasks(self.ids[slot], added))

    @rule(slot=SLOTS, opening=OPENINGS, batch=BATCH)
    def record(self, slot: int, opening: int, batch: list[tuple[int, bool]]) -> None:
        """Call `record_results`."""
        self._record(slot, opening, [(_task_id(self.ids[slot], n), good) for n, good in batch])

    def _record(self, slot: int, opening: int, batch: list[tuple[str, bool]]) -> None:
        job_id = self.ids[slot]
        results = [TaskResult(job_id, task_id, good, 3) for task_id, good in batch]
        self._compare(opening, lambda jobs: jobs.record_results(job_id, results))

    @rule(slot=SLOTS, opening=OPENINGS)
    def note_progress(self, slot: int, opening: int) -> None:
        """Call `note_progress`."""
        self._compare(opening, lambda jobs: jobs.note_progress(self.ids[slot]))

    @rule(slot=SLOTS, opening=OPENINGS)
    def claim(self, slot: int, opening: int) -> None:
        """Call `claim_outcome`."""
        self._compare(opening, lambda jobs: jobs.claim_outcome(self.ids[slot]))

    @rule(slot=SLOTS, opening=OPENINGS)
    def give_up(self, slot: int, opening: int) -> None:
        """Call `give_up`."""
        self._compare(opening, lambda jobs: jobs.give_up(self.ids[slot], GIVEN_UP))

    @rule(slot=SLOTS, opening=OPENINGS, seconds=SECONDS)
    def begin_callback(self, slot: int, opening: int, seconds: float) -> None:
        """Call `begin_callback`."""
        self._compare(
            opening,
            lambda jobs: jobs.begin_callback(self.ids[slot], again_after_seconds=seconds),
        )

    @rule(slot=SLOTS, opening=OPENINGS, in_doubt=st.booleans(), generation=GENERATIONS)
    def end_callback(
        self, slot: int, opening: int, in_doubt: bool, generation: int | None
    ) -> None:
        """Call `end_callback`."""
        self._compare(
            opening,
            lambda jobs: jobs.end_callback(
                self.ids[slot], in_doubt=in_doubt, generation=generation
            ),
        )

    @rule(slot=SLOTS, opening=OPENINGS, closed=st.booleans(), generation=GENERATIONS)
    def settle(self, slot: int, opening: int, closed: bool, generation: int | None) -> None:
        """Call `settle` with the decided outcome, or because the token was closed."""
        job = self.model.find_by_id(self.ids[slot])
        callback = job.callback if job else Callback()
        status, error = callback.status, callback.error
        if closed:
            status, error = JobStatus.FAILED, CLOSED
        self._compare(
            opening,
            lambda jobs: jobs.settle(self.ids[slot], status, error, generation=generation),
        )

    @rule(slot=SLOTS, opening=OPENINGS, token=TOKENS)
    def note_closed(self, slot: int, opening: int, token: TaskToken) -> None:
        """Call `note_token_closed`."""
        self._compare(
            opening, lambda jobs: jobs.note_token_closed(self.ids[slot], token, CLOSED)
        )

    @rule(slot=SLOTS, opening=OPENINGS, seconds=SECONDS)
    def give_up_closed(self, slot: int, opening: int, seconds: float) -> None:
        """Call `give_up_closed`."""
        self._compare(
            opening, lambda jobs: jobs.give_up_closed(self.ids[slot], grace_seconds=seconds)
        )

    @rule(slot=SLOTS, opening=OPENINGS, token=TOKENS)
    def attach(self, slot: int, opening: int, token: TaskToken) -> None:
        """Call `attach_token`."""
        job = self.model.find_by_id(self.ids[slot])
        if job and job.task_token == token and job.callback.state is not CallbackState.NONE:
            return  # decided, with the same token, so an error would be right as well
        self._compare(opening, lambda jobs: jobs.attach_token(self.ids[slot], token))

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        """Advance the clock."""
        self.clock.advance(seconds)

    # -- what must hold after each call

    @invariant()
    def the_store_holds_what_the_model_holds(self) -> None:
        """Check that jobs and tasks are the same."""
        for job_id in self.ids:
            job = self.stores[0].find_by_id(job_id)
            assert _normalize(job) == _normalize(self.model.find_by_id(job_id))
            if job is not None:
                assert_counters_match_rows(self.stores[1], job_id)
                for status in (None, *TaskStatus):
                    assert _read_rows(self.stores[0], job_id, status) == _read_rows(
                        self.model, job_id, status
                    )

    @invariant()
    def each_job_is_found_by_its_status(self) -> None:
        """Check that `find_by_status` lists the same jobs."""
        for status in JobStatus:
            stored = [job.job_id for job in self.stores[0].find_by_status(status)]
            expected = [job.job_id for job in self.model.find_by_status(status)]
            assert sorted(job_id for job_id in stored if job_id in self.ids) == sorted(expected)


def _task_id(job_id: str, number: int) -> str:
    return make_tasks(job_id, 1, first=number)[0].task_id


def _call(jobs: JobStateRepository, call: Callable[[JobStateRepository], Any]) -> object:
    """Return what the call returns, or the type of its error."""
    try:
        result = call(jobs)
    except HoldfastError as error:
        return type(error)
    return _normalize(result) if isinstance(result, ExportJob) else result


def _normalize(job: ExportJob | None) -> ExportJob | None:
    """Return the job without the values that the port does not promise exactly.

    `updated_at` has tests of its own, because a call that changes nothing may move it. Of a
    callback that was sent, only that state is promised.
    """
    if job is None:
        return None
    sent = job.callback.state is CallbackState.SENT
    callback = Callback(CallbackState.SENT) if sent else job.callback
    return replace(job, updated_at=0.0, callback=callback)


def _read_rows(jobs: JobStateRepository, job_id: str, status: TaskStatus | None) -> object:
    """Return the listed rows, and only the status of the others.

    Rows of increments without a task have ids that the store chooses.
    """
    listed = {task.task_id for task in make_tasks(job_id, TASKS + 1)}
    tasks = jobs.tasks(job_id, status=status)
    others = [task.status for task in tasks if task.task_id not in listed]
    return [task for task in tasks if task.task_id in listed], sorted(others)


def run_machine(open_repository: OpenRepository, clock: ManualClock, examples: int) -> None:
    """Run the machine with so many examples."""
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
