"""The requirements of SQSHeartbeat, one by one. See also test_sqs_heartbeat.py."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ParamValidationError

from holdfast import aws
from holdfast.aws import heartbeat as home
from holdfast.testing import SimulatedSqs
from holdfast.utils import sqs_heartbeat
from holdfast.utils.sqs_heartbeat import SQSHeartbeat
from support.sqs.calls import create_queue, receive, receive_handle, send
from support.sqs.heartbeats import (
    GONE,
    HANDLE,
    THROTTLED,
    URL,
    Ground,
    sqs_error,
)
from support.waiting import WAIT_TIMEOUT_SECONDS, wait_until

# -- its purpose


@pytest.mark.requirement("R000-001")
def test_it_is_found_at_the_documented_import_path() -> None:
    """`utils/sqs_heartbeat.py` holds `SQSHeartbeat`."""
    assert sqs_heartbeat.SQSHeartbeat is aws.SQSHeartbeat is home.SQSHeartbeat


@pytest.mark.requirement("R000-002", "R000-003", "R000-004")
def test_a_message_stays_hidden_for_as_long_as_the_work_takes(ground: Ground) -> None:
    """Ten minutes of work on a queue that hides for 30 s."""
    client = SimulatedSqs(ground.clock).client()
    url = create_queue(client, VisibilityTimeout="30")
    send(client, url)
    handle = receive_handle(client, url)
    heartbeat = SQSHeartbeat(url, handle, 10, 30, client=client, clock=ground.clock)
    heartbeat.start()
    ground.settle(heartbeat)
    for _ in range(10):
        ground.advance(heartbeat, 60)
        assert receive(client, url) == []
    heartbeat.stop()
    assert heartbeat.check_for_errors() is None
    ground.clock.advance(31)
    assert len(receive(client, url)) == 1  # so it was the heartbeat that hid it


@pytest.mark.requirement("R000-005", "R000-006", "R000-011", "R000-076")
def test_starting_returns_at_once_and_never_blocks_the_work(ground: Ground) -> None:
    """The call hangs and the handler continues."""
    heartbeat = ground.hang()
    assert heartbeat.running
    assert heartbeat.check_for_errors() is None
    assert ground.sqs.threads == {heartbeat._thread} <= set(threading.enumerate())
    assert threading.current_thread() not in ground.sqs.threads


@pytest.mark.requirement(
    "R000-007",
    "R000-015",
    "R000-016",
    "R000-045",
    "R000-046",
    "R000-048",
    "R000-049",
    "R000-050",
    "R000-078",
)
@pytest.mark.parametrize(
    "error",
    [
        sqs_error(GONE),
        sqs_error("InvalidParameterValue"),
        sqs_error("AWS.SimpleQueueService.MessageNotInflight"),
        sqs_error("QueueDoesNotExist"),
        sqs_error("AccessDenied", 403),
        sqs_error("Odd"),
        ParamValidationError(report="bad"),
        RuntimeError("boom"),
    ],
    ids=lambda error: getattr(error, "response", {}).get("Error", {}).get("Code", str(error)),
)
def test_an_error_ends_beating_and_is_returned_by_check_for_errors(
    ground: Ground, error
) -> None:
    heartbeat = ground.start(20)
    ground.sqs.fail(error)
    ground.advance(heartbeat, 21)
    assert heartbeat.check_for_errors() is error
    assert heartbeat.lost.is_set()
    assert heartbeat._stop_event.is_set()
    wait_until(lambda: not heartbeat.running)
    ground.clock.advance(30)
    assert len(ground.sqs.beats) == 1


@pytest.mark.requirement("R000-045")
def test_transient_errors_of_amazon_are_distinguished_from_refusals(ground: Ground) -> None:
    """Throttling is tolerated, an invalid handle is final."""
    heartbeat = ground.start(20)
    ground.sqs.fail(sqs_error(THROTTLED))
    ground.advance(heartbeat, 30)
    assert heartbeat.check_for_errors() is None
    assert heartbeat.transient_errors == 1
    refused = sqs_error(GONE)
    ground.sqs.fail(refused)
    ground.advance(heartbeat, 30)
    assert heartbeat.check_for_errors() is refused  # the other was recovered from


@pytest.mark.requirement("R000-047")
def test_the_error_is_logged(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    """Without the receipt handle (HB-22)."""
    heartbeat = ground.start(20)
    ground.sqs.fail(sqs_error(GONE))
    ground.advance(heartbeat, 21)
    heartbeat.stop()
    [line] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert GONE in line.getMessage()
    assert "orders" in line.getMessage()
    assert HANDLE not in caplog.text


@pytest.mark.requirement("R000-008", "R000-035", "R000-036", "R000-037", "R000-038", "R000-039")
def test_a_new_heartbeat_is_not_running_and_has_no_error(ground: Ground) -> None:
    heartbeat = ground.heartbeat()
    assert isinstance(heartbeat._stop_event, threading.Event)
    assert isinstance(heartbeat._lock, type(threading.Lock()))
    assert not heartbeat._stop_event.is_set()
    assert (heartbeat._thread, heartbeat._error, heartbeat._running) == (None, None, False)


# -- the constructor


@pytest.mark.requirement(
    "R000-010",
    "R000-013",
    "R000-025",
    "R000-026",
    "R000-027",
    "R000-028",
    "R000-029",
    "R000-044",
    "R000-072",
    "R000-074",
)
def test_three_arguments_are_enough_and_a_beat_then_requests_600_seconds(ground: Ground):
    heartbeat = SQSHeartbeat(URL, HANDLE, 60, client=ground.sqs, clock=ground.clock)
    ground.made.append(heartbeat)
    heartbeat.start()
    ground.settle(heartbeat)
    ground.advance(heartbeat, 121)
    assert [beat.seconds for beat in ground.sqs.beats] == [600, 600]
    asked = {"QueueUrl": URL, "ReceiptHandle": HANDLE, "VisibilityTimeout": 600}
    assert ground.sqs.requests == [asked, asked]
    assert type(ground.sqs.requests[0]["VisibilityTimeout"]) is int
    assert sqs_heartbeat.DEFAULT_VISIBILITY_TIMEOUT_EXTENSION_SEC == 600


@pytest.mark.requirement("R000-025", "R000-029")
def test_the_fourth_argument_is_the_visibility(ground: Ground) -> None:
    heartbeat = SQSHeartbeat(URL, HANDLE, 60, 905, client=ground.sqs, clock=ground.clock)
    ground.made.append(heartbeat)
    heartbeat.start()
    ground.settle(heartbeat)
    ground.advance(heartbeat, 61)
    assert [beat.seconds for beat in ground.sqs.beats] == [905]


@pytest.mark.requirement("R000-030", "R000-031", "R000-032", "R000-033")
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("", HANDLE, 20, 60), "queue_url"),
        (("   ", HANDLE, 20, 60), "queue_url"),
        ((None, HANDLE, 20, 60), "queue_url"),
        ((URL, "", 20, 60), "receipt_handle"),
        ((URL, None, 20, 60), "receipt_handle"),
        ((URL, HANDLE, 0, 60), "interval_sec"),
        ((URL, HANDLE, -1, 60), "interval_sec"),
        ((URL, HANDLE, 60, 60), "visibility_timeout_sec"),
        ((URL, HANDLE, 61, 60), "visibility_timeout_sec"),
        ((URL, HANDLE, 600), "visibility_timeout_sec"),
    ],
)
def test_parameters_that_cannot_work_are_refused_by_name(
    ground: Ground, arguments, named: str
) -> None:
    with pytest.raises(ValueError, match=named) as refused:
        SQSHeartbeat(*arguments, client=ground.sqs)
    assert HANDLE not in str(refused.value)


@pytest.mark.requirement("R000-034")
def test_its_parameters_can_be_read(ground: Ground) -> None:
    heartbeat = ground.heartbeat(20, 60)
    assert (heartbeat.queue_url, heartbeat.receipt_handle) == (URL, HANDLE)
    assert (heartbeat.interval_sec, heartbeat.visibility_timeout_sec) == (20, 60)


# -- the loop


@pytest.mark.requirement("R000-012", "R000-013", "R000-042")
def test_the_first_beat_comes_one_interval_after_the_start(ground: Ground) -> None:
    """It waits first, then beats, and repeats."""
    heartbeat = ground.start(20)
    ground.advance(heartbeat, 19.9)
    assert ground.beat_times == []
    ground.advance(heartbeat, 42, step=0.1)
    assert ground.beat_times == pytest.approx([20, 40, 60], abs=0.35)


@pytest.mark.requirement("R000-014", "R000-048")
def test_the_first_error_is_kept(ground: Ground) -> None:
    """If throttling never ended, it is the error, not a later one."""
    first = sqs_error(THROTTLED)
    heartbeat = ground.start(20)
    ground.sqs.fail(first, sqs_error(THROTTLED), sqs_error(GONE))
    ground.advance(heartbeat, 39)
    assert len(ground.sqs.beats) == 3
    assert heartbeat.check_for_errors() is first


@pytest.mark.requirement("R000-017", "R000-020", "R000-021", "R000-043")
def test_a_stop_ends_the_wait_at_once_and_no_beat_follows(ground: Ground) -> None:
    """No time passes on the clock."""
    heartbeat = ground.start(20)
    thread, stop_event = heartbeat._thread, heartbeat._stop_event
    heartbeat.stop()
    assert stop_event.is_set()
    assert thread is not None
    assert not thread.is_alive()
    ground.clock.advance(50)
    assert ground.sqs.beats == []


@pytest.mark.requirement("R000-018", "R000-051")
@pytest.mark.parametrize("error", [None, sqs_error(GONE)])
def test_running_ends_with_the_thread(ground: Ground, error) -> None:
    """After a stop, and after an error."""
    heartbeat = ground.start(20)
    assert heartbeat._running
    ground.sqs.fail(error)
    ground.advance(heartbeat, 21)
    if error is None:
        heartbeat.stop()
    wait_until(lambda: not heartbeat._running)
    assert not heartbeat.running


@pytest.mark.requirement("R000-041", "R000-056", "R000-057", "R000-058")
def test_run_is_what_the_thread_runs() -> None:
    """In a started daemon thread."""
    seen: list[threading.Thread] = []
    go = threading.Event()

    class Watched(SQSHeartbeat):
        def _run(self, *args: Any) -> None:
            seen.append(threading.current_thread())
            go.wait(WAIT_TIMEOUT_SECONDS)
            super()._run(*args)

    heartbeat = Watched(URL, HANDLE, 20, client=object())
    heartbeat.start()
    wait_until(lambda: seen)
    assert seen == [heartbeat._thread]
    assert seen[0].daemon
    assert heartbeat._running
    go.set()
    heartbeat.stop()


# -- start and stop


@pytest.mark.requirement("R000-052", "R000-053")
def test_starting_twice_makes_one_thread(ground: Ground) -> None:
    """Also when eight threads start it at once."""
    heartbeat = ground.heartbeat(20)
    ready = threading.Barrier(8)

    def start() -> None:
        ready.wait(WAIT_TIMEOUT_SECONDS)
        heartbeat.start()

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_TIMEOUT_SECONDS)
    name = heartbeat._thread.name if heartbeat._thread else ""
    assert [thread.name for thread in threading.enumerate()].count(name) == 1
    ground.settle(heartbeat)
    ground.advance(heartbeat, 21)
    assert len(ground.sqs.beats) == 1


@pytest.mark.requirement("R000-054")
def test_a_start_after_a_stop_beats_again(ground: Ground) -> None:
    """The stop of the previous run has no effect."""
    heartbeat = ground.start(20)
    heartbeat.stop()
    heartbeat.start()
    ground.settle(heartbeat)
    assert heartbeat.running
    assert not heartbeat._stop_event.is_set()
    ground.advance(heartbeat, 21)
    assert len(ground.sqs.beats) == 1


@pytest.mark.requirement("R000-055")
def test_a_start_after_an_error_begins_without_it(ground: Ground) -> None:
    """`history` remembers (HB-12)."""
    refused = sqs_error("AccessDenied")
    heartbeat = ground.start(20)
    ground.sqs.fail(refused)
    ground.advance(heartbeat, 21)
    heartbeat.stop()
    heartbeat.start()
    ground.settle(heartbeat)
    assert heartbeat.check_for_errors() is None
    assert not heartbeat.lost.is_set()
    assert heartbeat.history == (refused,)


@pytest.mark.requirement("R000-059")
def test_stopping_a_heartbeat_that_was_never_started_does_nothing(ground: Ground) -> None:
    heartbeat = ground.heartbeat()
    heartbeat.stop()
    assert not heartbeat._stop_event.is_set()
    heartbeat.start()
    assert heartbeat.running


@pytest.mark.requirement("R000-060", "R000-063")
def test_stopping_twice_is_stopping_once(ground: Ground) -> None:
    heartbeat = ground.start()
    heartbeat.stop()
    assert heartbeat._thread is None
    heartbeat.stop()
    assert heartbeat._stop_event.is_set()
    assert heartbeat.check_for_errors() is None


@pytest.mark.requirement("R000-021", "R000-022")
def test_a_stop_waits_for_a_call_under_way(ground: Ground) -> None:
    """No call is in progress when it returns."""
    heartbeat = ground.hang()
    threading.Timer(0.05, ground.sqs.gate.set).start()
    heartbeat.stop()
    assert ground.sqs.inside == 0


@pytest.mark.requirement("R000-022", "R000-062", "R000-063")
def test_a_stop_that_waited_long_enough_says_so_and_returns(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    """The call hangs."""
    heartbeat = ground.hang(join_timeout_sec=0.05)
    heartbeat.stop()
    assert ground.sqs.inside == 1
    assert heartbeat._thread is None
    assert not heartbeat.running
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "still_in_a_call" in warning.getMessage()


@pytest.mark.requirement("R000-061")
@pytest.mark.parametrize("interval", [0.001, 1, 20, 300])
def test_it_waits_slightly_longer_than_the_interval(ground: Ground, interval: float) -> None:
    waits: list[float | None] = []

    class Thread(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            waits.append(timeout)
            super().join(WAIT_TIMEOUT_SECONDS)

    heartbeat = ground.start(interval, 600)
    assert heartbeat._thread is not None
    heartbeat._thread.__class__ = Thread
    heartbeat.stop()
    [waited] = waits
    assert waited is not None
    assert interval < waited <= interval + 2


# -- errors and state


@pytest.mark.requirement("R000-008", "R000-052", "R000-064", "R000-067")
@pytest.mark.parametrize(
    "asked",
    [SQSHeartbeat.start, SQSHeartbeat.check_for_errors, lambda heartbeat: heartbeat.running],
    ids=["start", "check_for_errors", "running"],
)
def test_shared_state_is_accessed_under_the_lock(
    ground: Ground, asked: Callable[[SQSHeartbeat], object]
) -> None:
    """A thread that finds it taken waits."""
    heartbeat = ground.heartbeat()
    asking = threading.Thread(target=asked, args=(heartbeat,))
    with heartbeat._lock:
        asking.start()
        asking.join(0.05)
        assert asking.is_alive()
    asking.join(WAIT_TIMEOUT_SECONDS)
    assert not asking.is_alive()


@pytest.mark.requirement("R000-008", "R000-048", "R000-051")
def test_an_error_is_recorded_under_the_lock(ground: Ground) -> None:
    """And so is the end of running."""
    heartbeat = ground.start(20)
    ground.sqs.fail(sqs_error(GONE))
    with heartbeat._lock:
        ground.clock.advance(21)
        wait_until(lambda: ground.sqs.beats and not ground.sqs.inside)
        assert not heartbeat.lost.wait(0.05)
        assert heartbeat._error is None
        assert heartbeat._running
    assert heartbeat.lost.wait(WAIT_TIMEOUT_SECONDS)
    assert heartbeat._error is not None


@pytest.mark.requirement("R000-065")
def test_check_for_errors_returns_the_error_and_does_not_raise(ground: Ground) -> None:
    error = sqs_error(GONE)
    heartbeat = ground.start()
    assert heartbeat.check_for_errors() is None
    ground.sqs.fail(error)
    ground.advance(heartbeat, 21)
    assert heartbeat.check_for_errors() is error
    heartbeat.stop()
    assert heartbeat.check_for_errors() is error


@pytest.mark.requirement("R000-066", "R000-068")
def test_running_is_a_property_that_needs_the_flag_and_a_live_thread(ground: Ground) -> None:
    heartbeat = ground.heartbeat()
    assert heartbeat.running is False
    heartbeat.start()
    thread = heartbeat._thread
    assert heartbeat.running is True
    heartbeat._running = False
    assert heartbeat.running is False
    heartbeat._running, heartbeat._thread = True, None
    assert heartbeat.running is False
    heartbeat._thread = threading.Thread()  # never alive
    assert heartbeat.running is False
    heartbeat._thread = thread
    assert heartbeat.running is True


# -- configuration


@pytest.mark.requirement("R000-069")
@pytest.mark.parametrize(
    ("text", "seconds"), [("500", 0.5), ("60000", 60), (" 1500.5 ", 1.5005)]
)
def test_the_interval_can_come_from_the_environment(monkeypatch, text, seconds) -> None:
    """In milliseconds, fractions of seconds kept (HB-16)."""
    monkeypatch.setenv("SQS_HEARTBEAT_INTERVAL_MS", text)
    client = SimulatedSqs().client()
    url = create_queue(client, VisibilityTimeout="300")
    heartbeat = SQSHeartbeat.from_queue(url, HANDLE, client=client)
    assert heartbeat.interval_sec == pytest.approx(seconds)


@pytest.mark.requirement("R000-070")
@pytest.mark.parametrize(("interval", "warned"), [(300, False), (301, True)])
def test_an_interval_close_to_the_visibility_logs_a_warning(
    ground: Ground, caplog: pytest.LogCaptureFixture, interval: int, warned: bool
) -> None:
    ground.heartbeat(interval, 600)
    assert ("interval_over_half_the_visibility" in caplog.text) is warned


@pytest.mark.requirement("R000-071", "R000-075")
def test_the_queues_own_timeout_can_be_used(ground: Ground, monkeypatch) -> None:
    """Beats set 905, not the default of 600."""
    monkeypatch.delenv("SQS_HEARTBEAT_INTERVAL_MS", raising=False)
    client = SimulatedSqs(ground.clock).client()
    url = create_queue(client, VisibilityTimeout="905")
    send(client, url)
    handle = receive_handle(client, url)
    heartbeat = SQSHeartbeat.from_queue(url, handle, client=client, clock=ground.clock)
    assert heartbeat.visibility_timeout_sec == 905
    assert heartbeat.interval_sec == pytest.approx(905 / 3)
    heartbeat.start()
    ground.settle(heartbeat)
    ground.advance(heartbeat, 302)
    heartbeat.stop()
    ground.clock.advance(902)
    assert receive(client, url) == []
    ground.clock.advance(4)
    assert len(receive(client, url)) == 1


@pytest.mark.requirement("R000-073")
@pytest.mark.parametrize(("lambda_timeout", "warned"), [(900, False), (906, True)])
def test_a_queue_timeout_below_the_lambdas_logs_a_warning(
    caplog: pytest.LogCaptureFixture, lambda_timeout: int, warned: bool
) -> None:
    """905 is enough for 900."""
    client = SimulatedSqs().client()
    url = create_queue(client, VisibilityTimeout="905")
    SQSHeartbeat.from_queue(url, HANDLE, client=client, lambda_timeout_sec=lambda_timeout)
    assert ("queue_timeout_below_lambda_timeout" in caplog.text) is warned


@pytest.mark.requirement("R000-078")
def test_no_other_permission_is_needed_than_the_documented_one(ground: Ground) -> None:
    """ChangeMessageVisibility is all it ever calls."""
    asked: set[str] = set()

    class Client:
        def __getattr__(self, operation: str) -> Any:
            asked.add(operation)
            return getattr(ground.sqs, operation)

    heartbeat = ground.start(20, client=Client())
    ground.advance(heartbeat, 100)
    heartbeat.stop()
    assert len(ground.sqs.beats) >= 4
    assert asked == {"change_message_visibility"}
