"""Two processes of one boot whose monotonic clocks differ: real time namespaces."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import LeaseLost
from holdfast.queue.manager import QueueManager
from holdfast.queue.message import AnyMessage
from holdfast.queues.opening import open_queue
from support.paths import make_child_environment
from support.waiting import wait_until

LEASE = 60.0
AHEAD_SECONDS = 100_000
SHORT = 1.0  # the dead holder's last lease
UNSHARE = ["unshare", "--time", "--boottime", str(AHEAD_SECONDS), "--fork", "--kill-child"]


class Role:
    """A worker in a process of its own, which may have a clock of its own."""

    def __init__(self, url: str, prefix: list[str]) -> None:
        script = [sys.executable, __file__, url, str(LEASE)]
        self._process = subprocess.Popen(
            [*prefix, *script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=make_child_environment(),
        )
        self._pid = int(self._read())

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def do(self, word: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self._read()

    def kill(self) -> None:
        """Kill the worker itself, which `unshare` may have started."""
        os.kill(self._pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


Start = Callable[[str, list[str]], Role]


@pytest.fixture
def start() -> Iterator[Start]:
    roles: list[Role] = []

    def start(url: str, prefix: list[str]) -> Role:
        roles.append(Role(url, prefix))
        return roles[-1]

    yield start
    for role in roles:
        role.close()


def need_time_namespaces() -> None:
    if shutil.which("unshare") is None:
        pytest.skip("util-linux's unshare is not installed")
    tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"the kernel gives us no time namespace: {tried.stderr.strip()}")


@pytest.mark.parametrize("url", ["file:{}/default/default", "sqlite:{}/work.db"])
@pytest.mark.parametrize("unshared", ["the holder", "the successor"])
def test_a_lease_is_not_taken_over_across_time_namespaces_until_its_holder_is_killed(
    fast_path: Path, start: Start, unshared: str, url: str
) -> None:
    need_time_namespaces()
    url = url.format(fast_path)
    open_queue(url, lease_seconds=LEASE).push(AnyMessage(id="a"))
    holder = start(url, UNSHARE if unshared == "the holder" else [])
    successor = start(url, UNSHARE if unshared == "the successor" else [])
    assert holder.do("poll") == "took"
    for _ in range(20):
        assert successor.do("poll") == "nothing"
        assert holder.do(f"extend {LEASE}") == "held"
    assert holder.do(f"extend {SHORT}") == "held"
    holder.kill()
    wait_until(lambda: successor.do("poll") == "took")
    assert successor.do(f"extend {LEASE}") == "held"


# -- the worker, in the processes of its own that the test starts


def main() -> None:
    """Poll or extend as the lines of the standard input say, and end with it."""
    queue = open_queue(sys.argv[1], AnyMessage, lease_seconds=float(sys.argv[2]))
    print(os.getpid(), flush=True)
    held: list[AnyMessage] = []
    for line in sys.stdin:
        word, *seconds = line.split()
        print(poll(queue, held) if word == "poll" else extend(queue, held, seconds), flush=True)


def poll(queue: QueueManager[Any], held: list[AnyMessage]) -> str:
    held += (taken := queue.poll())
    return "took" if taken else "nothing"


def extend(queue: QueueManager[Any], held: list[AnyMessage], seconds: list[str]) -> str:
    try:
        queue.extend(held[0], float(seconds[0]))
    except LeaseLost:
        return "lost"
    return "held"


if __name__ == "__main__":
    main()
