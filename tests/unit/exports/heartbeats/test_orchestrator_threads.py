"""The start and stop of the orchestrator, and its real threads when one of them hangs."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.exports import events as ev
from holdfast.exports.model import ExportJob, TaskToken
from holdfast.lease.clock import SYSTEM_CLOCK
from support.exports.orchestrator import World
from support.exports.simulated_step_functions import SimulatedStepFunctions
from support.leftovers import Leftovers
from support.waiting import wait_until


class Gate:
    """Holds every caller until it is opened."""

    def __init__(self) -> None:
        self.calls = 0
        self.waiting = 0
        self.max_waiting = 0
        self._open = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, *_: Any) -> None:
        with self._lock:
            self.calls += 1
            self.waiting += 1
            self.max_waiting = max(self.max_waiting, self.waiting)
        self._open.wait(20)
        with self._lock:
            self.waiting -= 1

    def open(self) -> None:
        """Let all callers go on."""
        self._open.set()


class Gated(SimulatedStepFunctions):
    """Heartbeats of some tokens hang until the gate opens."""

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self.gate = Gate()
        self.hang: set[TaskToken] = set()

    def send_task_heartbeat(self, token: TaskToken) -> None:
        if token in self.hang:
            self.gate()
        super().send_task_heartbeat(token)


class GatedWorld(World):
    """A world in which the heartbeats of some jobs hang."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.service: Gated = Gated(self.clock)
        self.orchestrator = self.make_orchestrator(**options)

    def add_hanging_job(self, job_id: str) -> ExportJob:
        """Store a job whose heartbeat hangs."""
        job = self.add_job(job_id)
        assert job.task_token is not None
        self.service.hang.add(job.task_token)
        return job


@pytest.fixture
def world() -> Iterator[GatedWorld]:
    world = GatedWorld()
    yield world
    world.service.gate.open()
    world.orchestrator.stop()


def list_own_threads() -> list[str]:
    """Return the names of the threads that the orchestrator and the reconciler started."""
    names = (
        "holdfast-heartbeat",
        "holdfast-active-jobs",
        "holdfast-token-closed",
        "holdfast-reconciler",
    )
    return [t.name for t in threading.enumerate() if t.name.startswith(names)]


def let_loops_run(
    world: World, seconds: float, until: Callable[[], bool], *, stuck: int = 1
) -> None:
    """Advance the clock of a started orchestrator in small steps.

    The next step waits until the loop waits again and no more than `stuck` calls are in
    flight, so a slow machine makes no heartbeat late.
    """

    def has_caught_up() -> bool:
        return world.clock.waiting > 0 and world.orchestrator.in_flight <= stuck

    end = world.clock.monotonic() + seconds
    while world.clock.monotonic() < end:
        world.clock.advance(0.5)
        wait_until(has_caught_up)
    wait_until(until)


# -- one slow part


@pytest.mark.requirement("R004-073", "R004-075", "R004-147")
def test_a_beat_that_hangs_delays_no_other_and_is_not_sent_twice(world: GatedWorld) -> None:
    """(JB-21)."""
    stuck = world.add_hanging_job("stuck")
    others = [world.add_job(f"job-{n}") for n in range(10)]
    world.orchestrator.start()
    wait_until(lambda: world.service.gate.waiting == 1)
    let_loops_run(world, 95, lambda: all(len(world.list_beats(job)) >= 4 for job in others))
    assert world.service.gate.max_waiting == 1
    assert world.list_beats(stuck) == []
    assert max(world.service.measure_max_gap(job.task_token) for job in others) < 40


def test_a_job_received_during_its_heartbeat_gets_another_one(world: GatedWorld) -> None:
    """The heartbeat in flight may be for the previous token (JB-14)."""
    old = world.add_hanging_job("a")
    world.orchestrator.start()
    wait_until(lambda: world.service.gate.waiting == 1)
    new = world.add_job("a", task_token=world.open_token(), token_generation=1)
    world.orchestrator.beat_now(new)
    assert world.list_beats(new) == []
    world.service.gate.open()
    wait_until(lambda: world.list_beats(new))
    assert world.list_beats(old) == [0.0]


def test_a_job_forgotten_and_received_during_its_heartbeat_gets_no_parallel_one(
    world: GatedWorld,
) -> None:
    """(JB-21)"""
    job = world.add_hanging_job("a")
    world.orchestrator.start()
    wait_until(lambda: world.service.gate.waiting == 1)
    world.orchestrator.forget("a")
    world.orchestrator.beat_now(job)
    world.orchestrator.tick()
    let_loops_run(world, 35, lambda: True)
    assert world.service.gate.max_waiting == 1
    world.service.gate.open()
    wait_until(lambda: len(world.list_beats(job)) >= 2)


