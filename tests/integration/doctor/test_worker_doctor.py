"""`holdfast doctor --metrics-port`, the health check of a container, with a real worker."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from holdfast.doctor.checks import CheckLevel
from holdfast.doctor.targets import examine_worker
from support.cli.commands import clean_env, real, require_one_line, start
from support.http_server import LoopbackServer

HANDLER = "def handle(message):\n    pass\n"


@pytest.fixture
def worker(tmp_path: Path) -> "Iterator[Popen[bytes]]":
    (tmp_path / "tasks.py").write_text(HANDLER)
    # The queue cannot be reached, which says nothing about the process.
    outage = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_REGION": "eu-west-1",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
    }
    words = ("work", "sqs:shop-work", "tasks:handle", "--metrics-port=0", "--drain=1s")
    process = start(tmp_path, *words, env=clean_env(**outage))
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_port(worker: "Popen[bytes]") -> int:
    assert worker.stderr is not None
    found = re.search(r"http://127\.0\.0\.1:(\d+)/metrics", worker.stderr.readline().decode())
    assert found is not None
    return int(found[1])


def test_a_worker_is_healthy_while_it_answers_even_if_its_queue_does_not(
    worker: "Popen[bytes]", tmp_path: Path
) -> None:
    port = read_port(worker)
    ran = real(tmp_path, "doctor", f"--metrics-port={port}")
    assert (ran.code, ran.err) == (0, "")
    assert f"the process that serves its metrics at port {port} answers" in ran.out
    worker.send_signal(signal.SIGSTOP)  # it hangs
    (hanging,) = examine_worker(port)
    assert (hanging.level, hanging.check) == (CheckLevel.FAIL, "worker")
    worker.kill()
    worker.communicate()
    ran = real(tmp_path, "doctor", f"--metrics-port={port}")
    assert ran.code == 1
    assert f"no process answers at 127.0.0.1:{port}" in ran.out


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "no metrics: HTTP 404"),
        (b"no HTTP at all\r\n\r\n", "no process answers"),
    ],
)
def test_another_process_at_the_port_is_not_a_worker(response: bytes, problem: str) -> None:
    with LoopbackServer() as server:
        server.on("/metrics", lambda ask, wire: wire.send(response))
        (result,) = examine_worker(server.port)
    assert result.level is CheckLevel.FAIL
    assert problem in result.found


def test_a_queue_and_a_worker_are_not_accepted_together(tmp_path: Path) -> None:
    ran = real(tmp_path, "doctor", "enrich", "--metrics-port=9000")
    assert "give TARGET or --metrics-port; got 'enrich' and 9000" in require_one_line(ran)
