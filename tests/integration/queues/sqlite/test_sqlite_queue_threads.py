"""Threads and processes that share a SQLite queue: commits, errors, Ctrl-C, forks and turns."""

import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from threading import Event, Thread
from time import monotonic

import pytest

from holdfast.queue.message import get_lease
from support.files.crash import run_in_child
from support.files.queue_folder import make_message
from support.sqlite.disk import watch
from support.sqlite.queue_file import Queue, QueueFile, find_faults
from support.waiting import wait_until

THREADS = 8
STORM_SECONDS = 1.0


class Together:
    """Starts threads while another process keeps the file locked, so that all of them wait."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.errors: dict[int, BaseException] = {}

    def run(self, *calls: Callable[[], object]) -> None:
        started: list[int] = []

        def call(number: int) -> None:
            started.append(number)
            try:
                calls[number]()
            except BaseException as error:
                self.errors[number] = error

        threads = [Thread(target=call, args=[number]) for number in range(len(calls))]
        with closing(sqlite3.connect(self._path, isolation_level=None)) as blocker:
            blocker.execute("BEGIN IMMEDIATE")
            for thread in threads:
                thread.start()
            wait_until(lambda: len(started) == len(threads))
            blocker.execute("COMMIT")
        for thread in threads:
            thread.join()


def test_threads_share_commits(fast_path: Path) -> None:
    ground = QueueFile(fast_path, durability="power")
    with watch(fast_path) as disk:
        queue = ground.queue()
        before = len(disk.ops)
        together = Together(ground.path)
        together.run(*[lambda n=n: queue.push(make_message(f"{n}")) for n in range(THREADS)])
        syncs = [op for op in disk.ops[before:] if op.kind == "sync"]
        assert queue.stats().ready == THREADS
        queue.close()
    assert not together.errors
    assert len(syncs) <= THREADS // 2


def test_the_error_of_one_thread_undoes_nothing_of_the_others(fast_path: Path) -> None:
    """An operation that fails inside the shared transaction is undone alone."""
    ground = QueueFile(fast_path)
    queue = ground.queue()
    queue.push_many([make_message(f"old-{n}") for n in range(2)])
    held = queue.poll(2)

    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE messages SET state = 3, reason = 'undone'")
        raise ValueError("on purpose")

    together = Together(ground.path)
    together.run(
        lambda: queue.push(make_message("new-0")),
        lambda: queue._database.write(fail),
        lambda: queue.ack(held[0]),
        lambda: queue._database.write(fail),
        lambda: queue.nack(held[1], delay_seconds=0),
        lambda: queue.push(make_message("new-1")),
    )
    assert {number: str(error) for number, error in together.errors.items()} == {
        1: "on purpose",
        3: "on purpose",
    }
    stats = queue.stats()
    assert (stats.ready, stats.completed, stats.leased, stats.failed) == (3, 1, 0, 0)
    assert find_faults(ground.path) == []


def test_ctrl_c_at_any_moment_leaves_no_other_thread_hanging(fast_path: Path) -> None:
    """The main thread, which may lead the others, is interrupted all the time."""
    output = run_in_child(lambda say: storm(fast_path, say)).output
    interrupted, returned, others = map(int, output.split())
    assert interrupted > 50
    assert returned > 0
    assert others > 50


def storm(folder: Path, say: Callable[[str], None]) -> None:
    ground, stop = QueueFile(folder, busy_seconds=5.0), Event()
    queue = ground.queue()
    pushed: list[str] = []  # by the other threads, after each push returned
    threads = [
        Thread(target=push_until_stopped, args=(queue, f"t{n}", stop, pushed)) for n in range(3)
    ]
    for thread in threads:
        thread.start()
    interrupted, returned, unknown = push_while_interrupted(queue)
    count = len(pushed)
    wait_until(lambda: len(pushed) > count + 50)  # the others still go on
    stop.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    with closing(sqlite3.connect(ground.path)) as connection:
        rows = [row[0] for row in connection.execute("SELECT id FROM messages")]
    assert len(rows) == len(set(rows)), "a push was done twice"
    assert set(pushed) | set(returned) <= set(rows), "a push that returned is lost"
    assert set(rows) <= {*pushed, *returned, *unknown}
    assert find_faults(ground.path) == []
    say(f"{interrupted} {len(returned)} {len(pushed)}")


def push_until_stopped(queue: Queue, name: str, stop: Event, pushed: list[str]) -> None:
    number = 0
    while not stop.is_set():
        queue.push(make_message(f"{name}-{number}"))
        pushed.append(f"{name}-{number}")
        number += 1


def push_while_interrupted(queue: Queue) -> tuple[int, list[str], list[str]]:
    """Return how often it was interrupted, what was pushed, and what may have been."""
    random, until = Random(1), monotonic() + STORM_SECONDS
    interrupted, returned, unknown, number = 0, [], [], 0
    signal.signal(signal.SIGALRM, raise_interrupt)
    while monotonic() < until:
        number += 1
        message = make_message(f"main-{number}")
        unknown.append(message.id)
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 1.5e-3))
            queue.push(message)
            returned.append(message.id)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupted += 1
        with suppress(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0)
    return interrupted, returned, unknown


def raise_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


# -- forks


def test_a_fork_and_its_parent_are_two_workers(fast_path: Path) -> None:
    """Both use the queue that was open at the fork. The child's claims are its own."""
    ground = QueueFile(fast_path)
    queue = ground.queue()
    queue.push_many([make_message(f"m{n}") for n in range(30)])
    held = queue.poll(10)

    def child(say: Callable[[str], None]) -> None:
        claimed = queue.poll(10)
        queue.push(make_message("of the child"))
        queue.ack_many(claimed[:5])
        say(" ".join(message.id for message in claimed))

    taken = run_in_child(child).output.split()
    queue.ack_many(held)
    more = queue.poll(20)
    assert len(taken) == 10
    assert not {m.id for m in (*held, *more)} & set(taken)
    assert (queue.stats().completed, queue.stats().leased) == (15, 16)
    holders = {i.holder.worker_id for i in queue.find(taken[-1]) if i.holder}
    assert holders.isdisjoint(i.holder.worker_id for i in queue.find(more[0].id) if i.holder)
    assert find_faults(ground.path) == []


