"""A console to look at: an hour of work in queues, jobs and conversations, then stopped time.

The queues, stores and pages are real. Only time is simulated, so that an hour of work takes
seconds, and the same page looks the same each time.
"""

import math
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from holdfast import AnyMessage, QueueManager, SQSQueue, open_jobs, open_queue
from holdfast.chat.building import ChatApp, build_chat
from holdfast.chat.model import (
    Conversation,
    ConversationKey,
    Fragment,
    HistoryMessage,
    LockAcquired,
    LockGrant,
    ParkedBatch,
    Turn,
    Window,
    make_parked_id,
)
from holdfast.chat.outbox import PreparedReply, SendingReply, WriterAnswer
from holdfast.chat.ports import ConversationStore
from holdfast.exports.model import ExportJob, ExportTask, JobError, JobStatus, TaskResult
from holdfast.exports.ports import JobStateRepository
from holdfast.testing import ManualClock, SimulatedSqs
from holdfast.web import web_app
from holdfast.web.server import make_server

TOKEN = "a-token-of-twenty-characters"
STEP_SECONDS = 15.0
STEPS = 240  # an hour
LEASE_SECONDS = 60.0
OUTAGE = range(88, 124)  # no worker polls
TRACED = "company-0412"  # the message whose history has everything
# Name, tasks, failed tasks, and the steps in which it begins and ends.
JOBS = [
    ("march-invoices", 1200, 0, 2, 60),
    ("april-invoices", 480, 14, 70, 128),
    ("photo-archive", 9600, 3, 100, 330),
    ("contracts", 350, 0, 232, 300),
]

_TRACEBACK = """Traceback (most recent call last):
  File "/srv/enrich/tasks.py", line 31, in enrich
    page = fetch(f"https://{message.domain}/about", timeout=30)
  File "/srv/enrich/http.py", line 18, in fetch
    return session.get(url, timeout=timeout).text
"""

Queue = QueueManager[AnyMessage]


