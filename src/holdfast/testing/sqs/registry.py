"""The queues of all regions, by name: create, find, configure, delete, and move dead letters.

A move task without a rate is done when its call returns. With `MaxNumberOfMessagesPerSecond`
it follows the clock, and moves the first message one step after the start.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.lease.clock import Clock
from holdfast.testing.sqs.errors import (
    NO_QUEUE,
    QUEUE_MISSING,
    ServiceError,
    check_names,
    invalid_value_error,
    out_of_range_error,
    read_number,
    sqs_error,
)
from holdfast.testing.sqs.message import IdSource
from holdfast.testing.sqs.queue import SETTABLE, QueueAttributes, SimulatedQueue

ACCOUNT = "123456789012"

# The wait that AWS requires between two deletions or purges of one name.
COOLDOWN_SECONDS = 60.0

_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")

Params = dict[str, Any]
Response = dict[str, Any]


class QueueRegistry:
    """All queues. The caller must hold the service's lock."""

    def __init__(self, clock: Clock, ids: IdSource) -> None:
        self._clock, self._ids = clock, ids
        self._queues: dict[tuple[str, str], SimulatedQueue] = {}
        self._cooldowns: dict[tuple[str, ...], float] = {}  # their ends

    # -- finding

    def find(self, region: str, url: str) -> SimulatedQueue:
        """Return the queue with this URL in the client's region; raise if there is none."""
        queue = self._queues.get((region, url.rsplit("/", 1)[-1]))
        # A bare name is enough. A URL must be this queue's, including region and account.
        if queue is None or url not in (queue.name, queue.url):
            raise ServiceError(*QUEUE_MISSING)
        return queue

    def find_by_name(self, name: str) -> SimulatedQueue:
        """Return the queue with this name in any region. Only for tests."""
        for (_, queue_name), queue in self._queues.items():
            if queue_name == name:
                return queue
        raise ValueError(f"there is no queue {name!r}")

    def find_by_arn(self, arn: str) -> SimulatedQueue | None:
        """Return the queue with this ARN, or None."""
        return next((queue for queue in self._queues.values() if queue.arn == arn), None)

    def iter_sources(self, dead_letters: SimulatedQueue) -> Iterator[SimulatedQueue]:
        """Yield the queues whose redrive policy names this one."""
        for queue in self._queues.values():
            redrive = queue.settings.redrive
            if redrive is not None and redrive.target_arn == dead_letters.arn:
                yield queue

    # -- operations

    def create(self, region: str, params: Params) -> Response:
        """Handle CreateQueue."""
        name, attributes = params["QueueName"], params.get("Attributes") or {}
        _check_name(name, is_fifo=attributes.get("FifoQueue") == "true")
        settings = QueueAttributes.of(attributes)
        if (existing := self._queues.get((region, name))) is not None:
            return {"QueueUrl": _check_unchanged(existing, attributes).url}
        self._check_cooldown(
            ("delete", region, name),
            "QueueDeletedRecently",
            "You must wait 60 seconds after deleting a queue before you can create "
            "another with the same name.",
        )
        self._check_redrive(settings)
        queue = SimulatedQueue(name, region, ACCOUNT, settings, self._clock, self._ids)
        self._queues[region, name] = queue
        return {"QueueUrl": queue.url}

    def delete(self, queue: SimulatedQueue, params: Params) -> Response:
        """Handle DeleteQueue."""
        del self._queues[queue.region, queue.name]
        self._start_cooldown(("delete", queue.region, queue.name))
        queue.wake()
        return {}

    def get_url(self, region: str, params: Params) -> Response:
        """Handle GetQueueUrl."""
        queue = self._queues.get((region, params["QueueName"]))
        if queue is None or params.get("QueueOwnerAWSAccountId", ACCOUNT) != ACCOUNT:
            raise ServiceError(*QUEUE_MISSING)
        return {"QueueUrl": queue.url}

    def list_all(self, region: str, params: Params) -> Response:
        """Handle ListQueues."""
        prefix = params.get("QueueNamePrefix") or ""
        urls = sorted(
            queue.url
            for (known_region, name), queue in self._queues.items()
            if known_region == region and name.startswith(prefix)
        )
        return _make_page("QueueUrls", urls, params)

    def get_attributes(self, queue: SimulatedQueue, params: Params) -> Response:
        """Handle GetQueueAttributes."""
        measured = queue.measure()
        known = frozenset({*SETTABLE, *measured, "All"})
        names = check_names(params.get("AttributeNames") or [], known)
        all_attributes = {**queue.settings.texts, **measured}
        selected = {n: v for n, v in all_attributes.items() if n in names or "All" in names}
        return {"Attributes": selected} if selected else {}

    def set_attributes(self, queue: SimulatedQueue, params: Params) -> Response:
        """Handle SetQueueAttributes."""
        settings = queue.settings.changed(params["Attributes"])
        self._check_redrive(settings)
        queue.configure(settings)
        return {}

    def purge(self, queue: SimulatedQueue, params: Params) -> Response:
        """Handle PurgeQueue."""
        self._check_cooldown(
            ("purge", queue.arn),
            "PurgeQueueInProgress",
            f"Only one PurgeQueue operation on {queue.name} is allowed every 60 seconds.",
        )
        self._start_cooldown(("purge", queue.arn))
        queue.clear()
        return {}

    def list_sources(self, queue: SimulatedQueue, params: Params) -> Response:
        """Handle ListDeadLetterSourceQueues."""
        urls = sorted(source.url for source in self.iter_sources(queue))
        # AWS spells this name with a small letter, and always includes it.
        return {"queueUrls": [], **_make_page("queueUrls", urls, params)}

    # -- checks and measures

    def _check_cooldown(self, key: tuple[str, ...], code: str, message: str) -> None:
        if self._clock.monotonic() < self._cooldowns.get(key, float("-inf")):
            raise sqs_error(code, message)

    def _start_cooldown(self, key: tuple[str, ...]) -> None:
        self._cooldowns[key] = self._clock.monotonic() + COOLDOWN_SECONDS

    def _check_redrive(self, settings: QueueAttributes) -> None:
        if settings.redrive is None:
            return
        target = self.find_by_arn(settings.redrive.target_arn)
        if target is None:
            reason = "Dead letter target does not exist."
        elif target.settings.is_fifo != settings.is_fifo:
            reason = "Dead-letter queue must be same type of queue as the source."
        else:
            return
        raise out_of_range_error("RedrivePolicy", settings.texts["RedrivePolicy"], reason)


