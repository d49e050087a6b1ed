"""What SQSHeartbeat promises beyond its seed: losses that are seen, troubles that are not."""

import logging
import threading
from collections.abc import Iterator

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ParamValidationError,
)
from heartbeat_kit import GENEROUS, GONE, HANDLE, THROTTLED, Ground, sqs_error, until
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.aws.heartbeat_options import HeartbeatOptions
from holdfast.adapters.aws.visibility import CallLock, HeartbeatRun, VisibilitySource
from holdfast.core.errors import LeaseLost
from holdfast.core.events import Events
from holdfast.testing.clock import ManualClock
from holdfast.utils.sqs_heartbeat import SQSHeartbeat, stop_all

OUTAGE = EndpointConnectionError(endpoint_url="https://sqs.eu-west-1.amazonaws.com")


@pytest.fixture
def ground() -> Iterator[Ground]:
    ground = Ground()
    yield ground
    ground.close()


# -- what passes, and what does not (HB-02)


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
def test_what_passes_within_the_visibility_is_no_error(ground: Ground, error) -> None:
    """I-HB-5: an outage shorter than visibility - interval - margin."""
    heartbeat = ground.started(20, 600)
    ground.sqs.fails = lambda: error if ground.clock.monotonic() < ground.began + 540 else None
    ground.let_pass(heartbeat, 620)
    heartbeat.stop()
    assert heartbeat.check_for_errors() is None
    assert not heartbeat.lost.is_set()
    assert heartbeat.history == ()
    assert heartbeat.transient_errors > 3


def test_an_outage_is_not_stormed(ground: Ground) -> None:
    heartbeat = ground.started(20, 600)
    ground.sqs.fails = lambda: OUTAGE
    ground.let_pass(heartbeat, 600)
    assert 5 < len(ground.sqs.beats) < 60
    assert ground.beaten_at[-1] > 560  # but tried until close to the end


def test_an_outage_that_outlasts_the_visibility_is_a_loss_before_anybody_gets_it(
    ground: Ground,
) -> None:
    """I-HB-4: lost when the visibility ends, with the first of the errors."""
    heartbeat = ground.started(20, 60)
    ground.let_pass(heartbeat, 21)
    first, second = sqs_error(THROTTLED), sqs_error("InternalError", 500)
    ground.sqs.fails = lambda: first if len(ground.sqs.beats) == 2 else second
    hidden_until = ground.sqs.beats[0].at + 60
    ground.let_pass(heartbeat, hidden_until - ground.clock.monotonic() - 0.5, step=0.5)
    assert not heartbeat.lost.is_set()
    ground.let_pass(heartbeat, 0.5)
    assert heartbeat.lost.wait(GENEROUS)
    assert heartbeat.check_for_errors() is first


@pytest.mark.parametrize(
    "error",
    [
        sqs_error(GONE),
        sqs_error("InvalidParameterValue"),
        sqs_error("AWS.SimpleQueueService.MessageNotInflight"),
        sqs_error("QueueDoesNotExist"),
        sqs_error("AccessDenied", 403),
        ParamValidationError(report="bad"),
        ZeroDivisionError(),
    ],
    ids=lambda error: getattr(error, "response", {}).get("Error", {}).get("Code", str(error)),
)
def test_a_refusal_or_a_bug_is_final_at_once(ground: Ground, error) -> None:
    heartbeat = ground.started(20, 600)
    ground.sqs.fail(error)
    ground.let_pass(heartbeat, 21)
    assert heartbeat.lost.is_set()
    assert heartbeat.check_for_errors() is error
    assert len(ground.sqs.beats) == 1


def test_whatever_ends_the_thread_is_a_loss(ground: Ground) -> None:
    """HB-23: not even an Exception, and nobody in the thread who would catch it."""

    class Odd(BaseException):
        pass

    odd = Odd()
    heartbeat = ground.started(20, 600)
    ground.sqs.fail(odd)
    ground.let_pass(heartbeat, 21)
    assert heartbeat.lost.wait(GENEROUS)
    assert heartbeat.check_for_errors() is odd
    until(lambda: not heartbeat._running)