class ExampleConsole:
    """Queues, jobs and conversations in a folder."""

    def __init__(self, folder: Path, resources: ExitStack) -> None:
        # Files have the times of the machine, so the simulated hour ends now.
        self.clock = ManualClock(time=time.time() - (STEPS + 1) * STEP_SECONDS)
        self._folder, self._resources = folder, resources
        self._next = 1
        self._tasks: dict[str, list[ExportTask]] = {}
        self._busy: list[tuple[Queue, AnyMessage]] = []

    def serve(self, **options: Any) -> str:
        """Fill everything, serve a console with it and return its address."""
        enrich = self._open("sqlite:enrich.db/enrich", "worker-1.example", 4121)
        others = [
            self._open("sqlite:enrich.db/enrich", f"worker-{n}.example", 4121 + 7 * n)
            for n in (2, 3)
        ]
        files = [
            self._open(f"acme/{name}", "worker-2.example", 977)
            for name in ("thumbnails", "reports")
        ]
        jobs, chat = self._open_jobs("jobs.db"), self._open_chat("chat.db")
        app = web_app(
            [enrich, *files, self._make_sqs_queue(), "acme/missing"],
            jobs=jobs,
            chat=chat,
            clock=self.clock,
            **options,
        )
        watches = list(app.state.console.queues.values())
        for step in range(STEPS):
            self.clock.advance(STEP_SECONDS)
            self._work([enrich, *others], files, step)
            self._export(jobs, step)
            for watch in watches:
                watch.counts.get(wait_seconds=10.0)
        fill_example_chat(chat.store, self.clock.time())
        for worker in (self._folder / "queues" / "acme" / "thumbnails").rglob("workers/*"):
            os.utime(worker, (0, 0))  # it was seen long ago
        self.clock.advance(2.0)
        return serve_in_thread(app, self._resources)

    def serve_empty(self, **options: Any) -> str:
        """Serve a console with empty queues and stores, and return its address."""
        queue = self._open("acme/enrich", "worker-1.example", 4121)
        jobs, chat = self._open_jobs("no-jobs.db"), self._open_chat("no-chat.db")
        app = web_app([queue], jobs=jobs, chat=chat, clock=self.clock, **options)
        return serve_in_thread(app, self._resources)

    # -- queues

    def _open(self, url: str, host: str, pid: int) -> Queue:
        """Open a queue as a worker of another machine does."""
        kind, _, path = url.rpartition(":")
        place = f"{kind}:{self._folder}/{path}" if kind else f"{self._folder}/{path}"
        settings = {"lease_seconds": LEASE_SECONDS, "max_attempts": 3}
        queue = open_queue(place, clock=self.clock, env={}, **settings)
        queue.name = url
        with patch("socket.gethostname", return_value=host), patch("os.getpid", lambda: pid):
            queue.poll()
        return self._resources.enter_context(queue)

    def _work(self, workers: list[Queue], files: list[Queue], step: int) -> None:
        """Let 15 seconds pass in the queues."""
        enrich, thumbnails, reports = workers[0], *files
        arrivals = int(16 + 7 * math.sin(step / 19) + 4 * math.sin(step / 4.1))
        enrich.push_many(self._make_messages(arrivals))
        if step == STEPS - 40:
            enrich.push_many(self._make_messages(12), delay_seconds=3600)
        if step % 3 == 0:
            thumbnails.push(AnyMessage(id=f"image-{step:04}.jpg", width=1200))
        if step % 24 == 0:
            reports.push(AnyMessage(id=f"report-{step // 24 + 1}"))
        reports.ack_many(reports.poll(5))
        if step < 150:
            thumbnails.ack_many(thumbnails.poll(1))
        if step not in OUTAGE:
            for worker in workers[: 2 if step < 60 or step > STEPS - 5 else 3]:
                for message in worker.poll(6 if step > OUTAGE[-1] else 8):
                    self._settle(worker, message, step)
        self._keep_busy(workers, step)

    def _make_messages(self, count: int) -> list[AnyMessage]:
        ids = [f"company-{n:04}" for n in range(self._next, self._next + count)]
        self._next += count
        return [AnyMessage(id=each, domain=f"{each}.example", country="de") for each in ids]

    def _settle(self, worker: Queue, message: AnyMessage, step: int) -> None:
        number = int(message.id[-4:])
        if message.id == TRACED:
            worker.save_checkpoint(message, {"page": 3, "links": 41})
        if number % 400 == 0:
            worker.dead_letter(message, f"{message.id}.invalid has no website")
        elif number % 206 == 0:
            reason, detail = make_error(f"https://{message.id}.example/about")
            worker.nack(message, delay_seconds=20, reason=reason, detail=detail)
        elif number % 61 == 0 and message.attempts == 1:
            worker.nack(message, delay_seconds=30, reason="429 Too Many Requests")
        else:
            worker.ack(message)

    def _keep_busy(self, workers: list[Queue], step: int) -> None:
        """Hold some messages until the end. The last worker is killed before that."""
        for number, worker in enumerate(workers):
            if step == STEPS - 80 + 25 * number:
                self._busy += [(worker, message) for message in worker.poll(2)]
        for number, (worker, message) in enumerate(self._busy):
            if worker is not workers[2] or step < STEPS - 4 + number % 2:
                done = (step - STEPS + 90 - 7 * number) / 110
                if number != 3 or step < STEPS - 30:  # its handler hangs
                    message.lease.beat(self.clock.monotonic(), done)
                worker.extend(message)

    def _make_sqs_queue(self) -> Queue:
        client = SimulatedSqs(self.clock).client()
        client.create_queue(QueueName="invoices")
        queue: Queue = SQSQueue("invoices", client=client, clock=self.clock)
        queue.push_many(AnyMessage(id=f"invoice-{n}") for n in range(1, 8))
        return queue

    # -- jobs

    def _open_jobs(self, name: str) -> JobStateRepository:
        return self._resources.enter_context(open_jobs(self._folder / name, clock=self.clock))

    def _export(self, jobs: JobStateRepository, step: int) -> None:
        for name, total, failed, first, last in JOBS:
            if step == first:
                self._tasks[name] = self._start_job(jobs, name, total)
            if first < step <= last:
                done = (step - first - 1) * total // (last - first)
                ended = (step - first) * total // (last - first)
                results = [
                    _make_result(task, is_good=n >= failed)
                    for n, task in enumerate(self._tasks[name][done:ended], done)
                ]
                jobs.record_results(name, results)
            if step == last:
                error = JobError(
                    "JobCompletedWithFailures", f"{failed} of {total} files failed"
                )
                jobs.claim_outcome(name)
                status = JobStatus.FAILED if failed else JobStatus.COMPLETED
                jobs.settle(name, status, error if failed else None)

    def _start_job(self, jobs: JobStateRepository, name: str, total: int) -> list[ExportTask]:
        now = self.clock.time()
        jobs.save(ExportJob.create(name, "exports", "ada", task_token=f"t-{name}", now=now))
        tasks = [
            ExportTask.create(name, f"https://files.example/{name}/{n}", f"{name}/{n:05}.pdf")
            for n in range(total)
        ]
        jobs.add_tasks(name, tasks)
        jobs.update_job_status(name, JobStatus.DOWNLOADING)
        jobs.set_total_tasks(name, total)
        return tasks

    # -- conversations

    def _open_chat(self, name: str) -> ChatApp:
        env = {
            "HOLDFAST_CHAT_STORE": f"{self._folder}/{name}",
            "HOLDFAST_DATA_DIR": str(self._folder),
        }
        return self._resources.enter_context(build_chat(env, clock=self.clock))


