"""Count the calls of real flows: the package's own code on moto, with a hook in botocore.

Each flow is one unit of the model, such as "a fragment is staged" or "a turn is answered".
Besides the calls, the hook counts the capacity that DynamoDB charges: it reads each row before
and after the call, and rounds its size as AWS does.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import ceil
from threading import Event, Thread
from time import sleep
from typing import Any

from holdfast.chat.dynamodb import DynamoDBConversations
from holdfast.chat.errors import TransientError
from holdfast.chat.messages import Trigger, parse_inbound
from holdfast.chat.model import (
    Channel,
    ConversationKey,
    ConversationPolicy,
    ConversationProfile,
    LockAcquired,
)
from holdfast.chat.processor import BatchProcessor
from holdfast.chat.staging import Stager, Sweeper
from holdfast.events import Events
from holdfast.exports.dispatcher import TaskDispatcher
from holdfast.exports.dynamodb import DynamoDBJobs
from holdfast.exports.model import ACTIVE, ExportJob, JobState, JobStatus
from holdfast.exports.request import JobRequest, TaskSpec
from holdfast.exports.runner import JobRunner
from holdfast.exports.tracker import JobTracker
from holdfast.lease.keeper import LeaseKeeper
from holdfast.queue.message import get_lease
from holdfast.queues.sqs.queue import SQSQueue
from holdfast.store.dynamodb.values import measure_size
from holdfast.testing import ManualClock, SimulatedSqs
from holdfast.worker.outcome import Done
from holdfast.worker.runner import Context
from holdfast.worker.settle import settle
from support.chat.application import AI_CONFIG, CHANNEL_CONFIG
from support.chat.providers import FakeProviders
from support.dynamodb.service import start_service
from support.exports.inline_pool import InlinePool
from support.exports.simulated_step_functions import SimulatedStepFunctions

Flow = dict[str, float]
"""Calls by `service.Operation`, and `dynamodb.write`, `dynamodb.read` in capacity units."""

BODY = "Where is my parcel? It should have come on Tuesday, and I need it for the weekend."
REPLY = "It left the depot this morning. " * 12  # about 400 characters


class CapacityMeter:
    """Counts the calls of a boto3 client of DynamoDB, and the capacity they use."""

    def __init__(self, client: Any) -> None:
        import boto3

        self.counts: Counter[str] = Counter()
        self.measures = True  # reading rows takes more time than the calls themselves
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
        self.observer = boto3.client("dynamodb", region_name="us-east-1", **keys)
        events = client.meta.events
        events.register("provide-client-params.dynamodb", self._note_before)
        events.register("after-call.dynamodb", self._note_after)
        events.register("before-call.dynamodb", self._note_call)

    def _note_call(self, model: Any, **_: Any) -> None:
        self.counts[f"dynamodb.{model.name}"] += 1

    def _note_before(self, params: Mapping[str, Any], model: Any, **_: Any) -> None:
        if not self.measures:
            return
        self._params, self._writes = params, list(_iter_writes(model.name, params))
        self._sizes = [self._measure(table, key) for table, key, _ in self._writes]
        self._states = [self._read_status(table, key) for table, key, _ in self._writes]

    def _note_after(self, model: Any, parsed: Mapping[str, Any], **_: Any) -> None:
        if not self.measures:
            return
        factor = 2 if model.name == "TransactWriteItems" else 1
        for (table, key, put), before, state in zip(
            self._writes, self._sizes, self._states, strict=True
        ):
            size = max(before, self._measure(table, key), put)
            self.counts["dynamodb.write"] += factor * max(1, ceil(size / 1024))
            after = self._read_status(table, key)
            if after != state:  # the index loses an entry, gets one, or both
                self.counts["dynamodb.index_write"] += (after is not None) + (state is not None)
        self.counts["dynamodb.read"] += _compute_reads(model.name, self._params, parsed)

    def _measure(self, table: str, key: Mapping[str, Any]) -> int:
        row = self.observer.get_item(TableName=table, Key=key).get("Item")
        return measure_size(row) if row else 0

    def _read_status(self, table: str, key: Mapping[str, Any]) -> str | None:
        if not table.endswith("ExportJobs"):
            return None
        row = self.observer.get_item(TableName=table, Key=key).get("Item") or {}
        return row.get("status", {}).get("S")


_KEY_NAMES = {
    "ExportJobs": ("jobId",),
    "ExportTasks": ("jobId", "taskId"),
    "conversations": ("primary_channel", "conversation_id"),
    "conversations-stage": ("conversation_id", "message_sid"),
    "conversations-trigger-lock": ("conversation_id",),
    "conversation-messages": ("conversation", "entry"),
    "conversations-parked": ("conversation_id", "parked_id"),
}


def _iter_writes(
    operation: str, params: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any], int]]:
    """Yield table, key and size of each row that a call writes or checks."""
    match operation:
        case "PutItem":
            yield _read_put(params)
        case "UpdateItem" | "DeleteItem":
            yield params["TableName"], params["Key"], 0
        case "TransactWriteItems":
            for item in params["TransactItems"]:
                [(kind, part)] = item.items()
                yield _read_put(part) if kind == "Put" else (part["TableName"], part["Key"], 0)
        case "BatchWriteItem":
            for table, requests in params["RequestItems"].items():
                for request in requests:
                    yield table, request["DeleteRequest"]["Key"], 0


def _read_put(part: Mapping[str, Any]) -> tuple[str, Mapping[str, Any], int]:
    table, row = part["TableName"], part["Item"]
    return table, {name: row[name] for name in _KEY_NAMES[table]}, measure_size(row)


def _compute_reads(
    operation: str, params: Mapping[str, Any], parsed: Mapping[str, Any]
) -> float:
    match operation:
        case "GetItem":
            size = measure_size(parsed.get("Item") or {})
            return _round_read(size, params.get("ConsistentRead", False))
        case "BatchGetItem":
            [(table, request)] = params["RequestItems"].items()
            rows = parsed["Responses"].get(table, [])
            sizes = [measure_size(row) for row in rows]
            sizes += [0] * (len(request["Keys"]) - len(rows))
            consistent = request.get("ConsistentRead", False)
            return sum(_round_read(size, consistent) for size in sizes)
        case "Query" | "Scan":
            size = sum(measure_size(row) for row in parsed.get("Items", []))
            return _round_read(size, params.get("ConsistentRead", False))
    return 0.0


def _round_read(size: int, consistent: bool) -> float:
    return max(1, ceil(size / 4096)) * (1.0 if consistent else 0.5)


# -- conversations


EARLIER_TURNS = 8
# Lambda's event source receives, and the attributes of a queue are read once per process.
_CALLS_OF_OTHERS = ("ReceiveMessage", "GetQueueAttributes")


class CountedChat:
    """Stager, processor and sweeper on DynamoDB and SQS, whose calls are counted."""

    def __init__(self, client: Any) -> None:
        self.clock = ManualClock(auto_advance=True)
        self.meter = CapacityMeter(client)
        self.meter.measures = False
        self.sqs = SimulatedSqs(self.clock)
        sqs_client = self.sqs.client()
        dead = sqs_client.create_queue(QueueName="dead")["QueueUrl"]
        attributes = {"VisibilityTimeout": "60"}
        url = sqs_client.create_queue(QueueName="whatsapp", Attributes=attributes)["QueueUrl"]
        self.queue: SQSQueue[Trigger] = SQSQueue(
            url, Trigger, client=sqs_client, clock=self.clock, dead_letters=dead
        )
        self.providers = FakeProviders()
        self.providers.the_writer.reply = lambda text: REPLY
        self.policy = ConversationPolicy()
        self.store = DynamoDBConversations(client=client, clock=self.clock)
        wired = {"policy": self.policy, "clock": self.clock}
        queues = dict.fromkeys(Channel, self.queue)
        profile = ConversationProfile(CHANNEL_CONFIG, AI_CONFIG)
        self.stager = Stager(self.store, queues, profiles={"*": profile}, **wired)
        self.keeper = _QuietKeeper(self.clock)
        self.processor = BatchProcessor(
            self.store, self.providers, queues, keeper=self.keeper, **wired
        )
        self.sweeper = Sweeper(self.store, queues, **wired)
        self._sids = 0
        self._done: list[Trigger] = []

    @contextmanager
    def count(self, flow: Counter[str]) -> Iterator[None]:
        """Add the calls of the block to `flow`."""
        self.meter.counts.clear()
        self.meter.measures = True
        self.sqs.calls.clear()
        yield
        self.meter.measures = False
        flow.update(self.meter.counts)
        for call in self.sqs.calls:
            if call.operation not in _CALLS_OF_OTHERS:
                flow[f"sqs.{call.operation}"] += 1
        self.delete_done()

    def delete_done(self) -> None:
        """Delete the triggers that are done, as Lambda's event source does."""
        while self._done:
            self.queue.ack(self._done.pop())

    def stage(self, number: int = 1) -> None:
        """Stage a message of a customer."""
        self._sids += 1
        key = ConversationKey(f"whatsapp:+4930{number:07}", f"conversation-{number}")
        data = {
            "message_sid": f"SM{self._sids:032}",
            "from": key.primary_channel,
            "conversation_id": key.conversation_id,
            "to": "whatsapp:+49301",
            "body": BODY,
        }
        self.stager.stage(parse_inbound(data))

    def answer(self) -> None:
        """Stage three messages and answer them."""
        for _ in range(3):
            self.stage()
        self.clock.advance(self.policy.window_seconds)
        self.handle(self.receive())

    def receive(self) -> Trigger:
        """Receive the trigger that is due, with the extension that `sqs_batch` makes first."""
        [trigger] = self.queue.poll(wait_seconds=0.0)
        self.queue.renew([get_lease(trigger)], 60.0)
        return trigger

    def handle(self, trigger: Trigger) -> None:
        """Handle a trigger. One that is done is left to Lambda's event source."""
        ctx = Context(self.queue, trigger, get_lease(trigger), Event(), self.clock)
        outcome = self.processor(trigger, ctx)
        if isinstance(outcome, Done):
            self._done.append(trigger)
        else:
            settle(self.queue, trigger, outcome, Events())