def test_the_first_failure_can_be_made_final(ground: Ground) -> None:
    """The seed to the letter."""
    heartbeat = ground.started(20, 600, max_transient_failures=0)
    ground.sqs.fail(OUTAGE)
    ground.let_pass(heartbeat, 21)
    assert heartbeat.check_for_errors() is OUTAGE
    assert len(ground.sqs.beats) == 1


def test_so_many_failures_in_a_row_are_ridden_out_and_no_more(ground: Ground) -> None:
    heartbeat = ground.started(20, 600, max_transient_failures=2)
    ground.sqs.fail(OUTAGE, OUTAGE, None, OUTAGE, OUTAGE, None)
    ground.let_pass(heartbeat, 200)
    assert heartbeat.check_for_errors() is None  # never three in a row
    ground.sqs.fail(OUTAGE, OUTAGE, OUTAGE)
    ground.let_pass(heartbeat, 200)
    assert heartbeat.check_for_errors() is OUTAGE
    assert heartbeat.transient_errors == 7


# -- losses are seen (HB-03, HB-04)


def test_a_loss_is_told_to_whoever_waits_asks_or_was_to_be_called(ground: Ground) -> None:
    told: list[BaseException] = []
    refused = sqs_error(GONE)
    heartbeat = ground.started(20, on_lost=told.append)
    heartbeat.raise_if_lost()
    ground.sqs.fail(refused)
    ground.let_pass(heartbeat, 21)
    assert heartbeat.lost.wait(GENEROUS)
    until(lambda: told)
    assert told == [refused]
    with pytest.raises(LeaseLost, match=GONE) as raised:
        heartbeat.raise_if_lost()
    assert raised.value.__cause__ is refused
    assert HANDLE not in str(raised.value)


def test_who_sees_the_loss_sees_its_error_and_can_start_anew(ground: Ground) -> None:
    """The event comes last: behind it everything is in place."""
    heartbeat = ground.started(20, 600)
    ground.sqs.fail(sqs_error("AccessDenied"))
    ground.clock.advance(21)
    assert heartbeat.lost.wait(GENEROUS)
    assert heartbeat.check_for_errors() is not None
    heartbeat.start()
    ground.settle(heartbeat)
    ground.let_pass(heartbeat, 21)
    assert heartbeat.running
    assert len(ground.sqs.beats) == 2


@pytest.mark.parametrize("failing", [ValueError("mine"), SystemExit(3)])
def test_a_callback_that_fails_harms_nobody(ground: Ground, failing: BaseException) -> None:
    def on_lost(error: BaseException) -> None:
        raise failing

    heartbeat = ground.started(20, on_lost=on_lost)
    ground.sqs.fail(sqs_error(GONE))
    ground.let_pass(heartbeat, 21)
    until(lambda: not heartbeat.running)
    assert not heartbeat._running
    assert isinstance(heartbeat.check_for_errors(), ClientError)


def test_a_callback_that_fails_does_not_fail_whoever_asked(ground: Ground) -> None:
    """The handler notices the loss first, so the callback runs in its thread."""

    def on_lost(error: BaseException) -> None:
        raise SystemExit(3)

    ground.sqs.gate.clear()
    heartbeat = ground.heartbeat(20, 60, initial_beat=True, on_lost=on_lost)
    heartbeat.start()
    until(lambda: ground.sqs.inside)
    ground.clock.advance(60)
    assert isinstance(heartbeat.check_for_errors(), LeaseLost)


def test_a_callback_may_stop_and_start(ground: Ground) -> None:
    """HB-01: the thread never waits for itself."""
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
    assert done.wait(GENEROUS)


def test_a_callback_may_start_anew_without_stopping(ground: Ground) -> None:
    """The run is over before anybody is told: a start is not taken for one too many."""
    heartbeat = ground.heartbeat(20, 60, on_lost=lambda error: heartbeat.start())
    heartbeat.start()
    ground.settle(heartbeat)
    ground.sqs.fail(sqs_error("AccessDenied"))
    ground.clock.advance(21)
    until(lambda: heartbeat.history)
    until(lambda: heartbeat.running and not heartbeat.lost.is_set())
    ground.settle(heartbeat)
    ground.let_pass(heartbeat, 21)
    assert len(ground.sqs.beats) == 2


