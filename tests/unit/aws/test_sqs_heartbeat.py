"""Tests of SQSHeartbeat beyond its requirements: losses are reported, outages tolerated."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.aws.heartbeat_run import HeartbeatOptions, HeartbeatRun
from holdfast.errors import LeaseLost
from holdfast.events import Events
from holdfast.testing.clock import ManualClock
from holdfast.utils.sqs_heartbeat import SQSHeartbeat, stop_all
from support.sqs.heartbeats import (
    GONE,
    HANDLE,
    THROTTLED,
    URL,
    Ground,
    sqs_error,
)
from support.waiting import WAIT_TIMEOUT_SECONDS, wait_until

OUTAGE = EndpointConnectionError(endpoint_url="https://sqs.eu-west-1.amazonaws.com")


# -- transient and final errors


@pytest.mark.parametrize(
    "error",
    [
        sqs_error(THROTTLED),
        sqs_error("RequestThrottled", 403),
        sqs_error("Unheard", 503),
        sqs_error("SlowDown", 429),
        OUTAGE,
        ConnectTimeoutError(endpoint_url="https://sqs"),
        ConnectionResetError(),
        TimeoutError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_transient_error_within_the_visibility_is_tolerated(ground: Ground, error) -> None:
    """The outage is shorter than visibility - interval - margin (I-HB-5)."""
    heartbeat = ground.start(20, 600)
    ground.sqs.next_error = lambda: (
        error if ground.clock.monotonic() < ground.began + 540 else None
    )
    ground.advance(heartbeat, 620)
    heartbeat.stop()
    assert heartbeat.check_for_errors() is None
    assert not heartbeat.lost.is_set()
    assert heartbeat.history == ()
    assert heartbeat.transient_errors > 3


def test_retries_during_an_outage_are_spaced_out(ground: Ground) -> None:
    heartbeat = ground.start(20, 600)
    ground.sqs.next_error = lambda: OUTAGE
    ground.advance(heartbeat, 600)
    assert 5 < len(ground.sqs.beats) < 60
    assert ground.beat_times[-1] > 560  # but tried until close to the end


def test_an_outage_longer_than_the_visibility_is_a_loss_before_redelivery(
    ground: Ground,
) -> None:
    """It is lost when the visibility ends, with the first of the errors (I-HB-4)."""
    heartbeat = ground.start(20, 60)
    ground.advance(heartbeat, 21)
    first, second = sqs_error(THROTTLED), sqs_error("InternalError", 500)
    ground.sqs.next_error = lambda: first if len(ground.sqs.beats) == 2 else second
    hidden_until = ground.sqs.beats[0].at + 60
    ground.advance(heartbeat, hidden_until - ground.clock.monotonic() - 0.5, step=0.5)
    assert not heartbeat.lost.is_set()
    ground.advance(heartbeat, 0.5)
    assert heartbeat.lost.wait(WAIT_TIMEOUT_SECONDS)
    assert heartbeat.check_for_errors() is first


def test_any_error_that_ends_the_thread_is_a_loss(ground: Ground) -> None:
    """The error is not an Exception, and no code in the thread catches it (HB-23)."""

    class Odd(BaseException):
        pass

    odd = Odd()
    heartbeat = ground.start(20, 600)
    ground.sqs.fail(odd)
    ground.advance(heartbeat, 21)
    assert heartbeat.lost.wait(WAIT_TIMEOUT_SECONDS)
    assert heartbeat.check_for_errors() is odd
    wait_until(lambda: not heartbeat._running)


def test_the_first_failure_can_be_made_final(ground: Ground) -> None:
    """This is the literal requirement."""
    heartbeat = ground.start(20, 600, max_transient_failures=0)
    ground.sqs.fail(OUTAGE)
    ground.advance(heartbeat, 21)
    assert heartbeat.check_for_errors() is OUTAGE
    assert len(ground.sqs.beats) == 1


def test_only_max_transient_failures_in_a_row_are_tolerated(ground: Ground) -> None:
    heartbeat = ground.start(20, 600, max_transient_failures=2)
    ground.sqs.fail(OUTAGE, OUTAGE, None, OUTAGE, OUTAGE, None)
    ground.advance(heartbeat, 200)
    assert heartbeat.check_for_errors() is None  # never three in a row
    ground.sqs.fail(OUTAGE, OUTAGE, OUTAGE)
    ground.advance(heartbeat, 200)
    assert heartbeat.check_for_errors() is OUTAGE
    assert heartbeat.transient_errors == 7


# -- losses are reported


def test_a_loss_sets_the_event_calls_back_and_raises(ground: Ground) -> None:
    errors: list[BaseException] = []
    refused = sqs_error(GONE)
    heartbeat = ground.start(20, on_lost=errors.append)
    heartbeat.raise_if_lost()
    ground.sqs.fail(refused)
    ground.advance(heartbeat, 21)
    assert heartbeat.lost.wait(WAIT_TIMEOUT_SECONDS)
    wait_until(lambda: errors)
    assert errors == [refused]
    with pytest.raises(LeaseLost, match=GONE) as raised:
        heartbeat.raise_if_lost()
    assert raised.value.__cause__ is refused
    assert HANDLE not in str(raised.value)


def test_after_the_lost_event_the_error_is_available_and_a_restart_works(
    ground: Ground,
) -> None:
    """The event is set last, when everything else is in place."""
    heartbeat = ground.start(20, 600)
    ground.sqs.fail(sqs_error("AccessDenied"))
    ground.clock.advance(21)
    assert heartbeat.lost.wait(WAIT_TIMEOUT_SECONDS)
    assert heartbeat.check_for_errors() is not None
    heartbeat.start()
    ground.settle(heartbeat)
    ground.advance(heartbeat, 21)
    assert heartbeat.running
    assert len(ground.sqs.beats) == 2


@pytest.mark.parametrize("failing", [ValueError("callback"), SystemExit(3)])
def test_a_callback_that_fails_does_not_affect_the_heartbeat(
    ground: Ground, failing: BaseException
) -> None:
    def on_lost(error: BaseException) -> None:
        raise failing

    heartbeat = ground.start(20, on_lost=on_lost)
    ground.sqs.fail(sqs_error(GONE))
    ground.advance(heartbeat, 21)
    wait_until(lambda: not heartbeat.running)
    assert not heartbeat._running
    assert isinstance(heartbeat.check_for_errors(), ClientError)


def test_a_callback_that_fails_does_not_affect_the_caller_that_noticed_the_loss(
    ground: Ground,
) -> None:
    """The handler notices the loss first, so the callback runs in its thread."""

    def on_lost(error: BaseException) -> None:
        raise SystemExit(3)

    heartbeat = ground.hang(20, 60, on_lost=on_lost)
    ground.clock.advance(60)
    assert isinstance(heartbeat.check_for_errors(), LeaseLost)


def test_a_callback_may_stop_and_start(ground: Ground) -> None:
    """The thread never waits for itself (HB-01)."""
    done = threading.Event()

    def on_lost(error: BaseException) -> None:
        heartbeat.stop()
        heartbeat.start()
        heartbeat.stop()
        done.set()

    heartbeat = ground.heartbeat(20, on_lost=on_lost)
    heartbeat.start()
    ground.settle(heartbeat)
    ground.sqs.fail(sqs_error(GONE))
    ground.clock.advance(21)
    assert done.wait(WAIT_TIMEOUT_SECONDS)


def test_a_callback_may_restart_without_stopping(ground: Ground) -> None:
    """The run is over before on_lost is called, so a start begins a new run."""
    heartbeat = ground.heartbeat(20, 60, on_lost=lambda error: heartbeat.start())
    heartbeat.start()
    ground.settle(heartbeat)
    ground.sqs.fail(sqs_error("AccessDenied"))
    ground.clock.advance(21)
    wait_until(lambda: heartbeat.history)
    wait_until(lambda: heartbeat.running and not heartbeat.lost.is_set())
    ground.settle(heartbeat)
    ground.advance(heartbeat, 21)
    assert len(ground.sqs.beats) == 2


def test_waking_up_too_late_is_a_loss_without_a_call(ground: Ground) -> None:
    """It was frozen for longer than the message was hidden, so another may hold it (HB-04)."""
    heartbeat = ground.start(20, 60)
    ground.clock.advance(60)
    assert heartbeat.lost.wait(WAIT_TIMEOUT_SECONDS)
    assert ground.sqs.beats == []
    assert isinstance(heartbeat.check_for_errors(), LeaseLost)


def test_waking_up_late_but_in_time_beats_at_once(ground: Ground) -> None:
    heartbeat = ground.start(20, 60)
    ground.clock.advance(59.5)
    ground.settle(heartbeat)
    assert ground.beat_times == [59.5]
    assert not heartbeat.lost.is_set()


def test_a_response_after_the_deadline_loses_the_lease(ground: Ground) -> None:
    heartbeat = ground.start(20, 60)
    ground.sqs.before_response = lambda: ground.clock.advance(41)
    ground.clock.advance(20)
    assert heartbeat.lost.wait(WAIT_TIMEOUT_SECONDS)


@pytest.mark.parametrize(
    "ask", [SQSHeartbeat.stop, SQSHeartbeat.check_for_errors], ids=["stop", "check"]
)
def test_a_handler_that_thaws_before_the_thread_notices_the_loss(ground: Ground, ask) -> None:
    """The thread is in a call while the deadline passes (I-HB-4)."""
    heartbeat = ground.hang(20, 60, join_timeout_sec=0.01)
    ground.clock.advance(60)
    ask(heartbeat)
    assert heartbeat.lost.is_set()
    assert isinstance(heartbeat.check_for_errors(), LeaseLost)


@pytest.mark.requirement("R000-085")
def test_leaving_the_block_raises_the_loss_unless_the_work_failed_itself(ground: Ground):

    def work_and_fail() -> None:
        ground.clock.advance(60)
        raise KeyError

    with pytest.raises(LeaseLost), ground.heartbeat(20, 60) as heartbeat:
        ground.clock.advance(60)
    assert not heartbeat.running
    with pytest.raises(KeyError), ground.heartbeat(20, 60):
        work_and_fail()
    with ground.heartbeat(20, 60) as heartbeat:
        assert heartbeat.running
    assert not heartbeat.running


# -- stopping


def test_a_refusal_that_arrives_after_the_stop_is_no_error(ground: Ground) -> None:
    """The handler deleted the message while a beat was in progress (HB-07)."""
    ground.sqs.fail(sqs_error(GONE))
    heartbeat = ground.hang(20)
    stopping = threading.Thread(target=heartbeat.stop)
    stopping.start()
    wait_until(heartbeat._stop_event.is_set)
    ground.sqs.gate.set()
    stopping.join(WAIT_TIMEOUT_SECONDS)
    assert heartbeat.check_for_errors() is None
    assert not heartbeat.lost.is_set()


def test_a_run_that_hung_while_it_was_stopped_does_not_resume(ground: Ground) -> None:
    """Its one call may end; afterwards only the next run beats (HB-10, I-HB-2, I-HB-3)."""
    heartbeat = ground.hang(20, 60, join_timeout_sec=0.01)
    hung = heartbeat._thread
    assert hung is not None
    heartbeat.stop()
    heartbeat.start()
    ground.settle(heartbeat)
    assert len(ground.sqs.beats) == 1  # the next run waits for that call
    ground.sqs.gate.set()
    hung.join(WAIT_TIMEOUT_SECONDS)
    assert not hung.is_alive()
    assert heartbeat.running  # the end of the old run does not end the new one
    assert heartbeat._running
    ground.advance(heartbeat, 61)
    beats = len(ground.sqs.beats)
    assert beats - 1 in (3, 4)  # every 20 s, after a retry within the first second
    assert ground.sqs.max_inside == 1
    heartbeat.stop()
    ground.clock.advance(30)
    assert len(ground.sqs.beats) == beats


def test_a_stop_waits_for_the_last_call_of_an_earlier_run(ground: Ground) -> None:
    """Otherwise that call would hide a message that was just given back (I-HB-2, HB-09)."""
    heartbeat = ground.hang(20, 60)
    heartbeat.end()
    heartbeat.start()
    ground.settle(heartbeat)
    threading.Timer(0.05, ground.sqs.gate.set).start()
    heartbeat.stop()
    assert ground.sqs.inside == 0


def test_the_refusal_of_a_run_that_hung_does_not_affect_the_next_run(ground: Ground) -> None:
    refused = sqs_error(GONE)
    heartbeat = ground.hang(20, 60, join_timeout_sec=0.01)
    hung = heartbeat._thread
    assert hung is not None
    heartbeat.stop()
    ground.sqs.fail(refused)
    ground.sqs.before_response = lambda: None
    heartbeat.initial_beat = False
    heartbeat.start()
    ground.sqs.gate.set()
    hung.join(WAIT_TIMEOUT_SECONDS)
    ground.settle(heartbeat)
    assert heartbeat.running
    assert heartbeat.check_for_errors() is None
    assert not heartbeat.lost.is_set()


def test_a_run_ended_by_its_event_alone_does_not_affect_the_next_run(ground: Ground) -> None:
    """Code that knows the internals might end it so; its lease is not released."""
    ground.sqs.fail(sqs_error(GONE))
    heartbeat = ground.hang(20, 60)
    hung = heartbeat._thread
    assert hung is not None
    heartbeat._stop_event.set()
    heartbeat.start()
    ground.settle(heartbeat)
    ground.sqs.gate.set()
    hung.join(WAIT_TIMEOUT_SECONDS)
    assert heartbeat.running
    assert not heartbeat.lost.is_set()
    assert heartbeat.check_for_errors() is None


@contextmanager
def no_threads() -> Iterator[None]:
    """Let no thread be started."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield


def test_a_start_without_free_threads_raises_and_can_be_repeated(ground: Ground) -> None:
    """It does not appear to run (HB-21)."""
    heartbeat = ground.heartbeat(20, 60)
    with no_threads(), pytest.raises(RuntimeError):
        heartbeat.start()
    assert not heartbeat.running
    assert not heartbeat._running
    heartbeat.start()
    assert heartbeat.running


def test_a_restart_without_free_threads_leaves_no_running_heartbeat(ground: Ground) -> None:
    """The earlier run hangs in its last call, so it has not removed the heartbeat itself."""
    stop_all()
    heartbeat = ground.hang(20, 60)
    heartbeat.end()
    with no_threads(), pytest.raises(RuntimeError):
        heartbeat.start()
    assert stop_all() == 0


def test_a_start_without_free_threads_does_not_hang_after_the_deadline(
    ground: Ground,
) -> None:
    heartbeat = ground.heartbeat(20, 60, initial_visibility_sec=-1)
    with no_threads(), pytest.raises(RuntimeError):
        heartbeat.start()


def test_a_restart_does_not_extend_the_known_visibility(ground: Ground) -> None:
    """It was stopped until the visibility ended, so another may hold the message (HB-12)."""
    heartbeat = ground.start(20, 60)
    ground.advance(heartbeat, 21)
    heartbeat.stop()
    assert heartbeat.check_for_errors() is None
    ground.clock.advance(60)
    heartbeat.start()
    assert heartbeat.lost.wait(WAIT_TIMEOUT_SECONDS)
    assert len(ground.sqs.beats) == 1