class _QuietKeeper(LeaseKeeper):
    """A keeper without a thread, because the clock is the model's."""

    def start(self) -> None:
        pass


def count_chat_flows() -> dict[str, Flow]:
    """Return the calls of each flow of a conversation."""
    from holdfast.chat.dynamodb.tables import define_tables, tables_from_prefix

    flows: dict[str, Counter[str]] = {}
    with start_service(define_tables(tables_from_prefix())) as client:
        chat = CountedChat(client)

        def flow(name: str) -> Any:
            return chat.count(flows.setdefault(name, Counter()))

        for _ in range(EARLIER_TURNS):  # so that the row has its usual size
            chat.answer()
            chat.delete_done()
        with flow("stage_first"):
            chat.stage()
        with flow("stage_more"):
            chat.stage()
        chat.clock.advance(chat.policy.window_seconds - 1)
        chat.stage()
        chat.clock.advance(1)
        with flow("turn_typing"):  # the last message came a second ago
            chat.handle(chat.receive())
        chat.clock.advance(chat.policy.quiet_seconds)
        chat.providers.the_writer.troubles.append(TransientError("the model does not respond"))
        with flow("turn_writer_fails"):
            chat.handle(chat.receive())
        chat.clock.advance(60)
        chat.providers.the_sender.no_connection.append(
            TransientError("Twilio does not respond")
        )
        with flow("turn_sender_fails"):
            chat.handle(chat.receive())
        chat.clock.advance(60)
        with flow("turn_resent"):  # the reply is prepared, so only the sender is called
            chat.handle(chat.receive())
        with flow("answered"):
            chat.answer()
        flows["turn"] = flows.pop("answered")
        for name in ("stage_first", "stage_more", "stage_more"):
            flows["turn"].subtract(flows[name])
        with flow("turn_empty"):  # a second trigger of a turn that is answered
            chat.queue.push(_make_trigger())
            chat.handle(chat.receive())
        flows["turn_empty"]["sqs.SendMessage"] -= 1
        _count_dead_trigger(chat, flow)
        _count_sweep(chat, flow)
        _count_lock_renewal(chat, flow)
    del flows["earlier"]
    for name in ("sweep_trigger", "sweep_waits"):  # the model counts the scan by its rows
        flows[name]["dynamodb.read"] -= flows[name].pop("dynamodb.Scan") / 2
    return {name: dict(+counts) for name, counts in flows.items()}


