"""The structure of an export: workers that share nothing, and the wiring of the engine.

This is the part of seed 004 about processes. Workers that fail are in test_worker_pool.py.
"""

import json
import os
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event as Flag
from typing import Any

import pytest

from holdfast.errors import ConfigError
from holdfast.events import Events
from holdfast.exports.building import build_export_engine
from holdfast.exports.downloads.work import WorkSettings, make_work
from holdfast.exports.engine import JobEngine
from holdfast.exports.events import (
    OrchestratorDisabled,
    OrchestratorStarted,
    OrchestratorStopped,
)
from holdfast.exports.model import TaskResult, TaskToken
from holdfast.exports.pool import wire
from holdfast.exports.pool.pool import WorkerPool, make_program
from holdfast.exports.pool.worker import Assignment
from holdfast.exports.request import JobRequest, TaskSpec
from holdfast.exports.settings import ExportSettings, HeartbeatSettings
from holdfast.exports.sqlite_jobs import MemoryJobs
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.process.child_process import ChildProcess
from holdfast.process.liveness import LivenessLimits
from holdfast.settings import read_settings
from support.exports.simulated_step_functions import SimulatedStepFunctions
from support.waiting import wait_until
from support.workers import pool_work
from support.workers.notes import Notes
from support.workers.running import Seen


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


# -- workers


class NoTasks:
    """A source without tasks."""

    def take(self) -> Assignment | None:
        return None

    def finish(self, result: TaskResult) -> None: ...

    def give_back(self, assignment: Assignment) -> None: ...


@pytest.mark.requirement("R004-025", "R004-026", "R004-028", "R004-076")
def test_workers_share_no_pipe_and_no_memory(notes: Notes) -> None:
    """No worker can read what another one writes.
    Standard output and error are those of the service."""
    pool = WorkerPool(pool_work.work(notes.path), NoTasks(), size=3, min_size=3)
    try:
        pool.start()
        pids = [worker.pid for worker in pool.list_workers()]
        own_pipes = list_pipes(os.getpid())
        worker_pipes = [list_pipes(pid) for pid in pids]
        memory = [list_shared_memory(pid) for pid in pids]
    finally:
        pool.stop(0.0)
    assert len({os.getpid(), *pids}) == 4
    # This process has the other ends.
    assert all(len(pipes) >= 2 and pipes <= own_pipes for pipes in worker_pipes)
    assert sum(len(pipes) for pipes in worker_pipes) == len(set().union(*worker_pipes))
    assert memory == [[], [], []]


def list_pipes(pid: int) -> set[str]:
    """Return pipes and sockets, without the three standard streams."""
    pipes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            to = os.readlink(entry)
            if int(entry.name) > 2 and to.startswith(("pipe:", "socket:")):
                pipes.add(to)
    return pipes


