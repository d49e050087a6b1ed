"""Heartbeats for jobs of other processes: none while they make progress, all after a crash."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from holdfast.exports.errors import CallbackRefused
from holdfast.exports.model import ExportJob, JobStatus
from holdfast.exports.orchestrator import HeartbeatOrchestrator
from support.exports.orchestrator import World
from support.exports.simulated_step_functions import SimulatedStepFunctions, TokenState

INTERVAL = 30.0
PROGRESS = 10.0  # how often a process notes the progress of its jobs


class CountingStepFunctions(SimulatedStepFunctions):
    """Counts the heartbeats of one process, and passes them on."""

    def __init__(self, world: World) -> None:
        self._service, self.beats = world.service, 0

    def send_task_heartbeat(self, token: object) -> None:
        self.beats += 1
        self._service.send_task_heartbeat(token)  # type: ignore[arg-type]


class Processes:
    """A process that works on a job, and others that watch it."""

    def __init__(self, *, watchers: int = 1, late_seconds: float = 0.0) -> None:
        self.world = world = World(heartbeat_seconds=3 * INTERVAL)
        self.skew_seconds = 0.0  # of the holder's clock
        self.holder, self.beats_of_holder = self._start()
        world.let_pass(late_seconds, self.holder)
        self.watchers, self.beats_of_watchers = zip(
            *(self._start() for _ in range(watchers)), strict=True
        )
        self.progress_at = world.clock.monotonic()

    def _start(self) -> tuple[HeartbeatOrchestrator, CountingStepFunctions]:
        service = CountingStepFunctions(self.world)
        return self.world.make_orchestrator(step_functions=service), service

    def receive(self) -> ExportJob:
        """Let the holder receive a new job."""
        self.job = self.world.add_job("a")
        self._move()
        self.holder.beat_now(self.job)
        return self.job

    def _move(self) -> None:
        at = self.world.clock.time() + self.skew_seconds
        self.world.store.put(replace(self.job, last_progress_at=at))

    def work(self, seconds: float, *, moves: bool = True) -> None:
        """Let the holder work on the job, with progress every ten seconds."""
        end = self.world.clock.monotonic() + seconds
        while (now := self.world.clock.monotonic()) < end:
            self.world.let_pass(
                min(max(0.0, self.progress_at - now), end - now), self.holder, *self.watchers
            )
            if self.world.clock.monotonic() >= self.progress_at:
                self.progress_at += PROGRESS
                if moves:
                    self._move()

    def crash(self) -> None:
        """Let the holder send nothing more, as after SIGKILL."""
        self.holder.stop()

    def watch(self, seconds: float) -> None:
        """Let the others go on without the holder."""
        self.world.let_pass(seconds, *self.watchers)

    def count_watchers_beats(self) -> int:
        return sum(service.beats for service in self.beats_of_watchers)

    def measure_gap(self) -> float:
        assert self.job.task_token is not None
        assert self.world.service.state(self.job.task_token) is TokenState.OPEN
        return self.world.service.measure_max_gap(self.job.task_token)

    def stop(self) -> None:
        for orchestrator in (self.world.orchestrator, self.holder, *self.watchers):
            orchestrator.stop()


@pytest.fixture
def processes() -> Iterator[Processes]:
    processes = Processes(watchers=3)
    yield processes
    processes.stop()


def test_a_process_that_makes_progress_sends_the_heartbeats_alone(processes: Processes) -> None:
    processes.receive()
    processes.work(600)
    assert processes.beats_of_holder.beats in (20, 21)
    assert processes.count_watchers_beats() == 0
    assert processes.measure_gap() <= INTERVAL + 0.001


def test_the_process_of_a_job_beats_for_it_without_any_progress(processes: Processes) -> None:
    """The others beat, too, because they cannot tell a slow source from a crash."""
    processes.receive()
    processes.work(300, moves=False)
    assert processes.beats_of_holder.beats in (10, 11)
    assert processes.count_watchers_beats() > 20
    processes.work(60)
    before = processes.count_watchers_beats()
    processes.work(100)
    assert processes.count_watchers_beats() == before  # it moves again


def test_a_stalled_job_that_moves_again_gets_heartbeats_of_its_process(
    processes: Processes,
) -> None:
    processes.receive()
    processes.skew_seconds = -4000.0  # so it seems stalled
    processes.work(60)
    before = processes.beats_of_holder.beats
    processes.work(60)
    assert processes.beats_of_holder.beats == before
    processes.skew_seconds = 0.0
    processes.work(130)
    assert processes.beats_of_holder.beats >= before + 4


@pytest.mark.parametrize("late_seconds", [0.1, 4.9, 9.9, 14.9])
@pytest.mark.parametrize("crash_seconds", [0.5, 10.1, 17.3, 29.9, 31.0, 44.9, 59.5])
def test_after_a_crash_the_gap_is_at_most_two_intervals(
    late_seconds: float, crash_seconds: float
) -> None:
    """Whenever the process dies, and wherever in its interval the one that is left is."""
    processes = Processes(late_seconds=late_seconds)
    processes.receive()
    processes.work(60 + crash_seconds)
    processes.crash()
    processes.watch(150)
    assert processes.measure_gap() <= 2 * INTERVAL + 0.001
    assert processes.count_watchers_beats() >= 3
    processes.stop()


@pytest.mark.parametrize("skew_seconds", [-600.0, -20.0, 20.0, 600.0])
def test_a_clock_that_differs_loses_no_token(skew_seconds: float) -> None:
    """The clock of the process with the job is behind, or ahead."""
    processes = Processes(late_seconds=7.0)
    processes.skew_seconds = skew_seconds
    processes.receive()
    processes.work(300)
    assert processes.count_watchers_beats() <= 2  # until its second listing
    processes.crash()
    processes.watch(120)
    assert processes.measure_gap() <= 2 * INTERVAL + 0.001
    processes.stop()


def test_a_process_that_starts_beats_at_once_for_jobs_without_a_process() -> None:
    """All processes had crashed, and no earlier listing says that nothing moves."""
    world = World()
    job = world.add_job("a", last_progress_at=world.clock.time() - INTERVAL)
    world.let_pass(0)
    assert world.list_beats(job) == [0.0]
    world.orchestrator.stop()


@pytest.mark.parametrize("status", [JobStatus.PROCESSING, JobStatus.DOWNLOADING])
def test_a_job_that_waits_for_its_message_gets_heartbeats(status: JobStatus) -> None:
    processes = Processes(late_seconds=3.0)
    job = processes.receive()
    processes.job = replace(job, state=replace(job.state, status=status))
    processes.work(45)
    processes.holder.forget("a")
    processes.watch(300)
    assert processes.measure_gap() <= 2 * INTERVAL + 0.001
    processes.stop()


def test_a_listing_that_fails_changes_nothing(processes: Processes) -> None:
    job = processes.receive()
    processes.work(60)
    processes.world.store.down = True
    processes.work(60, moves=False)
    processes.world.store.down = False
    processes.world.store.put(replace(job, last_progress_at=processes.world.clock.time()))
    processes.work(20)
    assert processes.count_watchers_beats() == 0


# -- refused heartbeats


class LimitedStepFunctions(SimulatedStepFunctions):
    """Accepts a limited number of heartbeats in each interval, the first ones."""

    def __init__(self, world: World, limit: int) -> None:
        self._service, self._clock_of_world, self._limit = world.service, world.clock, limit
        self._accepted: dict[float, int] = {}

    def send_task_heartbeat(self, token: object) -> None:
        interval = self._clock_of_world.monotonic() // INTERVAL
        if self._accepted.get(interval, 0) >= self._limit:
            raise CallbackRefused("Step Functions refused the call (ThrottlingException)")
        self._accepted[interval] = self._accepted.get(interval, 0) + 1
        self._service.send_task_heartbeat(token)  # type: ignore[arg-type]


def test_no_job_is_refused_again_and_again() -> None:
    """Step Functions accepts six heartbeats in ten, always the first ones of an interval."""
    world = World(heartbeat_seconds=4 * INTERVAL)
    orchestrator = world.make_orchestrator(step_functions=LimitedStepFunctions(world, 60))
    jobs = [world.add_job(f"job-{n}") for n in range(100)]
    for job in jobs:
        orchestrator.beat_now(job)
    world.let_pass(20 * INTERVAL, orchestrator, step=0.2)
    assert {world.service.state(job.task_token) for job in jobs} == {TokenState.OPEN}
    orchestrator.stop()


def test_a_refused_heartbeat_of_another_process_waits_for_the_next_interval() -> None:
    """Every other process sends it as well, so retries would only use up the quota."""
    world = World(heartbeat_seconds=1e6)
    service = CountingStepFunctions(world)
    watcher = world.make_orchestrator(step_functions=service)
    world.add_job("a")
    world.service.throttle(1000)
    world.let_pass(10 * INTERVAL - 1, watcher)
    assert service.beats in (10, 11)
    watcher.stop()
