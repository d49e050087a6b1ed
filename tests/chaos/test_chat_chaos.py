"""Twenty conversations whose stagers and workers are killed and frozen.

This tests I-MS-1 to I-MS-6 (MS-01 to MS-09, MS-14, MS-20, MS-21). It takes a few seconds as
part of all tests; with HOLDFAST_CHAOS_SECONDS there are rounds with new seeds for that long.
Half the time the sender cannot report what it sent, so some batches are parked. For each of
them it must have been unknown whether the reply was sent. Speed is not asserted, because a slow
machine only makes rounds longer.
"""

import shutil
from pathlib import Path
from random import Random
from time import monotonic, sleep

from chaos.chat_accounting import ChatAccounting
from chaos.chat_roles import (
    LEASE_SECONDS,
    ChatWorkspace,
    answer_until_stopped,
    deliver_webhooks,
    list_missing,
    run_sweeper,
)
from chaos.processes import ChaosProcesses
from chaos.test_chaos import SECONDS, iterate_seeds
from support import memory_folder

WORKERS, STAGERS = (4, 3) if SECONDS else (3, 2)
MESSAGES = 1_000 if SECONDS else 120
FAULT_SECONDS = 20.0 if SECONDS else 3.0
WAIT_TIMEOUT_SECONDS = 180.0


class ChatRound:
    """A round in which stagers stage and workers answer, until all faults stop."""

    def __init__(self, root: Path, seed: int) -> None:
        self.workspace = ChatWorkspace(root, MESSAGES, FAULT_SECONDS * STAGERS / MESSAGES)
        self.random = Random(seed)
        self.processes = ChaosProcesses(self.random)

    def work(self, seed: int) -> None:
        answer_until_stopped(self.workspace)

    def stage(self, seed: int) -> None:
        deliver_webhooks(self.workspace, seed)

    def run(self) -> ChatAccounting:
        """Run the round and return its accounting."""
        self.workspace.store().close()
        try:
            for role, number in ((self.work, WORKERS), (self.stage, STAGERS)):
                for _ in range(number):
                    self.processes.start(role)
            self.inject_faults()
            self.wait_until_finished()
        finally:
            self.processes.thaw(all_processes=True)
            self.processes.end()
        return ChatAccounting(self.workspace).read()

    def inject_faults(self) -> None:
        """Kill and freeze processes while messages arrive."""
        until = monotonic() + FAULT_SECONDS
        while monotonic() < until and list_missing(self.workspace):
            sleep(self.random.uniform(0.02, 0.1))
            self.processes.thaw()
            match self.random.random():
                case chance if chance < 0.45:
                    self.processes.kill_random(self.work)
                case chance if chance < 0.85:
                    self.processes.freeze_random(self.work, 2.5 * LEASE_SECONDS)
                case _:
                    self.processes.kill_random(self.stage)

    def wait_until_finished(self) -> None:
        self.processes.thaw(all_processes=True)
        assert self.processes.wait(self.stage, WAIT_TIMEOUT_SECONDS), "a stager does not end"
        give_up_at = monotonic() + WAIT_TIMEOUT_SECONDS
        while not self.is_finished():
            assert monotonic() < give_up_at, (
                ChatAccounting(self.workspace).read().format_summary()
            )
            run_sweeper(self.workspace)
            sleep(0.1)
        self.workspace.stop.touch()
        assert self.processes.wait(self.work, WAIT_TIMEOUT_SECONDS), "a worker does not stop"

    def is_finished(self) -> bool:
        queue = self.workspace.queue()
        stats = queue.stats()
        queue.close()
        with self.workspace.store() as store:
            waiting = any(True for _ in store.waiting())
        return not waiting and stats.ready + stats.delayed + stats.leased == 0


def test_every_message_is_answered_once_or_parked_whichever_process_dies() -> None:
    for seed in iterate_seeds():
        folder = memory_folder.new_folder()
        started = monotonic()
        try:
            chaos_round = ChatRound(folder, seed)
            accounting = chaos_round.run()
            print(
                f"chat round {seed}: {monotonic() - started:.0f} s, "
                f"{chaos_round.processes.kills} killed, "
                f"{chaos_round.processes.freezes} frozen; {accounting.format_summary()}",
                flush=True,
            )
            accounting.check()
            assert chaos_round.workspace.queue().stats().failed == 0
        except BaseException as error:
            error.add_note(f"round with seed {seed}; logs and store are in {folder}")
            raise
        shutil.rmtree(folder)