def list_shared_memory(pid: int) -> list[str]:
    """Return mappings that are writable and shared with other processes."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [line for line in lines if re.match(r"\S+ .w.s ", line)]


@pytest.mark.requirement(
    "R004-027",
    "R004-042",
    "R004-043",
    "R004-044",
    "R004-045",
    "R004-046",
    "R004-070",
    "R004-102",
)
def test_a_task_and_its_result_are_copies_sent_over_a_pipe(notes: Notes) -> None:
    """The seven steps, with a real worker."""
    payload = {"do": "finish", "bytes": 1_048_576, "url": "https://x/y", "s3Bucket": "b"}
    program = make_program(pool_work.work(notes.path), 1, 60.0)
    process = ChildProcess(program, LivenessLimits(), SYSTEM_CLOCK)
    try:
        process.frames.send(7, wire.pack_task(payload, "abc-123", "task-123", 1, 7))
        payload["do"] = "refuse"  # has no effect, because no memory is shared
        number, report = wait_until(lambda: read_report(process))
    finally:
        process.destroy()
    assert number == 7
    assert json.loads(report) == {
        "type": "TASK_COMPLETED",
        "payload": {
            "taskId": "task-123",
            "jobId": "abc-123",
            "success": True,
            "bytesProcessed": 1_048_576,
            "error": None,
        },
    }


def read_report(process: ChildProcess) -> Any:
    """Return the number and the report of a completed task, or None if there is none yet."""
    frames: list[tuple[int, bytes]] = []
    process.step(lambda number, frame: frames.append((number, frame)))
    return next((frame for frame in frames if frame[1].startswith(b"{")), None)


LOAD = "import pickle, sys; pickle.load(sys.stdin.buffer)(); print(*sys.modules)"
# Modules that could complete a job, send its heartbeats, or write its counters.
NOT_FOR_WORKERS = re.compile(
    r"holdfast\.(exports\.(orchestrator|heartbeat_schedule|tracker|runner|consumer|dispatcher|engine|building|model"
    r"|ports|step_functions|dynamodb|sqlite_jobs)|queues|store\.(sqlite|dynamodb)|cli)\b"
)


@pytest.mark.requirement("R004-007", "R004-012", "R004-076", "R004-216")
@pytest.mark.parametrize("to", ["out", "s3://bucket/exports"])
def test_workers_cannot_call_step_functions_or_the_store(tmp_path: Path, to: str) -> None:
    """With a folder, not even boto3 is loaded. With S3 it is,
    but no module of ours that calls another service."""
    target = to if to.startswith("s3:") else str(tmp_path / to)
    factory = pickle.dumps(make_work(WorkSettings(target, str(tmp_path / "parts"))))
    env = {
        **os.environ,
        "AWS_DEFAULT_REGION": "eu-west-1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    ran = subprocess.run(
        [sys.executable, "-c", LOAD], input=factory, env=env, capture_output=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    modules = ran.stdout.decode().split()
    assert "holdfast.exports.downloads.work" in modules
    assert [name for name in modules if NOT_FOR_WORKERS.match(name)] == []
    assert ("boto3" in modules) is to.startswith("s3:")


# -- the wiring


class Place:
    """An engine as the service has it, except for the store and Step Functions."""

    def __init__(self, folder: Path) -> None:
        self.seen = Seen()
        self.jobs = MemoryJobs()
        self.step_functions = SimulatedStepFunctions()
        self.folder = folder

    def make_engine(self, to: str = "out", **env: str) -> JobEngine:
        """Make an engine from environment variables, as the command line does."""
        return build_export_engine(
            self.jobs,
            to if to.startswith("s3:") else str(self.folder / to),
            settings=read_settings(ExportSettings, env),
            heartbeats=read_settings(HeartbeatSettings, env),
            callbacks=self.step_functions,
            events=Events(self.seen),
        )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def list_own_threads() -> list[str]:
    """Return the names of the threads that Holdfast started."""
    return [t.name for t in threading.enumerate() if t.name.startswith("holdfast-")]


@pytest.mark.requirement(
    "R004-018",
    "R004-029",
    "R004-030",
    "R004-088",
    "R004-089",
    "R004-129",
    "R004-130",
    "R004-135",
    "R004-180",
    "R004-205",
    "R004-266",
    "R004-267",
)
@pytest.mark.parametrize(("env", "workers"), [({}, 4), ({"WORKER_POOL_SIZE": "2"}, 2)])
def test_the_variables_reach_the_pool_and_the_orchestrator(
    place: Place, env: dict[str, str], workers: int
) -> None:
    """The wiring, and that nothing of it survives."""
    before = sorted(list_own_threads())
    engine = place.make_engine(**env, STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS="20000")
    assert engine.orchestrator is not None
    assert not engine.orchestrator.running
    with engine:
        pids = [worker.pid for worker in engine.pool.list_workers()]
        assert engine.orchestrator.running
        assert place.seen.of(OrchestratorStarted) == [OrchestratorStarted(20.0)]
    assert engine.pool.size == workers
    assert 1 <= len(set(pids)) <= workers  # as many as there are cores
    assert not engine.orchestrator.running
    assert place.seen.of(OrchestratorStopped) == [OrchestratorStopped()]
    assert sorted(list_own_threads()) == before
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


@pytest.mark.requirement("R004-137", "R004-138", "R004-181", "R004-183", "R004-258")
def test_the_switch_reaches_the_orchestrator(place: Place) -> None:
    env = {"WORKER_POOL_SIZE": "1", "STEP_FUNCTIONS_HEARTBEAT_ENABLED": "false"}
    with place.make_engine(**env) as engine:
        assert engine.orchestrator is not None
        assert not engine.orchestrator.running
    assert place.seen.of(OrchestratorDisabled) == [OrchestratorDisabled()]


@pytest.mark.requirement("R004-029")
@pytest.mark.parametrize("count", ["0", "65", "many"])
def test_a_pool_of_none_or_of_too_many_is_refused_by_the_name_of_the_variable(
    count: str,
) -> None:
    with pytest.raises(ConfigError, match="WORKER_POOL_SIZE"):
        read_settings(ExportSettings, {"WORKER_POOL_SIZE": count})
    assert read_settings(ExportSettings, {"WORKER_POOL_SIZE": "8"}).worker_pool_size == 8


TOKEN = TaskToken("a-token-that-no-worker-may-see")


@contextmanager
def run_job(engine: JobEngine, request: JobRequest) -> Iterator[None]:
    """Run the job in its thread; the test takes the place of the pool."""
    lost = Flag()
    thread = threading.Thread(target=engine.runner.run, args=(request,), kwargs={"lost": lost})
    thread.start()
    try:
        yield
    finally:
        lost.set()
        thread.join(60)


@pytest.mark.requirement(
    "R004-002",
    "R004-007",
    "R004-037",
    "R004-038",
    "R004-039",
    "R004-040",
    "R004-041",
    "R004-072",
)
def test_a_worker_gets_the_url_and_the_destination_of_a_file(place: Place) -> None:
    """References, and no token."""
    engine = place.make_engine("s3://exports/daily")
    checksum = "sha256:" + "0" * 64
    file = TaskSpec(url="https://api.example.com/file.pdf", checksum=checksum, size=5)
    with run_job(engine, JobRequest("abc-123", "e", "u", TOKEN, (file,))):
        task = wait_until(engine.dispatcher.take)
    [stored] = place.jobs.tasks("abc-123")
    assert (task.job_id, task.task_id) == ("abc-123", stored.task_id)
    assert task.payload == {
        "url": "https://api.example.com/file.pdf",
        "s3Bucket": "exports",
        "s3Key": "abc-123/file.pdf",
        "checksum": checksum,
        "size": 5,
        "jobCreatedAt": place.jobs.find_by_id("abc-123").created_at,
    }
    assert TOKEN.reveal() not in json.dumps(task.payload)
