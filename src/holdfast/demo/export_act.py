"""The export act: a pool worker and then the whole service are killed.

push ─▶ service 1 ─▶ a pool worker is killed ─▶ replaced; its files are retried
                  ─▶ service 1 is killed ─▶ its lease ends ─▶ service 2 takes over
                                                  job ended, message acked ─▶ report
"""

import hashlib
import os
import signal
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from rich.console import RenderableType

from holdfast.cli.live_view import draw_shares
from holdfast.demo.act import ALL, Act, QueueKind
from holdfast.demo.file_server import DemoFile, FileRequest, FileServer, Habit
from holdfast.demo.process import DemoProcess
from holdfast.demo.screen import DemoReport, ReportRow
from holdfast.exports.building import open_jobs
from holdfast.exports.model import ExportJob, ExportTask, JobState, TaskStatus, derive_task_id
from holdfast.queue.message import AnyMessage
from holdfast.text import format_bytes

JOB = "demo-export"
LEASE_SECONDS = 3.0
POOL = 3
_KILL_WORKER_AFTER = 0.2  # the share of counted files
_KILL_SERVICE_AFTER = 0.45
_KIB = 1024
_SIZES = [size * _KIB for size in (4096, 8, 64, 1024, 16, 256, 8, 512, 32, 128)]
_BLOCK = 8 << 20  # all files are slices of one block of noise
# By the order in which the service takes them, so that difficulties come early.
_HABITS: dict[int, Habit] = {0: "held", 3: "cut", 5: "busy", 8: "missing"}
_TERMS = (
    "Complete means that the SHA-256 of the file is right. Fetched again means that the "
    "second service requested a file that the first had counted."
)


