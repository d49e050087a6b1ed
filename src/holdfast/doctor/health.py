"""The health check of a container: does its worker answer?

It runs every minute beside the worker, so it imports neither boto3 nor a queue.
"""

from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException

from holdfast.doctor.checks import CheckResult, ok
from holdfast.doctor.runner import CheckFailed, run_checks

_RESPONSE_SECONDS = 5.0


def examine_worker(port: int) -> Iterator[CheckResult]:
    """Check that the process answers that serves its metrics at this port of the loopback.

    Nothing else is asked, so an outage of a queue or a store does not make a worker unhealthy.
    """
    return run_checks(port, ("worker", _check_metrics))


def _check_metrics(port: int) -> Iterator[CheckResult]:
    connection = HTTPConnection("127.0.0.1", port, timeout=_RESPONSE_SECONDS)
    try:
        connection.request("GET", "/metrics")
        status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        raise CheckFailed(
            f"no process answers at 127.0.0.1:{port}: {error}",
            f"start one with --metrics-port={port}, or restart the one that hangs",
        ) from error
    finally:
        connection.close()
    if status != 200:
        raise CheckFailed(
            f"what answers at 127.0.0.1:{port} has no metrics: HTTP {status}",
            "name the port that the worker has as its --metrics-port",
        )
    yield ok(f"the process that serves its metrics at port {port} answers")
