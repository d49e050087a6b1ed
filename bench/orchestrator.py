"""orchestrator: send the heartbeats of 10,000 jobs from one process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import sleep
from typing import Any

from bench.aws_clients import BOTO3, LEAN, make_client
from bench.figures import MIB, cpu_seconds, memory_bytes
from bench.orchestrator_server import ANSWER_SECONDS, serving
from bench.session import Session, in_fresh_process
from bench.verdict import Bar, Result
from holdfast.exports.heartbeat_schedule import HeartbeatTiming
from holdfast.exports.model import ExportJob, JobState, JobStatus, TaskToken
from holdfast.exports.orchestrator import HeartbeatOrchestrator
from holdfast.exports.ports import StepFunctions
from holdfast.lease.clock import SYSTEM_CLOCK

NAME = "orchestrator"
TITLE = "10,000 jobs kept alive at Step Functions"
ENGINE = "no network: the engine alone"
THREADS = 32  # that send, the default
BURSTS = {LEAN: 3, BOTO3: 1, ENGINE: 1}  # times that all heartbeats are due at once
MAX_SECONDS_AT_ONCE = 8.0  # for 10,000 jobs
MAX_LATE_PERCENT = 2.0  # of the interval


@dataclass(frozen=True, slots=True)
class Kept:
    """The figures of one measurement."""

    beats: int
    failed: int
    jobs: int
    interval: float
    late_p50: float  # seconds
    late_p99: float
    cpu_each: float  # seconds
    at_once: float  # seconds to send all heartbeats if all are due, the median of the bursts
    memory: int  # bytes above idle


def run(session: Session) -> Result:
    """Run the benchmark and return its result."""
    jobs, interval = session.size(10_000, 1_000), float(session.size(30, 3))
    measured: dict[str, Kept] = {}
    with serving() as endpoint:
        # One round takes five minutes, because lateness is counted over whole intervals.
        for way in session.interleaved(TITLE, list(BURSTS), rounds=1):
            measured[way] = in_fresh_process(keep, way, endpoint, jobs, interval)
    return _result(measured)


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


def keep(way: str, url: str, jobs: int, interval: float) -> Kept:
    """Send heartbeats and return the figures."""
    shelf, noted = Shelf(jobs), Noted(Prompt() if way == ENGINE else _over_http(way, url))
    idle = memory_bytes()
    step_functions: StepFunctions = noted  # type: ignore[assignment]
    rhythm = HeartbeatTiming(interval, SYSTEM_CLOCK.monotonic())
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
    noted.begun.clear()
    used = cpu_seconds()
    sleep(interval * 2)
    used = (cpu_seconds() - used) / max(1, len(noted.begun))
    late = sorted(_lateness(rhythm, job_id, at) for job_id, at in noted.begun)
    beats, memory = len(noted.begun), memory_bytes() - idle
    at_once = median(_send_all(orchestrator, jobs) for _ in range(BURSTS[way]))
    orchestrator.stop()
    p50, p99 = late[len(late) // 2], late[len(late) * 99 // 100]
    return Kept(beats, noted.failed, jobs, interval, p50, p99, used, at_once, memory)


def _lateness(rhythm: HeartbeatTiming, job_id: str, at: float) -> float:
    place = rhythm.compute_offset(job_id)
    return at - (rhythm.compute_next_at(place, at) - rhythm.interval_seconds)


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


# -- the report


def _result(measured: Mapping[str, Kept]) -> Result:
    http = measured[LEAN]
    return Result(
        name=NAME,
        title=TITLE,
        columns=(
            "",
            "jobs",
            "beats",
            "late p50",
            "late p99",
            "all at once",
            "CPU per beat",
            "memory",
        ),
        rows=[_row(way, kept) for way, kept in measured.items()],
        bars=[
            Bar(
                f"{http.jobs:,} beats that are due at once, through HTTP, within "
                f"{_max_seconds_at_once(http):g} s",
                http.at_once,
                _max_seconds_at_once(http),
                "s",
                at_least=False,
            ),
            Bar(
                f"beats late by less than {MAX_LATE_PERCENT:g} % of the interval (p99)",
                http.late_p99 / http.interval * 100,
                MAX_LATE_PERCENT,
                "%",
                at_least=False,
            ),
            Bar(
                "every job beaten in every interval",
                min(kept.beats / kept.jobs / 2 for kept in measured.values()),
                0.999,
                "",
            ),
            Bar(
                "no beat failed",
                sum(kept.failed for kept in measured.values()),
                0,
                "",
                at_least=False,
            ),
        ],
        notes=(
            f"One beat per job every {http.interval:g} s; each is answered after "
            f"{ANSWER_SECONDS * 1000:g} ms. The clients call a server at the loopback. "
            "Lateness is counted from the job's place in the interval to the begin of the "
            "call, over two intervals. CPU of the beating process alone, the listing of the "
            "jobs included.",
            f"{THREADS} threads send, so {http.jobs:,} answers of "
            f"{ANSWER_SECONDS * 1000:g} ms take at least "
            f"{http.jobs * ANSWER_SECONDS / THREADS:.2f} s. All at once is the median "
            f"of {BURSTS[LEAN]} times with the lean client, and one time with the others.",
        ),
    )


def _max_seconds_at_once(kept: Kept) -> float:
    return MAX_SECONDS_AT_ONCE * kept.jobs / 10_000


def _row(way: str, kept: Kept) -> Sequence[str]:
    return [
        way,
        f"{kept.jobs:,}",
        f"{kept.beats:,}",
        f"{kept.late_p50 * 1000:.1f} ms",
        f"{kept.late_p99 * 1000:.1f} ms",
        f"{kept.at_once:.1f} s",
        f"{kept.cpu_each * 1000:.3f} ms",
        f"{kept.memory / MIB:.0f} MiB",
    ]
