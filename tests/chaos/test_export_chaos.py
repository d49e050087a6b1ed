"""Export services on one queue, killed, frozen and cut off; every job gets one callback.

 (JB-01…16, 28, 33, 46; I-JB-1…5, 12, 13). A few jobs run as part of all tests;
with HOLDFAST_CHAOS_SECONDS there are rounds of many jobs with new seeds for that long. Speed
is not asserted, because a slow machine only makes rounds longer. An execution that really
timed out, because no service could send heartbeats, is counted as such.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from time import monotonic, sleep

from chaos.export_accounting import ExportAccounting, ExportObserver
from chaos.export_roles import LEASE_SECONDS, ExportClients, ExportServices, ExportWorkspace
from chaos.export_server import FaultyServers, run_servers
from chaos.rounds import SECONDS, repeat_rounds, wait_until

SERVICES = 3 if SECONDS else 2
JOBS = 60 if SECONDS else 6
FAULT_SECONDS = 25.0 if SECONDS else 2.5
WAIT_TIMEOUT_SECONDS = 180.0
FAULT_INTERVAL_SECONDS = 0.25


class ExportRound:
    """A round in which services work and clients order jobs, until all faults stop."""

    def __init__(self, root: Path, servers: FaultyServers, seed: int) -> None:
        self.random = Random(seed)
        self.workspace = ExportWorkspace(root, servers)
        self.services = ExportServices(self.workspace, self.random, SERVICES)
        self.clients = ExportClients(self.workspace, self.random)
        self.observer = ExportObserver(self.workspace, self.clients.orders)

    def run(self) -> str:
        accounting = ExportAccounting(self.workspace, self.clients.orders)
        try:
            self.services.start_all()
            self.wait_for_first_call()
            self.inject_faults()
            self.workspace.servers.calm()
            self.services.thaw(all_processes=True)
            self.wait_until_finished(accounting)
            self.services.stop(WAIT_TIMEOUT_SECONDS)
        finally:
            self.services.end()
        accounting.read().check()
        assert self.clients.count_dead_letters() == 0
        return f"{self.format_faults()}; {accounting.format_summary()}"

    def wait_for_first_call(self) -> None:
        """Wait until a service works, because faults are for services at work."""
        self.clients.order_job()
        wait_until(
            lambda: self.workspace.servers.calls,
            WAIT_TIMEOUT_SECONDS,
            lambda: "no service began to work",
            between=self.services.check_alive,
        )

    def inject_faults(self) -> None:
        """Order jobs at random intervals while services are killed and frozen."""
        # at least one service is killed, however short the round is
        self.services.kill_random()
        until = monotonic() + FAULT_SECONDS
        while monotonic() < until or len(self.clients.orders) < JOBS:
            orders_due = JOBS * (1 - (until - monotonic()) / FAULT_SECONDS)
            while len(self.clients.orders) < min(JOBS, orders_due + 1):
                self.clients.order_job()
            sleep(self.random.uniform(0, 2 * FAULT_INTERVAL_SECONDS))
            self.services.thaw()
            self.observe()
            self.inject_fault()

    def inject_fault(self) -> None:
        match self.random.random():
            case chance if chance < 0.15 and self.can_kill():
                self.services.kill_random()
            case chance if chance < 0.30:
                self.services.freeze_random(self.random.uniform(0.5, 2.5) * LEASE_SECONDS)
            case chance if chance < 0.70:
                self.services.kill_random_worker()

    def can_kill(self) -> bool:
        """Return whether a service may be killed now.

        A callback that was interrupted is retried after twenty seconds. `make chaos` has that
        time, the run of all tests does not.
        """
        return bool(SECONDS) or not self.observer.has_pending_callback()

    def wait_until_finished(self, accounting: ExportAccounting) -> None:
        wait_until(
            lambda: not self.clients.count_waiting() and accounting.is_finished(),
            WAIT_TIMEOUT_SECONDS,
            lambda: f"unfinished: {accounting.format_summary()}",
            between=self.observe,
        )

    def observe(self) -> None:
        self.services.check_alive()
        self.observer.observe()

    def format_faults(self) -> str:
        services, clients = self.services, self.clients
        return (
            f"{services.kills} services and {services.worker_kills} workers killed, "
            f"{services.freezes} frozen; {clients.repeated_messages} messages sent twice, "
            f"{clients.repeated_orders} jobs ordered again; "
            f"observed {self.observer.observations} times"
        )


def test_every_job_is_counted_and_answered_once_whichever_process_dies() -> None:
    repeat_rounds("export", open_round)


@contextmanager
def open_round(folder: Path, seed: int) -> Iterator[ExportRound]:
    with run_servers(seed) as servers:
        yield ExportRound(folder, servers, seed)
