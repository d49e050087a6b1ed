"""Powertools for AWS Lambda writes its own metrics in the same invocation."""

import json
import threading
from typing import Any

import pytest
from aws_lambda_powertools import Metrics
from aws_lambda_powertools.metrics import MetricUnit

from holdfast.events import Events
from holdfast.lambdas import sqs_batch
from holdfast.telemetry.emf import EmfWriter
from holdfast.testing import ManualClock
from support.aws.event_source import EventSource, LambdaContext, Task
from support.telemetry.emf_lines import check_line, get_values


@pytest.mark.parametrize("namespace", ["holdfast", "shop"])
def test_the_metrics_of_powertools_and_ours_are_whole_lines_and_not_mixed(
    namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = ManualClock()
    source = EventSource(clock)
    source.queue.events = Events(EmfWriter(namespace))
    source.send(*range(20))
    metrics = Metrics(namespace="shop", service="orders")

    def handle(message: Task) -> None:
        metrics.add_metric(name="handled", unit=MetricUnit.Count, value=1)

    batch = sqs_batch(handle, Task, queue=source.queue, clock=clock)

    @metrics.log_metrics(capture_cold_start_metric=True)
    def entry(event: dict[str, Any], context: Any) -> Any:
        return batch(event, context)

    before = set(threading.enumerate())
    context: Any = LambdaContext(clock, 900)
    context.function_name = "enrich"
    entry(source.receive(), context)
    assert set(threading.enumerate()) - before == set()

    lines = capsys.readouterr().out.splitlines()
    blobs = [json.loads(line) for line in lines]  # every line is one object
    powertools_blobs = [blob for blob in blobs if "service" in blob]
    own_lines = [line for line, blob in zip(lines, blobs, strict=True) if "service" not in blob]
    [handled] = [blob["handled"] for blob in powertools_blobs if "handled" in blob]
    assert handled == [1.0] * 20
    values: dict[str, Any] = {}
    for line in own_lines:
        values |= get_values(check_line(line))
    assert values["attempts.total"] == 20
    assert not any("attempts" in name for blob in powertools_blobs for name in blob)
    assert "handled" not in values