def test_a_token_closed_callback_that_hangs_delays_no_heartbeat() -> None:
    """The callback has a thread of its own."""
    gate = Gate()
    world = World(token_closed=gate)
    for n in range(40):
        world.add_job(f"foreign-{n}", task_token=TaskToken(f"foreign {n}"))
    world.add_job("stuck", last_progress_at=0.0)
    job = world.add_job("a")
    world.orchestrator.start()
    let_loops_run(world, 95, lambda: len(world.list_beats(job)) >= 4, stuck=40)
    assert (gate.waiting, gate.max_waiting) == (1, 1)
    assert world.service.measure_max_gap(job.task_token) < 40
    assert world.store.listings >= 8  # it delays no listing either
    gate.open()
    wait_until(lambda: world.orchestrator.in_flight == 0)
    assert gate.calls == 40
    world.orchestrator.stop()


@pytest.mark.requirement("R004-019", "R004-073")
def test_a_listing_that_hangs_delays_no_heartbeat_and_is_not_repeated() -> None:
    """Two cycles never overlap (JB-21)."""
    world = World()
    job = world.add_job("a")
    world.orchestrator.start()
    wait_until(lambda: len(world.list_beats(job)) == 1)
    gate = Gate()
    world.store.find_by_status = gate  # type: ignore[assignment]
    let_loops_run(world, 95, lambda: len(world.list_beats(job)) >= 4)
    assert (gate.waiting, gate.max_waiting) == (1, 1)
    gate.open()
    wait_until(lambda: world.orchestrator.in_flight == 0)
    assert (
        len(world.list_events(ev.ActiveJobsUnknown)) == 1
    )  # because the gate returned no listing
    world.orchestrator.stop()


@pytest.mark.requirement("R004-252")
def test_no_more_heartbeats_at_once_than_allowed() -> None:
    """(JB-21)"""
    world = GatedWorld(concurrency=3)
    jobs = [world.add_hanging_job(f"job-{n}") for n in range(9)]
    world.orchestrator.start()
    wait_until(lambda: world.service.gate.waiting == 3)
    let_loops_run(world, 5, lambda: True, stuck=9)
    assert world.service.gate.max_waiting == 3
    world.service.gate.open()
    wait_until(lambda: all(world.list_beats(job) for job in jobs))
    world.orchestrator.stop()


# -- start and stop


@pytest.mark.requirement(
    "R004-021",
    "R004-088",
    "R004-090",
    "R004-130",
    "R004-131",
    "R004-132",
    "R004-136",
    "R004-141",
    "R004-264",
)
def test_starting_twice_is_starting_once(world: GatedWorld) -> None:
    """(JB-42)."""
    assert not world.orchestrator.running
    world.orchestrator.start()
    world.orchestrator.start()
    assert world.orchestrator.running
    assert list_own_threads().count("holdfast-heartbeats") == 1
    assert world.list_events(ev.OrchestratorStarted) == [ev.OrchestratorStarted(30.0)]


@pytest.mark.requirement(
    "R004-130",
    "R004-140",
    "R004-142",
    "R004-143",
    "R004-159",
    "R004-237",
    "R004-238",
    "R004-240",
    "R004-267",
)
def test_stopping_ends_it_for_good(world: GatedWorld) -> None:
    """(JB-42)."""
    job = world.add_job("a")
    world.orchestrator.start()
    wait_until(lambda: world.list_beats(job))
    world.orchestrator.stop()
    world.orchestrator.stop()
    assert not world.orchestrator.running
    assert list_own_threads() == []
    calls, listings = world.service.calls, world.store.listings
    world.orchestrator.start()
    world.orchestrator.beat_now(job)
    assert world.orchestrator.trigger_heartbeat() == 0
    assert (world.service.calls, world.store.listings) == (calls, listings)
    assert list_own_threads() == []
    assert world.list_events(ev.OrchestratorStopping) == [ev.OrchestratorStopping(0)]
    assert len(world.list_events(ev.OrchestratorStopped)) == 1


@pytest.mark.requirement("R004-138", "R004-258", "R004-264", "R004-265")
def test_a_disabled_orchestrator_reports_it_and_does_nothing() -> None:
    world = World(enabled=False)
    job = world.add_job("a")
    world.orchestrator.start()
    world.orchestrator.start()
    world.orchestrator.beat_now(job)
    assert world.events == [ev.OrchestratorDisabled()]
    assert not world.orchestrator.running
    assert list_own_threads() == []
    world.orchestrator.stop()
    assert world.service.calls == 0


