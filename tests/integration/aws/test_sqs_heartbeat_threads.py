"""SQSHeartbeat with real threads, processes and signals."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import LeaseLost
from holdfast.utils.sqs_heartbeat import SQSHeartbeat, stop_all
from support.sqs.heartbeats import URL
from support.waiting import WAIT_TIMEOUT_SECONDS, wait_until


class Sqs:
    """A client that accepts every call, and counts concurrent calls and their threads."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.calls = 0
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        self._seconds = seconds

    def change_message_visibility(self, **_: Any) -> None:
        with self._lock:
            self.calls += 1
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        time.sleep(self._seconds)
        with self._lock:
            self._at_once -= 1


def run_in_parallel(*jobs: Callable[[], object]) -> None:
    """Run each job in its own thread; fail if one raises or does not end."""
    failed: list[BaseException] = []
    ready = threading.Barrier(len(jobs))

    def run(job: Callable[[], object]) -> None:
        try:
            ready.wait(WAIT_TIMEOUT_SECONDS)
            job()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    give_up_at = time.monotonic() + WAIT_TIMEOUT_SECONDS
    for thread in threads:
        thread.join(max(0.0, give_up_at - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    assert failed == []


def count_beating_threads(heartbeat: SQSHeartbeat) -> int:
    name = f"sqs-heartbeat-{heartbeat.label}"
    return [thread.name for thread in threading.enumerate()].count(name)


VERBS: dict[str, Callable[[SQSHeartbeat], object]] = {
    "start": SQSHeartbeat.start,
    "stop": SQSHeartbeat.stop,
    "check": SQSHeartbeat.check_for_errors,
    "running": lambda heartbeat: heartbeat.running,
    "progress": SQSHeartbeat.progress,
    "stop_all": lambda heartbeat: heartbeat.end(),
}
SCRIPT = st.lists(st.sampled_from(sorted(VERBS)), max_size=12)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scripts=st.tuples(SCRIPT, SCRIPT, SCRIPT), last=st.sampled_from(["start", "stop"]))
def test_any_interleaving_of_three_threads_ends_well(scripts, last: str) -> None:
    """There is no deadlock, no exception and at most one thread; the last call decides
    (I-HB-3, I-HB-7).
    """
    sqs = Sqs()
    heartbeat = SQSHeartbeat(URL, f"handle-{id(scripts)}", 0.001, 600, client=sqs)

    def perform(script: list[str]) -> Callable[[], None]:
        return lambda: [VERBS[verb](heartbeat) for verb in script] and None

    run_in_parallel(*map(perform, scripts))
    VERBS[last](heartbeat)
    assert heartbeat.running is (last == "start")
    wait_until(lambda: count_beating_threads(heartbeat) == (last == "start"))
    heartbeat.stop()
    calls = sqs.calls
    time.sleep(0.003)
    assert sqs.calls == calls
    assert sqs.most_at_once <= 1
    assert count_beating_threads(heartbeat) == 0
    assert heartbeat.check_for_errors() is None


def test_a_storm_of_starts_and_stops_never_makes_two_threads_beat() -> None:
    """The interval is 1 ms, and a call takes as long (I-HB-2, I-HB-3)."""
    sqs = Sqs(seconds=0.001)
    heartbeat = SQSHeartbeat(URL, "storm", 0.001, 600, client=sqs)

    def storm() -> None:
        for _ in range(50):
            heartbeat.start()
            heartbeat.check_for_errors()
            heartbeat.stop()

    for _ in range(50):  # on a busy machine a storm may end before any thread beats
        run_in_parallel(storm, storm, storm, storm)
        if sqs.calls:
            break
    heartbeat.stop()
    calls = sqs.calls
    time.sleep(0.01)
    assert sqs.calls == calls
    assert calls > 0
    assert sqs.most_at_once == 1
    assert not heartbeat.running
    assert heartbeat.check_for_errors() is None


def test_many_heartbeats_beat_in_parallel_and_stop_together() -> None:
    stop_all()
    sqs = Sqs()
    made = [SQSHeartbeat(URL, f"m{number}", 0.001, 600, client=sqs) for number in range(20)]
    for heartbeat in made:
        heartbeat.start()
    wait_until(lambda: sqs.calls > 200)
    assert stop_all() == 20
    calls = sqs.calls
    time.sleep(0.01)
    assert sqs.calls == calls
    assert not any(heartbeat.running for heartbeat in made)


@pytest.mark.requirement("R000-043")
def test_stopping_is_fast_for_any_interval() -> None:
    """In real time."""
    heartbeat = SQSHeartbeat(URL, "prompt", 10_000, 40_000, client=Sqs())
    heartbeat.start()
    began = time.monotonic()
    heartbeat.stop()
    assert time.monotonic() - began < WAIT_TIMEOUT_SECONDS


def test_concurrent_stops_all_return_after_the_thread_ended() -> None:
    """Each stop waits for the thread (HB-11)."""
    for _ in range(20):
        heartbeat = SQSHeartbeat(URL, "stops", 0.001, 600, client=Sqs(0.001))
        heartbeat.start()
        run_in_parallel(*[heartbeat.stop] * 4)
        assert count_beating_threads(heartbeat) == 0


def run(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX")
def test_a_forked_child_has_a_stopped_heartbeat_and_the_parent_continues() -> None:
    """Another thread uses the locks that the child would inherit (HB-19)."""
    child = run(
        f"""
        import os, sys, threading, time
        from holdfast.utils.sqs_heartbeat import SQSHeartbeat, stop_all

        class Sqs:
            calls = 0
            def change_message_visibility(self, **_):
                self.calls += 1

        sqs = Sqs()
        heartbeat = SQSHeartbeat({URL!r}, "fork", 0.001, 600, client=sqs)
        heartbeat.start()
        done = threading.Event()
        def hammer():
            while not done.is_set():
                heartbeat.running, heartbeat.check_for_errors(), heartbeat.start()
        threading.Thread(target=hammer, daemon=True).start()
        for _ in range(30):
            pid = os.fork()
            if pid == 0:
                quiet = not heartbeat.running and heartbeat.check_for_errors() is None
                calls = sqs.calls
                time.sleep(0.005)
                quiet = quiet and sqs.calls == calls and stop_all() == 0
                heartbeat.stop()
                heartbeat.start()  # its own, should it want one
                quiet = quiet and heartbeat.running
                heartbeat.stop()
                os._exit(0 if quiet else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        done.set()
        calls = sqs.calls
        while sqs.calls == calls:
            time.sleep(0.001)
        assert heartbeat.running
        heartbeat.stop()
        print("well")
        """
    )
    output, errors = child.communicate(timeout=WAIT_TIMEOUT_SECONDS * 3)
    assert output == "well\n", errors


@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX")
def test_a_forked_child_does_not_hang_whatever_was_imported_first() -> None:
    """The callbacks after a fork run before the registry's lock is released (HB-19)."""
    child = run(
        f"""
        import os, signal
        import holdfast
        keeper = holdfast.LeaseKeeper()  # registers the callbacks before the import below
        from holdfast.utils.sqs_heartbeat import SQSHeartbeat, stop_all

        class Sqs:
            def change_message_visibility(self, **_):
                pass

        heartbeat = SQSHeartbeat({URL!r}, "fork", 20, 600, client=Sqs())
        heartbeat.start()
        pid = os.fork()
        if pid == 0:
            os._exit(stop_all())
        signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGKILL))
        signal.alarm({int(WAIT_TIMEOUT_SECONDS)})
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert stop_all() == 1
        print("well")
        """
    )
    output, errors = child.communicate(timeout=WAIT_TIMEOUT_SECONDS * 3)
    assert output == "well\n", errors


def test_a_frozen_process_finds_its_message_lost_and_makes_no_call() -> None:
    """SIGSTOP lasts longer than the visibility (HB-04, I-HB-4)."""
    child = run(
        f"""
        import sys, time
        from holdfast.utils.sqs_heartbeat import SQSHeartbeat

        class Sqs:
            asked_at = time.monotonic()
            late = 0
            def change_message_visibility(self, **_):
                now = time.monotonic()
                self.late += now >= self.asked_at + 5
                self.asked_at = now

        sqs = Sqs()
        heartbeat = SQSHeartbeat({URL!r}, "freeze", 0.3, 5, client=sqs)
        sqs.asked_at = time.monotonic()
        heartbeat.start()
        print("beating", flush=True)
        sys.stdin.readline()
        assert heartbeat.lost.wait(60)
        heartbeat.stop()
        print(type(heartbeat.check_for_errors()).__name__, sqs.late)
        """
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "beating\n"
    child.send_signal(signal.SIGSTOP)
    time.sleep(5.5)
    child.send_signal(signal.SIGCONT)
    output, errors = child.communicate("go on\n", timeout=WAIT_TIMEOUT_SECONDS)
    assert output == f"{LeaseLost.__name__} 0\n", errors


def test_an_interpreter_exits_quietly_while_heartbeats_beat() -> None:
    """It does not hang, and no thread prints a traceback (HB-23)."""
    child = run(
        f"""
        import time
        from holdfast.utils.sqs_heartbeat import SQSHeartbeat

        class Sqs:
            def change_message_visibility(self, **_):
                time.sleep(0.0005)

        kept = [SQSHeartbeat({URL!r}, f"m{{n}}", 0.0001, 600, client=Sqs()) for n in range(8)]
        for heartbeat in kept:
            heartbeat.start()
        time.sleep(0.05)
        """
    )
    output, errors = child.communicate(timeout=WAIT_TIMEOUT_SECONDS)
    assert (child.returncode, output, errors) == (0, "", "")
