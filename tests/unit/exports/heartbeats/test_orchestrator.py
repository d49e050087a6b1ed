"""The heartbeat orchestrator: for which jobs, when, and what it does with the responses."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.events import Events
from holdfast.exports import events as ev
from holdfast.exports.heartbeat_schedule import compute_retry_delay
from holdfast.exports.model import Callback, CallbackState, ExportJob, JobStatus, TaskToken
from support.exports.orchestrator import World
from support.exports.simulated_step_functions import SimulatedStepFunctions, TokenState
from support.waiting import wait_until


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.orchestrator.stop()


# -- which jobs


@pytest.mark.requirement(
    "R004-003",
    "R004-021",
    "R004-091",
    "R004-093",
    "R004-094",
    "R004-128",
    "R004-133",
    "R004-134",
    "R004-144",
    "R004-158",
    "R004-160",
    "R004-161",
    "R004-229",
    "R004-241",
    "R004-242",
    "R004-244",
    "R004-255",
)
def test_only_active_jobs_with_a_token_get_heartbeats(world: World) -> None:
    downloading = world.add_job("a")
    processing = world.add_job("b", JobStatus.PROCESSING)
    world.add_job("c", with_token=False)
    done = world.add_job("d", JobStatus.COMPLETED)
    failed = world.add_job("e", JobStatus.FAILED)
    assert world.orchestrator.trigger_heartbeat() == 2
    assert len(world.list_beats(downloading)) == len(world.list_beats(processing)) == 1
    assert world.list_beats(done) == world.list_beats(failed) == []
    assert world.list_events(ev.ActiveJobs) == [ev.ActiveJobs(with_token=2, without_token=1)]


@pytest.mark.requirement("R004-010", "R004-095", "R004-150", "R004-151")
def test_a_heartbeat_event_has_the_progress(world: World) -> None:
    job = world.add_job("a")
    world.store.put(replace(job, state=replace(job.state, completed_tasks=3)))
    world.orchestrator.trigger_heartbeat()
    assert world.list_events(ev.HeartbeatSent) == [ev.HeartbeatSent("a", 3, 4, 75, 0.0)]


def test_a_job_with_a_pending_callback_gets_heartbeats(world: World) -> None:
    """Otherwise its token could time out before the outcome is delivered."""
    pending = Callback(CallbackState.PENDING, JobStatus.COMPLETED)
    job = world.add_job("a", callback=pending)
    world.orchestrator.trigger_heartbeat()
    assert len(world.list_beats(job)) == 1


@pytest.mark.requirement("R004-098")
def test_a_received_job_gets_a_heartbeat_at_once_without_a_listing(world: World) -> None:
    """Sent in another thread, then in each interval (JB-19, JB-25)."""
    world.let_pass(4)
    job = world.add_job("a")
    world.store.unlisted.add("a")
    caller = threading.get_ident()
    threads = []
    world.orchestrator.stop()
    world.orchestrator = world.make_orchestrator(
        events=Events(lambda event: threads.append(threading.get_ident()))
    )
    world.orchestrator.beat_now(job)
    world.let_pass(95)
    beats = world.list_beats(job)
    assert beats[0] == 4
    assert len(beats) in (4, 5)
    assert max(b - a for a, b in pairwise(beats)) <= 30.001
    assert caller not in threads


@pytest.mark.requirement("R004-127", "R004-255")
def test_a_listing_that_is_behind_does_not_bring_a_forgotten_job_back(world: World) -> None:
    """(JB-25)."""
    job = world.add_job("a")
    world.orchestrator.beat_now(job)
    world.let_pass(1)
    world.orchestrator.forget("a")
    world.let_pass(15)
    assert len(world.list_beats(job)) == 1
    assert world.store.listings >= 4


def test_a_job_that_was_given_back_gets_heartbeats_until_it_is_received(world: World) -> None:
    """It waits in the queue, so half an interval later its last process sends them, too."""
    job = world.add_job("a")
    world.orchestrator.beat_now(job)
    world.let_pass(20)
    world.orchestrator.forget("a")
    world.let_pass(300)
    assert world.service.measure_max_gap(job.task_token) <= 60
    assert len(world.list_beats(job)) >= 10


def test_a_job_that_ended_elsewhere_gets_no_more_heartbeats(world: World) -> None:
    """Its token was closed there, and the next heartbeat is refused (JB-43)."""
    job = world.add_job("a")
    world.orchestrator.beat_now(job)
    world.let_pass(35)
    world.add_job("a", JobStatus.COMPLETED, with_token=False)
    world.service.send_task_success(job.task_token, {})
    before = world.service.calls
    world.let_pass(95)
    assert world.service.calls - before <= 1
    assert world.list_events(ev.HeartbeatFailed) == []


def test_a_new_token_gets_heartbeats_despite_an_old_listing(world: World) -> None:
    """(JB-14, JB-25)"""
    old = world.add_job("a")
    world.let_pass(1)
    new = world.add_job("a", task_token=world.open_token(), token_generation=1)
    world.store.stale["a"] = old
    world.orchestrator.beat_now(new)
    world.let_pass(70)
    assert len(world.list_beats(new)) >= 3
    assert max(world.list_beats(old)) <= 1


# -- when


@given(interval=st.floats(1.0, 600.0))
def test_four_retries_fit_before_the_next_beat(interval: float) -> None:
    """Each retry may take some time, too (JB-20)."""
    delays = [compute_retry_delay(failures, interval) for failures in (1, 2, 3, 4)]
    assert min(delays) > 0
    assert sum(delays) <= interval * 0.74
    assert compute_retry_delay(5, interval) == float("inf")


@pytest.mark.requirement("R004-003", "R004-013", "R004-032", "R004-098", "R004-212", "R004-242")
def test_heartbeats_are_sent_every_interval(world: World) -> None:
    job = world.add_job("a")
    world.let_pass(299)
    beats = world.list_beats(job)
    assert beats[0] < 1.0
    assert [round(b - a, 6) for a, b in pairwise(beats[1:])] == [30.0] * (len(beats) - 2)
    assert len(beats) in (10, 11)


@pytest.mark.requirement("R004-155", "R004-158", "R004-218", "R004-243")
def test_a_failed_beat_is_tried_again_after_two_four_and_eight_seconds(world: World) -> None:
    """(JB-20)."""
    job = world.add_job("a")
    world.orchestrator.beat_now(job)
    world.let_pass(25)
    world.service.throttle(3)
    world.let_pass(50)
    failed = [event.job_id for event in world.list_events(ev.HeartbeatFailed)]
    assert failed == ["a"] * 3
    assert world.list_beats(job) == pytest.approx([0, 30 + 2 + 4 + 8, 44 + 30])


@pytest.mark.requirement(
    "R004-097", "R004-149", "R004-156", "R004-221", "R004-223", "R004-252", "R004-269"
)
def test_a_service_that_is_down_is_not_called_more_than_five_times_a_cycle(
    world: World,
) -> None:
    job = world.add_job("a")
    world.let_pass(1)
    before = world.service.calls
    world.service.down = True
    world.let_pass(300)
    assert 45 <= world.service.calls - before <= 55
    assert world.closed == []
    assert world.service.state(job.task_token) is TokenState.TIMED_OUT


def test_after_a_freeze_each_job_gets_one_heartbeat_at_once() -> None:
    """The clock jumps by ten intervals."""
    world = World(heartbeat_seconds=1e6)
    jobs = [world.add_job(f"job-{n}") for n in range(20)]
    world.let_pass(31)
    before = [len(world.list_beats(job)) for job in jobs]
    world.clock.advance(300)
    world.let_pass(0.0)
    assert [len(world.list_beats(job)) - n for job, n in zip(jobs, before, strict=True)] == [
        1
    ] * 20
    world.orchestrator.stop()


# -- the store


@pytest.mark.requirement("R004-148", "R004-149")
def test_heartbeats_go_on_while_the_store_does_not_respond(world: World) -> None:
    """(JB-24)."""
    job = world.add_job("a")
    world.let_pass(1)
    world.store.down = True
    world.let_pass(100)
    beats = world.list_beats(job)
    assert max(b - a for a, b in pairwise([*beats, 101.0])) <= 30.001
    unknown = world.list_events(ev.ActiveJobsUnknown)
    assert unknown == [ev.ActiveJobsUnknown("StoreUnavailable", n) for n in range(1, 7)]
    world.store.down = False
    world.let_pass(15)
    world.store.down = True
    world.let_pass(15)
    assert world.list_events(ev.ActiveJobsUnknown)[-1].in_a_row == 1


@pytest.mark.requirement("R004-098", "R004-127", "R004-128")
def test_a_job_that_ended_gets_no_heartbeat_after_the_next_listing(world: World) -> None:
    """(JB-43)."""
    job = world.add_job("a")
    world.let_pass(20)
    world.add_job("a", JobStatus.FAILED, task_token=None)
    world.let_pass(12)
    before = len(world.list_beats(job))
    world.let_pass(90)
    assert len(world.list_beats(job)) == before


# -- stalls


@pytest.mark.requirement("R004-010")
def test_a_job_without_progress_gets_no_heartbeat(world: World) -> None:
    """(JB-17)"""
    stuck, moving = world.add_job("stuck"), world.add_job("moving")
    world.clock.advance(3601)
    stuck_token, moving = world.open_token(), world.add_job("moving")
    stuck = world.store.put(replace(stuck, task_token=stuck_token))
    world.let_pass(65)
    assert world.list_beats(stuck) == []
    assert len(world.list_beats(moving)) >= 3


def test_a_received_job_that_is_stalled_gets_no_heartbeat_either(world: World) -> None:
    """The job itself shows it, before any listing was made."""
    job = world.add_job("a")
    world.clock.advance(3601)
    world.store.down = True
    world.orchestrator.beat_now(job)
    world.let_pass(0)
    world.store.down = False
    assert world.service.calls == 0
    world.orchestrator.trigger_heartbeat()
    assert world.service.calls == 0


def test_a_job_that_moves_again_gets_heartbeats_again(world: World) -> None:
    job = world.add_job("a", last_progress_at=world.clock.time() - 4000)
    world.let_pass(20)
    assert world.list_beats(job) == []
    world.store.put(replace(job, last_progress_at=world.clock.time()))
    world.let_pass(31)
    assert world.list_beats(job)


def test_a_stall_is_judged_by_the_job_not_by_a_listing_that_is_behind(world: World) -> None:
    """The listing shows no progress for an hour, but the job does (JB-25)."""
    job = world.add_job("a")
    world.store.stale["a"] = replace(job, last_progress_at=job.last_progress_at - 4000)
    world.let_pass(40)
    assert len(world.list_beats(job)) >= 2


def test_a_clock_that_is_set_forward_stalls_nothing(world: World) -> None:
    job = world.add_job("a")
    world.let_pass(20)
    world.clock.step_time(7200)
    world.let_pass(100)
    assert max(b - a for a, b in pairwise([*world.list_beats(job), 120.0])) <= 30.001
    world.let_pass(3600, step=1.0)
    before = len(world.list_beats(job))
    world.let_pass(100)
    assert len(world.list_beats(job)) == before  # an hour later it is stalled


def test_without_a_stall_limit_no_job_stalls() -> None:
    world = World(stall_seconds=None)
    job = world.add_job("a", last_progress_at=0.0)
    world.let_pass(35)
    assert len(world.list_beats(job)) >= 2
    world.orchestrator.stop()


# -- responses


@pytest.mark.requirement("R004-096", "R004-147", "R004-153", "R004-154", "R004-162", "R004-243")
def test_a_closed_token_is_reported_and_stops_no_other_job(world: World) -> None:
    """(JB-46)."""
    other = world.add_job("other")
    gone = world.add_job("gone")
    world.service.send_task_success(gone.task_token, {})
    foreign = world.add_job("foreign", task_token=TaskToken("foreign"))
    assert world.orchestrator.trigger_heartbeat() == 3
    assert world.closed == []  # a single refusal may be a mistake
    assert len(world.list_beats(other)) == 1
    world.let_pass(2.0)
    assert sorted(world.closed) == [("foreign", "InvalidToken"), ("gone", "TaskTimedOut")]
    assert foreign.status is JobStatus.DOWNLOADING
    failed = {event.job_id: event.code for event in world.list_events(ev.HeartbeatFailed)}
    assert failed == {"foreign": "InvalidToken", "gone": "TaskTimedOut"}


def test_a_single_refusal_of_the_first_heartbeat_closes_no_token(world: World) -> None:
    """The next call with the same token is accepted, seconds later."""
    job = world.add_job("a")
    world.service.deny(1)
    world.orchestrator.beat_now(job)
    world.let_pass(60.0)
    assert world.closed == []
    assert world.list_beats(job)[0] == 2.0
    assert world.service.measure_max_gap(job.task_token) <= 30.0


def test_a_job_that_gets_another_token_is_beaten_for_at_once(world: World) -> None:
    """Its old token was closed, was noted so, and gets no more heartbeats."""
    job = world.add_job("a", task_token=TaskToken("old"))
    world.orchestrator.beat_now(job)
    world.let_pass(2.0)
    assert world.closed == [("a", "InvalidToken")]
    world.store.put(replace(job, token_closed_at=world.clock.time()))
    calls = world.service.calls
    world.let_pass(120.0)
    assert world.service.calls == calls
    new = world.store.put(replace(job, task_token=world.open_token(), token_generation=1))
    world.orchestrator.beat_now(new)
    world.let_pass(60.0)
    assert world.service.measure_max_gap(new.task_token) <= 30.0
    assert world.list_beats(new)[0] == 122.0


def test_a_token_that_comes_while_the_old_one_is_found_closed_keeps_its_heartbeats() -> None:
    def take_over(job: ExportJob, code: str) -> None:
        new = replace(job, task_token=world.open_token(), token_generation=1)
        world.orchestrator.beat_now(world.store.put(new))

    world = World(token_closed=take_over)
    world.orchestrator.beat_now(world.add_job("a", task_token=TaskToken("old")))
    world.let_pass(2.0)
    assert world.list_beats(world.store.jobs["a"]) == [2.0]
    world.orchestrator.stop()


@pytest.mark.requirement("R004-097", "R004-156")
def test_a_token_closed_callback_that_raises_stops_nothing() -> None:

    def token_closed(*_: object) -> None:
        raise RuntimeError("a bug")

    world = World(token_closed=token_closed)
    world.add_job("foreign", task_token=TaskToken("foreign"))
    world.add_job("stuck", last_progress_at=0.0)
    job = world.add_job("a")
    world.let_pass(95)
    assert len(world.list_beats(job)) >= 4
    assert world.orchestrator.trigger_heartbeat() == 2
    world.orchestrator.stop()


@pytest.mark.requirement("R004-150")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_cancelled_heartbeat_is_counted_as_failed() -> None:
    """However a heartbeat ends, it emits an event (JB-41)."""

    class Cancelled(BaseException):
        pass

    class Cancelling(SimulatedStepFunctions):
        def send_task_heartbeat(self, token: TaskToken) -> None:
            raise Cancelled

    world = World(step_functions=Cancelling())
    world.orchestrator.beat_now(world.add_job("a"))
    world.orchestrator.tick()
    wait_until(lambda: world.list_events(ev.HeartbeatFailed))
    assert world.list_events(ev.HeartbeatFailed) == [ev.HeartbeatFailed("a", "Cancelled", 0.0)]
    world.orchestrator.stop()


# -- many


@pytest.mark.requirement("R004-009", "R004-214", "R004-249", "R004-250", "R004-270")
def test_500_jobs_are_never_silent_for_heartbeat_seconds() -> None:
    """Through throttling,
    an outage of 20 s, lost replies and a store that is down (JB-26)."""
    world = World(heartbeat_seconds=60.0)
    jobs = [world.add_job(f"job-{n}") for n in range(500)]
    for job in jobs:
        world.orchestrator.beat_now(job)
    world.let_pass(40, step=0.5)
    world.service.throttle(300)
    world.let_pass(30, step=0.5)
    world.service.lose_replies(100)
    world.store.down = True
    world.let_pass(30, step=0.5)
    world.service.down = True
    world.let_pass(20, step=0.5)
    world.service.down = False
    world.let_pass(40, step=0.5)
    assert {world.service.state(job.task_token) for job in jobs} == {TokenState.OPEN}
    assert max(world.service.measure_max_gap(job.task_token) for job in jobs) < 60
    sent = len(world.list_events(ev.HeartbeatSent)) + len(world.list_events(ev.HeartbeatFailed))
    assert sent == world.service.calls
    world.orchestrator.stop()


@pytest.mark.requirement("R004-270")
def test_when_one_of_two_orchestrators_ends_the_other_carries_on() -> None:
    """(JB-26)"""
    world = World(heartbeat_seconds=60.0)
    first, second = world.orchestrator, world.make_orchestrator()
    jobs = [world.add_job(f"job-{n}") for n in range(30)]
    world.let_pass(70, first, second)
    both = [len(world.list_beats(job)) for job in jobs]
    assert min(both) >= 5
    first.stop()
    world.let_pass(70, second)
    max_gap = max(world.service.measure_max_gap(job.task_token) for job in jobs)
    assert max_gap == pytest.approx(30)
    assert world.closed == []
    second.stop()


# -- settings


@pytest.mark.requirement("R004-135")
@pytest.mark.parametrize(
    "options",
    [
        {"interval_seconds": 0},
        {"interval_seconds": float("nan")},
        {"interval_seconds": 30.0, "heartbeat_timeout_seconds": 31.0},
        {"stall_seconds": 0},
        {"concurrency": 0},
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        World(**options)
