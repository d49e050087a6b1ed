"""How long each service takes in the model. Published ranges, and the client's measured CPU.

A call takes the service's time plus the CPU time of boto3, which measuring.py measures. What
AWS publishes is a range, so each entry names the range and the value that the model takes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Latency:
    """A time of the model, with what is published about it."""

    seconds: float
    published: str


LATENCIES = {
    "sqs": Latency(0.020, "tens to low hundreds of ms (SQS FAQ)"),
    "dynamodb": Latency(0.006, "single-digit ms (DynamoDB developer guide)"),
    "states": Latency(0.030, "not published; as SQS"),
    "lambda.start": Latency(0.010, "not published; a warm start"),
    "lambda.cold": Latency(1.5, "100 ms to above 1 s (Lambda operator guide), and our imports"),
    "fargate.start": Latency(60.0, "not published; 30 s to 2 min are reported for such images"),
    "model": Latency(6.0, "not published; median of a reply of 400 characters"),
    "twilio": Latency(0.4, "not published"),
}


def compute_call_seconds(service: str, measured: Mapping[str, Any]) -> float:
    """Return the time of one call: the service's, and the measured CPU time of the client."""
    calls = measured["calls"]
    cpu = [times["client_cpu_ms"] for name, times in calls.items() if name.startswith(service)]
    return LATENCIES[service].seconds + min(cpu) / 1000