def test_waking_up_too_late_is_a_loss_without_a_call(ground: Ground) -> None:
    """HB-04: frozen for longer than the message was hidden. It may be somebody else's."""
    heartbeat = ground.started(20, 60)
    ground.clock.advance(60)
    assert heartbeat.lost.wait(GENEROUS)
    assert ground.sqs.beats == []
    assert isinstance(heartbeat.check_for_errors(), LeaseLost)


def test_waking_up_late_but_in_time_beats_at_once(ground: Ground) -> None:
    heartbeat = ground.started(20, 60)
    ground.clock.advance(59.5)
    ground.settle(heartbeat)
    assert ground.beaten_at == [59.5]
    assert not heartbeat.lost.is_set()


def test_an_answer_after_the_deadline_proves_nothing(ground: Ground) -> None:
    heartbeat = ground.started(20, 60)
    ground.sqs.before_answering = lambda: ground.clock.advance(41)
    ground.clock.advance(20)
    assert heartbeat.lost.wait(GENEROUS)


@pytest.mark.parametrize(
    "ask", [SQSHeartbeat.stop, SQSHeartbeat.check_for_errors], ids=["stop", "check"]
)
def test_a_handler_that_thaws_before_the_thread_hears_of_the_loss(ground: Ground, ask) -> None:
    """I-HB-4: the thread is held up in a call while the deadline passes."""
    ground.sqs.gate.clear()
    heartbeat = ground.heartbeat(20, 60, initial_beat=True, join_timeout_sec=0.01)
    heartbeat.start()
    until(lambda: ground.sqs.inside)
    ground.clock.advance(60)
    ask(heartbeat)
    assert heartbeat.lost.is_set()
    assert isinstance(heartbeat.check_for_errors(), LeaseLost)


def test_leaving_the_block_raises_the_loss_unless_the_work_failed_itself(ground: Ground):
    """R000-085."""

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


# -- stopping (HB-07, HB-10)


def test_a_refusal_that_arrives_after_the_stop_is_no_error(ground: Ground) -> None:
    """HB-07: the handler deleted the message while a beat was under way."""
    ground.sqs.gate.clear()
    ground.sqs.fail(sqs_error(GONE))
    heartbeat = ground.heartbeat(20, initial_beat=True)
    heartbeat.start()
    until(lambda: ground.sqs.inside)
    stopping = threading.Thread(target=heartbeat.stop)
    stopping.start()
    until(heartbeat._stop_event.is_set)
    ground.sqs.gate.set()
    stopping.join(GENEROUS)
    assert heartbeat.check_for_errors() is None
    assert not heartbeat.lost.is_set()


def test_a_run_that_hung_while_it_was_stopped_does_not_come_back(ground: Ground) -> None:
    """HB-10, I-HB-2, I-HB-3: its one call may end; the next run beats alone."""
    ground.sqs.gate.clear()
    heartbeat = ground.heartbeat(20, 60, initial_beat=True, join_timeout_sec=0.01)
    heartbeat.start()
    until(lambda: ground.sqs.inside)
    hung = heartbeat._thread
    assert hung is not None
    heartbeat.stop()
    heartbeat.start()
    ground.settle(heartbeat)
    assert len(ground.sqs.beats) == 1  # the next run waits for its turn
    ground.sqs.gate.set()
    hung.join(GENEROUS)
    assert not hung.is_alive()
    assert heartbeat.running  # the end of the old one is not the end of the new
    assert heartbeat._running
    ground.let_pass(heartbeat, 61)
    beats = len(ground.sqs.beats)
    assert beats - 1 in (3, 4)  # each 20 s, after a retry at some moment of the second
    assert ground.sqs.most_inside == 1
    heartbeat.stop()
    ground.clock.advance(30)
    assert len(ground.sqs.beats) == beats


def test_a_stop_waits_for_the_last_call_of_an_earlier_run(ground: Ground) -> None:
    """I-HB-2: or that call would hide a message that was just given back (HB-09)."""
    ground.sqs.gate.clear()
    heartbeat = ground.heartbeat(20, 60, initial_beat=True)
    heartbeat.start()
    until(lambda: ground.sqs.inside)
    heartbeat.end()
    heartbeat.start()
    ground.settle(heartbeat)
    threading.Timer(0.05, ground.sqs.gate.set).start()
    heartbeat.stop()
    assert ground.sqs.inside == 0


