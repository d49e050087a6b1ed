"""The export act: a pool worker and then the whole service are killed.

push ─▶ service 1 ─▶ a pool worker is killed ─▶ replaced; its files are retried
                  ─▶ service 1 is killed ─▶ its lease ends ─▶ service 2 takes over
                                                  job ended, message acked ─▶ totals
"""

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any, ClassVar

from harness import ALL, Act, Stage, Total

from holdfast import AnyMessage, open_jobs
from holdfast.jobs import ExportTask, JobState, TaskStatus

JOB = "demo-export"
MISSING = "file-008.bin"  # the server does not have it
POOL = 3
LEASE_SECONDS = 3.0
KILL_WORKER_AFTER = 0.2  # the share of counted files
KILL_SERVICE_AFTER = 0.45
SIZES = [size << 10 for size in (4096, 8, 64, 1024, 16, 256, 8, 512, 32, 128)]
LATENCY_SECONDS = 0.1
CHUNK = 64 << 10
CHUNK_SECONDS = CHUNK / (2 << 20)  # 2 MiB per second for one connection
OPTIONS = f"--workers={POOL} --downloads=3 --drain=1 --log-format=json"


class FileServer(ThreadingHTTPServer):
    """A slow server of the files in a folder, which keeps a list of all requests.

    After `limit` responses it leaves requests waiting until it may `resume`.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, folder: Path, limit: int) -> None:
        super().__init__(("127.0.0.1", 0), partial(FileHandler, directory=str(folder)))
        self.origin = f"127.0.0.1:{self.server_port}"
        self.limit, self.resume = limit, Event()
        self.requests: list[str] = []
        self.answered: list[str] = []
        Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors, because killed clients are expected."""


class FileHandler(SimpleHTTPRequestHandler):
    """One connection."""

    server: FileServer

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_GET(self) -> None:
        """Send a file, later."""
        self.server.requests.append(self.path[1:])
        time.sleep(LATENCY_SECONDS)
        if len(self.server.answered) >= self.server.limit:
            self.server.resume.wait()
        super().do_GET()
        self.server.answered.append(self.path[1:])

    def copyfile(self, source: Any, outputfile: Any) -> None:
        """Send the content of a file, slowly."""
        while chunk := source.read(CHUNK):
            outputfile.write(chunk)
            time.sleep(CHUNK_SECONDS)


