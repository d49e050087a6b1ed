"""Processes that are killed, frozen and replaced."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from time import monotonic, sleep

Role = Callable[[int], None]
"""The work of a process, given a seed."""


@dataclass
class ChaosProcesses:
    """Forks of this process, each with a role, which are replaced when they are killed."""

    random: Random
    roles: dict[int, Role] = field(default_factory=dict)  # the role by process id
    frozen: dict[int, float] = field(default_factory=dict)  # when to continue, by process id
    kills: int = 0
    freezes: int = 0

    def start(self, role: Role) -> int:
        """Fork a process with this role and return its id."""
        seed = self.random.getrandbits(32)
        pid = os.fork()
        if pid == 0:
            _run_role(role, seed)
        self.roles[pid] = role
        return pid

    def kill_random(self, among: Role) -> None:
        """Kill one process of this role and replace it."""
        pid = self.random.choice(
            [candidate for candidate, role in self.roles.items() if role == among]
        )
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.frozen.pop(pid, None)
        self.start(self.roles.pop(pid))
        self.kills += 1

    def kill_all(self, role: Role) -> None:
        """Kill all processes of this role."""
        for pid in [
            candidate for candidate, its_role in self.roles.items() if its_role == role
        ]:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            del self.roles[pid]

    def freeze_random(self, among: Role, seconds: float) -> None:
        """Stop one process of this role for some seconds."""
        pid = self.random.choice(
            [candidate for candidate, role in self.roles.items() if role == among]
        )
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
        for pid in [
            candidate for candidate, its_role in self.roles.items() if its_role == role
        ]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                assert os.WIFSIGNALED(status), f"process {pid} ended with {status}; see stderr"
                self.frozen.pop(pid, None)
                self.start(self.roles.pop(pid))

    def wait(self, role: Role, seconds: float) -> bool:
        """Wait until all processes of this role have ended without an error. Return False after
        a timeout.
        """
        give_up_at = monotonic() + seconds
        waiting = [pid for pid, its_role in self.roles.items() if its_role == role]
        while waiting and monotonic() < give_up_at:
            for pid in list(waiting):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    assert status == 0, f"process {pid} ended with {status}; see stderr"
                    waiting.remove(pid)
                    del self.roles[pid]
            sleep(0.02)
        return not waiting

    def end(self) -> None:
        """Kill all remaining processes, whatever happened."""
        for pid in self.roles:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.roles.clear()


def _run_role(role: Role, seed: int) -> None:
    status = 1
    try:
        role(seed)
        status = 0
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(status)  # never back into pytest
