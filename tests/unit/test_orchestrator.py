"""The heartbeat orchestrator: what it beats, when, and what it makes of the answers."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orchestrator_kit import World

from holdfast.core.errors import ConfigError
from holdfast.core.events import Events
from holdfast.jobs import events as ev
from holdfast.jobs.heartbeats.schedule import HeartbeatTiming
from holdfast.jobs.heartbeats.sender import HeartbeatSender
from holdfast.jobs.model import Callback, CallbackState, JobStatus, TaskToken
from holdfast.testing.clock import ManualClock
from holdfast.testing.stepfunctions import SimulatedStepFunctions, TokenState


@pytest.fixture
def world() -> Iterator[World]:
    """R004-159."""
    world = World()
    yield world
    world.orchestrator.stop()


# -- which jobs


def test_active_jobs_with_a_token_are_beaten_and_no_others(world: World) -> None:
    """R004-003, R004-093, R004-094, R004-128, R004-144, R004-160, R004-161, R004-244, R004-255,
    D-23."""
    downloading = world.job("a")
    processing = world.job("b", JobStatus.PROCESSING)
    world.job("c", with_token=False)
    done = world.job("d", JobStatus.COMPLETED)
    failed = world.job("e", JobStatus.FAILED)
    assert world.orchestrator.trigger_heartbeat() == 2
    assert len(world.beats(downloading)) == len(world.beats(processing)) == 1
    assert world.beats(done) == world.beats(failed) == []
    assert world.told(ev.ActiveJobs) == [ev.ActiveJobs(with_token=2, without_token=1)]


def test_a_beat_tells_progress(world: World) -> None:
    """R004-010, R004-095, R004-151."""
    job = world.job("a")
    world.shelf.put(replace(job, state=replace(job.state, completed_tasks=3)))
    world.orchestrator.trigger_heartbeat()
    assert world.told(ev.HeartbeatSent) == [ev.HeartbeatSent("a", 3, 4, 75, 0.0)]


def test_a_job_whose_answer_is_pending_is_beaten_until_it_is_settled(world: World) -> None:
    """6.0: otherwise its token could time out before the answer is delivered."""
    pending = Callback(CallbackState.PENDING, JobStatus.COMPLETED)
    job = world.job("a", callback=pending)
    world.orchestrator.trigger_heartbeat()
    assert len(world.beats(job)) == 1


def test_a_received_job_is_beaten_at_once_though_no_listing_has_it(world: World) -> None:
    """JB-19, JB-25, D-08, R004-098: in another thread, then each interval."""
    world.let_pass(4)
    job = world.job("a")
    world.shelf.unlisted.add("a")
    caller = threading.get_ident()
    threads = []
    world.orchestrator.stop()
    world.orchestrator = world.another(
        events=Events(lambda event: threads.append(threading.get_ident()))
    )
    world.orchestrator.beat_now(job)
    world.let_pass(95)
    beats = world.beats(job)
    assert beats[0] == 4
    assert len(beats) in (4, 5)
    assert max(b - a for a, b in pairwise(beats)) <= 30.0
    assert caller not in threads


def test_a_listing_that_is_behind_does_not_bring_a_forgotten_job_back(world: World) -> None:
    """JB-25, R004-127."""
    job = world.job("a")
    world.orchestrator.beat_now(job)
    world.let_pass(1)
    world.orchestrator.forget("a")
    world.let_pass(65)
    assert len(world.beats(job)) == 1
    assert world.shelf.listings > 4


def test_a_job_that_ended_elsewhere_leaves_the_registry(world: World) -> None:
    """JB-43: nobody told this process; an id that no listing has is looked up."""
    job = world.job("a")
    world.orchestrator.beat_now(job)
    world.let_pass(35)
    world.job("a", JobStatus.COMPLETED, task_token=job.task_token)
    before = len(world.beats(job))
    world.let_pass(95)
    assert len(world.beats(job)) - before <= 1
    assert "a" in world.shelf.read


def test_a_token_attached_anew_is_beaten_whatever_an_old_listing_says(world: World) -> None:
    """JB-14, JB-25."""
    old = world.job("a")
    world.let_pass(1)
    new = world.job("a", task_token=world.token(), token_generation=1)
    world.shelf.stale["a"] = old
    world.orchestrator.beat_now(new)
    world.let_pass(70)
    assert len(world.beats(new)) >= 3
    assert world.beats(old) == [pytest.approx(0, abs=1)]


# -- when


@given(
    job_id=st.text(min_size=1),
    interval=st.floats(0.5, 3600),
    began=st.floats(0, 1e7),
    later=st.floats(0, 1e6),
)
def test_the_next_place_is_after_now_and_at_most_an_interval_away(
    job_id: str, interval: float, began: float, later: float
) -> None:
    """JB-21: so the gap between two beats of a job is never above the interval."""
    rhythm = HeartbeatTiming(interval, began)
    place = rhythm.place_seconds(job_id)
    assert 0 <= place <= interval / 2
    now = began + later
    after = rhythm.next_place(place, now)
    assert now < after <= now + interval * 1.000_001 + 1e-6
    assert rhythm.next_place(place, after) - after == pytest.approx(interval, abs=1e-5)


def test_places_are_spread_over_the_first_half_of_the_interval() -> None:
    """JB-21."""
    rhythm = HeartbeatTiming(30.0, 0.0)
    places = [rhythm.place_seconds(f"job-{n}") for n in range(3000)]
    assert places == [rhythm.place_seconds(f"job-{n}") for n in range(3000)]
    for second in range(15):
        assert 140 < sum(second <= place < second + 1 for place in places) < 260


@given(interval=st.floats(1.0, 600.0), now=st.floats(0, 1e6))
def test_four_retries_fit_before_the_next_beat(interval: float, now: float) -> None:
    """JB-20: each may take its time as well."""
    rhythm, at = HeartbeatTiming(interval, 0.0), now
    for failures in (1, 2, 3, 4):
        assert rhythm.retry_at(failures, at) > at
        at = rhythm.retry_at(failures, at)
    assert at - now <= interval * 0.74
    assert rhythm.retry_at(5, at) == float("inf")


def test_beats_come_every_interval(world: World) -> None:
    """R004-003, R004-013, R004-032, R004-098, R004-212."""
    job = world.job("a")
    world.let_pass(299)
    beats = world.beats(job)
    assert beats[0] < 1.0
    assert [round(b - a, 6) for a, b in pairwise(beats[1:])] == [30.0] * (len(beats) - 2)
    assert len(beats) in (10, 11)


def test_a_failed_beat_is_tried_again_after_two_four_and_eight_seconds(world: World) -> None:
    """JB-20, R004-218, D-22."""
    job = world.job("a")
    world.let_pass(20)
    place = world.beats(job)[-1]
    world.let_pass(25 - world.clock.monotonic() + 1_000 + place)  # shortly before its place
    world.service.throttle(3)
    before = len(world.beats(job))
    world.let_pass(25)
    failed = [event.job_id for event in world.told(ev.HeartbeatFailed)]
    assert failed == ["a"] * 3
    [again] = world.beats(job)[before:]
    assert again - world.beats(job)[before - 1] == pytest.approx(30 + 2 + 4 + 8)
    world.let_pass(30)
    assert world.service.state(job.task_token) is TokenState.OPEN
    assert world.beats(job)[-1] - again == pytest.approx(30 - 14)  # back at its place


def test_a_service_that_is_down_is_not_called_more_than_five_times_a_cycle(
    world: World,
) -> None:
    """R004-097, R004-149, R004-156, R004-221, R004-223, R004-269, I-JB-8."""
    job = world.job("a")
    world.let_pass(1)
    before = world.service.calls
    world.service.down = True
    world.let_pass(300)
    assert 45 <= world.service.calls - before <= 55
    assert world.closed == []
    assert world.service.state(job.task_token) is TokenState.TIMED_OUT


def test_after_a_freeze_everything_is_beaten_once_and_at_once() -> None:
    """Ten intervals in one leap."""
    world = World(heartbeat_seconds=1e6)
    jobs = [world.job(f"job-{n}") for n in range(20)]
    world.let_pass(31)
    before = [len(world.beats(job)) for job in jobs]
    world.clock.advance(300)
    world.let_pass(0.0)
    assert [len(world.beats(job)) - n for job, n in zip(jobs, before, strict=True)] == [1] * 20
    world.orchestrator.stop()


# -- the store


def test_beats_go_on_while_the_store_does_not_answer(world: World) -> None:
    """R004-148, R004-149, JB-24."""
    job = world.job("a")
    world.let_pass(1)
    world.shelf.down = True
    world.let_pass(100)
    assert max(b - a for a, b in pairwise(world.beats(job))) <= 30
    unknown = world.told(ev.ActiveJobsUnknown)
    assert unknown == [ev.ActiveJobsUnknown("StoreUnavailable", n) for n in (1, 2, 3)]
    world.shelf.down = False
    world.let_pass(30)
    world.shelf.down = True
    world.let_pass(30)
    assert world.told(ev.ActiveJobsUnknown)[-1].in_a_row == 1


def test_a_job_that_ended_is_not_beaten_after_the_next_listing(world: World) -> None:
    """R004-127, R004-128, JB-43."""
    job = world.job("a")
    world.let_pass(20)
    world.job("a", JobStatus.FAILED, task_token=None)
    world.let_pass(12)
    before = len(world.beats(job))
    world.let_pass(90)
    assert len(world.beats(job)) == before


# -- stalls


def test_a_job_without_progress_is_not_beaten(world: World) -> None:
    """JB-17, I-JB-7."""
    stuck, moving = world.job("stuck"), world.job("moving")
    world.clock.advance(3601)
    stuck_token, moving = world.token(), world.job("moving")
    stuck = world.shelf.put(replace(stuck, task_token=stuck_token))
    world.let_pass(65)
    assert world.beats(stuck) == []
    assert len(world.beats(moving)) >= 3


def test_a_received_job_that_is_stalled_is_not_beaten_either(world: World) -> None:
    """I-JB-7: by what the job itself says, before any listing is there."""
    job = world.job("a")
    world.clock.advance(3601)
    world.shelf.down = True
    world.orchestrator.beat_now(job)
    world.let_pass(0)
    world.shelf.down = False
    assert world.service.calls == 0
    world.orchestrator.trigger_heartbeat()
    assert world.service.calls == 0


def test_a_job_that_moves_again_is_beaten_again(world: World) -> None:
    job = world.job("a", last_progress_at=world.clock.time() - 4000)
    world.let_pass(20)
    assert world.beats(job) == []
    world.shelf.put(replace(job, last_progress_at=world.clock.time()))
    world.let_pass(31)
    assert world.beats(job)


def test_a_stall_is_judged_by_the_job_not_by_a_listing_that_is_behind(world: World) -> None:
    """JB-25: the listing says that nothing moved for an hour, the job says otherwise."""
    job = world.job("a")
    world.shelf.stale["a"] = replace(job, last_progress_at=job.last_progress_at - 4000)
    world.let_pass(40)
    assert len(world.beats(job)) >= 2


def test_a_clock_that_is_set_forward_stalls_nothing(world: World) -> None:
    job = world.job("a")
    world.let_pass(20)
    world.clock.step_time(7200)
    world.let_pass(100)
    assert max(b - a for a, b in pairwise(world.beats(job))) <= 30
    world.let_pass(3600, step=1.0)
    before = len(world.beats(job))
    world.let_pass(100)
    assert len(world.beats(job)) == before  # an hour later it is stalled all the same


def test_without_a_bound_nothing_ever_stalls() -> None:
    world = World(stall_seconds=None)
    job = world.job("a", last_progress_at=0.0)
    world.let_pass(35)
    assert len(world.beats(job)) >= 2
    world.orchestrator.stop()


# -- answers


def test_a_closed_token_is_judged_and_stops_nobody_else(world: World) -> None:
    """R004-147, R004-153, R004-154, R004-162, R004-243, JB-46, D-27."""
    other = world.job("other")
    gone = world.job("gone")
    world.service.send_task_success(gone.task_token, {})
    foreign = world.job("foreign", task_token=TaskToken("not ours"))
    assert world.orchestrator.trigger_heartbeat() == 3
    assert sorted(world.closed) == [("foreign", "InvalidToken"), ("gone", "TaskTimedOut")]
    assert len(world.beats(other)) == 1
    assert foreign.status is JobStatus.DOWNLOADING
    failed = {event.job_id: event.code for event in world.told(ev.HeartbeatFailed)}
    assert failed == {"foreign": "InvalidToken", "gone": "TaskTimedOut"}


def test_a_judge_that_raises_stops_nothing() -> None:
    """R004-097, R004-156, I-JB-8."""

    def judge(*_: object) -> None:
        raise RuntimeError("a bug")

    world = World(token_closed=judge)
    world.job("foreign", task_token=TaskToken("not ours"))
    world.job("stuck", last_progress_at=0.0)
    job = world.job("a")
    world.let_pass(95)
    assert len(world.beats(job)) >= 4
    assert world.orchestrator.trigger_heartbeat() == 2
    world.orchestrator.stop()


def test_sent_is_success_and_failure_even_when_a_beat_is_cancelled() -> None:
    """I-JB-9, JB-41: whatever tears the beat down, it is told."""

    class Cancelled(BaseException):
        pass

    class Torn(SimulatedStepFunctions):
        def send_task_heartbeat(self, token: TaskToken) -> None:
            raise Cancelled

    told: list[object] = []
    world = World()
    heart = HeartbeatSender(Torn(), Events(told.append), ManualClock())
    with pytest.raises(Cancelled):
        heart.beat(world.job("a"))
    assert told == [ev.HeartbeatFailed("a", "Cancelled", 0.0)]


# -- many


def test_500_jobs_are_never_silent_for_heartbeat_seconds() -> None:
    """I-JB-6, JB-26, R004-009, R004-214, R004-249, R004-250, R004-270: through throttling,
    an outage of 20 s, lost replies and a store that is down."""
    world = World(heartbeat_seconds=60.0)
    jobs = [world.job(f"job-{n}") for n in range(500)]
    world.let_pass(40, step=0.5)
    world.service.throttle(300)
    world.let_pass(30, step=0.5)
    world.service.lose_replies(100)
    world.shelf.down = True
    world.let_pass(30, step=0.5)
    world.service.down = True
    world.let_pass(20, step=0.5)
    world.service.down = False
    world.let_pass(40, step=0.5)
    assert {world.service.state(job.task_token) for job in jobs} == {TokenState.OPEN}
    assert max(world.service.longest_gap(job.task_token) for job in jobs) < 60
    sent = len(world.told(ev.HeartbeatSent)) + len(world.told(ev.HeartbeatFailed))
    assert sent == world.service.calls
    world.orchestrator.stop()


def test_when_one_of_two_orchestrators_ends_the_other_carries_on() -> None:
    """JB-26, I-JB-6."""
    world = World(heartbeat_seconds=60.0)
    first, second = world.orchestrator, world.another()
    jobs = [world.job(f"job-{n}") for n in range(30)]
    world.let_pass(70, first, second)
    both = [len(world.beats(job)) for job in jobs]
    assert min(both) >= 5
    first.stop()
    world.let_pass(70, second)
    longest = max(world.service.longest_gap(job.task_token) for job in jobs)
    assert longest == pytest.approx(30)
    assert world.closed == []
    second.stop()


# -- what it is told


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
def test_what_cannot_work_is_refused(options: dict[str, float]) -> None:
    """D-24."""
    with pytest.raises(ConfigError):
        World(**options)
