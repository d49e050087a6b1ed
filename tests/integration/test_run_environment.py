"""A test run does not depend on where it is started, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tools import listeners

from support.paths import ROOT
from support.waiting import wait_until

HOSTILE = {
    "AWS_PROFILE": "of-the-person-at-the-machine",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "AWS_ENDPOINT_URL_SQS": "http://127.0.0.1:9",
    "AWS_ENDPOINT_URL_DYNAMODB": "http://127.0.0.1:9",
    "AWS_REGION": "mars-north-1",
    "AWS_DEFAULT_REGION": "mars-north-1",
    "AWS_ACCESS_KEY_ID": "real",
    "AWS_SECRET_ACCESS_KEY": "real",
    "AWS_SESSION_TOKEN": "real",
    "AWS_CONFIG_FILE": "/nonexistent",
    "AWS_CA_BUNDLE": "/nonexistent",
    "AWS_MAX_ATTEMPTS": "none",
    "HOLDFAST_LEASE_SECONDS": "-1",
    "HOLDFAST_QUEUE": "sqs:of-the-person-at-the-machine",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "https_proxy": "http://127.0.0.1:9",
}
# The signals that end a process, and the one that reports a child's end to its parent.
ENDINGS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD)


def run_of_tests(*words: str, **options: object) -> "subprocess.Popen[str]":
    """Start pytest with the tests' own conftest."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


def ignore_signals() -> None:
    """Ignore signals, as a background job under nohup does. It is for preexec_fn."""
    for number in ENDINGS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)


# One of each kind that a foreign setting or an ignored signal could break.
SENSITIVE = {
    "integration/worker/test_worker_shutdown.py": "ctrl_c_without_a_signal_handler",
    "integration/cli/test_cli_web.py": "terminal_is_redrawn_until_ctrl_c",
    "contracts/test_sqs_queue_on_moto.py": "message_comes_out_as_it_went_in",
    "contracts/test_dynamodb_jobs.py": "three_increments_at_once",
    "unit/queues/test_opening.py": "test_opening",
}


def test_tests_pass_below_nohup_in_the_background_and_with_foreign_settings() -> None:
    files = [f"tests/{file}" for file in SENSITIVE]
    words = [*files, "-x", "-v", "-m", "not nightly", "-k", " or ".join(SENSITIVE.values())]
    run = run_of_tests(*words, env=os.environ | HOSTILE, preexec_fn=ignore_signals)
    output, _ = run.communicate(timeout=600)
    assert run.returncode == 0, output
    for file in files:
        assert f"\n{file} ." in output, f"{file} has no such test"


SERVERS = '''
import io, os, signal, subprocess, sys, time, zipfile
from pathlib import Path

READY = Path(__file__).with_name("ready")
FUNCTION = "def handle(event, context): return 1"
BOOTSTRAP = f"""#!/bin/sh
exec "{sys.executable}" -m awslambdaric "$_HANDLER"
"""

def package():
    package = io.BytesIO()
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("bootstrap", BOOTSTRAP)
        archive.writestr("function.py", FUNCTION)
    return package.getvalue()

def test_never_ends(ministack):
    functions = ministack.client("lambda")
    functions.create_function(
        FunctionName="f", Runtime="provided.al2023", Handler="function.handle",
        Role="arn:aws:iam::000000000000:role/test", Code={"ZipFile": package()}, Timeout=60,
    )
    assert functions.invoke(FunctionName="f")["Payload"].read() == b"1"
    if os.fork() == 0:
        signal.pause()
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    READY.touch()
    time.sleep(600)
'''


@pytest.mark.parametrize("processes", [[], ["-n1"]], ids=["alone", "xdist"])
def test_a_killed_run_takes_its_servers_and_their_children_with_it(
    tmp_path: Path, processes: list[str]
) -> None:
    (tmp_path / "test_servers.py").write_text(SERVERS)
    words = ["-p", "conftest", "-p", "support.ministack_server", str(tmp_path), *processes]
    paths = os.pathsep.join([str(ROOT / "tests"), *sys.path])
    run = run_of_tests(*words, env=os.environ | {"PYTHONPATH": paths})
    try:
        wait_until((tmp_path / "ready").exists, 120)
        started = {pid: command(pid) for pid in listeners.add_descendants([run.pid])}
        for name in ("ministack", "awslambdaric", "sleep"):
            assert any(name in words for words in started.values()), (name, started)
    finally:
        run.kill()
        run.wait()
    wait_until(lambda: not any(command(pid) == started[pid] for pid in started))


def command(pid: int) -> str:
    """Return the command line of a process, or nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().replace("\0", " ")
    except OSError:
        return ""


# -- servers that others could reach


OPEN_DOOR = """
import socket, sys
family, kind, address = sys.argv[1:]
door = socket.socket(socket.AddressFamily[family], socket.SocketKind[kind])
door.bind((address, 0))
if kind == "SOCK_STREAM":
    door.listen()
print(door.getsockname()[1], flush=True)
sys.stdin.read()
"""
# A grandchild process, because servers are often started by servers.
BELOW = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {OPEN_DOOR!r}, *sys.argv[1:]])
"""


@contextmanager
def server(family: str, kind: str, address: str) -> Iterator[int]:
    """Start a server in a grandchild process and yield its port."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, "-c", BELOW, family, kind, address]
    with subprocess.Popen(command, text=True, **pipes) as child:  # type: ignore[call-overload]
        yield int(child.stdout.readline())


@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM"])
@pytest.mark.parametrize(("family", "address"), [("AF_INET", "0.0.0.0"), ("AF_INET6", "::")])
def test_a_server_that_other_machines_can_reach_fails_the_test_that_started_it(
    family: str, kind: str, address: str
) -> None:
    with (
        server(family, kind, address) as port,
        pytest.raises(AssertionError, match=f"on 127.0.0.1 only.* {address} port {port} "),
    ):
        listeners.assert_loopback_only()


@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM"])
@pytest.mark.parametrize(
    ("family", "address"),
    [
        ("AF_INET", "127.0.0.1"),
        ("AF_INET", "127.8.7.6"),
        ("AF_INET6", "::1"),
        ("AF_INET6", "::ffff:127.0.0.1"),
    ],
)
def test_a_server_on_the_loopback_is_allowed(family: str, kind: str, address: str) -> None:
    with server(family, kind, address):
        listeners.assert_loopback_only()
