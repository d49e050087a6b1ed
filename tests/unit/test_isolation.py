"""Unit tests start no process and reach no network: `conftest.py` fails those that try."""

import multiprocessing
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable

import pytest


def fork_process() -> None:
    os.fork()


def bind_socket() -> None:
    socket.create_server(("127.0.0.1", 0)).close()


def fetch_page() -> None:
    urllib.request.urlopen("http://127.0.0.1:9", timeout=1)


def spawn_child() -> None:
    multiprocessing.get_context("spawn").Process(target=print).start()


def run_program() -> None:
    subprocess.run([sys.executable, "-V"], check=True)


def run_command() -> None:
    os.popen("true").close()


def send_datagram() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.connect(("127.0.0.1", 9))


@pytest.mark.parametrize("start", [fork_process, spawn_child, run_program, run_command])
def test_a_unit_test_that_starts_a_process_fails(start: Callable[[], object]) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"starts a process; .*tests/integration"):
        start()


@pytest.mark.parametrize("reach", [bind_socket, fetch_page, send_datagram])
def test_a_unit_test_that_uses_an_internet_address_fails(reach: Callable[[], object]) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"of a socket; .*tests/integration"):
        reach()


def test_sockets_of_one_process_are_allowed() -> None:
    one_end, other_end = socket.socketpair()
    one_end.send(b"x")
    assert other_end.recv(1) == b"x"
    one_end.close()
    other_end.close()