@pytest.mark.requirement("R004-236", "R004-237", "R004-239", "R004-240")
def test_stop_waits_for_heartbeats_in_flight(world: GatedWorld) -> None:
    """And drops those that have not begun (JB-41)."""
    world.orchestrator = world.make_orchestrator(concurrency=2)
    for n in range(6):
        world.add_hanging_job(f"job-{n}")
    world.orchestrator.start()
    wait_until(lambda: world.service.gate.waiting == 2)
    stopping = threading.Thread(target=world.orchestrator.stop)
    stopping.start()
    wait_until(lambda: world.orchestrator.in_flight == 2)
    assert len(world.list_events(ev.OrchestratorStopping)) == 1
    assert not world.orchestrator.running
    assert world.list_events(ev.OrchestratorStopped) == []
    world.service.gate.open()
    stopping.join(20)
    assert world.service.calls == 2
    assert len(world.list_events(ev.HeartbeatSent)) == 2
    assert world.events[-1] == ev.OrchestratorStopped()
    assert list_own_threads() == []


@pytest.mark.requirement("R004-239", "R004-240")
def test_stop_does_not_wait_for_ever(world: GatedWorld) -> None:
    """The wait is bounded, and no event claims that nothing is in flight."""
    world.add_hanging_job("stuck")
    world.orchestrator.start()
    wait_until(lambda: world.service.gate.waiting == 1)
    world.orchestrator.stop(0.1)
    assert len(world.list_events(ev.OrchestratorStopping)) == 1
    assert world.list_events(ev.OrchestratorStopped) == []
    world.service.gate.open()
    wait_until(lambda: list_own_threads() == [])
    assert len(world.list_events(ev.HeartbeatSent)) == 1


def test_it_may_be_stopped_by_its_own_callback() -> None:
    world = World(token_closed=lambda job, code: world.orchestrator.stop(0.0))
    world.add_job("foreign", task_token=TaskToken("foreign"))
    world.orchestrator.trigger_heartbeat()  # the first refusal; the second one decides
    world.clock.advance(2.0)
    world.orchestrator.start()
    wait_until(lambda: not world.orchestrator.running)
    wait_until(lambda: list_own_threads() == [])


def test_a_triggered_cycle_ends_when_it_is_stopped(world: GatedWorld) -> None:
    world.add_hanging_job("stuck")
    counts: list[int] = []
    trigger = threading.Thread(
        target=lambda: counts.append(world.orchestrator.trigger_heartbeat())
    )
    trigger.start()
    wait_until(lambda: world.service.gate.waiting == 1)
    stopping = threading.Thread(target=world.orchestrator.stop)
    stopping.start()
    trigger.join(20)
    assert counts == [0]
    world.service.gate.open()
    stopping.join(20)


@pytest.mark.requirement("R004-157")
def test_a_triggered_cycle_waits_for_all_that_follows() -> None:
    order: list[str] = []
    world = World(token_closed=lambda job, code: order.append("closed"))
    world.add_job("foreign", task_token=TaskToken("foreign"))
    world.add_job("stuck", last_progress_at=0.0)
    world.add_job("a")
    world.orchestrator.trigger_heartbeat()  # the first refusal; the second one decides
    world.orchestrator.start()
    assert order == []
    assert world.orchestrator.trigger_heartbeat() == 2
    assert order == ["closed"]
    world.orchestrator.stop()


@pytest.mark.requirement("R004-157")
def test_a_triggered_cycle_waits_for_heartbeats_in_flight(
    world: GatedWorld,
) -> None:
    """Even if another cycle sent them."""
    job = world.add_hanging_job("a")
    world.orchestrator.start()
    wait_until(lambda: world.service.gate.waiting == 1)
    counts: list[int] = []
    trigger = threading.Thread(
        target=lambda: counts.append(world.orchestrator.trigger_heartbeat())
    )
    trigger.start()
    wait_until(lambda: world.store.listings >= 4 and world.orchestrator.in_flight == 1)
    assert counts == []
    world.service.gate.open()
    trigger.join(20)
    assert counts == [1]
    assert len(world.list_beats(job)) == 1


@pytest.mark.requirement("R004-129", "R004-267", "R004-268")
def test_a_hundred_orchestrators_leave_no_thread_behind() -> None:
    world = World(clock=SYSTEM_CLOCK)
    jobs = [world.add_job(f"job-{n}") for n in range(3)]
    leftovers = Leftovers()
    for _ in range(100):
        orchestrator = world.make_orchestrator(clock=SYSTEM_CLOCK, stall_seconds=None)
        orchestrator.start()
        orchestrator.beat_now(jobs[0])
        orchestrator.stop()
    assert leftovers.threads == set()


@pytest.mark.requirement("R004-217", "R004-257")
@pytest.mark.parametrize(("timeout", "tight"), [(60.0, 1), (90.0, 0), (None, 0)])
def test_a_tight_interval_is_reported_at_the_start(timeout: float | None, tight: int) -> None:
    world = World(heartbeat_timeout_seconds=timeout)
    world.orchestrator.start()
    assert len(world.list_events(ev.IntervalTight)) == tight
    world.orchestrator.stop()