def test_transient_errors_are_counted_over_all_starts(ground: Ground) -> None:
    heartbeat = ground.start(20, 600)
    for _ in range(2):
        ground.sqs.fail(OUTAGE)
        ground.advance(heartbeat, 40)
        heartbeat.stop()
        heartbeat.start()
        ground.settle(heartbeat)
    assert heartbeat.transient_errors == 2


def test_a_restart_beats_before_the_remaining_visibility_ends(ground: Ground) -> None:
    heartbeat = ground.start(20, 60)
    heartbeat.stop()
    ground.clock.advance(50)
    heartbeat.start()
    ground.settle(heartbeat)
    ground.advance(heartbeat, 9.5, step=0.5)
    assert len(ground.sqs.beats) == 1
    assert not heartbeat.lost.is_set()


def test_all_running_heartbeats_can_be_stopped_at_once(ground: Ground) -> None:
    """This happens at the start of a Lambda handler (HB-17)."""
    stop_all()
    left = [ground.start(20) for _ in range(3)]
    stopped = ground.start(20)
    stopped.stop()
    assert stop_all() == 3
    assert not any(heartbeat.running for heartbeat in left)
    ground.clock.advance(30)
    assert ground.sqs.beats == []
    assert stop_all() == 0


def test_all_running_heartbeats_end_before_the_first_is_waited_for(ground: Ground) -> None:
    """So their last calls finish in parallel."""
    stop_all()
    ground.sqs.gate.clear()
    left = [ground.heartbeat(20, initial_beat=True) for _ in range(3)]
    for heartbeat in left:
        heartbeat.start()
    wait_until(lambda: ground.sqs.inside == 3)
    stopping = threading.Thread(target=stop_all)
    stopping.start()
    wait_until(lambda: all(heartbeat._stop_event.is_set() for heartbeat in left))
    ground.sqs.gate.set()
    stopping.join(WAIT_TIMEOUT_SECONDS)
    assert not any(heartbeat.running for heartbeat in left)
    assert not any(heartbeat.history for heartbeat in left)  # else its call failed first


