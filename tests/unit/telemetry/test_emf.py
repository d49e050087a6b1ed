"""Lines in the embedded metric format, and when they are written."""

import threading
from typing import Any

import pytest

from holdfast import events as ev
from holdfast.errors import ConfigError
from holdfast.events import Events
from holdfast.exports import events as jv
from holdfast.lambdas import sqs_batch
from holdfast.telemetry.emf import MAX_VALUES, EmfWriter
from holdfast.telemetry.metrics import list_metrics
from holdfast.testing import ManualClock
from support.aws.event_source import EventSource, LambdaContext, Task
from support.telemetry.emf_lines import get_labels, get_values, parse_lines


class Output:
    """A writer and what it wrote."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.texts: list[str] = []
        self.writer = EmfWriter(write=self.texts.append, clock=self.clock, **options)

    def take(self) -> list[dict[str, Any]]:
        text = "".join(self.texts)
        self.texts.clear()
        return parse_lines(text)


@pytest.fixture
def output() -> Output:
    return Output()


def complete(number: int, queue: str = "q", seconds: float = 1.0) -> ev.Completed:
    return ev.Completed(queue, f"m{number}", 1, seconds)


def test_metrics_with_the_same_labels_share_a_line(output: Output) -> None:
    output.writer(ev.Claimed("q", "m0", 1, 60.0))
    output.writer(complete(0))
    output.writer(complete(1, seconds=3.0))
    output.writer.flush()
    by_queue, by_outcome = output.take()
    assert get_labels(by_queue) == {"queue": "q"}
    assert get_values(by_queue) == {
        "claimed.total": 1,
        "attempt_seconds": [1.0, 3.0],
    }
    assert get_labels(by_outcome) == {"queue": "q", "outcome": "completed"}
    assert get_values(by_outcome) == {"attempts.total": 2}


def test_the_alarms_of_heartbeats_find_their_names(output: Output) -> None:
    output.writer(jv.HeartbeatSent("j", 1, 2, 50, 0.02))
    output.writer(jv.HeartbeatFailed("j", "ThrottlingException", 0.01))
    output.writer(jv.StepFunctionsTimedOut("j", "States.Timeout"))
    output.writer(jv.ActiveJobs(3, 4))
    output.writer.flush()
    [line] = output.take()
    assert get_labels(line) == {}
    assert get_values(line) == {
        "heartbeat.sent.total": 2,
        "heartbeat.success.total": 1,
        "heartbeat.failure.total": 1,
        "heartbeat.duration.ms": [20.0, 10.0],
        "stepfunctions.timeout.total": 1,
        "jobs.active.with_token": 3,
        "jobs.active.without_token": 4,
    }


def test_a_second_flush_writes_only_what_is_new(output: Output) -> None:
    output.writer(jv.ActiveJobs(3, 4))
    output.writer(jv.JobStarted("j", True))
    output.writer.flush()
    output.take()
    output.writer.flush()
    assert output.texts == []
    output.writer(jv.JobStarted("k", True))
    output.writer.flush()
    assert [get_values(line) for line in output.take()] == [{"jobs.started.total": 1}]


def test_lines_are_written_once_a_minute_while_events_come(output: Output) -> None:
    for _ in range(6):
        output.clock.advance(20)
        output.writer(jv.JobStarted("j", True))
    counts = [get_values(line)["jobs.started.total"] for line in output.take()]
    assert counts == [3, 3]


def test_the_end_of_a_worker_writes_what_is_left(output: Output) -> None:
    output.writer(complete(0))
    output.writer(ev.WorkerStopped("q", 0))
    assert len(output.take()) == 2


def test_a_line_never_has_more_values_than_cloudwatch_takes(output: Output) -> None:
    for number in range(250):
        output.writer(complete(number, seconds=number / 7))
    assert len(output.texts) == 2  # without waiting for the minute to end
    output.writer.flush()
    lines = output.take()
    seconds = [get_values(line).get("attempt_seconds", []) for line in lines]
    assert sorted(len(values) for values in seconds if values) == [50, 100, 100]
    assert sum(map(sum, seconds)) == pytest.approx(sum(n / 7 for n in range(250)))
    assert sum(get_values(line).get("attempts.total", 0) for line in lines) == 250


def test_readings_that_are_counted_together_may_need_further_lines(output: Output) -> None:
    for number in range(60):
        output.writer(ev.Retried("q", f"r{number}", 1, None, "later", seconds=0.5))
    for number in range(100):
        output.writer(complete(number))
    lines = [get_values(line) for line in output.take()]
    assert [len(line["attempt_seconds"]) for line in lines if "attempt_seconds" in line] == [
        100,
        60,
    ]
    assert sum(line.get("attempts.total", 0) for line in lines) == 160


def test_all_metrics_fit_into_one_line() -> None:
    assert len(list_metrics()) <= MAX_VALUES


def test_many_queues_make_lines_that_are_small_enough(output: Output) -> None:
    for number in range(500):
        for _ in range(20):
            output.writer(complete(0, f"queue \n {number}" * 50, seconds=1 / 3))
    output.writer.flush()
    lines = output.take()
    assert sum(get_values(line).get("attempts.total", 0) for line in lines) == 10_000


def test_no_metric_has_the_name_of_a_label() -> None:
    labels = {label for metric in list_metrics() for label in metric.labels}
    assert not labels & {metric.cloudwatch_name for metric in list_metrics()}


@pytest.mark.parametrize("namespace", ["", "AWS/SQS", "a b", "é", "x" * 256])
def test_a_namespace_that_cloudwatch_refuses_is_an_error(namespace: str) -> None:
    with pytest.raises(ConfigError, match="namespace"):
        EmfWriter(namespace)


def test_threads_lose_no_count(output: Output) -> None:
    def emit() -> None:
        for number in range(500):
            output.writer(complete(number))

    threads = [threading.Thread(target=emit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    output.writer.flush()
    lines = output.take()
    assert sum(get_values(line).get("attempts.total", 0) for line in lines) == 2000
    assert sum(len(get_values(line).get("attempt_seconds", [])) for line in lines) == 2000


# -- in Lambda


def test_an_invocation_ends_with_its_lines_and_without_a_thread(
    output: Output, clock: ManualClock
) -> None:
    before = set(threading.enumerate())
    source = EventSource(clock)
    source.queue.events = Events(output.writer)
    source.send(1, 2, 3)
    entry = sqs_batch(lambda message: None, Task, queue=source.queue, clock=clock)
    entry(source.receive(), LambdaContext(clock, 900))
    assert set(threading.enumerate()) - before == set()
    values: dict[str, Any] = {}
    for line in output.take():
        values |= get_values(line)
    assert values["claimed.total"] == values["attempts.total"] == 3
    assert len(values["attempt_seconds"]) == 3


def test_a_flush_that_fails_does_not_fail_the_invocation(caplog: Any) -> None:
    def fail(text: str) -> None:
        raise BrokenPipeError

    events = Events(EmfWriter(write=fail))
    events.emit(complete(0))
    events.flush()
    assert "failed to flush" in caplog.text
