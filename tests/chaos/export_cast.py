"""Who plays: real export services that are killed and frozen, and those who ask for jobs."""

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

from chaos.export_server import GONE, World, content
from holdfast import AnyMessage, QueueManager, open_queue

LEASE_SECONDS = 2.0
HEARTBEAT_SECONDS = 15.0
TOKEN_CANARY = "TOKEN-CANARY"
MARK = "HOLDFAST_TEST_ROUND"
"""In the environment of services, and so of all they start: whoever has it is ours."""


@dataclass
class Place:
    root: Path
    world: World
    mark: str = field(default_factory=lambda: uuid4().hex)

    @property
    def queue(self) -> str:
        # A kill is a charged attempt: no job may become a dead letter for that here.
        where = self.root / "work" / "chaos" / "exports"
        return f"file:{where}?lease_seconds={LEASE_SECONDS}&max_attempts=1000"

    @property
    def store(self) -> Path:
        return self.root / "jobs.db"

    @property
    def target(self) -> Path:
        return self.root / "out"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def environment(self) -> dict[str, str]:
        """Nothing of this machine's settings: all of Amazon is our stub."""
        drop = ("HOLDFAST_", "AWS_", "STEP_FUNCTIONS_", "WORKER_")
        env = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
        return {
            **env,
            MARK: self.mark,
            "AWS_ACCESS_KEY_ID": "chaos",
            "AWS_SECRET_ACCESS_KEY": "chaos",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_ENDPOINT_URL_SFN": f"http://{self.world.states}",
            "AWS_ENDPOINT_URL_STEPFUNCTIONS": f"http://{self.world.states}",
            "NO_PROXY": "127.0.0.1",
            "STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS": "1000",
            "STEP_FUNCTIONS_HEARTBEAT_TIMEOUT_SECONDS": str(HEARTBEAT_SECONDS),
            # Only what is not there may fail, however many workers die of a task.
            "HOLDFAST_TASK_ATTEMPTS": "100",
            "HOLDFAST_DOWNLOAD_ATTEMPTS": "30",
            "HOLDFAST_DATA_DIR": str(self.root / "data"),
        }


class Services:
    """`holdfast export serve`, several of them; each is replaced when it dies."""

    def __init__(self, place: Place, random: Random, number: int) -> None:
        self._place, self._random, self._number = place, random, number
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._frozen: dict[int, float] = {}  # until when
        self._log_of: dict[int, Path] = {}
        self._started = 0
        self.kills = self.worker_kills = self.freezes = 0
        place.logs.mkdir(parents=True)

    def start_all(self) -> None:
        while len(self._running) < self._number:
            self._start()

    def _start(self) -> None:
        self._started += 1
        place = self._place
        words = ["export", "serve", place.queue, "--to", str(place.target)]
        words += ["--jobs", str(place.store), "--allow-host", place.world.files]
        words += ["--workers", "2", "--concurrency", "16", "--log-format", "json"]
        path = place.logs / f"{self._started}.txt"
        with path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "holdfast.cli", *words],
                cwd=place.root,
                env=place.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._running[process.pid] = process
        self._log_of[process.pid] = path

    # -- what is done to them

    def kill_one(self) -> None:
        pid = self._random.choice(list(self._running))
        self._frozen.pop(pid, None)
        process = self._running.pop(pid)
        process.kill()
        process.wait()
        self.kills += 1
        self._start()

    def kill_a_worker(self) -> None:
        service = self._random.choice(list(self._running))
        workers = [pid for pid, parent in self._ours() if parent == service]
        if workers:
            with suppress(ProcessLookupError):
                os.kill(self._random.choice(workers), signal.SIGKILL)
                self.worker_kills += 1

    def freeze_one(self, seconds: float) -> None:
        awake = [pid for pid in self._running if pid not in self._frozen]
        if awake:
            pid = self._random.choice(awake)
            os.kill(pid, signal.SIGSTOP)
            self._frozen[pid] = monotonic() + seconds
            self.freezes += 1

    def thaw(self, *, everybody: bool = False) -> None:
        for pid, until in list(self._frozen.items()):
            if everybody or monotonic() >= until:
                os.kill(pid, signal.SIGCONT)
                del self._frozen[pid]

    def check_alive(self) -> None:
        """None of them ends but by our hand."""
        for process in self._running.values():
            assert process.poll() is None, f"a service ended with {process.returncode}"

    # -- the end

    def stop(self, seconds: float) -> None:
        """As a deploy does. Each must end well, and take along what it started. One that
        has not said a word yet may not have learned what the signal means."""
        begun = {pid for pid in self._running if self._log_of[pid].stat().st_size}
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        codes = {pid: process.wait(seconds) for pid, process in self._running.items()}
        self._running.clear()
        assert all(codes[pid] == 0 for pid in begun), codes
        assert set(codes.values()) <= {0, -signal.SIGTERM}, codes
        give_up_at = monotonic() + seconds
        while list(self._ours()):
            assert monotonic() < give_up_at, f"left behind: {list(self._ours())}"
            sleep(0.05)

    def end(self) -> None:
        """Nobody is left behind, whatever happened."""
        for process in self._running.values():
            process.kill()
            process.wait()
        self._running.clear()

    def _ours(self) -> Iterator[tuple[int, int]]:
        """The processes of this round that live: id, parent."""
        mark = f"{MARK}={self._place.mark}".encode()
        for entry in Path("/proc").iterdir():
            # One that ends meanwhile, or is somebody else's; a dead one has no environment.
            with suppress(OSError):
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                    parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                    yield int(entry.name), int(parent)


