"""Unit tests run in one process and reach no network, so that they stay fast everywhere."""

import os
import socket
import subprocess
from multiprocessing import util
from typing import Any, NoReturn

import pytest
import urllib3.util.connection  # noqa: F401  It binds a socket when it is imported first.

REMEDY = "a unit test must not do that: move it to tests/integration"


@pytest.fixture(autouse=True)
def refuse_processes_and_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test that starts a process, binds an address or connects to one."""
    for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp"):
        monkeypatch.setattr(os, name, refuse_process)
    monkeypatch.setattr(subprocess.Popen, "__init__", refuse_process)
    monkeypatch.setattr(
        util, "spawnv_passfds", refuse_process
    )  # by which multiprocessing starts
    for name in ("bind", "connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, make_local_only(name))


def refuse_process(*_: object, **__: object) -> NoReturn:
    pytest.fail(f"this test starts a process; {REMEDY}")


def make_local_only(name: str) -> Any:
    """Return a method of sockets that accepts no address of the internet family."""
    method = getattr(socket.socket, name)

    def call(opened: socket.socket, address: Any) -> Any:
        if opened.family in (socket.AF_INET, socket.AF_INET6):
            pytest.fail(f"this test calls {name} of a socket; {REMEDY}")
        return method(opened, address)

    return call