def make_files(count: int, origin: str) -> list[DemoFile]:
    """Return `count` files of many sizes, in the order in which the service takes them.

    That is the order of the ids of their tasks.
    """
    noise = memoryview(Random(4).randbytes(_BLOCK))
    urls = {key: f"http://{origin}/{key}" for key in map("file-{:03}.bin".format, range(count))}
    tasks = sorted((derive_task_id(JOB, url, key), key, url) for key, url in urls.items())
    files = []
    for rank, task in enumerate(tasks):
        first, size = rank * 1021 % (_BLOCK // 2), _SIZES[rank % len(_SIZES)]
        data = noise[first : first + size]
        files.append(DemoFile(*task, data, _HABITS.get(rank, "good")))
    return files


def make_job_message(files: Sequence[DemoFile]) -> AnyMessage:
    """Return the message of the job, in the seed's format."""
    tasks = [
        {
            "url": file.url,
            "key": file.key,
            "checksum": f"sha256:{file.checksum}",
            "size": len(file.data),
        }
        for file in files
    ]
    job: dict[str, Any] = {"jobId": JOB, "exportId": "demo", "userId": "you", "tasks": tasks}
    return AnyMessage(id=JOB, **job)


class ExportAct(Act):
    """One job, and two services."""

    title = "{files} files, a killed worker, a killed service"
    inspect = "holdfast export list --jobs {folder}/jobs.db (and show)"
    web_options = ("--jobs=jobs.db",)
    queue_name = "demo/exports"
    message = AnyMessage
    command = (
        "holdfast.cli export serve {url} --to={target} --jobs={store} "
        f"--workers={POOL} --downloads=3 --drain=1 --allow-host={{origin}} --log-format=json"
    )
    noun = "service"
    timeout_seconds = 120.0
    story: ClassVar = {
        "pool_worker_ended": "pool worker {pid} ended, {reason}: another one starts",
        "task_retried": "{name} is retried, attempt {attempt}",
        "job_started": "has the job",
        "task_failed": "{name} failed permanently: {code}",
        "job_finished": "the job is {status}: {code}",
        "message_lease_lost": "the job's message is {event}: {reason}",
        "retried": "the job's message is {event}: {reason}",
        "dead_lettered": "the job's message is {event}: {reason}",
    }

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.env["HOLDFAST_LEASE_SECONDS"] = f"{LEASE_SECONDS}"
        self.target, self.store = self.folder / "exported", self.folder / "jobs.db"
        self.columns = {"pool workers": self._format_workers}
        self._server = self.resources.enter_context(FileServer(self.screen.report))
        self.origin = self._server.origin
        self._files = make_files(self.sizes.files, self.origin)
        self._server.files = {file.key: file for file in self._files}
        self._names = {file.task_id: file.key for file in self._files}
        self._jobs = self.resources.enter_context(open_jobs(self.store))
        self._workers: defaultdict[int, list[int]] = defaultdict(list)  # pids, by service
        self._replaced: Counter[int] = Counter()  # pool workers, by service
        self._torn: set[str] = set()
        self._counted: frozenset[str] = frozenset()
        self._requests_before = 0

    @classmethod
    def create(cls, folder: Path, kind: QueueKind) -> None:
        """Create the queue and the store of jobs."""
        super().create(folder, kind)
        open_jobs(folder / "jobs.db").close()

    def run_steps(self) -> None:
        """Run the steps. Raises DemoStopped."""
        self.queue.push(make_job_message(self._files))
        size = format_bytes(sum(len(file.data) for file in self._files))
        self.screen.report(f"pushed job {JOB}: {len(self._files)} files, {size}")
        first = self.start()
        # Not before the file that was cut off is resumed, because if its worker were killed
        # before, the file would start again and no download would be continued.
        self.wait_until(lambda: _count_continued(self._server.requests))
        self.wait_until(lambda: self._compute_share() >= _KILL_WORKER_AFTER)
        self._kill_worker_of(first)
        # The server holds one file half-way until the service is killed. So there is a
        # download to continue, and the job cannot end before.
        self.wait_until(lambda: self._replaced[first.number] and self._server.holding.is_set())
        self.wait_until(lambda: self._compute_share() >= _KILL_SERVICE_AFTER)
        self.kill(first, self._note_counted)
        second = self.start()
        self.wait_until(lambda: second.counts["job_resumed"] > 0)
        left = len(self._files) - self._read_state().processed_tasks
        self.screen.report(
            f"service 2: has the job, {self.seconds_since_kill:.1f} s after the kill "
            f"(lease {LEASE_SECONDS:.0f} s): {left} files left"
        )
        self.wait_until(self._is_settled)
        self.screen.report("the job's message is acked; the service drains")

    def _kill_worker_of(self, service: DemoProcess) -> None:
        for pid in self._list_workers(service):
            # A pool worker leads a session, so the check makes sure that the id still belongs
            # to it and not to another process.
            with suppress(ProcessLookupError):
                if os.getsid(pid) == pid:
                    os.kill(pid, signal.SIGKILL)
                    self.screen.report(f"pool worker {pid} is killed with SIGKILL")
                    return
        self.stop("no pool worker is left to kill")

    def _note_counted(self) -> str:
        """Record what the killed service has counted."""
        rows = self._list_rows()
        done = (row.key for row in rows if row.status is not TaskStatus.PENDING)
        self._counted = frozenset(done)
        self._requests_before = len(self._server.requests)
        self._server.resume.set()
        return f"{len(self._counted)} files counted"

    def _is_settled(self) -> bool:
        stats = self.queue.stats()
        return bool(stats.completed or stats.failed)

    def describe_event(self, process: DemoProcess, event: dict[str, Any]) -> str | None:
        """Keep the list of pool workers, and name files instead of their tasks."""
        match event:
            case {"event": "pool_worker_started", "pid": pid}:
                self._workers[process.number].append(pid)
                if self._replaced[process.number] < process.counts["pool_worker_ended"]:
                    self._replaced[process.number] += 1
            case {"event": "pool_worker_ended", "pid": pid}:
                self._workers[process.number].remove(pid)
            case {"task_id": task}:
                event["name"] = self._names.get(task, task)
        return super().describe_event(process, event)

    # -- the state

    def observe(self) -> None:
        """Look for files that are visible while they are incomplete."""
        sizes = {file.key: len(file.data) for file in self._files}
        self._torn |= find_incomplete(self.target / JOB, sizes)

    def _read_state(self) -> JobState:
        job = self._jobs.find_by_id(JOB)
        return job.state if job else JobState()

    def _list_rows(self) -> list[ExportTask]:
        return self._jobs.tasks(JOB, limit=ALL) if self._jobs.find_by_id(JOB) else []

    def _compute_share(self) -> float:
        return self._read_state().processed_tasks / len(self._files)

    def format_line(self) -> str:
        """Return the counts as one line."""
        state, requests = self._read_state(), self._server.requests
        return (
            f"{state.completed_tasks} files counted, {state.failed_tasks} failed, "
            f"{len(self._files) - state.processed_tasks} left, "
            f"{sum(request.is_open for request in requests)} downloading, "
            f"{format_bytes(sum(request.sent for request in requests))} sent"
        )

    def render(self) -> Sequence[RenderableType]:
        """Return the bar and the counts."""
        state, requests = self._read_state(), self._server.requests
        left = len(self._files) - state.processed_tasks
        moving = min(left, sum(request.is_open for request in requests))
        shares = [
            ("counted", state.completed_tasks, "green"),
            ("downloading", moving, "yellow"),
            ("left", left - moving, "blue"),
            ("failed", state.failed_tasks, "red"),
        ]
        bar, legend = draw_shares(shares)
        sent = format_bytes(sum(request.sent for request in requests))
        return [bar, legend.append(f"{sent} sent", style="dim")]

    def _list_workers(self, service: DemoProcess) -> list[int]:
        return list(self._workers[service.number]) if service.is_alive else []

    def _format_workers(self, service: DemoProcess) -> str:
        return " ".join(map(str, self._list_workers(service))) or "-"

    def make_report(self) -> DemoReport:
        """Compare the server's files with the target, the job store and the queue."""
        stats = self.queue.stats()
        return make_report(
            self._files,
            compute_checksums(self.target / JOB),
            self._jobs.find_by_id(JOB),
            self._list_rows(),
            self._server.requests,
            counted=self._counted,
            requests_before=self._requests_before,
            torn=self._torn,
            workers=sum(self._replaced[service.number] for service in self.started[:1]),
            services=sum(service.counts["job_resumed"] > 0 for service in self.started[1:]),
            acked=stats.completed == 1 and not (stats.ready or stats.leased or stats.failed),
        )


def _count_continued(requests: Sequence[FileRequest]) -> int:
    return sum(request.start > 0 for request in requests)


# -- the report


def find_incomplete(folder: Path, sizes: Mapping[str, int]) -> set[str]:
    """Return the names of visible files that do not have their full size."""
    visible = {path.name: path.stat().st_size for path in folder.glob("[!.]*")}
    return {name for name, size in visible.items() if size != sizes.get(name)}


def compute_checksums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each visible file."""
    visible = {path.name: path.read_bytes() for path in folder.glob("[!.]*")}
    return {name: hashlib.sha256(data).hexdigest() for name, data in visible.items()}


def make_report(
    files: Sequence[DemoFile],
    target: Mapping[str, str],
    job: ExportJob | None,
    rows: Sequence[ExportTask],
    requests: Sequence[FileRequest],
    *,
    counted: Set[str],
    requests_before: int,
    torn: Set[str],
    acked: bool,
    workers: int,
    services: int,
) -> DemoReport:
    """Return the report. `target` holds the SHA-256 of each file in the target.

    `counted` are the files that were counted when the service was killed, after
    `requests_before` requests, and `torn` those seen under their names while incomplete.
    So many `workers` and `services` were replaced after a kill.
    """
    whole = {file.key for file in files if target.get(file.key) == file.checksum}
    failed = {row.key: row for row in rows if row.status is TaskStatus.FAILED}
    expected = {file.key for file in files if file.habit == "missing"} & failed.keys() - whole
    again = counted & {request.key for request in requests[requests_before:]}
    lost, miscounted = len(files) - len(whole | expected), _count_differences(job, rows)
    visible = torn | (target.keys() - whole)
    reasons = [_format_reason(failed[key]) for key in sorted(expected)]
    status = job.status.value if job else "NOT FOUND"
    error = job.error.code if job and job.error else ""
    right = ("FAILED", "JobCompletedWithFailures") if expected else ("COMPLETED", "")
    ended = acked and (status, error) == right
    at_any_time = "under their names, at any time"
    killed, against = "killed with SIGKILL", "the job's counters against its task rows"
    before = f"of {len(counted)} counted before the service was killed"
    continued, after = _count_continued(requests), "downloads, after the bytes they had"
    wanted, lacking = f"{'; '.join(reasons)}, on purpose", "neither complete nor failed"
    report = [
        ReportRow("asked", "files requested", len(files)),
        ReportRow("whole", "complete", len(whole)),
        ReportRow("failed", "failed", len(expected), wanted),
        ReportRow("lost", "lost", lost, lacking, lost),
        ReportRow("torn", "visible, incomplete", len(visible), at_any_time, visible),
        ReportRow("miscounted", "miscounted", miscounted, against, miscounted),
        ReportRow("fetched_again", "fetched again", len(again), before, again or not counted),
        ReportRow("continued", "continued", continued, after),
        ReportRow("workers_replaced", "workers replaced", workers, killed, not workers),
        ReportRow("services_replaced", "services replaced", services, killed, not services),
        ReportRow("acked", "messages acked", acked, f"the job is {status}: {error}", not ended),
    ]
    more = {
        "counted_before": len(counted),
        "acked": acked,
        "status": status,
        "error": error,
        "reasons": reasons,
    }
    return DemoReport(report, _TERMS, more)


def _format_reason(row: ExportTask) -> str:
    return f"{row.key}: {row.error.code if row.error else 'no reason'}"


def _count_differences(job: ExportJob | None, rows: Sequence[ExportTask]) -> int:
    if job is None:
        return len(rows)
    state, statuses = job.state, [row.status for row in rows]
    return (
        abs(state.total_tasks - len(rows))
        + abs(state.completed_tasks - statuses.count(TaskStatus.COMPLETED))
        + abs(state.failed_tasks - statuses.count(TaskStatus.FAILED))
    )