class ExportAct(Act):
    """One job, and two services."""

    title = "{files} files, a killed worker, a killed service"
    inspect = "holdfast export list --jobs {folder}/jobs.db (and show)"
    web_options = ("--jobs=jobs.db",)
    queue_name = "demo/exports"
    noun = "service"
    done = "task_completed"
    story: ClassVar = {
        "pool_worker_ended": "pool worker {pid} ended, {reason}: another one starts",
        "task_retried": "a file is retried, attempt {attempt}",
        "job_started": "has the job",
        "job_resumed": f"has the job, {{takeover}} (lease {LEASE_SECONDS:.0f} s)",
        "task_failed": "a file failed permanently: {code}",
        "job_finished": "the job is {status}: {code}",
        "dead_lettered": "the job's message is dead-lettered: {reason}",
    }
    terms = (
        "Complete means that the file in the target has every byte. Fetched again means that "
        "the second service requested a file that the first had counted."
    )

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.env["HOLDFAST_LEASE_SECONDS"] = f"{LEASE_SECONDS}"
        self.jobs = stage.resources.enter_context(open_jobs(self.folder / "jobs.db"))
        self.files = make_files(stage.sizes["files"])
        self.source, self.target = self.folder / "source", self.folder / "exported" / JOB
        self.source.mkdir()
        # It sends no more before the service is killed, so the job cannot end before.
        server = FileServer(self.source, limit=len(self.files) * 3 // 5)
        self.server = stage.resources.enter_context(server)
        stage.resources.callback(server.shutdown)
        serve = ("holdfast.cli", "export", "serve", self.url, "--to=exported", "--jobs=jobs.db")
        self.command = [*serve, f"--allow-host={server.origin}", *OPTIONS.split()]
        self.torn: set[str] = set()  # files seen under their names while incomplete
        self.counted: set[str] = set()  # before the service was killed
        self.requests_before = 0

    def run_steps(self) -> None:
        """Kill a pool worker and then its service, and wait for the second service."""
        for key in self.files.keys() - {MISSING}:
            (self.source / key).write_bytes(self.files[key])
        tasks = [
            {"url": f"http://{self.server.origin}/{key}", "key": key} for key in self.files
        ]
        job = {"id": JOB, "jobId": JOB, "exportId": "demo", "userId": "you", "tasks": tasks}
        self.queue.push(AnyMessage.model_validate(job))
        size = sum(map(len, self.files.values())) / (1 << 20)
        self.screen.report(f"pushed job {JOB}: {len(self.files)} files, {size:.1f} MiB")
        first = self.start()
        self.wait_until(lambda: self._compute_share() >= KILL_WORKER_AFTER)
        pid = first.events["pool_worker_started"][0]["pid"]
        with suppress(ProcessLookupError):
            if os.getsid(pid) == pid:  # a pool worker leads a session
                os.kill(pid, signal.SIGKILL)
        self.screen.report(f"pool worker {pid} is killed with SIGKILL")
        self.wait_until(lambda: len(first.events["pool_worker_started"]) > POOL)
        self.wait_until(lambda: self._compute_share() >= KILL_SERVICE_AFTER)
        self.kill(first, self._note_counted)
        self.start()
        self.wait_until(lambda: self.queue.stats().completed or self.queue.stats().failed)
        self.screen.report("the job's message is acked; the service drains")

    def _note_counted(self) -> str:
        """Record what the killed service has counted, and let the server continue."""
        rows = self._list_rows()
        self.counted = {row.key for row in rows if row.status is not TaskStatus.PENDING}
        self.requests_before = len(self.server.requests)
        self.server.resume.set()
        return f"{len(self.counted)} files counted"

    def _read_state(self) -> JobState:
        job = self.jobs.find_by_id(JOB)
        return job.state if job else JobState()

    def _list_rows(self) -> list[ExportTask]:
        return self.jobs.tasks(JOB, limit=ALL) if self.jobs.find_by_id(JOB) else []

    def _compute_share(self) -> float:
        return self._read_state().processed_tasks / len(self.files)

    def list_shares(self) -> Sequence[tuple[str, int, str]]:
        """Return the counts of the job. Look also for files that are visible too early."""
        sizes = {path.name: path.stat().st_size for path in self.target.glob("[!.]*")}
        self.torn |= {
            key for key, size in sizes.items() if size != len(self.files.get(key, b""))
        }
        state = self._read_state()
        return [
            ("counted", state.completed_tasks, "green"),
            ("left", len(self.files) - state.processed_tasks, "blue"),
            ("failed", state.failed_tasks, "red"),
        ]

    def list_totals(self) -> Sequence[Total]:
        """Compare the files with the target, the job store and the queue."""
        files = {path.name: path.read_bytes() for path in self.target.glob("[!.]*")}
        whole = {key for key, data in files.items() if data == self.files.get(key)}
        rows, job, stats = self._list_rows(), self.jobs.find_by_id(JOB), self.queue.stats()
        failed = {row.key for row in rows if row.status is TaskStatus.FAILED}
        lost = self.files.keys() - whole - (failed & {MISSING})
        torn = self.torn | (files.keys() - whole)
        again = self.counted & set(self.server.requests[self.requests_before :])
        state, kept = self._read_state(), len(rows) - len(failed)
        miscounted = abs(state.completed_tasks - kept) + abs(state.failed_tasks - len(failed))
        code = job.error.code if job and job.error else ""
        end = f"the job is {state.status.value}: {code}"
        settled = stats.completed == 1 and not (stats.ready or stats.leased or stats.failed)
        acked = settled and end == "the job is FAILED: JobCompletedWithFailures"
        replaced = len(self.started[0].events["pool_worker_started"]) - POOL
        resumed = self.count("job_resumed")
        before = f"of {len(self.counted)} counted before the service was killed"
        visible = "under their names, at any time"
        against = "the job's counters against its task rows"
        return [
            Total("asked", "files requested", len(self.files)),
            Total("whole", "complete", len(whole), len(self.files) - 1),
            Total("failed", "failed", len(failed), 1, f"{MISSING}, on purpose"),
            Total("lost", "lost", len(lost), 0, "neither complete nor failed"),
            Total("torn", "visible, incomplete", len(torn), 0, visible),
            Total("miscounted", "miscounted", miscounted, 0, against),
            Total("fetched_again", "fetched again", len(again), 0, before),
            Total("workers_replaced", "workers replaced", replaced, 1, "killed with SIGKILL"),
            Total("services_replaced", "services replaced", resumed, 1, "killed with SIGKILL"),
            Total("acked", "messages acked", acked, 1, end),
        ]


def make_files(count: int) -> dict[str, bytes]:
    """Return files of many sizes."""
    random = Random(4)
    keys = [f"file-{number:03}.bin" for number in range(count)]
    return {key: random.randbytes(SIZES[n % len(SIZES)]) for n, key in enumerate(keys)}