def _count_dead_trigger(chat: CountedChat, flow: Callable[[str], Any]) -> None:
    chat.stage()
    chat.clock.advance(chat.policy.window_seconds)
    for attempt in range(1, 6):
        chat.providers.the_writer.troubles.append(TransientError("the model is down"))
        with flow("turn_dead_letter" if attempt == 5 else "earlier"):
            chat.handle(chat.receive())
        chat.clock.advance(60)


def _count_sweep(chat: CountedChat, flow: Callable[[str], Any]) -> None:
    chat.clock.advance(600)
    with flow("sweep_trigger"):  # the conversation of the dead trigger waits
        swept = chat.sweeper.sweep()
    assert swept.triggered == 1, swept
    with flow("sweep_waits"):
        assert chat.sweeper.sweep().triggered == 0


def _make_trigger() -> Trigger:
    return Trigger(conversation_id="conversation-1", primary_channel="whatsapp:+49300000001")


def _count_lock_renewal(chat: CountedChat, flow: Callable[[str], Any]) -> None:
    """Count one renewal of the lock and of its trigger, while the writer works."""
    chat.clock.advance(1)
    trigger = chat.receive()
    key = ConversationKey("whatsapp:+49300000001", "conversation-1")
    now = chat.clock.time()
    lock = chat.store.acquire(key, owner="o", trigger_id="t", now=now, expires_at=now + 60)
    assert isinstance(lock, LockAcquired)
    with flow("lock_renewal"):
        assert chat.store.renew(lock.grant, now=now, expires_at=now + 60)
        chat.queue.renew([get_lease(trigger)], 60.0)


