"""Eight workers, many tasks, leases of half a second; kills and freezes at random.

A short round of 600 tasks is part of all tests. With HOLDFAST_CHAOS_SECONDS there are longer
rounds of 2,000 with new seeds, half of that time for each kind of queue under each of its
hazards (`kinds.py`, `hazards.py`). A failed round prints its seed, although signals make no two
rounds alike. Speed is not asserted, because a slow machine only makes rounds longer.
"""

import os
import shutil
import sys
import traceback
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from time import monotonic, sleep

import pytest

from chaos.accounting import Accounting
from chaos.hazards import Hazard, HazardUnavailable
from chaos.kinds import KINDS, Kind
from chaos.processes import ChaosProcesses, Role
from chaos.roles import (
    LEASE_SECONDS,
    ChaosWorker,
    Workspace,
    push_killers,
    push_tasks,
    read_until_stopped,
)
from support import memory_folder

SECONDS = float(os.environ.get("HOLDFAST_CHAOS_SECONDS", "0"))
"""How long rounds are repeated; 0 means one short round."""
WORKERS, PUSHERS, KILLERS = 8, 2, 3
TASKS, FAULT_SECONDS = (2_000, 8.0) if SECONDS else (600, 3.0)
FIRST_TASKS = 200
WAIT_TIMEOUT_SECONDS = 240.0


class Round:
    """A round in which workers work, pushers push and a reader reads, until all faults stop."""

    def __init__(self, root: Path, kind: Kind, hazard: Hazard, seed: int) -> None:
        self.root, self.kind, self.hazard, self.random = root, kind, hazard, Random(seed)
        self.processes = ChaosProcesses(self.random)
        queue_root = hazard.prepare(root, self.push_first)
        self.workspace = Workspace(root, queue_root, kind, hazard)

    def push_first(self, queue_root: Path) -> None:
        """Push the first tasks."""
        workspace = Workspace(self.root, queue_root, self.kind, self.hazard)
        push_killers(workspace, KILLERS)
        push_tasks(workspace, self.random.getrandbits(32), FIRST_TASKS)

    def work(self, seed: int) -> None:
        self.hazard.join(Random(seed))
        ChaosWorker(self.workspace, seed).run()

    def read(self, seed: int) -> None:
        read_until_stopped(self.workspace)

    def push(self, seed: int) -> None:
        self.hazard.join(Random(seed))
        push_tasks(self.workspace, seed, TASKS // PUSHERS)

    def push_until_killed(self, seed: int) -> None:
        push_tasks(self.workspace, seed, TASKS)

    def run(self) -> Accounting:
        """Run the round and return its accounting."""
        try:
            for role, number in self.list_roles():
                for _ in range(number):
                    self.processes.start(role)
            self.inject_faults()
            self.wait_until_finished()
        finally:
            self.processes.thaw(all_processes=True)
            self.processes.end()
        return Accounting(
            list(self.workspace.event_log.entries()),
            self.kind.list_ends(self.workspace.queue_root),
            self.kind.get_mark,
        )

    def list_roles(self) -> list[tuple[Role, int]]:
        return [
            (self.work, WORKERS),
            (self.read, 1),
            (self.push, PUSHERS),
            (self.push_until_killed, 1),
        ]

    def inject_faults(self) -> None:
        until = monotonic() + FAULT_SECONDS
        while monotonic() < until:
            sleep(self.random.uniform(0.02, 0.1))
            self.processes.thaw()
            self.processes.replace_dead(self.work)
            self.hazard.strike(self.random)
            match self.random.random():
                case chance if chance < 0.45:
                    self.processes.kill_random(self.work)
                case chance if chance < 0.9:
                    self.processes.freeze_random(self.work, 2 * LEASE_SECONDS)
                case _:
                    self.processes.kill_random(self.push_until_killed)

    def wait_until_finished(self) -> None:
        self.hazard.calm()
        self.processes.thaw(all_processes=True)
        self.processes.kill_all(self.push_until_killed)
        assert self.processes.wait(self.push, WAIT_TIMEOUT_SECONDS), "a pusher does not end"
        self.finish_hazard()
        give_up_at = monotonic() + WAIT_TIMEOUT_SECONDS
        while not self.is_done():
            assert monotonic() < give_up_at, f"unfinished: {self.workspace.queue().stats()}"
            self.processes.replace_dead(self.work)
            sleep(0.2)
        self.workspace.stop.touch()
        for role in (self.work, self.read):
            assert self.processes.wait(role, WAIT_TIMEOUT_SECONDS), "a process does not stop"

    def finish_hazard(self) -> None:
        if self.hazard.outdates_workers:
            self.processes.kill_all(self.work)
        self.hazard.finish()
        if self.hazard.outdates_workers:
            for _ in range(WORKERS):
                self.processes.start(self.work)

    def is_done(self) -> bool:
        stats = self.workspace.queue().stats()
        return stats.ready + stats.delayed + stats.leased == 0


def iterate_seeds(seconds: float = SECONDS) -> Iterator[int]:
    """Yield one seed, or as many as there is time for."""
    until = monotonic() + seconds
    yield 1
    for seed in count(2):
        if monotonic() >= until:
            return
        yield seed


ROUNDS = [
    (kind, hazard)
    for kind in KINDS
    for hazard in (kind.hazards if SECONDS else kind.hazards[:1])
]


@pytest.mark.parametrize(
    ("kind", "hazard"), ROUNDS, ids=[f"{k.name}-{hazard.name}" for k, hazard in ROUNDS]
)
def test_the_totals_match_whatever_is_killed_or_frozen(
    kind: Kind, hazard: type[Hazard]
) -> None:
    for seed in iterate_seeds(SECONDS / 2):
        folder = memory_folder.new_folder()
        status = run_in_child(folder, kind, hazard, seed)
        if status == UNAVAILABLE:
            pytest.skip(f"{hazard.name} is unavailable here: the reason is printed above")
        assert status == 0, (
            f"{kind.name}, {hazard.name}, seed {seed}: see stderr; what each process did is in "
            f"{folder}/events"
        )
        shutil.rmtree(folder)


UNAVAILABLE = 77


def run_in_child(folder: Path, kind: Kind, hazard: type[Hazard], seed: int) -> int:
    """Run a round in a process of its own, because a hazard may change its namespaces."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            run_round(folder, kind, hazard, seed)
            status = 0
        except HazardUnavailable as refused:
            print(refused, flush=True)
            status = UNAVAILABLE
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(status)  # never return into pytest
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run_round(folder: Path, kind: Kind, hazard: type[Hazard], seed: int) -> None:
    started = monotonic()
    chaos_round = Round(folder, kind, hazard(), seed)
    accounting = chaos_round.run()
    print(
        f"{kind.name}, {hazard.name}, round {seed}: {monotonic() - started:.0f} s, "
        f"{chaos_round.processes.kills} killed, {chaos_round.processes.freezes} frozen, "
        f"{accounting.format_summary()}",
        flush=True,
    )
    check(chaos_round, accounting)


def check(chaos_round: Round, accounting: Accounting) -> None:
    accounting.check()
    killers = [
        dead_letter
        for dead_letter in chaos_round.workspace.queue().dead_letters(10_000)
        if "killer" in dead_letter.id
    ]
    assert len(killers) == KILLERS
    assert all("gave up after" in str(dead_letter.reason) for dead_letter in killers)
    assert chaos_round.processes.freezes < 20 or accounting.list_ids("refused"), (
        "no stale holder ever continued"
    )
    assert chaos_round.kind.find_faults(chaos_round.workspace.queue_root) == []