# -- the first beat


def test_the_first_beat_can_come_at_once(ground: Ground) -> None:
    """`initial_beat` requests it."""
    heartbeat = ground.start(20, 60, initial_beat=True)
    wait_until(lambda: ground.sqs.beats)
    ground.settle(heartbeat)
    ground.advance(heartbeat, 41, step=0.5)
    assert ground.beat_times == pytest.approx([0, 20, 40], abs=1)


def test_a_message_received_some_time_ago_is_extended_before_it_reappears(
    ground: Ground,
) -> None:
    received_at = ground.clock.time() - 50
    heartbeat = ground.start(20, 60, received_at=received_at)
    ground.advance(heartbeat, 6, step=0.5)
    assert ground.beat_times == [5]
    assert heartbeat.check_for_errors() is None


def test_a_message_that_waited_too_long_is_lost_from_the_start(ground: Ground) -> None:
    heartbeat = ground.heartbeat(20, 60, received_at=ground.clock.time() - 60)
    heartbeat.start()
    assert heartbeat.lost.wait(WAIT_TIMEOUT_SECONDS)
    assert ground.sqs.beats == []


def test_a_receive_in_the_future_is_taken_for_now(ground: Ground) -> None:
    """The clocks of two machines may differ."""
    heartbeat = ground.start(20, 60, received_at=ground.clock.time() + 5)
    ground.advance(heartbeat, 21)
    assert len(ground.sqs.beats) == 1