# -- those who ask


@dataclass
class Order:
    """A job that was asked for: by which executions, for which files."""

    job_id: str
    files: dict[str, int]  # sizes by name
    tokens: list[str] = field(default_factory=list)
    messages: int = 0

    @property
    def gone(self) -> set[str]:
        return {name for name in self.files if name.startswith(GONE)}

    def message(self, origin: str, token: str) -> dict[str, Any]:
        tasks = [_task(origin, name, size) for name, size in self.files.items()]
        said = {"jobId": self.job_id, "exportId": "chaos", "userId": "chaos"}
        return {**said, "taskToken": token, "tasks": tasks}


def _task(origin: str, name: str, size: int) -> dict[str, Any]:
    """Half of them say what the file must be."""
    task: dict[str, Any] = {"url": f"http://{origin}/{size}/{name}", "key": name}
    if size % 2:
        task["checksum"] = f"sha256:{hashlib.sha256(content(name, size)).hexdigest()}"
    return task


class Clients:
    """Executions that begin, are begun again, and messages that are sent twice."""

    def __init__(self, place: Place, random: Random) -> None:
        self._place, self._random = place, random
        self._queue: QueueManager[AnyMessage] = open_queue(place.queue)
        self.orders: list[Order] = []
        self.repeated = self.again = 0

    def ask(self) -> None:
        """A new job; now and then twice, now and then for one that somebody asked for."""
        if self.orders and self._random.random() < 0.2:
            self.again += 1
            self._execute(self._random.choice(self.orders[-4:]))
        else:
            self.orders.append(self._new_order())
            self._execute(self.orders[-1])

    def _new_order(self) -> Order:
        job_id = f"job-{len(self.orders)}"
        count = self._random.choice((0, 1, 5, 20, self._random.randint(6, 40)))
        names = [f"{job_id}-{n}.bin" for n in range(count)]
        if self._random.random() < 0.3:
            names = [n if self._random.random() < 0.8 else f"{GONE}-{n}" for n in names]
        return Order(job_id, {name: self._size() for name in names})

    def _size(self) -> int:
        if self._random.random() < 0.1:
            return self._random.randint(200_000, 1_000_000)
        return self._random.randint(0, 20_000)

    def _execute(self, order: Order) -> None:
        token = f"{TOKEN_CANARY}-{uuid4().hex}"
        order.tokens.append(token)
        self._place.world.open(token, HEARTBEAT_SECONDS)
        twice = self._random.random() < 0.2
        self.repeated += twice
        for _ in range(1 + twice):
            order.messages += 1
            fields = order.message(self._place.world.files, token)
            self._queue.push(AnyMessage(id=f"{order.job_id}-{order.messages}", **fields))

    def waiting(self) -> int:
        stats = self._queue.stats()
        return stats.ready + stats.delayed + stats.leased

    def buried(self) -> int:
        return self._queue.stats().failed