def _check_name(name: str, *, is_fifo: bool) -> None:
    if not _NAME.fullmatch(name):
        raise invalid_value_error(
            "Can only include alphanumeric characters, hyphens, or underscores. "
            "1 to 80 in length"
        )
    if name.endswith(".fifo") != is_fifo:
        raise invalid_value_error("The name of a FIFO queue can only end in .fifo, and must.")


def _check_unchanged(existing: SimulatedQueue, attributes: dict[str, str]) -> SimulatedQueue:
    """Return the queue if these are its attributes; raise QueueAlreadyExists otherwise."""
    for name, value in attributes.items():
        if existing.settings.texts.get(name) != value:
            raise ServiceError(
                "QueueAlreadyExists",
                "A queue already exists with the same name and a different value "
                f"for attribute {name}",
            )
    return existing


def _make_page(name: str, urls: list[str], params: Params) -> Response:
    start = int(params.get("NextToken") or 0)
    end = start + (params.get("MaxResults") or 1000)
    response: Response = {name: urls[start:end]} if urls[start:end] else {}
    # AWS pages only if the request has MaxResults.
    if params.get("MaxResults") and end < len(urls):
        response["NextToken"] = str(end)
    return response


@dataclass(slots=True)
class MessageMove:
    """One move task and its progress."""

    handle: str
    source_arn: str
    destination_arn: str  # if empty, each message goes back to its source
    per_second: int  # 0 means all at once
    started_at: float
    started_ms: int
    to_move: int
    moved: int = 0
    status: str = "RUNNING"
    failure: str = ""

    @property
    def next_at(self) -> float:
        """When the next message moves; infinity if the task has ended."""
        if self.status != "RUNNING":
            return float("inf")
        return self.started_at + ((self.moved + 1) / self.per_second if self.per_second else 0)

    def to_response(self) -> Response:
        """Return the task for a response. AWS shows the handle only while it is useful."""
        fields: Response = {
            "TaskHandle": self.handle if self.status == "RUNNING" else "",
            "DestinationArn": self.destination_arn,
            "MaxNumberOfMessagesPerSecond": self.per_second,
            "FailureReason": self.failure,
        }
        return {name: value for name, value in fields.items() if value} | {
            "Status": self.status,
            "SourceArn": self.source_arn,
            "ApproximateNumberOfMessagesMoved": self.moved,
            "ApproximateNumberOfMessagesToMove": self.to_move,
            "StartedTimestamp": self.started_ms,
        }