def test_a_wall_clock_that_is_set_changes_nothing(ground: Ground) -> None:
    heartbeat = ground.heartbeat(20, 60, received_at=ground.clock.time())
    ground.clock.step_time(86_400)
    heartbeat.start()
    ground.settle(heartbeat)
    ground.advance(heartbeat, 100)
    assert heartbeat.check_for_errors() is None
    assert {beat.seconds for beat in ground.sqs.beats} == {60}


def test_a_short_first_visibility_is_extended_within_half_of_it(ground: Ground) -> None:
    """The queue hides for 30 s; beats come every 60 s and request 600 (HB-14)."""
    heartbeat = ground.start(60, 600, initial_visibility_sec=30)
    ground.advance(heartbeat, 14)
    assert ground.beat_times == []
    ground.advance(heartbeat, 2)
    assert ground.beat_times == [15]
    ground.advance(heartbeat, 61)
    assert ground.beat_times == pytest.approx([15, 75], abs=1)


def test_a_long_first_visibility_is_not_shortened_by_an_early_beat(ground: Ground) -> None:
    """905 s are left and a beat sets 600, so the first waits until it extends (HB-15)."""
    heartbeat = ground.start(60, 600, initial_visibility_sec=905)
    ground.advance(heartbeat, 364)
    assert ground.beat_times == []
    ground.advance(heartbeat, 2)
    assert ground.beat_times == [365]


