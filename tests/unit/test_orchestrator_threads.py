"""The orchestrator's life, and its threads: real ones, that wait for each other in vain."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from orchestrator_kit import World, eventually

from holdfast.core.clock import SYSTEM_CLOCK
from holdfast.jobs import events as ev
from holdfast.jobs.model import ExportJob, TaskToken
from holdfast.testing.stepfunctions import SimulatedStepFunctions


class Gate:
    """Holds whoever comes through, until it is opened."""

    def __init__(self) -> None:
        self.came = 0
        self.inside = 0
        self.most = 0
        self._open = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, *_: Any) -> None:
        with self._lock:
            self.came += 1
            self.inside += 1
            self.most = max(self.most, self.inside)
        self._open.wait(20)
        with self._lock:
            self.inside -= 1

    def open(self) -> None:
        self._open.set()


class Gated(SimulatedStepFunctions):
    """Beats of some tokens hang until the gate opens."""

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self.gate = Gate()
        self.hang: set[TaskToken] = set()

    def send_task_heartbeat(self, token: TaskToken) -> None:
        if token in self.hang:
            self.gate()
        super().send_task_heartbeat(token)


class GatedWorld(World):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.service: Gated = Gated(self.clock)
        self.orchestrator = self.another(**options)

    def hanging(self, job_id: str) -> ExportJob:
        job = self.job(job_id)
        assert job.task_token is not None
        self.service.hang.add(job.task_token)
        return job


@pytest.fixture
def world() -> Iterator[GatedWorld]:
    world = GatedWorld()
    yield world
    world.service.gate.open()
    world.orchestrator.stop()


def threads_of_ours() -> list[str]:
    ours = ("holdfast-heartbeat", "holdfast-census", "holdfast-judge", "holdfast-reconciler")
    return [t.name for t in threading.enumerate() if t.name.startswith(ours)]


def let_loops_run(world: World, seconds: float, until: Callable[[], bool]) -> None:
    """Move the clock under a started orchestrator, in small steps of real waiting."""
    end = world.clock.monotonic() + seconds
    while world.clock.monotonic() < end:
        world.clock.advance(0.5)
        time.sleep(0.001)
    eventually(until)


# -- one slow part


def test_a_beat_that_hangs_delays_no_other_and_is_not_sent_twice(world: GatedWorld) -> None:
    """I-JB-8, JB-21, R004-147."""
    stuck = world.hanging("stuck")
    others = [world.job(f"job-{n}") for n in range(10)]
    world.orchestrator.start()
    eventually(lambda: world.service.gate.inside == 1)
    let_loops_run(world, 95, lambda: all(len(world.beats(job)) >= 4 for job in others))
    assert world.service.gate.most == 1
    assert world.beats(stuck) == []
    assert max(world.service.longest_gap(job.task_token) for job in others) < 40


def test_a_job_received_during_its_beat_is_beaten_again_afterwards(world: GatedWorld) -> None:
    """JB-14: the beat under way may be of the token before."""
    old = world.hanging("a")
    world.orchestrator.start()
    eventually(lambda: world.service.gate.inside == 1)
    new = world.job("a", task_token=world.token(), token_generation=1)
    world.orchestrator.beat_now(new)
    assert world.beats(new) == []
    world.service.gate.open()
    eventually(lambda: world.beats(new))
    assert world.beats(old) == [0.0]


def test_a_job_forgotten_and_received_during_its_beat_is_not_beaten_beside_it(
    world: GatedWorld,
) -> None:
    """JB-21."""
    job = world.hanging("a")
    world.orchestrator.start()
    eventually(lambda: world.service.gate.inside == 1)
    world.orchestrator.forget("a")
    world.orchestrator.beat_now(job)
    world.orchestrator.tick()
    let_loops_run(world, 35, lambda: True)
    assert world.service.gate.most == 1
    world.service.gate.open()
    eventually(lambda: len(world.beats(job)) >= 2)


def test_a_judge_that_hangs_delays_no_beat() -> None:
    """I-JB-8: it has a thread of its own."""
    gate = Gate()
    world = World(token_closed=gate)
    for n in range(40):
        world.job(f"foreign-{n}", task_token=TaskToken(f"not ours {n}"))
    world.job("stuck", last_progress_at=0.0)
    job = world.job("a")
    world.orchestrator.start()
    let_loops_run(world, 95, lambda: len(world.beats(job)) >= 4)
    assert (gate.inside, gate.most) == (1, 1)
    assert world.service.longest_gap(job.task_token) < 40
    assert world.shelf.listings >= 8  # nor a listing
    gate.open()
    eventually(lambda: world.orchestrator.under_way == 0)
    assert gate.came == 40
    world.orchestrator.stop()


def test_a_listing_that_hangs_delays_no_beat_and_is_not_asked_twice() -> None:
    """JB-21: a cycle never overlaps itself."""
    world = World()
    job = world.job("a")
    world.orchestrator.start()
    eventually(lambda: len(world.beats(job)) == 1)
    gate = Gate()
    world.shelf.find_by_status = gate  # type: ignore[assignment]
    let_loops_run(world, 95, lambda: len(world.beats(job)) >= 4)
    assert (gate.inside, gate.most) == (1, 1)
    gate.open()
    eventually(lambda: world.orchestrator.under_way == 0)
    assert len(world.told(ev.ActiveJobsUnknown)) == 1  # what the gate says is no listing
    world.orchestrator.stop()


def test_no_more_beats_at_once_than_allowed() -> None:
    """JB-21."""
    world = GatedWorld(concurrency=3)
    jobs = [world.hanging(f"job-{n}") for n in range(9)]
    world.orchestrator.start()
    eventually(lambda: world.service.gate.inside == 3)
    let_loops_run(world, 5, lambda: True)
    assert world.service.gate.most == 3
    world.service.gate.open()
    eventually(lambda: all(world.beats(job) for job in jobs))
    world.orchestrator.stop()


# -- its life


def test_starting_twice_is_starting_once(world: GatedWorld) -> None:
    """JB-42, R004-088, R004-130, R004-141."""
    assert not world.orchestrator.running
    world.orchestrator.start()
    world.orchestrator.start()
    assert world.orchestrator.running
    assert threads_of_ours().count("holdfast-heartbeats") == 1
    assert world.told(ev.OrchestratorStarted) == [ev.OrchestratorStarted(30.0)]


def test_stopping_ends_it_for_good(world: GatedWorld) -> None:
    """JB-42, R004-140, R004-142, R004-143, R004-237, R004-238, R004-240, R004-267."""
    job = world.job("a")
    world.orchestrator.start()
    eventually(lambda: world.beats(job))
    world.orchestrator.stop()
    world.orchestrator.stop()
    assert not world.orchestrator.running
    assert threads_of_ours() == []
    calls, listings = world.service.calls, world.shelf.listings
    world.orchestrator.start()
    world.orchestrator.beat_now(job)
    assert world.orchestrator.trigger_heartbeat() == 0
    assert (world.service.calls, world.shelf.listings) == (calls, listings)
    assert threads_of_ours() == []
    assert world.told(ev.OrchestratorStopping) == [ev.OrchestratorStopping(0)]
    assert len(world.told(ev.OrchestratorStopped)) == 1


def test_stopping_what_never_started_is_nothing(world: GatedWorld) -> None:
    """JB-42."""
    world.orchestrator.stop()
    world.orchestrator.start()
    assert not world.orchestrator.running
    assert world.events == []


def test_disabled_it_says_so_and_does_nothing() -> None:
    """R004-138, R004-258, R004-265, D-18."""
    world = World(enabled=False)
    job = world.job("a")
    world.orchestrator.start()
    world.orchestrator.start()
    world.orchestrator.beat_now(job)
    assert world.events == [ev.OrchestratorDisabled()]
    assert not world.orchestrator.running
    assert threads_of_ours() == []
    world.orchestrator.stop()
    assert world.service.calls == 0


def test_stop_waits_for_the_beats_under_way(world: GatedWorld) -> None:
    """R004-236, R004-239, R004-240, I-JB-9, JB-41: and drops those not begun."""
    world.orchestrator = world.another(concurrency=2)
    for n in range(6):
        world.hanging(f"job-{n}")
    world.orchestrator.start()
    eventually(lambda: world.service.gate.inside == 2)
    stopping = threading.Thread(target=world.orchestrator.stop)
    stopping.start()
    eventually(lambda: world.orchestrator.under_way == 2)
    assert len(world.told(ev.OrchestratorStopping)) == 1
    assert not world.orchestrator.running
    assert world.told(ev.OrchestratorStopped) == []
    world.service.gate.open()
    stopping.join(20)
    assert world.service.calls == 2
    assert len(world.told(ev.HeartbeatSent)) == 2
    assert world.events[-1] == ev.OrchestratorStopped()
    assert threads_of_ours() == []


def test_stop_does_not_wait_for_ever(world: GatedWorld) -> None:
    """R004-239: bounded. It does not claim that nothing is under way."""
    world.hanging("stuck")
    world.orchestrator.start()
    eventually(lambda: world.service.gate.inside == 1)
    stopping = threading.Thread(target=world.orchestrator.stop, args=(3.0,))
    stopping.start()
    eventually(lambda: world.told(ev.OrchestratorStopping))
    while stopping.is_alive():
        world.clock.advance(0.5)
        stopping.join(0.002)
    assert world.told(ev.OrchestratorStopped) == []
    world.service.gate.open()
    eventually(lambda: threads_of_ours() == [])
    assert len(world.told(ev.HeartbeatSent)) == 1


def test_it_may_be_stopped_by_its_own_callback() -> None:
    world = World(token_closed=lambda job, code: world.orchestrator.stop(0.0))
    world.job("foreign", task_token=TaskToken("not ours"))
    world.orchestrator.start()
    eventually(lambda: not world.orchestrator.running)
    eventually(lambda: threads_of_ours() == [])


def test_a_triggered_cycle_ends_when_it_is_stopped(world: GatedWorld) -> None:
    world.hanging("stuck")
    counts: list[int] = []
    trigger = threading.Thread(
        target=lambda: counts.append(world.orchestrator.trigger_heartbeat())
    )
    trigger.start()
    eventually(lambda: world.service.gate.inside == 1)
    stopping = threading.Thread(target=world.orchestrator.stop)
    stopping.start()
    trigger.join(20)
    assert counts == [0]
    world.service.gate.open()
    stopping.join(20)


def test_a_triggered_cycle_waits_for_all_that_follows() -> None:
    """R004-157."""
    order: list[str] = []
    world = World(token_closed=lambda job, code: order.append("closed"))
    world.job("foreign", task_token=TaskToken("not ours"))
    world.job("stuck", last_progress_at=0.0)
    world.job("a")
    world.orchestrator.start()
    eventually(lambda: len(order) >= 1 and world.orchestrator.under_way == 0)
    order.clear()
    assert world.orchestrator.trigger_heartbeat() == 2
    assert order == ["closed"]
    world.orchestrator.stop()


def test_a_triggered_cycle_waits_for_beats_that_are_under_way_already(
    world: GatedWorld,
) -> None:
    """R004-157: whoever began them."""
    job = world.hanging("a")
    world.orchestrator.start()
    eventually(lambda: world.service.gate.inside == 1)
    counts: list[int] = []
    trigger = threading.Thread(
        target=lambda: counts.append(world.orchestrator.trigger_heartbeat())
    )
    trigger.start()
    eventually(lambda: world.shelf.listings >= 4 and world.orchestrator.under_way == 1)
    assert counts == []
    world.service.gate.open()
    trigger.join(20)
    assert counts == [1]
    assert len(world.beats(job)) == 1


def test_a_hundred_lives_leave_nothing_behind() -> None:
    """I-JB-14, R004-129, R004-267, R004-268."""
    world = World(clock=SYSTEM_CLOCK)
    jobs = [world.job(f"job-{n}") for n in range(3)]
    before = threading.active_count()
    for _ in range(100):
        orchestrator = world.another(clock=SYSTEM_CLOCK, stall_seconds=None)
        orchestrator.start()
        orchestrator.beat_now(jobs[0])
        orchestrator.stop()
    assert threading.active_count() == before


@pytest.mark.parametrize(("timeout", "tight"), [(60.0, 1), (90.0, 0), (None, 0)])
def test_a_tight_interval_is_told_at_the_start(timeout: float | None, tight: int) -> None:
    """D-22, R004-217, R004-257."""
    world = World(heartbeat_timeout_seconds=timeout)
    world.orchestrator.start()
    assert len(world.told(ev.IntervalTight)) == tight
    world.orchestrator.stop()
