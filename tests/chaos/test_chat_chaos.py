"""Twenty conversations whose stagers and workers are killed and frozen.

This tests I-MS-1 to I-MS-6 (MS-01 to MS-09, MS-14, MS-20, MS-21). It takes a few seconds as
part of all tests; with HOLDFAST_CHAOS_SECONDS there are rounds with new seeds for that long.
Half the time the sender cannot report what it sent, so some batches are parked. For each of
them it must have been unknown whether the reply was sent. Speed is not asserted, because a slow
machine only makes rounds longer.
"""

from contextlib import nullcontext
from pathlib import Path
from random import Random
from time import monotonic, sleep

from chaos.chat_roles import (
    LEASE_SECONDS,
    ChatWorkspace,
    answer_until_stopped,
    check_promises,
    deliver_webhooks,
    format_summary,
    list_missing,
    run_sweeper,
)
from chaos.rounds import SECONDS, ChaosProcesses, repeat_rounds, wait_until

WORKERS, STAGERS = (4, 3) if SECONDS else (3, 2)
MESSAGES = 1_000 if SECONDS else 120
FAULT_SECONDS = 20.0 if SECONDS else 3.0
WAIT_TIMEOUT_SECONDS = 180.0


class ChatRound:
    """A round in which stagers stage and workers answer, until all faults stop."""

    def __init__(self, root: Path, seed: int) -> None:
        self.workspace = ChatWorkspace(root, MESSAGES, FAULT_SECONDS * STAGERS / MESSAGES)
        self.random = Random(seed)

    def work(self, seed: int) -> None:
        answer_until_stopped(self.workspace)

    def stage(self, seed: int) -> None:
        deliver_webhooks(self.workspace, seed)

    def run(self) -> str:
        self.workspace.store().close()
        with ChaosProcesses(self.random) as processes:
            processes.start(self.work, WORKERS)
            processes.start(self.stage, STAGERS)
            self.inject_faults(processes)
            self.wait_until_finished(processes)
        check_promises(self.workspace)
        assert self.workspace.queue().stats().failed == 0
        return (
            f"{processes.kills} killed, {processes.freezes} frozen; "
            f"{format_summary(self.workspace)}"
        )

    def inject_faults(self, processes: ChaosProcesses) -> None:
        """Kill and freeze processes while messages arrive."""
        until = monotonic() + FAULT_SECONDS
        while monotonic() < until and list_missing(self.workspace):
            sleep(self.random.uniform(0.02, 0.1))
            processes.thaw()
            match self.random.random():
                case chance if chance < 0.45:
                    processes.kill_random(self.work)
                case chance if chance < 0.85:
                    processes.freeze_random(self.work, 2.5 * LEASE_SECONDS)
                case _:
                    processes.kill_random(self.stage)

    def wait_until_finished(self, processes: ChaosProcesses) -> None:
        processes.thaw(all_processes=True)
        processes.wait(self.stage, WAIT_TIMEOUT_SECONDS)
        wait_until(
            self.is_finished,
            WAIT_TIMEOUT_SECONDS,
            lambda: format_summary(self.workspace),
            between=lambda: run_sweeper(self.workspace),
        )
        self.workspace.stop.touch()
        processes.wait(self.work, WAIT_TIMEOUT_SECONDS)

    def is_finished(self) -> bool:
        queue = self.workspace.queue()
        stats = queue.stats()
        queue.close()
        with self.workspace.store() as store:
            waiting = any(True for _ in store.waiting())
        return not waiting and stats.ready + stats.delayed + stats.leased == 0


def test_every_message_is_answered_once_or_parked_whichever_process_dies() -> None:
    repeat_rounds("chat", lambda folder, seed: nullcontext(ChatRound(folder, seed)))
