"""The players that drain an SQS queue: Holdfast, a bare boto3 loop, and three peers.

Each is driven by its public API, in processes of its own, with the same concurrency and
the same payload, in the configuration its documentation recommends for throughput.
"""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.payload import BenchTask, body, number_of, task
from bench.sqs_server import KEY, REGION, Place

CONCURRENCY = 10
_LONG_POLL_SECONDS = 10
_TASK = "bench.work"


@dataclass(frozen=True, slots=True)
class Job:
    """The work of a handler: nothing, or recording its start and sleeping."""

    seconds: float = 0.0
    ledger: Path | None = None

    def begin(self, identity: str) -> None:
        """Record that a handler started."""
        if self.ledger is None:
            return
        fd = os.open(self.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(fd, f"{identity}\n".encode())
        os.close(fd)

    def do(self, identity: str) -> None:
        """Do the work of a handler."""
        self.begin(identity)
        if self.seconds:
            time.sleep(self.seconds)


@dataclass(frozen=True, slots=True)
class Player:
    """A way to drain a queue."""

    name: str
    fill: Callable[[Place, int], None]
    work: Callable[[Place, Job], None]


def work(player: Player, place: Place, job: Job) -> None:
    """Work on the queue until killed, watched by the server."""
    if not player.name.startswith(("Holdfast", "bare")):
        _hush()
    place.read_figures("PUT", os.getpid())
    player.work(place, job)


def _hush() -> None:
    """Hide banners and the tracebacks of messages that were lost to a timeout."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


# -- Holdfast


def _queue(place: Place) -> Any:
    from holdfast.queues.sqs import SQSQueue

    return SQSQueue(place.url, BenchTask, lease_seconds=place.visibility_seconds)


def _holdfast_fill(place: Place, count: int) -> None:
    _queue(place).push_many([task(number) for number in range(count)])


def _holdfast_work(place: Place, job: Job, concurrency: int = CONCURRENCY) -> None:
    from holdfast.worker.worker import Worker

    def handle(message: BenchTask) -> None:
        job.do(message.id)

    Worker(_queue(place), handle, concurrency=concurrency, isolation="thread").run()


# -- the bare boto3 loop


def _bare_fill(place: Place, count: int) -> None:
    client = place.client()
    for first in range(0, count, 10):
        numbers = range(first, min(first + 10, count))
        entries = [{"Id": str(n), "MessageBody": body(n).decode()} for n in numbers]
        client.send_message_batch(QueueUrl=place.url, Entries=entries)


def _bare_work(place: Place, job: Job) -> None:
    client = place.client()
    while True:
        answer = client.receive_message(
            QueueUrl=place.url,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=_LONG_POLL_SECONDS,
        )
        raws = answer.get("Messages", [])
        for raw in raws:
            job.do(number_of(raw["Body"]))
        if raws:
            entries = [
                {"Id": str(number), "ReceiptHandle": raw["ReceiptHandle"]}
                for number, raw in enumerate(raws)
            ]
            client.delete_message_batch(QueueUrl=place.url, Entries=entries)


# -- celery


def _celery(place: Place, job: Job) -> Any:
    from celery import Celery  # type: ignore[import-untyped]

    host = place.endpoint.removeprefix("http://")
    app = Celery("bench", broker=f"sqs://{KEY}:{KEY}@{host}//", set_as_current=False)
    app.conf.update(
        broker_transport_options={
            "region": REGION,
            "is_secure": False,
            "visibility_timeout": place.visibility_seconds,
            "wait_time_seconds": _LONG_POLL_SECONDS,
            "polling_interval": 0,
            "predefined_queues": {
                place.queue: {
                    "url": place.url,
                    "access_key_id": KEY,
                    "secret_access_key": KEY,
                }
            },
        },
        broker_connection_retry_on_startup=True,
        task_default_queue=place.queue,
        task_acks_late=True,
        task_ignore_result=True,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
    )

    @app.task(name=_TASK)  # type: ignore[untyped-decorator]
    def handle(payload: str) -> None:
        job.do(number_of(payload))

    app.finalize()
    return app


def _celery_fill(place: Place, count: int) -> None:
    handle = _celery(place, Job()).tasks[_TASK]
    for number in range(count):
        handle.delay(body(number).decode())


def _celery_work(place: Place, job: Job) -> None:
    _celery(place, job).worker_main(
        [
            "worker",
            "--pool=threads",
            f"--concurrency={CONCURRENCY}",
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
            "--loglevel=CRITICAL",
        ]
    )


# -- dramatiq-sqs


def _dramatiq(place: Place, job: Job) -> tuple[Any, Any]:
    import dramatiq
    from dramatiq_sqs import SQSBroker  # type: ignore[import-untyped]

    broker = SQSBroker(
        endpoint_url=place.endpoint,
        region_name=REGION,
        visibility_timeout=place.visibility_seconds,
    )

    @dramatiq.actor(broker=broker, queue_name=place.queue, actor_name=_TASK)
    def handle(payload: str) -> None:
        job.do(number_of(payload))

    return broker, handle


def _dramatiq_fill(place: Place, count: int) -> None:
    _, handle = _dramatiq(place, Job())
    for number in range(count):
        handle.send(body(number).decode())


def _dramatiq_work(place: Place, job: Job) -> None:
    from dramatiq import Worker

    broker, _ = _dramatiq(place, job)
    Worker(broker, worker_threads=CONCURRENCY).start()
    time.sleep(3600)  # until killed


# -- taskiq-aio-sqs


def _taskiq(place: Place, job: Job, *, heartbeat: bool = False) -> tuple[Any, Any]:
    from taskiq_aio_sqs import SQSBroker

    broker = SQSBroker(
        place.queue,
        endpoint_url=place.endpoint,
        region_name=REGION,
        aws_access_key_id=KEY,
        aws_secret_access_key=KEY,
        wait_time_seconds=_LONG_POLL_SECONDS,
        max_number_of_messages=10,
        visibility_timeout=place.visibility_seconds,
        enable_batching=True,
        enable_heartbeat=heartbeat,
    )

    @broker.task(task_name=_TASK)
    async def handle(payload: str) -> None:
        job.begin(number_of(payload))
        if job.seconds:
            await asyncio.sleep(job.seconds)

    return broker, handle


def _taskiq_fill(place: Place, count: int) -> None:
    async def send() -> None:
        broker, handle = _taskiq(place, Job())
        await broker.startup()
        for number in range(count):
            await handle.kiq(body(number).decode())
        # It sends in the background, and on shutdown more than SQS accepts in one call.
        await asyncio.to_thread(place.await_figure, "sent", count)
        await broker.shutdown()

    asyncio.run(send())


def _taskiq_work(place: Place, job: Job, *, heartbeat: bool = False) -> None:
    from taskiq.api import run_receiver_task

    async def receive() -> None:
        broker, _ = _taskiq(place, job, heartbeat=heartbeat)
        await run_receiver_task(broker, max_async_tasks=CONCURRENCY, run_startup=True)

    asyncio.run(receive())


# Each is set up for throughput, as its documentation says.
HOLDFAST = Player("Holdfast", _holdfast_fill, _holdfast_work)
HOLDFAST_ONE = Player(
    "Holdfast, 1 thread", _holdfast_fill, partial(_holdfast_work, concurrency=1)
)
BARE = Player("bare boto3 loop", _bare_fill, _bare_work)
CELERY = Player("celery on SQS", _celery_fill, _celery_work)
DRAMATIQ = Player("dramatiq-sqs", _dramatiq_fill, _dramatiq_work)
TASKIQ = Player("taskiq-aio-sqs", _taskiq_fill, _taskiq_work)
TASKIQ_BEATING = Player(
    "taskiq-aio-sqs, heartbeat", _taskiq_fill, partial(_taskiq_work, heartbeat=True)
)
PEERS = (CELERY, DRAMATIQ, TASKIQ)
