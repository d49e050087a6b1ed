"""Rounds of chaos: forks that are killed, frozen and replaced, and what holds afterwards."""

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from threading import Thread
from time import monotonic, sleep
from typing import Any, Protocol

from holdfast.worker.worker import Worker
from support import memory_folder

SECONDS = float(os.environ.get("HOLDFAST_CHAOS_SECONDS", "0"))
"""How long rounds are repeated; 0 means one short round."""
Role = Callable[[int], None]
"""The work of a process, given a seed."""


class Round(Protocol):
    """A round on a folder of its own."""

    def run(self) -> str:
        """Run the round, check every promise, and return its totals."""
        ...


def repeat_rounds(
    name: str,
    open_round: Callable[[Path, int], AbstractContextManager[Round]],
    seconds: float = SECONDS,
) -> None:
    """Run one round, or as many with new seeds as there is time for."""
    until = monotonic() + seconds
    for seed in count(1):
        run_round(name, open_round, seed)
        if monotonic() >= until:
            return


def run_round(
    name: str, open_round: Callable[[Path, int], AbstractContextManager[Round]], seed: int
) -> None:
    """Run a round and print its totals. What it wrote is kept if it fails."""
    folder, started = memory_folder.new_folder(), monotonic()
    try:
        with open_round(folder, seed) as chaos_round:
            totals = chaos_round.run()
    except BaseException as error:
        error.add_note(f"{name}, seed {seed}: what each process did is in {folder}")
        raise
    print(f"{name}, round {seed}: {monotonic() - started:.0f} s, {totals}", flush=True)
    shutil.rmtree(folder)


def wait_until(
    condition: Callable[[], object],
    seconds: float,
    explain: Callable[[], object],
    *,
    between: Callable[[], object] = lambda: None,
) -> None:
    """Wait until the condition is true, and call `between` meanwhile."""
    give_up_at = monotonic() + seconds
    while not condition():
        assert monotonic() < give_up_at, explain()
        between()
        sleep(0.1)


@dataclass(frozen=True, slots=True)
class RoundFolder:
    """The folder of one round."""

    root: Path

    @property
    def stop(self) -> Path:
        """Return the file whose existence ends the round."""
        return self.root / "stop"

    def run_until_stopped(self, worker: Worker[Any]) -> None:
        """Run a worker until the round ends."""

        def wait() -> None:
            while not self.stop.exists():
                sleep(0.05)
            worker.stop()

        Thread(target=wait, daemon=True).start()
        worker.run()


class Promises:
    """What must hold after a round. Each method `find_…` returns what is wrong."""

    def check(self) -> None:
        """Assert that every promise was kept."""
        for name in dir(type(self)):
            if name.startswith("find_"):
                wrong = list(getattr(self, name)())
                assert not wrong, f"{name}: {wrong}"


@dataclass
class ChaosProcesses:
    """Forks of this process, each with a role, which are replaced when they are killed."""

    random: Random
    roles: dict[int, Role] = field(default_factory=dict)  # the role by process id
    frozen: dict[int, float] = field(default_factory=dict)  # when to continue, by process id
    kills: int = 0
    freezes: int = 0

    def __enter__(self) -> "ChaosProcesses":
        return self

    def __exit__(self, *_: Any) -> None:
        """Kill all remaining processes, whatever happened."""
        for pid in list(self.roles):
            self._kill(pid)

    def start(self, role: Role, number: int = 1) -> None:
        """Fork so many processes with this role."""
        for _ in range(number):
            seed = self.random.getrandbits(32)
            pid = os.fork()
            if pid == 0:
                run_and_exit(partial(role, seed))
            self.roles[pid] = role

    def list_pids(self, role: Role) -> list[int]:
        """Return the ids of the processes of this role."""
        return [pid for pid, its_role in self.roles.items() if its_role == role]

    def kill_random(self, among: Role) -> int:
        """Kill one process of this role and replace it. Returns its id."""
        pid = self.random.choice(self.list_pids(among))
        self._kill(pid)
        self.start(among)
        self.kills += 1
        return pid

    def kill_all(self, role: Role) -> None:
        """Kill all processes of this role."""
        for pid in self.list_pids(role):
            self._kill(pid)

    def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self._forget(pid)

    def _forget(self, pid: int) -> None:
        self.frozen.pop(pid, None)
        del self.roles[pid]

    def freeze_random(self, among: Role, seconds: float) -> None:
        """Stop one process of this role for some seconds."""
        pid = self.random.choice(self.list_pids(among))
        os.kill(pid, signal.SIGSTOP)
        self.frozen[pid] = monotonic() + seconds
        self.freezes += 1

    def thaw(self, *, all_processes: bool = False) -> None:
        """Continue frozen processes whose time is over, or all of them."""
        for pid, until in list(self.frozen.items()):
            if all_processes or monotonic() >= until:
                os.kill(pid, signal.SIGCONT)
                del self.frozen[pid]

    def replace_dead(self, role: Role) -> None:
        """Replace processes that were killed by their own work."""
        for status in self._reap(role):
            assert os.WIFSIGNALED(status), f"a process ended with {status}; see stderr"
            self.start(role)

    def wait(self, role: Role, seconds: float) -> None:
        """Wait until all processes of this role have ended without an error."""

        def has_ended() -> bool:
            for status in self._reap(role):
                assert status == 0, f"a process ended with {status}; see stderr"
            return not self.list_pids(role)

        wait_until(has_ended, seconds, lambda: f"{role.__name__} does not end")

    def _reap(self, role: Role) -> Iterator[int]:
        """Yield the status of each process of this role that has ended."""
        for pid in self.list_pids(role):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._forget(pid)
                yield status


def run_and_exit(act: Callable[[], object]) -> None:
    """Run the work of a fork, and never return into pytest."""
    status = 1
    try:
        act()
        status = 0
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(status)