@given(
    visibility=st.integers(1, 43_200),
    share=st.floats(0.001, 0.999),
    left_share=st.just(1.0) | st.floats(-1, 3),
    stall=st.none() | st.floats(0.1, 1000),
)
def test_the_first_beat_is_always_in_time(visibility, share, left_share, stall) -> None:
    """It comes after the start, before the end, and normally after one interval (I-HB-1)."""
    clock = ManualClock()
    now, interval = clock.monotonic(), visibility * share
    left = visibility * left_share
    beats: list[float] = []
    options = HeartbeatOptions(
        URL, HANDLE, interval, visibility, stall_timeout_sec=stall, clock=clock
    )
    run = HeartbeatRun(
        options,
        lambda seconds: beats.append(clock.monotonic()),
        threading.Lock(),
        received_at=now,
        trusted_until=now + left,
        events=Events(),
    )
    assert run.first_at < now + left or left < 1e-6
    if visibility > 10_000:
        return  # near the cap a message may not be extended at all
    while not beats and run.lease.live:
        clock.advance(max(0.0, run.tick() - clock.monotonic()))
    if left <= 0:
        assert beats == []
    elif stall is None and left > 1e-6:
        assert now <= beats[0] < now + left
    if left == visibility and (stall is None or stall > interval):
        assert beats == [pytest.approx(now + interval)]


# -- giving up


def test_work_that_does_not_move_is_given_up(ground: Ground) -> None:
    heartbeat = ground.start(20, 60, stall_timeout_sec=100)
    for _ in range(5):
        ground.advance(heartbeat, 90)
        heartbeat.progress()
    assert heartbeat.check_for_errors() is None
    ground.advance(heartbeat, 99)
    assert not heartbeat.lost.is_set()
    ground.advance(heartbeat, 1)
    assert heartbeat.lost.wait(WAIT_TIMEOUT_SECONDS)
    with pytest.raises(LeaseLost, match="stalled"):
        heartbeat.raise_if_lost()


def test_a_stall_shorter_than_the_interval_is_noticed_in_time(ground: Ground) -> None:
    heartbeat = ground.start(20, 60, stall_timeout_sec=5)
    ground.advance(heartbeat, 5)
    assert heartbeat.lost.wait(WAIT_TIMEOUT_SECONDS)
    assert ground.sqs.beats == []


def test_work_that_takes_too_long_is_given_up_after_a_warning(ground: Ground) -> None:
    warned: list[float] = []
    heartbeat = ground.start(20, 60, max_duration_sec=1000, on_near_cap=warned.append)
    ground.advance(heartbeat, 930)
    assert warned == []
    ground.advance(heartbeat, 69)
    assert warned == pytest.approx([60], abs=1)
    assert not heartbeat.lost.is_set()
    ground.advance(heartbeat, 2)
    assert heartbeat.lost.wait(WAIT_TIMEOUT_SECONDS)
    with pytest.raises(LeaseLost, match="1000 s"):
        heartbeat.raise_if_lost()
    ends = [beat.at + beat.seconds for beat in ground.sqs.beats]
    assert max(ends) <= ground.began + 1000  # and it is not hidden for longer


