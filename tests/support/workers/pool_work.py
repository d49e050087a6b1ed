"""Work for the worker pool in tests. A task's payload names under `do` what it does."""

import ctypes
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import Any, NoReturn

from support.workers.notes import Notes, is_alive

Task = Mapping[str, Any]
DONE = {"success": True, "bytesProcessed": 0, "error": None}


def work(notes: Path) -> "partial[PoolWork]":
    return partial(PoolWork, str(notes))


def work_of_the_first(notes: Path) -> "partial[PoolWork]":
    """Only the first worker that is started can create this work."""
    return partial(_make_first, str(notes))


def _make_first(notes: str) -> "PoolWork":
    if Notes(Path(notes)).values("made"):
        raise LookupError("only one worker is possible")
    return PoolWork(notes)


class PoolWork:
    """Records what it does in a file that all workers share."""

    def __init__(self, notes: str) -> None:
        self._notes = Notes(Path(notes))
        self.note = self._notes.write
        self._cancelled: dict[str, Event] = {}
        self._lock = Lock()
        self.note(f"made {os.getpid()}")

    def process(self, task: Task, report: Callable[[int], None]) -> Any:
        self._look_for_others_at(task)
        self.note(f"begin {task['taskId']} {task['attempt']} {os.getpid()}")
        return getattr(self, task["do"])(task, report)

    def _look_for_others_at(self, task: Task) -> None:
        for begun in self._notes.values("begin"):
            task_id, _, pid = begun.split()
            if task_id == task["taskId"] and is_alive(int(pid)):
                self.note(f"overlap {task_id}")

    def cancel(self, job_id: str) -> None:
        self.note(f"cancel {job_id}")
        self._event(job_id).set()

    def close(self) -> None:
        self.note(f"close {os.getpid()}")

    def _event(self, job_id: str) -> Event:
        with self._lock:
            return self._cancelled.setdefault(job_id, Event())

    # -- what tasks do

    def finish(self, task: Task, report: Callable[[int], None]) -> Any:
        time.sleep(task.get("seconds", 0.0))
        self.note(f"finished {task['taskId']} {os.getpid()}")
        return DONE | {"bytesProcessed": task.get("bytes", 0)}

    def tell_all(self, task: Task, report: Callable[[int], None]) -> Any:
        self.note(f"keys {' '.join(sorted(task))}")
        self.note(f"modules {' '.join(sorted(sys.modules))}")
        self.note(f"arguments {' '.join(sys.argv[:5])}")
        self.note(
            f"inheritable {[pipe for pipe in sys.argv[2:6] if os.get_inheritable(int(pipe))]}"
        )
        return DONE

    def sleep(self, task: Task, report: Callable[[int], None]) -> Any:
        """Sleep until the job is cancelled."""
        report(1000)
        report(234)
        self.note(f"sleeping {task['taskId']}")
        self._event(task["jobId"]).wait(600.0)
        return DONE | {"success": False, "error": {"code": "Cancelled", "message": ""}}

    def refuse(self, task: Task, report: Callable[[int], None]) -> Any:
        return DONE | {"success": False, "error": {"code": "NotFound", "message": "404"}}

    def nonsense(self, task: Task, report: Callable[[int], None]) -> Any:
        return object()

    def fail(self, task: Task, report: Callable[[int], None]) -> NoReturn:
        raise ConnectionError(task["text"])

    def leave(self, task: Task, report: Callable[[int], None]) -> NoReturn:
        os._exit(7)

    def kill_itself(self, task: Task, report: Callable[[int], None]) -> None:
        time.sleep(task.get("seconds", 0.0))
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    def stop_itself(self, task: Task, report: Callable[[int], None]) -> Any:
        """Stop this process the first time, and finish later."""
        if task["attempt"] == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(60)
        return DONE

    def hold_the_gil(self, task: Task, report: Callable[[int], None]) -> Any:
        if task["attempt"] == 1:
            ctypes.PyDLL(None).sleep(600)
        return DONE

    def take_too_long(self, task: Task, report: Callable[[int], None]) -> None:
        ballast = b"x" * (
            task.get("megabytes", 0) << 20
        )  # a process with so much memory takes a while to die
        time.sleep(600)
        del ballast

    def no_memory(self, task: Task, report: Callable[[int], None]) -> None:
        """Run out of memory, as on a host that is too small."""
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), used + (64 << 20)))
        bytearray(1 << 30)

    def have_children(self, task: Task, report: Callable[[int], None]) -> None:
        child = subprocess.Popen(["sleep", "600"])
        self.note(f"child {child.pid}")
        time.sleep(600)

    def leave_a_child(self, task: Task, report: Callable[[int], None]) -> Any:
        """Finish, and leave a process running."""
        self.note(f"child {subprocess.Popen(['sleep', '600']).pid}")
        return DONE

    def leave_its_pipe_open(self, task: Task, report: Callable[[int], None]) -> Any:
        """Die the first time, and leave a daemon that holds all pipes open."""
        if task["attempt"] == 1:
            if os.fork() == 0:
                os.setsid()
                self.note(f"daemon {os.getpid()}")
                time.sleep(600)
                os._exit(0)
            os._exit(8)
        return DONE

    def talk_rubbish(self, task: Task, report: Callable[[int], None]) -> Any:
        """Send garbage the first time."""
        if task["attempt"] == 1:
            self._say(b"{")
            time.sleep(600)
        return DONE

    def say_unknown(self, task: Task, report: Callable[[int], None]) -> Any:
        if task["attempt"] == 1:
            self._say(b'{"type":"SHUTDOWN","payload":{}}')
            time.sleep(600)
        return DONE

    def talk_without_end(self, task: Task, report: Callable[[int], None]) -> Any:
        """Send a frame of 4 GiB the first time, or as much of it as the pool reads."""
        if task["attempt"] == 1:
            os.write(int(sys.argv[3]), struct.pack("!I", 0xFFFFFFFF))
            for _ in range(256):
                os.write(int(sys.argv[3]), b"x" * (1 << 20))
            time.sleep(600)
        return DONE

    def answer_for_others(self, task: Task, report: Callable[[int], None]) -> Any:
        """Respond with every nonce but its own, then twice with its own."""
        for nonce in range(1, 50):
            if nonce != task["nonce"]:
                self._answer(task, nonce, b"666")
        self._answer(task, task["nonce"], b"7")
        return DONE | {"bytesProcessed": 8}

    def break_off(self, task: Task, report: Callable[[int], None]) -> Any:
        """Die in the middle of a frame the first time."""
        if task["attempt"] == 1:
            os.write(int(sys.argv[3]), struct.pack("!I", 1000) + b'{"type":')
            os._exit(9)
        return DONE

    def done_and_dead(self, task: Task, report: Callable[[int], None]) -> None:
        """Send more frames than the pool reads at once, then the result, and die."""
        os.write(int(sys.argv[3]), (struct.pack("!IQ", 11, 0) + b"p[]") * 2000)
        self._answer(task, task["nonce"], b"5")
        os.kill(os.getpid(), signal.SIGKILL)

    def _answer(self, task: Task, nonce: int, done: bytes) -> None:
        self._say(
            b'{"type":"TASK_COMPLETED","payload":{"taskId":"t","jobId":"j","success":true,'
            b'"bytesProcessed":%s,"error":null}}' % done,
            nonce,
        )

    def _say(self, frame: bytes, number: int = 0) -> None:
        os.write(int(sys.argv[3]), struct.pack("!IQ", 8 + len(frame), number) + frame)


# -- work that cannot be made


def broken() -> NoReturn:
    raise LookupError("no such bucket at https://me:secret@bucket/?X-Amz-Signature=secret")


def dies_at_once() -> NoReturn:
    os._exit(11)