def fill_example_chat(store: ConversationStore, now: float) -> None:
    """Store conversations that are answered, wait, are being answered, and are parked."""
    numbers = ("4915712345678", "447700900123", "14155550142", "33612345678")
    ada, ben, cem, dora = (ConversationKey(f"whatsapp:+{n}", n) for n in numbers)
    start(store, now - 9000, ada, ben, cem, dora)
    for key, question, reply in (
        (ada, "Hi! I ordered the blue lamp.", "Hello Ada, thank you for your order."),
        (ada, "When does it come?", "It left today and arrives on Thursday."),
        (ben, "Is the shop open on Sunday?", "Yes, from 11 to 17."),
        (cem, "Can I change the address?", "Yes, until it is sent. What is the new one?"),
    ):
        answer(store, key, f"s-{question}", question, reply, now - 600)
    stage(store, ada, "s-1", "And do you have it in red?", now - 20)
    stage(store, ada, "s-3", "The big one", now - 12)
    open_window(store, ada, now - 20, now + 40)
    grant = lock(store, ben, now - 5)
    store.note(grant, PreparedReply(("s-2",), WriterAnswer("One moment.")), "")
    question = "My parcel is broken. What now?"
    reply = "I am sorry. A new one leaves today, and costs you nothing."
    unclear = "the provider did not say whether it took the reply"
    park(store, dora, question, unclear, now - 1500, reply)
    park(store, cem, question, "the writer was asked 3 times and gave no answer", now - 240)


def start(store: ConversationStore, now: float, *keys: ConversationKey) -> None:
    """Store empty conversations."""
    for key in keys:
        store.create(Conversation(key, created_at=now, updated_at=now))


def lock(store: ConversationStore, key: ConversationKey, now: float) -> LockGrant:
    """Take the lock of a conversation for a minute."""
    result = store.acquire(key, owner="w", trigger_id="t", now=now, expires_at=now + 60)
    assert isinstance(result, LockAcquired)
    return result.grant


def open_window(
    store: ConversationStore, key: ConversationKey, now: float, ends_at: float
) -> None:
    """Open the window of a conversation."""
    window = Window(key.conversation_id, "t-1", "s-1", now, ends_at)
    store.open_window(window, now=now, untriggered_before=now)


def stage(
    store: ConversationStore, key: ConversationKey, sid: str, text: str, now: float
) -> None:
    """Stage a message."""
    store.stage(Fragment(key, sid, text, now, now), expires_at=now + 9e6)


def answer(
    store: ConversationStore,
    key: ConversationKey,
    sid: str,
    question: str,
    reply: str,
    now: float,
) -> None:
    """Write a question and its answer to the history."""
    turn = Turn(
        (sid,),
        HistoryMessage("user", question, now - 8, sid),
        HistoryMessage("assistant", reply, now, f"r-{sid}"),
        thread_id="",
        thread_mark="",
        prompt_tokens=412,
        completion_tokens=37,
    )
    store.finish(lock(store, key, now), turn, now=now, remember_until=now + 9e6)


def park(
    store: ConversationStore,
    key: ConversationKey,
    question: str,
    reason: str,
    now: float,
    reply: str = "",
) -> None:
    """Park a batch, whose reply may have been sent if it is given."""
    fragment = Fragment(key, "sid-parked", question, now, now)
    sending = SendingReply(("sid-parked",), WriterAnswer(reply), (), now) if reply else None
    parked_id = make_parked_id(key, ["sid-parked"])
    batch = ParkedBatch(parked_id, key, reason, now, (fragment,), sending)
    store.park(None, batch, remember_until=now + 9e6)


def _make_result(task: ExportTask, is_good: bool) -> TaskResult:
    if is_good:
        return TaskResult(task.job_id, task.task_id, True)
    error = JobError("Http404", "the server has no such file")
    if task.key.endswith(("1.pdf", "4.pdf")):
        error = JobError("Timeout", "no byte arrived for 60 s")
    return TaskResult(task.job_id, task.task_id, False, error=error)


def make_error(url: str) -> tuple[str, str]:
    """Return the reason and the traceback of a handler that failed."""
    reason = f"TimeoutError: {url} did not answer in 30 s"
    return reason, _TRACEBACK + reason


def serve_in_thread(app: Any, resources: ExitStack, **limits: Any) -> str:
    """Serve an application in a thread until the resources are closed."""
    listener = resources.enter_context(socket.create_server(("127.0.0.1", 0)))
    server = make_server(app, **limits)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()

    def stop() -> None:
        server.should_exit = True
        thread.join()

    resources.callback(stop)
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def open_example(folder: Path) -> Iterator[ExampleConsole]:
    """Return an example in a folder, which is closed at the end."""
    with ExitStack() as resources:
        yield ExampleConsole(folder, resources)
