"""orchestrator: send the heartbeats of 10,000 jobs from one process."""

import asyncio
import socket
from functools import partial
from multiprocessing.connection import Connection
from statistics import median
from time import sleep
from typing import Any

from bench.report import Bar, Result, at_most
from bench.session import (
    MIB,
    Figures,
    Session,
    cpu_seconds,
    in_fresh_process,
    read_memory_bytes,
    serving,
)
from bench.sqs_server import BOTO3, LEAN, make_client
from holdfast.exports.model import ExportJob, JobState, JobStatus, TaskToken
from holdfast.exports.orchestrator import HeartbeatOrchestrator
from holdfast.exports.ports import StepFunctions
from holdfast.lease.clock import SYSTEM_CLOCK

ENGINE = "no network: the engine alone"
THREADS = 32  # that send, the default
BURSTS = {LEAN: 3, BOTO3: 1, ENGINE: 1}  # times that all heartbeats are due at once
ANSWER_SECONDS = 0.020
MAX_SECONDS_AT_ONCE = 8.0  # for 10,000 jobs
MAX_LATE_PERCENT = 2.0  # of the interval


def run_orchestrator(session: Session) -> Result:
    """Compare both clients with the engine alone."""
    title = "10,000 jobs kept alive at Step Functions"
    jobs, interval = session.size(10_000, 1_000), float(session.size(30, 3))
    with serving(serve) as endpoint:
        contenders = {
            way: partial(in_fresh_process, keep, way, endpoint, jobs, interval)
            for way in BURSTS
        }
        # One round takes five minutes, because lateness is counted over whole intervals.
        measured = session.measure(title, contenders, rounds=1)
    at_once = MAX_SECONDS_AT_ONCE * jobs / 10_000
    late = measured.median(LEAN, "late_p99") / 10 / interval
    beats = min(measured.median(way, "beats") for way in BURSTS) / jobs / 2
    return Result(
        title,
        ("", "late p50", "late p99", "all at once", "CPU per beat", "memory"),
        measured.make_rows(
            ("late_p50", "{:.1f} ms"),
            ("late_p99", "{:.1f} ms"),
            ("at_once", "{:.1f} s"),
            ("cpu", "{:.3f} ms"),
            ("mib", "{:.0f} MiB"),
        ),
        [
            at_most(
                f"{jobs:,} beats that are due at once, through HTTP, within {at_once:g} s",
                measured.median(LEAN, "at_once"),
                at_once,
                "s",
            ),
            at_most(
                f"beats late by less than {MAX_LATE_PERCENT:g} % of the interval (p99)",
                late,
                MAX_LATE_PERCENT,
                "%",
            ),
            Bar("every job beaten in every interval", beats, 0.999, ""),
            at_most("no beat failed", sum(measured.sum(way, "failed") for way in BURSTS), 0),
        ],
        measured,
        f"One beat per job every {interval:g} s; each is answered after "
        f"{ANSWER_SECONDS * 1000:g} ms, so {THREADS} threads need at least "
        f"{jobs * ANSWER_SECONDS / THREADS:.2f} s for all at once.",
    )


# -- a Step Functions in a separate process

_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.0\r\nx-amzn-RequestId: 1\r\n"
    b"Content-Length: 2\r\n\r\n{}"
)