def test_forks_beside_busy_threads_lose_nothing(fast_path: Path) -> None:
    output = run_in_child(lambda say: fork_beside_threads(fast_path, say)).output
    forks, rows, pushed = map(int, output.split())
    assert forks == 10
    assert rows == pushed


def fork_beside_threads(folder: Path, say: Callable[[str], None]) -> None:
    ground, stop = QueueFile(folder), Event()
    queue = ground.queue()
    pushed: list[str] = []
    threads = [
        Thread(target=push_until_stopped, args=(queue, f"t{n}", stop, pushed)) for n in range(3)
    ]
    for thread in threads:
        thread.start()
    done = 0
    for number in range(10):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                queue.push(make_message(f"child-{number}"))
                status = len(queue.poll()) - 1
            finally:
                os._exit(status)
        done += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    stop.set()
    for thread in threads:
        thread.join()
    stats = queue.stats()
    assert find_faults(ground.path) == []
    say(f"{done} {stats.ready + stats.leased} {len(pushed) + done}")


# -- many processes

PROCESSES = 6
FAIR_SECONDS = 2.0


@pytest.mark.parametrize("batch", [1, pytest.param(20, marks=pytest.mark.nightly)])
def test_many_processes_take_turns_without_starvation(fast_path: Path, batch: int) -> None:
    """Each pushes, claims and acks as fast as it can. None is refused as busy, and each gets a
    fair share.
    """
    ground = QueueFile(fast_path)
    ground.queue()
    start = monotonic() + 0.2
    pids = []
    for number in range(PROCESSES):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                turns = take_turns(ground, batch, start)
                (fast_path / f"turns-{number}").write_text(" ".join(map(str, turns)))
                status = 0
            finally:
                os._exit(status)
        pids.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * PROCESSES
    turns = [(fast_path / f"turns-{n}").read_text().split() for n in range(PROCESSES)]
    counts = [int(count) for count, _ in turns]
    waits = [float(wait) for _, wait in turns]
    fair_share = sum(counts) / PROCESSES
    assert min(counts) >= fair_share / 4, counts
    assert max(waits) < FAIR_SECONDS / 2, waits
    assert find_faults(ground.path) == []
    assert ground.queue().stats().completed == sum(counts) * batch


def take_turns(ground: QueueFile, batch: int, start: float) -> tuple[int, float]:
    """Return how many turns this process had, and the longest."""
    queue = ground.queue()
    while monotonic() < start:
        pass
    turns, longest = 0, 0.0
    while (now := monotonic()) < start + FAIR_SECONDS:
        queue.push_many([make_message(f"{os.getpid()}-{turns}-{n}") for n in range(batch)])
        acked = 0
        while acked < batch and (messages := queue.poll(batch - acked)):
            queue.ack_many(messages)
            acked += len(messages)
        assert acked == batch  # each pushes as many as it takes
        turns, longest = turns + 1, max(longest, monotonic() - now)
    return turns, longest


def test_a_renewal_by_one_thread_and_an_ack_by_another_agree(fast_path: Path) -> None:
    """Whatever comes first, the ack succeeds."""
    ground = QueueFile(fast_path)
    queue = ground.queue()
    queue.push_many([make_message(f"{n}") for n in range(10)])
    for message in queue.poll(10):
        together = Together(ground.path)
        together.run(
            lambda m=message: queue.renew([get_lease(m)], 60.0),
            lambda m=message: queue.ack(m),
        )
        assert not together.errors
    assert queue.stats().completed == 10