def test_the_refusal_of_a_run_that_hung_is_not_held_against_the_next(ground: Ground) -> None:
    refused = sqs_error(GONE)
    ground.sqs.gate.clear()
    heartbeat = ground.heartbeat(20, 60, initial_beat=True, join_timeout_sec=0.01)
    heartbeat.start()
    until(lambda: ground.sqs.inside)
    hung = heartbeat._thread
    assert hung is not None
    heartbeat.stop()
    ground.sqs.fail(refused)
    ground.sqs.before_answering = lambda: None
    heartbeat._terms = HeartbeatOptions(20, 60)
    heartbeat.start()
    ground.sqs.gate.set()
    hung.join(GENEROUS)
    ground.settle(heartbeat)
    assert heartbeat.running
    assert heartbeat.check_for_errors() is None
    assert not heartbeat.lost.is_set()


def test_a_run_ended_by_its_event_alone_does_not_speak_for_the_next(ground: Ground) -> None:
    """As code that knows the seed's internals might end it: nobody released its lease."""
    ground.sqs.gate.clear()
    ground.sqs.fail(sqs_error(GONE))
    heartbeat = ground.heartbeat(20, 60, initial_beat=True)
    heartbeat.start()
    until(lambda: ground.sqs.inside)
    hung = heartbeat._thread
    assert hung is not None
    heartbeat._stop_event.set()
    heartbeat.start()
    ground.settle(heartbeat)
    ground.sqs.gate.set()
    hung.join(GENEROUS)
    assert heartbeat.running
    assert not heartbeat.lost.is_set()
    assert heartbeat.check_for_errors() is None