class Callbacks(asyncio.Protocol):
    """The part of HTTP that a client needs for one request after another."""

    def __init__(self) -> None:
        self._got = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept a connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer each complete request."""
        self._got += data
        head, end, body = self._got.partition(b"\r\n\r\n")
        if end and len(body) >= _length(head):
            self._got = body[_length(head) :]
            asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._answer)

    def _answer(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(_ANSWER)


def _length(head: bytes) -> int:
    _, _, rest = head.lower().partition(b"content-length:")
    return int(rest.split(b"\r\n", 1)[0] or 0)


def serve(answer: Connection) -> None:
    """Send the address, then serve until killed."""
    asyncio.run(_serve(answer))


async def _serve(answer: Connection) -> None:
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    server = await asyncio.get_running_loop().create_server(Callbacks, sock=listening)
    answer.send(f"http://127.0.0.1:{listening.getsockname()[1]}")
    await server.serve_forever()


# -- in a separate process


class Shelf:
    """A repository with only active jobs."""

    def __init__(self, jobs: int) -> None:
        self._jobs = {f"job-{n}": _job(f"job-{n}") for n in range(jobs)}

    def find_by_id(self, job_id: str) -> ExportJob | None:
        """Return an active job."""
        return self._jobs.get(job_id)

    def find_by_status(self, status: JobStatus) -> list[ExportJob]:
        """Return the active jobs."""
        return list(self._jobs.values()) if status is JobStatus.DOWNLOADING else []


def _job(job_id: str) -> ExportJob:
    """Make a job with a token of the length that Amazon uses."""
    state = JobState(JobStatus.DOWNLOADING, 100, 50)
    now = SYSTEM_CLOCK.time()
    return ExportJob.create(job_id, "e", "u", state, f"{job_id}:{'x' * 700}", now=now)


class Prompt:
    """A Step Functions that accepts each heartbeat after 20 ms."""

    def send_task_heartbeat(self, token: TaskToken) -> None:
        """Accept a heartbeat."""
        sleep(ANSWER_SECONDS)


class Noted:
    """Records the start and the result of each heartbeat."""

    def __init__(self, step_functions: Any) -> None:
        self._send = step_functions.send_task_heartbeat
        self.begun: list[tuple[str, float]] = []
        self.failed = 0

    def send_task_heartbeat(self, token: TaskToken) -> None:
        """Accept a heartbeat."""
        self.begun.append((token.reveal().partition(":")[0], SYSTEM_CLOCK.monotonic()))
        try:
            self._send(token)
        except Exception:
            self.failed += 1
            raise

    send_task_success = send_task_failure = None


def keep(way: str, url: str, jobs: int, interval: float) -> Figures:
    """Send heartbeats and return the figures."""
    shelf, noted = Shelf(jobs), Noted(Prompt() if way == ENGINE else _over_http(way, url))
    idle = read_memory_bytes()
    step_functions: StepFunctions = noted  # type: ignore[assignment]
    orchestrator = HeartbeatOrchestrator(
        shelf,
        step_functions,
        interval_seconds=interval,
        concurrency=THREADS,
        token_closed=lambda job, code: None,
    )
    orchestrator.start()
    for job in shelf.find_by_status(JobStatus.DOWNLOADING):
        orchestrator.beat_now(job)
    sleep(interval * 0.98)  # the first heartbeats create connections and threads
    first, used = len(noted.begun), cpu_seconds()
    sleep(interval * 2)
    beats = len(noted.begun) - first
    used = (cpu_seconds() - used) / max(1, beats)
    late, memory = _find_lateness(noted.begun, interval), read_memory_bytes() - idle
    at_once = median(_send_all(orchestrator, jobs) for _ in range(BURSTS[way]))
    orchestrator.stop()
    return {
        "beats": beats,
        "failed": noted.failed,
        "late_p50": late[len(late) // 2] * 1000,
        "late_p99": late[len(late) * 99 // 100] * 1000,
        "cpu": used * 1000,
        "at_once": at_once,
        "mib": memory / MIB,
    }


def _find_lateness(begun: list[tuple[str, float]], interval: float) -> list[float]:
    """Return, sorted, how much more than an interval passed between heartbeats of a job."""
    last_at: dict[str, float] = {}
    late = []
    for job_id, at in sorted(begun, key=lambda beat: beat[1]):
        if job_id in last_at:
            late.append(at - last_at[job_id] - interval)
        last_at[job_id] = at
    return sorted(late)


def _send_all(orchestrator: HeartbeatOrchestrator, jobs: int) -> float:
    began = SYSTEM_CLOCK.monotonic()
    assert orchestrator.trigger_heartbeat() == jobs
    return SYSTEM_CLOCK.monotonic() - began


def _over_http(client: str, url: str) -> Any:
    from holdfast.aws.clients import make_fail_fast_client
    from holdfast.exports.step_functions import StepFunctionsCallbacks

    return StepFunctionsCallbacks(
        make_client(client, url, lambda: make_fail_fast_client("stepfunctions", 60.0))
    )
