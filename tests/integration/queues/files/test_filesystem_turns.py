"""A process that is frozen while it holds an id lock: others wait, but not forever."""

import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import QueueUnavailable
from holdfast.queues.files.layout import hash_id
from support.files import audit
from support.files.crash import end_with_parent, run_in_child
from support.files.queue_folder import LEASE, Ground, Queue, make_clock, make_message
from support.files.watched import WatchedFs

ID_LOCK = f"ids/.turn-{hash_id('a')[:2]}"


class FreezingFs(WatchedFs):
    """Stops its process before a call on a path, while it holds the id lock."""

    def __init__(self, server_time: Callable[[], float], call: str) -> None:
        super().__init__(server_time)
        self._call, self.held = call, False

    def call(self, name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.held and name == self._call:
            os.kill(os.getpid(), signal.SIGSTOP)
        result = real(*args, **kwargs)
        self.held = self.held or name == "flock"
        return result


@pytest.fixture
def ground(fast_path: Path) -> Ground:
    """Make a ground whose clock advances by itself, so that a deadline comes at once."""
    return Ground(fast_path, make_clock(auto_advance=True), dedupe=True)


@pytest.fixture
def frozen(ground: Ground) -> Iterator[Callable[[str], None]]:
    """Freeze a process that pushes `a` before that call."""
    pids: list[int] = []

    def freeze(call: str) -> None:
        pid = os.fork()
        if pid == 0:
            end_with_parent()
            ground.queue(FreezingFs(ground.clock.time, call)).push(make_message("a"))
            os._exit(1)
        pids.append(pid)
        _, status = os.waitpid(pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    yield freeze
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def ending(act: Callable[[], object]) -> str:
    """Return the error of `act` when the id lock is busy; fail the test if it hangs."""

    def play(say: Callable[[str], None]) -> None:
        with pytest.raises(QueueUnavailable) as refused:
            act()
        say(str(refused.value))

    return run_in_child(play, 20.0).output


def test_a_push_of_the_same_id_is_refused_after_a_while_and_says_what_to_do(
    ground: Ground, frozen: Callable[[str], None]
) -> None:
    frozen("rename")
    output = ending(lambda: ground.queue().push(make_message("a")))
    assert ID_LOCK in output
    assert "end" in output
    assert "try again" in output
    assert "'a'" not in output


def test_pushes_of_other_ids_do_not_wait(ground: Ground, frozen: Callable[[str], None]) -> None:
    frozen("rename")
    now = ground.clock.monotonic()
    ground.queue().push(make_message("b"))
    assert ground.clock.monotonic() == now


def purge(ground: Ground) -> Queue:
    queue = ground.queue()
    queue.push_many([make_message("a"), make_message("b")])
    queue.ack_many(queue.poll(10))
    ground.clock.advance(1)
    return queue


def redrive(ground: Ground) -> Queue:
    queue = ground.queue()
    queue.push_many([make_message("a"), make_message("b")])
    for message in queue.poll(10):
        queue.dead_letter(message, "no use")
    return queue


OPERATIONS = {
    "purge": (purge, lambda queue: queue.purge(0), "stat", "completed"),
    "redrive": (redrive, lambda queue: queue.redrive(), "rename", "failed"),
}


@pytest.mark.parametrize(
    ("prepare", "operate", "call", "state"), OPERATIONS.values(), ids=OPERATIONS
)
def test_a_purge_or_redrive_of_the_id_is_refused_after_a_while_and_says_what_to_do(
    ground: Ground,
    frozen: Callable[[str], None],
    prepare: Callable[[Ground], Queue],
    operate: Callable[[Queue], int],
    call: str,
    state: str,
) -> None:
    queue = prepare(ground)
    frozen(call)
    output = ending(lambda: operate(queue))
    assert ID_LOCK in output
    assert "try again" in output
    left = [
        path.read_bytes() for kept, _, path in audit.list_tasks(ground.folder) if kept == state
    ]
    assert any(b'"a"' in body for body in left)


def test_a_sweep_does_not_wait_for_an_id(ground: Ground, frozen: Callable[[str], None]) -> None:
    queue = ground.queue()
    queue.push(make_message("a"))
    for _, _, path in list(audit.list_tasks(ground.folder)):
        path.unlink()
    frozen("stat")
    now = ground.clock.monotonic()
    assert queue.operator.sweep() == 0
    assert ground.clock.monotonic() == now


def test_a_worker_dead_letters_without_waiting_and_the_id_can_be_pushed_afterwards(
    ground: Ground,
) -> None:
    worker = ground.queue()
    worker.push(make_message("a", which=1))
    [message] = worker.poll()
    with open(ground.folder / ID_LOCK) as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        now = ground.clock.monotonic()
        worker.dead_letter(message, "no use")
        assert ground.clock.monotonic() == now
    worker.push(make_message("a", which=2))
    assert [m.which for m in worker.poll(10)] == [2]
    ground.clock.advance(LEASE)
    worker.operator.sweep(0)
    assert audit.find_residue(ground.folder) == []


def test_a_fork_does_not_keep_the_id_lock_of_its_parent(ground: Ground) -> None:
    """A descriptor that a child inherits would hold the lock until the child ends."""
    queue = ground.queue()
    child: list[int] = []

    class ForkingFs(WatchedFs):
        def call(self, name: str, real: Callable[..., Any], *args: Any, **kw: Any) -> Any:
            result = real(*args, **kw)
            if name == "flock" and not child:
                child.append(os.fork())
                if not child[0]:
                    end_with_parent()
                    os.kill(os.getpid(), signal.SIGSTOP)
                    os._exit(0)
                os.waitpid(child[0], os.WUNTRACED)
            return result

    try:
        ground.queue(ForkingFs(ground.clock.time)).push(make_message("a", which=1))
        now = ground.clock.monotonic()
        queue.push(make_message("a", which=2))
        assert ground.clock.monotonic() == now
    finally:
        os.kill(child[0], signal.SIGKILL)
        os.waitpid(child[0], 0)
