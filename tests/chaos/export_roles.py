"""The roles of the export chaos tests: real services that are killed and frozen,
and clients.
"""

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

from chaos.export_server import MISSING, FaultyServers, WaitingToken, make_content
from holdfast import AnyMessage, QueueManager, open_queue

LEASE_SECONDS = 2.0
HEARTBEAT_SECONDS = 15.0
TOKEN_CANARY = "TOKEN-CANARY"
ROUND_VARIABLE = "HOLDFAST_TEST_ROUND"
"""In the environment of the services and of their children: it marks this round's processes."""


@dataclass
class ExportWorkspace:
    """The folders and addresses of one round."""

    root: Path
    servers: FaultyServers
    round_id: str = field(default_factory=lambda: uuid4().hex)

    @property
    def queue(self) -> str:
        """Return the address of the queue."""
        # A kill counts as an attempt, and no job may be dead-lettered because of kills.
        where = self.root / "work" / "chaos" / "exports"
        return f"file:{where}?lease_seconds={LEASE_SECONDS}&max_attempts=1000"

    @property
    def store(self) -> Path:
        """Return the path of the job store."""
        return self.root / "jobs.db"

    @property
    def target(self) -> Path:
        """Return the folder that files are exported to."""
        return self.root / "out"

    @property
    def logs(self) -> Path:
        """Return the folder of the services' logs."""
        return self.root / "logs"

    def environment(self) -> dict[str, str]:
        """Return the environment of a service, with this test's servers instead of AWS."""
        return {
            **os.environ,
            ROUND_VARIABLE: self.round_id,
            "AWS_ACCESS_KEY_ID": "chaos",
            "AWS_SECRET_ACCESS_KEY": "chaos",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_SFN": f"http://{self.servers.states}",
            "AWS_ENDPOINT_URL_STEPFUNCTIONS": f"http://{self.servers.states}",
            "STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS": "1000",
            "STEP_FUNCTIONS_HEARTBEAT_TIMEOUT_SECONDS": str(HEARTBEAT_SECONDS),
            # Only missing files may fail, however many workers die during a task.
            "HOLDFAST_TASK_ATTEMPTS": "100",
            "HOLDFAST_DOWNLOAD_ATTEMPTS": "30",
            "HOLDFAST_DATA_DIR": str(self.root / "data"),
        }


class ExportServices:
    """Several `holdfast export serve` processes, each of which is replaced when it dies."""

    def __init__(self, workspace: ExportWorkspace, random: Random, number: int) -> None:
        self._workspace, self._random, self._number = workspace, random, number
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._frozen: dict[int, float] = {}  # when to continue, by process id
        self._log_by_pid: dict[int, Path] = {}
        self._started = 0
        self.kills = self.worker_kills = self.freezes = 0
        workspace.logs.mkdir(parents=True)

    def start_all(self) -> None:
        """Start services until the configured number runs."""
        while len(self._running) < self._number:
            self._start()

    def _start(self) -> None:
        self._started += 1
        workspace = self._workspace
        arguments = ["export", "serve", workspace.queue, "--to", str(workspace.target)]
        arguments += ["--jobs", str(workspace.store), "--allow-host", workspace.servers.files]
        arguments += ["--workers", "2", "--concurrency", "16", "--log-format", "json"]
        path = workspace.logs / f"{self._started}.txt"
        with path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "holdfast.cli", *arguments],
                cwd=workspace.root,
                env=workspace.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._running[process.pid] = process
        self._log_by_pid[process.pid] = path

    # -- faults

    def kill_random(self) -> None:
        """Kill one service and replace it."""
        pid = self._random.choice(list(self._running))
        self._frozen.pop(pid, None)
        process = self._running.pop(pid)
        process.kill()
        process.wait()
        self.kills += 1
        self._start()

    def kill_random_worker(self) -> None:
        """Kill one worker process of a service."""
        service = self._random.choice(list(self._running))
        workers = [pid for pid, parent in self._find_own_processes() if parent == service]
        if workers:
            with suppress(ProcessLookupError):
                os.kill(self._random.choice(workers), signal.SIGKILL)
                self.worker_kills += 1

    def freeze_random(self, seconds: float) -> None:
        """Stop one service for some seconds."""
        awake = [pid for pid in self._running if pid not in self._frozen]
        if awake:
            pid = self._random.choice(awake)
            os.kill(pid, signal.SIGSTOP)
            self._frozen[pid] = monotonic() + seconds
            self.freezes += 1

    def thaw(self, *, all_processes: bool = False) -> None:
        """Continue frozen services whose time is over, or all of them."""
        for pid, until in list(self._frozen.items()):
            if all_processes or monotonic() >= until:
                os.kill(pid, signal.SIGCONT)
                del self._frozen[pid]

    def check_alive(self) -> None:
        """Assert that no service ended unless this test killed it."""
        for process in self._running.values():
            assert process.poll() is None, f"a service ended with {process.returncode}"

    # -- the end

    def stop(self, seconds: float) -> None:
        """Stop all services as a deployment does.

        Each must end without an error and end its children. A service that has written no log
        line yet may not have installed its signal handler.
        """
        logged = {pid for pid in self._running if self._log_by_pid[pid].stat().st_size}
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        codes = {pid: process.wait(seconds) for pid, process in self._running.items()}
        self._running.clear()
        assert all(codes[pid] == 0 for pid in logged), codes
        assert set(codes.values()) <= {0, -signal.SIGTERM}, codes
        give_up_at = monotonic() + seconds
        while list(self._find_own_processes()):
            assert monotonic() < give_up_at, f"left behind: {list(self._find_own_processes())}"
            sleep(0.05)

    def end(self) -> None:
        """Kill all remaining services, whatever happened."""
        for process in self._running.values():
            process.kill()
            process.wait()
        self._running.clear()

    def _find_own_processes(self) -> Iterator[tuple[int, int]]:
        """Yield the id and parent of each living process of this round."""
        round_id = f"{ROUND_VARIABLE}={self._workspace.round_id}".encode()
        for entry in Path("/proc").iterdir():
            # The process may end meanwhile or belong to another user; a dead process has no
            # environment.
            with suppress(OSError):
                if entry.name.isdigit() and round_id in (entry / "environ").read_bytes():
                    parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                    yield int(entry.name), int(parent)


