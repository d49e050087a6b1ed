"""Logs and metrics without the packages that they need, and the server of the metrics."""

import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

from holdfast import events as ev
from holdfast.errors import ConfigError
from holdfast.telemetry.prometheus import MetricsServer

WITHOUT = """
import sys
for name in {missing!r}:
    sys.modules[name] = None  # as if it were not installed
"""


def run_without(missing: list[str], program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", WITHOUT.format(missing=missing) + program],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    server = MetricsServer(0)
    yield server
    server.close()


def test_metrics_are_served(server: MetricsServer) -> None:
    server.subscriber(ev.Completed("q", "m", 1, seconds=1.0))
    url = f"http://127.0.0.1:{server.port}/metrics"
    with urllib.request.urlopen(url, timeout=30) as page:
        assert b'holdfast_attempts_total{outcome="completed",queue="q"} 1.0' in page.read()


def test_a_port_that_is_taken_is_one_clear_line(server: MetricsServer) -> None:
    with pytest.raises(ConfigError, match="choose another --metrics-port"):
        MetricsServer(server.port)


def test_without_prometheus_the_error_names_the_remedy() -> None:
    done = run_without(
        ["prometheus_client"],
        "from holdfast.telemetry.prometheus import Metrics\n"
        "from holdfast.errors import ConfigError\n"
        "try:\n    Metrics()\nexcept ConfigError as error:\n    print(error)\n",
    )
    assert "pip install '.[metrics]'" in done.stdout


@pytest.mark.parametrize("name", ["OpenTelemetryMetrics", "OpenTelemetryTracing"])
def test_without_opentelemetry_the_error_names_the_remedy(name: str) -> None:
    done = run_without(
        ["opentelemetry"],
        "from holdfast.errors import ConfigError\n"
        f"try:\n    from holdfast.telemetry import {name}\n"
        "except ConfigError as error:\n    print(error)\n",
    )
    assert "pip install '.[otel]'" in done.stdout
