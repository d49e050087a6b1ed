"""Logs without structlog, and the server of the metrics."""

import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

from holdfast import events as ev
from holdfast.errors import ConfigError
from holdfast.telemetry.prometheus import MetricsServer

PROGRAM = """
import sys
sys.modules["structlog"] = None  # as if it were not installed
import logging
from holdfast.telemetry.logging import make_application_log
from holdfast import events as ev
logging.basicConfig(level=logging.INFO)
make_application_log()(ev.Completed("q", "m", 1, seconds=2.0))
"""


def test_the_standard_library_logs_where_structlog_is_not_installed() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == "INFO:holdfast:completed queue=q message_id=m attempt=1 seconds=2.0\n"


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
