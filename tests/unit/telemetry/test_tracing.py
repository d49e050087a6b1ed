"""Spans of messages: their names, attributes, links, and the context that travels along."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, Sampler, SamplingResult

from holdfast import Retry, Worker, open_queue
from holdfast.queue.manager import QueueManager
from holdfast.queue.message import AnyMessage, attach_headers, get_headers
from holdfast.queues.sqs import SQSQueue
from holdfast.testing import ManualClock, MemoryQueue, SimulatedSqs
from support.telemetry.traces import Traces, get_attributes, get_id, get_link_ids, get_parent_id

SAMPLED = trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(1))
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def traces() -> Traces:
    return Traces()


@contextmanager
def opened(kind: str, folder: Path) -> Iterator[QueueManager[Any]]:
    match kind:
        case "memory":
            yield MemoryQueue(AnyMessage, name="q")
        case "sqs":
            # No request waits, so a run until the queue is empty takes no time.
            client = SimulatedSqs(ManualClock(auto_advance=True)).client()
            url = client.create_queue(QueueName="q")["QueueUrl"]
            client.create_queue(QueueName="q-dead")
            yield SQSQueue(url, AnyMessage, client=client)
        case "file":
            with open_queue(f"file:{folder}/acme/q") as queue:
                yield queue
        case _:
            with open_queue(f"sqlite:{folder}/work.db/q") as queue:
                yield queue


KINDS = ("memory", "file", "sqlite", "sqs")


@pytest.fixture(params=KINDS)
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QueueManager[Any]]:
    with opened(request.param, tmp_path) as queue:
        yield queue


def handle(message: AnyMessage) -> None:
    """Do nothing."""


def work(queue: QueueManager[Any], handler: Any = handle, **options: Any) -> None:
    Worker(queue, handler, **options).run(until_empty=True)


# -- one message


def test_a_message_is_sent_received_and_processed(
    queue: QueueManager[Any], traces: Traces
) -> None:
    traces.make().trace_queue(queue)
    queue.push(AnyMessage(id="a"))
    work(queue)
    sent, received, processed = traces.take()
    name, system = queue.name, queue.messaging_system
    assert sent.name == f"send {name}"
    assert sent.kind is trace.SpanKind.PRODUCER
    assert received.name == f"receive {name}"
    assert received.kind is trace.SpanKind.CLIENT
    assert get_link_ids(received) == get_link_ids(processed) == [get_id(sent)]
    assert received.parent is None
    assert get_parent_id(processed) == get_id(received)[1]
    assert processed.kind is trace.SpanKind.CONSUMER
    assert get_attributes(processed) == {
        "messaging.system": system,
        "messaging.destination.name": name,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": "a",
        "holdfast.attempt": 1,
    }
    assert system == ("aws_sqs" if isinstance(queue, SQSQueue) else "holdfast")


def test_with_parents_the_attempt_continues_the_trace(
    queue: QueueManager[Any], traces: Traces
) -> None:
    traces.make(parent=True).trace_queue(queue)
    with traces.tracer.start_as_current_span("request") as request:
        queue.push(AnyMessage(id="a"))
    work(queue)
    by_name = {span.name.split()[0]: span for span in traces.take()}
    trace_id = request.get_span_context().trace_id
    assert get_parent_id(by_name["process"]) == get_id(by_name["send"])[1]
    for name in ("send", "process"):
        assert get_id(by_name[name])[0] == trace_id
    assert by_name["process"].links == ()


def test_messages_of_a_batch_carry_the_span_of_their_push(
    queue: QueueManager[Any], traces: Traces
) -> None:
    traces.make().trace_queue(queue)
    queue.push_many([AnyMessage(id=name) for name in ("a", "b", "c")])
    [sent] = traces.take()
    assert get_attributes(sent)["messaging.batch.message_count"] == 3
    assert sent.kind is trace.SpanKind.PRODUCER
    work(queue)
    processed = [span for span in traces.take() if span.name.startswith("process")]
    links = [link for span in processed for link in get_link_ids(span)]
    assert links == [get_id(sent)] * 3


def test_the_context_survives_a_failed_attempt(
    queue: QueueManager[Any], traces: Traces
) -> None:
    traces.make().trace_queue(queue)
    queue.push(AnyMessage(id="a"))
    [sent] = traces.take()
    attempts: list[int] = []

    def fail_once(message: AnyMessage) -> Retry | None:
        attempts.append(message.attempts)
        return Retry(after_seconds=0) if len(attempts) == 1 else None

    work(queue, fail_once)
    processed = [span for span in traces.take() if span.name.startswith("process")]
    assert len(processed) == 2
    assert [get_link_ids(span) for span in processed] == [[get_id(sent)]] * 2


def test_a_reader_without_tracing_ignores_the_context(
    queue: QueueManager[Any], traces: Traces, tmp_path: Path, request: Any
) -> None:
    traces.make().trace_queue(queue)
    queue.push_many([AnyMessage(id="a"), AnyMessage(id="b")])
    if isinstance(queue, MemoryQueue | SQSQueue):
        return
    with opened(request.node.callspec.params["queue"], tmp_path) as untraced:
        first, second = untraced.poll(2)
        assert {first.id, second.id} == {"a", "b"}
        assert get_headers(first) is None
        untraced.push(AnyMessage(id="c"))
        untraced.ack_many([first, second])
    [message] = queue.poll()
    assert message.id == "c"
    assert get_headers(message) is None


def test_a_dead_letter_that_is_redriven_keeps_its_context(
    queue: QueueManager[Any], traces: Traces
) -> None:
    traces.make().trace_queue(queue)
    queue.push(AnyMessage(id="a"))
    [message] = queue.poll()
    before = dict(get_headers(message) or {})
    assert before["traceparent"]
    queue.dead_letter(message, "x")
    queue.redrive()
    [again] = queue.poll()
    assert get_headers(again) == before


# -- the attempt


def test_the_span_is_current_in_the_handler_and_shows_its_error(traces: Traces) -> None:
    queue: MemoryQueue[Any] = MemoryQueue(AnyMessage, name="q", max_attempts=1)
    traces.make().trace_queue(queue)
    queue.push(AnyMessage(id="a"))

    def fail(message: AnyMessage) -> None:
        with traces.tracer.start_as_current_span("inner"):
            raise ValueError("the secret of the message")

    work(queue, fail)
    spans = {span.name: span for span in traces.take()}
    processed = spans["process q"]
    assert get_parent_id(spans["inner"]) == get_id(processed)[1]
    assert processed.status.status_code is trace.StatusCode.ERROR
    assert get_attributes(processed)["error.type"] == "ValueError"
    assert "secret" not in processed.to_json()


def test_a_coroutine_has_its_span_too(traces: Traces) -> None:
    queue: MemoryQueue[Any] = MemoryQueue(AnyMessage, name="q")
    traces.make().trace_queue(queue)
    queue.push_many([AnyMessage(id="a"), AnyMessage(id="b")])
    seen: list[tuple[str, int]] = []

    async def handle(message: AnyMessage) -> None:
        await asyncio.sleep(0)
        seen.append((message.id, trace.get_current_span().get_span_context().span_id))

    work(queue, handle, isolation="async", concurrency=2)
    processed = {
        str(get_attributes(span)["messaging.message.id"]): get_id(span)[1]
        for span in traces.take()
        if span.name == "process q"
    }
    assert dict(seen) == processed


@pytest.mark.parametrize("parent", [False, True])
def test_what_is_not_sampled_is_neither_shown_nor_lost(parent: bool) -> None:
    traces = Traces(sampler=ALWAYS_OFF)
    queue: MemoryQueue[Any] = MemoryQueue(AnyMessage, name="q")
    traces.make(parent=parent).trace_queue(queue)
    message = AnyMessage(id="a")
    queue.push(message)
    # A child must know that its parent is not recorded; a link to it would show nothing.
    headers = get_headers(message) or {}
    flags = [int(value[-2:], 16) & 1 for value in headers.values()]
    assert flags == ([0] if parent else [])
    work(queue)
    assert traces.take() == []
    assert queue.stats().completed == 1


class Switch(Sampler):
    """A sampler that records every nth trace, and nothing if n is 0."""

    def __init__(self, every: int) -> None:
        self.every, self.asked = every, 0
        self.names: list[str] = []  # of all spans, sampled or not

    def should_sample(
        self, parent_context: Any, trace_id: int, name: str, *args: Any, **named: Any
    ) -> SamplingResult:
        self.names.append(name)
        parent = trace.get_current_span(parent_context).get_span_context()
        is_sampled = parent.trace_flags.sampled
        if not parent.is_valid:
            self.asked += 1
            is_sampled = self.every > 0 and self.asked % self.every == 0
        return SamplingResult(Decision.RECORD_AND_SAMPLE if is_sampled else Decision.DROP)

    def get_description(self) -> str:
        return "a test"


def poll_and_ack(queue: QueueManager[Any]) -> trace.SpanContext:
    """Return the context in which a handler of the next message would run."""
    [message] = queue.poll()
    assert queue.tracing is not None
    with queue.tracing.processing(message):
        context = trace.get_current_span().get_span_context()
    queue.ack(message)
    return context


@pytest.mark.parametrize("every", [1, 7, 100])
def test_a_busy_queue_is_sampled_as_often_as_the_sampler_says(every: int) -> None:
    count = 700
    sampler = Switch(every)
    traces = Traces(sampler=sampler)
    queue: MemoryQueue[Any] = MemoryQueue(AnyMessage, name="q")
    queue.push_many([AnyMessage(id=f"m{number}") for number in range(count)])
    traces.make(clock=ManualClock()).trace_queue(queue)
    contexts = [poll_and_ack(queue) for _ in range(count)]
    assert len({context.trace_id for context in contexts}) == count
    recorded = [context for context in contexts if context.trace_flags.sampled]
    assert sampler.asked == count
    assert len(recorded) == sampler.asked // every
    names = [span.name for span in traces.take()]
    assert names == ["receive q", "process q"] * len(recorded)


def test_a_recorded_poll_is_shown_with_its_own_time_and_messages() -> None:
    clock = ManualClock()
    traces = Traces(sampler=Switch(3))
    queue: MemoryQueue[Any] = MemoryQueue(AnyMessage, name="q")
    traces.make(clock=clock).trace_queue(queue)
    for number in range(30):
        queue.push_many([AnyMessage(id=f"m{number}")])
    traces.take()
    for _ in range(30):
        clock.advance(0.001)
        polled_ns = int(clock.time() * 1e9)
        [message] = queue.poll()
        headers = get_headers(message)
        for span in traces.take():
            assert span.start_time == polled_ns
            created = [] if headers is None else [headers["traceparent"].split("-")[2]]
            assert [f"{span_id:016x}" for _, span_id in get_link_ids(span)] == created


def test_a_decision_of_the_sampler_is_not_kept() -> None:
    sampler = Switch(0)
    traces = Traces(sampler=sampler)
    queue: MemoryQueue[Any] = MemoryQueue(AnyMessage, name="q")
    queue.push_many([AnyMessage() for _ in range(50)])
    traces.make(clock=ManualClock()).trace_queue(queue)
    for _ in range(20):
        poll_and_ack(queue)
    sampler.every = 1
    poll_and_ack(queue)
    assert traces.names() == ["receive q", "process q"]


def test_a_poll_inside_a_span_belongs_to_it_also_on_a_busy_queue() -> None:
    traces = Traces(sampler=Switch(100))
    queue: MemoryQueue[Any] = MemoryQueue(AnyMessage, name="q")
    queue.push_many([AnyMessage() for _ in range(50)])
    traces.make(clock=ManualClock()).trace_queue(queue)
    for _ in range(20):
        poll_and_ack(queue)
    with trace.use_span(trace.NonRecordingSpan(SAMPLED)):
        context = poll_and_ack(queue)
    assert context.trace_id == SAMPLED.trace_id
    assert traces.names() == ["receive q", "process q"]
    assert poll_and_ack(queue).trace_id != SAMPLED.trace_id


def test_a_queue_is_traced_once(traces: Traces) -> None:
    queue: MemoryQueue[Any] = MemoryQueue(AnyMessage, name="q")
    for _ in range(2):
        traces.make().trace_queue(queue)
    queue.push(AnyMessage(id="a"))
    assert traces.names() == ["send q"]


# -- SQS


def receive_with(traces: Traces, **sent: Any) -> AnyMessage:
    sqs = SimulatedSqs(ManualClock()).client()
    url = sqs.create_queue(QueueName="q")["QueueUrl"]
    body = AnyMessage(id="a").model_dump_json()
    sqs.send_message(QueueUrl=url, MessageBody=body, **sent)
    queue: SQSQueue[Any] = SQSQueue(url, AnyMessage, client=sqs)
    traces.make().trace_queue(queue)
    [message] = queue.poll()
    return message  # type: ignore[no-any-return]


def test_the_header_of_x_ray_is_read(traces: Traces) -> None:
    header = "Root=1-4bf92f35-77b34da6a3ce929d0e0e4736;Parent=00f067aa0ba902b7;Sampled=1"
    value = {"DataType": "String", "StringValue": header}
    message = receive_with(traces, MessageSystemAttributes={"AWSTraceHeader": value})
    assert get_headers(message) == {"traceparent": PARENT}


def test_attributes_of_other_producers_are_read(traces: Traces) -> None:
    attributes = {
        name: {"DataType": "String", "StringValue": value}
        for name, value in (("traceparent", PARENT), ("tracestate", "a=b"), ("mine", "x"))
    }
    message = receive_with(traces, MessageAttributes=attributes)
    assert get_headers(message) == {"traceparent": PARENT, "tracestate": "a=b"}


def test_a_full_message_goes_without_its_context(traces: Traces) -> None:
    sqs = SimulatedSqs(ManualClock()).client()
    limit = {"MaximumMessageSize": "1024"}
    url = sqs.create_queue(QueueName="q", Attributes=limit)["QueueUrl"]
    queue: SQSQueue[Any] = SQSQueue(url, AnyMessage, client=sqs)
    traces.make().trace_queue(queue)
    size = len(AnyMessage(id="a", text="").model_dump_json())
    queue.push(AnyMessage(id="a", text="x" * (1020 - size)))
    [message] = queue.poll()
    assert get_headers(message) is None


# -- settings


@pytest.mark.parametrize(
    ("value", "traced"), [("off", False), ("links", True), ("parent", True)]
)
def test_the_environment_asks_for_traces(value: str, traced: bool) -> None:
    queue = open_queue("memory:", env={"HOLDFAST_OTEL": value})
    assert (queue.tracing is not None) == traced


def test_headers_that_no_producer_of_ours_wrote_are_harmless(traces: Traces) -> None:
    queue: MemoryQueue[Any] = MemoryQueue(AnyMessage, name="q")
    message = AnyMessage(id="a")
    attach_headers(message, {"traceparent": "no such thing"})
    queue.push_many([message])
    traces.make(parent=True).trace_queue(queue)
    work(queue)
    assert "process q" in traces.names()