class MessageMoves:
    """The move tasks of all queues. The caller must hold the service's lock."""

    def __init__(self, registry: QueueRegistry, clock: Clock, ids: IdSource) -> None:
        self._registry, self._clock, self._ids = registry, clock, ids
        self._tasks: list[MessageMove] = []

    def start(self, region: str, params: Params) -> Response:
        """Handle StartMessageMoveTask."""
        source = self._find_queue(params["SourceArn"], "SourceArn")
        if params.get("DestinationArn"):
            self._find_queue(params["DestinationArn"], "DestinationArn")
        if not any(self._registry.iter_sources(source)):
            raise invalid_value_error("Source queue must be configured as a Dead Letter Queue.")
        if any(t.status == "RUNNING" for t in self._tasks if t.source_arn == source.arn):
            raise invalid_value_error(
                "There is already a task running. Only one active task is allowed for a "
                "source queue arn at a given time."
            )
        task = MessageMove(
            handle=self._ids.make_handle(),
            source_arn=source.arn,
            destination_arn=params.get("DestinationArn") or "",
            per_second=read_number(params, "MaxNumberOfMessagesPerSecond", 0),
            started_at=source.now,
            started_ms=source.wall_ms,
            to_move=sum(1 for _ in source.ready_messages()),
        )
        self._tasks.append(task)
        self.move_due()
        return {"TaskHandle": task.handle}

    def list_tasks(self, region: str, params: Params) -> Response:
        """Handle ListMessageMoveTasks."""
        source = self._find_queue(params["SourceArn"], "SourceArn")
        limit = read_number(params, "MaxResults", 1)
        tasks = [task for task in self._tasks if task.source_arn == source.arn]
        return {"Results": [task.to_response() for task in tasks[::-1][:limit]]}

    def move_due(self) -> None:
        """Move the messages that are due by now."""
        now = self._clock.monotonic()
        for task in self._tasks:
            while task.next_at <= now:
                self._step(task)

    def next_change_at(self) -> float:
        """Return when the next message moves; infinity if no task is running."""
        return min((task.next_at for task in self._tasks), default=float("inf"))

    def _step(self, task: MessageMove) -> None:
        """Move one message, or end the task."""
        source = self._registry.find_by_arn(task.source_arn)
        waiting = next(source.ready_messages(), None) if source else None
        if source is None or waiting is None or task.moved >= task.to_move:
            task.status = "COMPLETED"
            return
        number, message = waiting
        target_arn = task.destination_arn or message.source_arn
        target = self._registry.find_by_arn(target_arn)
        if target is None:
            task.status = "FAILED"
            task.failure = NO_QUEUE if target_arn else "CouldNotDetermineMessageSource"
            return
        message_id = self._ids.make_uuid()
        target.add(source.pop(number).redriven(message_id, target.now, target.wall_ms))
        task.moved += 1

    def _find_queue(self, arn: str, parameter: str) -> SimulatedQueue:
        queue = self._registry.find_by_arn(arn)
        if queue is None:
            raise ServiceError(
                "ResourceNotFoundException",
                f"The resource that you specified for the {parameter} parameter doesn't exist.",
            )
        return queue