# -- clients


@dataclass
class JobOrder:
    """A job that was ordered, with its executions and files."""

    job_id: str
    files: dict[str, int]  # size by name
    tokens: list[str] = field(default_factory=list)
    messages: int = 0

    @property
    def missing_files(self) -> set[str]:
        """Return the files that the server does not have."""
        return {name for name in self.files if name.startswith(MISSING)}

    def make_message(self, origin: str, token: str) -> dict[str, Any]:
        """Return the start message of one execution."""
        tasks = [_make_task(origin, name, size) for name, size in self.files.items()]
        identity = {"jobId": self.job_id, "exportId": "chaos", "userId": "chaos"}
        return {**identity, "taskToken": token, "tasks": tasks}


def _make_task(origin: str, name: str, size: int) -> dict[str, Any]:
    """Return a task; half of them contain the checksum of the file."""
    task: dict[str, Any] = {"url": f"http://{origin}/{size}/{name}", "key": name}
    if size % 2:
        task["checksum"] = f"sha256:{hashlib.sha256(make_content(name, size)).hexdigest()}"
    return task


class ExportClients:
    """Starts executions, starts some of them again, and sends some messages twice."""

    def __init__(self, workspace: ExportWorkspace, random: Random) -> None:
        self._workspace, self._random = workspace, random
        self._queue: QueueManager[AnyMessage] = open_queue(workspace.queue)
        self.orders: list[JobOrder] = []
        self.repeated_messages = self.repeated_orders = 0

    def order_job(self) -> None:
        """Order a new job, or sometimes start an execution for an earlier one."""
        if self.orders and self._random.random() < 0.2:
            self.repeated_orders += 1
            self._start_execution(self._random.choice(self.orders[-4:]))
        else:
            self.orders.append(self._make_order())
            self._start_execution(self.orders[-1])

    def _make_order(self) -> JobOrder:
        job_id = f"job-{len(self.orders)}"
        count = self._random.choice((0, 1, 5, 20, self._random.randint(6, 40)))
        names = [f"{job_id}-{number}.bin" for number in range(count)]
        if self._random.random() < 0.3:
            names = [
                name if self._random.random() < 0.8 else f"{MISSING}-{name}" for name in names
            ]
        return JobOrder(job_id, {name: self._choose_size() for name in names})

    def _choose_size(self) -> int:
        if self._random.random() < 0.1:
            return self._random.randint(200_000, 1_000_000)
        return self._random.randint(0, 20_000)

    def _start_execution(self, order: JobOrder) -> None:
        token = f"{TOKEN_CANARY}-{uuid4().hex}"
        order.tokens.append(token)
        self._workspace.servers.tokens[token] = WaitingToken(HEARTBEAT_SECONDS)
        twice = self._random.random() < 0.2
        self.repeated_messages += twice
        for _ in range(1 + twice):
            order.messages += 1
            fields = order.make_message(self._workspace.servers.files, token)
            self._queue.push(AnyMessage(id=f"{order.job_id}-{order.messages}", **fields))

    def count_waiting(self) -> int:
        """Return the number of unfinished messages."""
        stats = self._queue.stats()
        return stats.ready + stats.delayed + stats.leased

    def count_dead_letters(self) -> int:
        """Return the number of dead letters."""
        return self._queue.stats().failed
