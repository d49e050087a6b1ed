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
"""What a process does, given a seed."""


@dataclass
class Crew:
    """Forks of this process, each in its role until it is killed, then replaced."""

    random: Random
    roles: dict[int, Role] = field(default_factory=dict)  # by process id
    frozen: dict[int, float] = field(default_factory=dict)  # until when
    kills: int = 0
    freezes: int = 0

    def start(self, role: Role) -> int:
        seed = self.random.getrandbits(32)
        pid = os.fork()
        if pid == 0:
            _play(role, seed)
        self.roles[pid] = role
        return pid

    def kill_one(self, among: Role) -> None:
        pid = self.random.choice([p for p, role in self.roles.items() if role == among])
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.frozen.pop(pid, None)
        self.start(self.roles.pop(pid))
        self.kills += 1

    def kill_all(self, role: Role) -> None:
        for pid in [p for p, r in self.roles.items() if r == role]:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            del self.roles[pid]

    def freeze_one(self, among: Role, seconds: float) -> None:
        pid = self.random.choice([p for p, role in self.roles.items() if role == among])
        os.kill(pid, signal.SIGSTOP)
        self.frozen[pid] = monotonic() + seconds
        self.freezes += 1

    def thaw(self, *, everybody: bool = False) -> None:
        for pid, until in list(self.frozen.items()):
            if everybody or monotonic() >= until:
                os.kill(pid, signal.SIGCONT)
                del self.frozen[pid]

    def replace_the_dead(self, role: Role) -> None:
        """Those who were killed by their own work."""
        for pid in [p for p, r in self.roles.items() if r == role]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                assert os.WIFSIGNALED(status), f"process {pid} ended with {status}; see stderr"
                self.frozen.pop(pid, None)
                self.start(self.roles.pop(pid))

    def wait(self, role: Role, seconds: float) -> bool:
        """Until all of that role have ended well."""
        give_up_at = monotonic() + seconds
        waiting = [pid for pid, r in self.roles.items() if r == role]
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
        """Nobody is left behind, whatever happened."""
        for pid in self.roles:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.roles.clear()


def _play(role: Role, seed: int) -> None:
    status = 1
    try:
        role(seed)
        status = 0
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(status)  # never back into pytest