def test_no_more_threads_is_an_error_of_start_and_it_can_be_tried_again(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HB-21: it does not seem to run."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    heartbeat = ground.heartbeat(20, 60)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            heartbeat.start()
    assert not heartbeat.running
    assert not heartbeat._running
    heartbeat.start()
    assert heartbeat.running


def test_a_start_without_threads_does_not_hang_when_the_message_is_over(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    heartbeat = ground.heartbeat(20, 60, initial_visibility_sec=-1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            heartbeat.start()


def test_trust_is_not_renewed_by_a_restart(ground: Ground) -> None:
    """HB-12: stopped until the message was over; whose is it now?"""
    heartbeat = ground.started(20, 60)
    ground.let_pass(heartbeat, 21)
    heartbeat.stop()
    assert heartbeat.check_for_errors() is None
    ground.clock.advance(60)
    heartbeat.start()
    assert heartbeat.lost.wait(GENEROUS)
    assert len(ground.sqs.beats) == 1


def test_a_restart_beats_in_time_for_what_the_last_beat_left(ground: Ground) -> None:
    heartbeat = ground.started(20, 60)
    heartbeat.stop()
    ground.clock.advance(50)
    heartbeat.start()
    ground.settle(heartbeat)
    ground.let_pass(heartbeat, 9.5, step=0.5)
    assert len(ground.sqs.beats) == 1
    assert not heartbeat.lost.is_set()


def test_what_was_left_running_can_be_stopped_all_at_once(ground: Ground) -> None:
    """HB-17: at the entry of a Lambda handler."""
    stop_all()
    left = [ground.started(20) for _ in range(3)]
    stopped = ground.started(20)
    stopped.stop()
    assert stop_all() == 3
    assert not any(heartbeat.running for heartbeat in left)
    ground.clock.advance(30)
    assert ground.sqs.beats == []
    assert stop_all() == 0


# -- when to beat first (HB-13)


def test_the_first_beat_can_come_at_once(ground: Ground) -> None:
    """D-08."""
    heartbeat = ground.started(20, 60, initial_beat=True)
    until(lambda: ground.sqs.beats)
    ground.settle(heartbeat)
    ground.let_pass(heartbeat, 41, step=0.5)
    assert ground.beaten_at == pytest.approx([0, 20, 40], abs=1)


def test_a_message_received_some_time_ago_is_beaten_before_it_reappears(ground: Ground) -> None:
    received_at = ground.clock.time() - 50
    heartbeat = ground.started(20, 60, received_at=received_at)
    ground.let_pass(heartbeat, 6, step=0.5)
    assert ground.beaten_at == [5]
    assert heartbeat.check_for_errors() is None


def test_a_message_that_waited_too_long_is_lost_from_the_start(ground: Ground) -> None:
    heartbeat = ground.heartbeat(20, 60, received_at=ground.clock.time() - 60)
    heartbeat.start()
    assert heartbeat.lost.wait(GENEROUS)
    assert ground.sqs.beats == []


def test_a_receive_in_the_future_is_taken_for_now(ground: Ground) -> None:
    """The clocks of two machines."""
    heartbeat = ground.started(20, 60, received_at=ground.clock.time() + 5)
    ground.let_pass(heartbeat, 21)
    assert len(ground.sqs.beats) == 1


def test_a_wall_clock_that_is_set_changes_nothing(ground: Ground) -> None:
    heartbeat = ground.heartbeat(20, 60, received_at=ground.clock.time())
    ground.clock.step_time(86_400)
    heartbeat.start()
    ground.settle(heartbeat)
    ground.let_pass(heartbeat, 100)
    assert heartbeat.check_for_errors() is None
    assert {beat.seconds for beat in ground.sqs.beats} == {60}


def test_a_short_first_visibility_is_beaten_within_half_of_it(ground: Ground) -> None:
    """HB-14: the queue hides for 30 s, beats come every 60 and ask for 600."""
    heartbeat = ground.started(60, 600, initial_visibility_sec=30)
    ground.let_pass(heartbeat, 14)
    assert ground.beaten_at == []
    ground.let_pass(heartbeat, 2)
    assert ground.beaten_at == [15]
    ground.let_pass(heartbeat, 61)
    assert ground.beaten_at == pytest.approx([15, 75], abs=1)


def test_a_first_visibility_longer_than_a_beats_is_not_shortened_early(ground: Ground) -> None:
    """HB-15: 905 are left, a beat sets 600: the first waits until that is a gain."""
    heartbeat = ground.started(60, 600, initial_visibility_sec=905)
    ground.let_pass(heartbeat, 364)
    assert ground.beaten_at == []
    ground.let_pass(heartbeat, 2)
    assert ground.beaten_at == [365]


@given(
    visibility=st.integers(1, 43_200),
    share=st.floats(0.001, 0.999),
    left_share=st.just(1.0) | st.floats(-1, 3),
    stall=st.none() | st.floats(0.1, 1000),
)
def test_the_first_look_is_always_in_time(visibility, share, left_share, stall) -> None:
    """I-HB-1: after the start, before the end, at an interval where nothing speaks against."""
    clock = ManualClock()
    now, interval = clock.monotonic(), visibility * share
    left = visibility * left_share
    terms = HeartbeatOptions(interval, visibility, stall_timeout_sec=stall)
    run = HeartbeatRun(
        VisibilitySource("orders", lambda seconds: None, CallLock(), None),
        terms,
        label="label",
        received_at=now,
        trusted_until=now + left,
        clock=clock,
        events=Events(),
    )
    if left <= 0:
        assert run.first_at <= now
    else:
        assert now <= run.first_at <= now + left
        assert run.first_at < now + left or left < 1e-6
    if left == visibility and (stall is None or stall >= interval):
        assert run.first_at == pytest.approx(now + interval)


# -- when to give up (HB-05, HB-06)


def test_work_that_does_not_move_is_given_up(ground: Ground) -> None:
    heartbeat = ground.started(20, 60, stall_timeout_sec=100)
    for _ in range(5):
        ground.let_pass(heartbeat, 90)
        heartbeat.progress()
    assert heartbeat.check_for_errors() is None
    ground.let_pass(heartbeat, 99)
    assert not heartbeat.lost.is_set()
    ground.let_pass(heartbeat, 1)
    assert heartbeat.lost.wait(GENEROUS)
    with pytest.raises(LeaseLost, match="stalled"):
        heartbeat.raise_if_lost()


def test_a_stall_shorter_than_the_interval_is_noticed_in_time(ground: Ground) -> None:
    heartbeat = ground.started(20, 60, stall_timeout_sec=5)
    ground.let_pass(heartbeat, 5)
    assert heartbeat.lost.wait(GENEROUS)
    assert ground.sqs.beats == []


def test_work_that_takes_too_long_is_given_up_after_a_warning(ground: Ground) -> None:
    warned: list[float] = []
    heartbeat = ground.started(20, 60, max_duration_sec=1000, on_near_cap=warned.append)
    ground.let_pass(heartbeat, 930)
    assert warned == []
    ground.let_pass(heartbeat, 69)
    assert warned == pytest.approx([60], abs=1)
    assert not heartbeat.lost.is_set()
    ground.let_pass(heartbeat, 2)
    assert heartbeat.lost.wait(GENEROUS)
    with pytest.raises(LeaseLost, match="1000 s"):
        heartbeat.raise_if_lost()
    ends = [beat.at + beat.seconds for beat in ground.sqs.beats]
    assert max(ends) <= ground.began + 1000  # nor is it hidden any longer


@pytest.mark.parametrize("waited", [0, 3600])
def test_twelve_hours_from_the_receive_are_never_exceeded(ground: Ground, waited: int) -> None:
    """I-HB-8, HB-05: SQS would refuse; so the last beats ask for what is left."""
    warned: list[float] = []
    received = ground.clock.monotonic() - waited
    heartbeat = ground.started(
        600,
        3000,
        received_at=ground.clock.time() - waited,
        initial_visibility_sec=3000,
        on_near_cap=warned.append,
    )
    ground.let_pass(heartbeat, 43_200 - waited - 62, step=50)
    assert (warned, heartbeat.check_for_errors()) == ([], None)
    ground.let_pass(heartbeat, 57)
    assert len(warned) == 1
    assert heartbeat.check_for_errors() is None
    ground.let_pass(heartbeat, 10)
    assert heartbeat.lost.wait(GENEROUS)
    ends = [beat.at + beat.seconds - received for beat in ground.sqs.beats]
    assert max(ends) <= 43_200
    assert max(ends) > 43_190
    with pytest.raises(LeaseLost, match="cap"):
        heartbeat.raise_if_lost()


def test_an_unknown_receive_is_taken_to_be_a_minute_ago(ground: Ground) -> None:
    """Otherwise the last beats of twelve hours would be refused for a cold start."""
    received = ground.clock.monotonic() - 30
    heartbeat = ground.started(600, 3000)
    ground.let_pass(heartbeat, 43_200 - 70, step=50)
    assert heartbeat.check_for_errors() is None
    assert max(beat.at + beat.seconds for beat in ground.sqs.beats) - received <= 43_200


# -- the log


def test_one_line_per_transition_and_no_receipt_in_any(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    """HB-22."""
    caplog.set_level(logging.DEBUG, logger="holdfast")
    heartbeat = ground.started(20, 600)
    ground.sqs.fail(sqs_error(THROTTLED), sqs_error(THROTTLED), None)
    ground.let_pass(heartbeat, 150)
    heartbeat.stop()
    heartbeat.start()
    ground.settle(heartbeat)
    ground.sqs.fail(sqs_error(GONE))
    ground.let_pass(heartbeat, 150)
    heartbeat.stop()
    said = [record.getMessage().split()[0] for record in caplog.records]
    started, at_risk = "heartbeat_started", "heartbeat_at_risk"
    stopped, lost = "heartbeat_stopped", "heartbeat_lost"
    assert said == [started, at_risk, stopped, started, lost, stopped]
    assert HANDLE not in caplog.text + repr(heartbeat)
    assert HANDLE[-6:] not in caplog.text + repr(heartbeat)


# -- any script of answers keeps the promises


@settings(max_examples=40, deadline=None)
@given(
    answers=st.lists(st.sampled_from(["granted", "outage", "gone"]), max_size=12),
    steps=st.lists(st.floats(0.5, 25), min_size=5, max_size=25),
)
def test_whatever_sqs_answers_and_however_time_leaps_a_loss_is_never_silent(
    answers: list[str], steps: list[float]
) -> None:
    """I-HB-4, I-HB-5, I-HB-6: judged by when SQS would show the message to others."""
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

    ground.sqs.fails = answer
    heartbeat = ground.started(20, 60)
    try:
        for step in steps:
            ground.clock.advance(step)
            ground.settle(heartbeat)
            over = bool(gone) or ground.clock.monotonic() >= hidden_until[-1]
            assert (heartbeat.check_for_errors() is not None) is over
            assert heartbeat.lost.is_set() is over
    finally:
        ground.close()
