"""Eight workers, many tasks, leases of half a second; kills and freezes at random.

A short round of 300 tasks is part of all tests. With HOLDFAST_CHAOS_SECONDS there are longer
rounds of 2,000 with new seeds, half of that time for each kind of queue under each of its
hazards (`kinds.py`, `hazards.py`). A failed round prints its seed, although signals make no two
rounds alike. Speed is not asserted, because a slow machine only makes rounds longer.
"""

import os
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic, sleep

import pytest

from chaos.accounting import Accounting
from chaos.hazards import Hazard, HazardUnavailable
from chaos.kinds import KINDS, Kind
from chaos.roles import (
    LEASE_SECONDS,
    ChaosWorker,
    Workspace,
    push_killers,
    push_tasks,
    read_until_stopped,
)
from chaos.rounds import SECONDS, ChaosProcesses, repeat_rounds, run_and_exit, wait_until

WORKERS, PUSHERS, KILLERS = 8, 2, 3
TASKS, FAULT_SECONDS = (2_000, 8.0) if SECONDS else (300, 2.0)
FIRST_TASKS = 200 if SECONDS else 100
WAIT_TIMEOUT_SECONDS = 240.0
UNAVAILABLE = 77


class LocalRound:
    """A round in which workers work, pushers push and a reader reads, until all faults stop."""

    def __init__(self, root: Path, kind: Kind, hazard: Hazard, seed: int) -> None:
        self.root, self.kind, self.hazard, self.random = root, kind, hazard, Random(seed)
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

    def run(self) -> str:
        with ChaosProcesses(self.random) as processes:
            processes.start(self.work, WORKERS)
            processes.start(self.read)
            processes.start(self.push, PUSHERS)
            processes.start(self.push_until_killed)
            self.inject_faults(processes)
            self.wait_until_finished(processes)
        entries = list(self.workspace.event_log.entries())
        ends = self.kind.list_ends(self.workspace.queue_root)
        accounting = Accounting(entries, ends, self.kind.get_mark)
        accounting.check()
        self.check_killers()
        assert processes.freezes < 20 or accounting.select("refused"), (
            "no stale holder ever continued"
        )
        assert self.kind.find_faults(self.workspace.queue_root) == []
        return (
            f"{processes.kills} killed, {processes.freezes} frozen, "
            f"{accounting.format_summary()}"
        )

    def inject_faults(self, processes: ChaosProcesses) -> None:
        until = monotonic() + FAULT_SECONDS
        while monotonic() < until:
            sleep(self.random.uniform(0.02, 0.1))
            processes.thaw()
            processes.replace_dead(self.work)
            self.hazard.strike(self.random)
            match self.random.random():
                case chance if chance < 0.45:
                    processes.kill_random(self.work)
                case chance if chance < 0.9:
                    processes.freeze_random(self.work, 2 * LEASE_SECONDS)
                case _:
                    processes.kill_random(self.push_until_killed)

    def wait_until_finished(self, processes: ChaosProcesses) -> None:
        self.hazard.calm()
        processes.thaw(all_processes=True)
        processes.kill_all(self.push_until_killed)
        processes.wait(self.push, WAIT_TIMEOUT_SECONDS)
        if self.hazard.outdates_workers:
            processes.kill_all(self.work)
        self.hazard.finish()
        if self.hazard.outdates_workers:
            processes.start(self.work, WORKERS)
        wait_until(
            self.is_done,
            WAIT_TIMEOUT_SECONDS,
            lambda: f"unfinished: {self.workspace.queue().stats()}",
            between=lambda: processes.replace_dead(self.work),
        )
        self.workspace.stop.touch()
        for role in (self.work, self.read):
            processes.wait(role, WAIT_TIMEOUT_SECONDS)

    def is_done(self) -> bool:
        stats = self.workspace.queue().stats()
        return stats.ready + stats.delayed + stats.leased == 0

    def check_killers(self) -> None:
        """Check that the tasks that kill every worker are dead letters."""
        dead_letters = self.workspace.queue().dead_letters(10_000)
        killers = [each for each in dead_letters if "killer" in each.id]
        assert len(killers) == KILLERS
        assert all("gave up after" in str(each.reason) for each in killers)


ROUNDS = [
    pytest.param(kind, hazard, id=f"{kind.name}-{hazard.name}")
    for kind in KINDS
    for hazard in (kind.hazards if SECONDS else kind.hazards[:1])
]


@pytest.mark.parametrize(("kind", "hazard"), ROUNDS)
def test_the_totals_match_whatever_is_killed_or_frozen(
    kind: Kind, hazard: type[Hazard]
) -> None:
    repeat_rounds(
        f"{kind.name}, {hazard.name}",
        lambda folder, seed: nullcontext(ForkedRound(folder, kind, hazard, seed)),
        SECONDS / 2,
    )


@dataclass(frozen=True, slots=True)
class ForkedRound:
    """A round in a process of its own, because a hazard may change its namespaces."""

    folder: Path
    kind: Kind
    hazard: type[Hazard]
    seed: int

    def run(self) -> str:
        totals, pid = self.folder / "totals", os.fork()
        if pid == 0:
            run_and_exit(lambda: totals.write_text(self.run_here()))
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status == UNAVAILABLE:
            pytest.skip(f"{self.hazard.name} is unavailable here: the reason is printed above")
        assert status == 0, "see stderr"
        return totals.read_text()

    def run_here(self) -> str:
        try:
            return LocalRound(self.folder, self.kind, self.hazard(), self.seed).run()
        except HazardUnavailable as refused:
            print(refused, flush=True)
            os._exit(UNAVAILABLE)