@pytest.mark.parametrize("waited", [0, 3600])
def test_twelve_hours_from_the_receive_are_never_exceeded(ground: Ground, waited: int) -> None:
    """SQS would refuse more, so the last beats request the time left (I-HB-8, HB-05)."""
    warned: list[float] = []
    received = ground.clock.monotonic() - waited
    heartbeat = ground.start(
        600,
        3000,
        received_at=ground.clock.time() - waited,
        initial_visibility_sec=3000,
        on_near_cap=warned.append,
    )
    ground.advance(heartbeat, 43_200 - waited - 62, step=50)
    assert (warned, heartbeat.check_for_errors()) == ([], None)
    ground.advance(heartbeat, 57)
    assert len(warned) == 1
    assert heartbeat.check_for_errors() is None
    ground.advance(heartbeat, 10)
    assert heartbeat.lost.wait(WAIT_TIMEOUT_SECONDS)
    ends = [beat.at + beat.seconds - received for beat in ground.sqs.beats]
    assert max(ends) <= 43_200
    assert max(ends) > 43_190
    with pytest.raises(LeaseLost, match="cap"):
        heartbeat.raise_if_lost()


def test_an_unknown_receive_is_taken_to_be_a_minute_ago(ground: Ground) -> None:
    """Otherwise SQS would refuse the last beats of twelve hours after a slow start."""
    received = ground.clock.monotonic() - 30
    heartbeat = ground.start(600, 3000)
    ground.advance(heartbeat, 43_200 - 70, step=50)
    assert heartbeat.check_for_errors() is None
    assert max(beat.at + beat.seconds for beat in ground.sqs.beats) - received <= 43_200


# -- the log


def test_one_line_per_transition_and_no_receipt_in_any(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    """A log reader could delete the message with its receipt (HB-22)."""
    caplog.set_level(logging.DEBUG, logger="holdfast")
    heartbeat = ground.start(20, 600)
    ground.sqs.fail(sqs_error(THROTTLED), sqs_error(THROTTLED), None)
    ground.advance(heartbeat, 150)
    heartbeat.stop()
    heartbeat.start()
    ground.settle(heartbeat)
    ground.sqs.fail(sqs_error(GONE))
    ground.advance(heartbeat, 150)
    heartbeat.stop()
    events = [record.getMessage().split()[0] for record in caplog.records]
    started, at_risk = "heartbeat_started", "heartbeat_at_risk"
    stopped, lost = "heartbeat_stopped", "heartbeat_lost"
    assert events == [started, at_risk, stopped, started, lost, stopped]
    assert HANDLE not in caplog.text + repr(heartbeat)
    assert HANDLE[-6:] not in caplog.text + repr(heartbeat)


# -- any sequence of responses keeps the promises


@settings(max_examples=40, deadline=None)
@given(
    answers=st.lists(st.sampled_from(["granted", "outage", "gone"]), max_size=12),
    steps=st.lists(st.floats(0.5, 25), min_size=5, max_size=25),
)
def test_for_any_responses_and_time_steps_a_loss_is_always_reported(
    answers: list[str], steps: list[float]
) -> None:
    """The model is the time when SQS would show the message (I-HB-4, I-HB-5, I-HB-6)."""
    ground = Ground()
    errors = {"granted": None, "outage": OUTAGE, "gone": sqs_error(GONE)}
    hidden_until = [ground.began + 60]
    script = iter(answers)
    gone: list[bool] = []

    def answer() -> BaseException | None:
        assert ground.clock.monotonic() < hidden_until[-1], "called with a stale handle"
        error = errors[next(script, "granted")]
        if error is None:
            hidden_until.append(ground.clock.monotonic() + 60)
        elif error is not OUTAGE:
            gone.append(True)
        return error

    ground.sqs.next_error = answer
    heartbeat = ground.start(20, 60)
    try:
        for step in steps:
            ground.clock.advance(step)
            ground.settle(heartbeat)
            over = bool(gone) or ground.clock.monotonic() >= hidden_until[-1]
            assert (heartbeat.check_for_errors() is not None) is over
            assert heartbeat.lost.is_set() is over
    finally:
        ground.close()