# -- jobs


class PacedPool(InlinePool):
    """Finishes one file after another, so that each result is counted alone."""

    def __init__(self, dispatcher: TaskDispatcher, count_results: Callable[[], int]) -> None:
        super().__init__(dispatcher)
        self._count_results = count_results

    def wake(self) -> None:
        """Take all tasks, and finish them in another thread."""
        tasks = []
        while (task := self._dispatcher.take()) is not None:
            tasks.append(task)
        if tasks:
            Thread(target=self._finish, args=(tasks,), daemon=True).start()

    def _finish(self, tasks: list[Any]) -> None:
        for number, task in enumerate(tasks):
            while self._count_results() < number:
                sleep(0.01)
            result = self.do(task)
            assert result is not None
            self._dispatcher.finish(result)


def count_job_flows() -> dict[str, Flow]:
    """Return the calls of a job without files, of each file, and of listing the jobs."""
    few, many = _count_job(2), _count_job(6)
    names = {*few, *many}
    per_file = {name: (many.get(name, 0) - few.get(name, 0)) / 4 for name in names}
    base = {name: few.get(name, 0) - 2 * per_file[name] for name in names}
    return {
        "job": {name: count for name, count in base.items() if count},
        "job_file": {name: count for name, count in per_file.items() if count},
        "list_100_jobs": _count_listing(),
    }


@contextmanager
def _open_jobs() -> Iterator[tuple[DynamoDBJobs, CapacityMeter]]:
    with start_service() as client:
        yield DynamoDBJobs(client=client), CapacityMeter(client)


def _count_job(files: int) -> Counter[str]:
    step_functions = SimulatedStepFunctions()
    with _open_jobs() as (jobs, meter):
        tracker = JobTracker(jobs, step_functions)
        dispatcher = TaskDispatcher(jobs, tracker, lambda task: {})
        PacedPool(dispatcher, lambda: _count_results(meter.observer))
        runner = JobRunner(
            jobs, tracker, dispatcher, _NoHeartbeats(), lambda request: (), step_functions
        )
        specs = [
            TaskSpec(url=f"https://files.example/{n:04}", key=f"{n:04}.pdf")
            for n in range(files)
        ]
        request = JobRequest("job-1", "export-1", "user-1", step_functions.open(), tuple(specs))
        job = runner.run(request, lost=Event())
        assert job.terminal, job
    counts = Counter(meter.counts)
    counts["states.SendTaskSuccess"] += len(step_functions.accepted)
    return counts


def _count_results(observer: Any) -> int:
    row = observer.get_item(TableName="ExportJobs", Key={"jobId": {"S": "job-1"}})["Item"]
    return int(row["completedTasks"]["N"])


class _NoHeartbeats:
    def beat_now(self, job: ExportJob) -> None: ...

    def forget(self, job_id: str) -> None: ...


def _count_listing() -> Flow:
    """Return the calls that list 100 active jobs."""
    with _open_jobs() as (jobs, meter):
        meter.measures = False
        token = "t" * 600  # as long as those of Step Functions
        for number in range(100):
            state = JobState(JobStatus.DOWNLOADING, 20, 3, 0)
            jobs.save(
                ExportJob.create(
                    f"job-{number}", "export", "user", task_token=token, job_state=state
                )
            )
        meter.counts.clear()
        meter.measures = True
        found = [job for status in ACTIVE for job in jobs.find_by_status(status)]
        assert len(found) == 100
    return dict(+meter.counts)
