"""StartMessageMoveTask and ListMessageMoveTasks, which move dead letters back.

Without a rate a task is done when its call returns. With `MaxNumberOfMessagesPerSecond` it
follows the clock, and moves the first message one step after the start.
"""

from dataclasses import dataclass
from typing import Any

from holdfast.core.clock import Clock
from holdfast.testing.sqs.batch import Response
from holdfast.testing.sqs.errors import NO_QUEUE, ServiceError, invalid_value_error
from holdfast.testing.sqs.message import IdSource
from holdfast.testing.sqs.queue import SimulatedQueue
from holdfast.testing.sqs.registry import QueueRegistry

MAX_LISTED = 10
MAX_PER_SECOND = 500


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
        self._registry = registry
        self._clock = clock
        self._ids = ids
        self._tasks: list[MessageMove] = []

    def start(self, region: str, params: dict[str, Any]) -> Response:
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
        task = self._make_task(source, params)
        self._tasks.append(task)
        self.move_due()
        return {"TaskHandle": task.handle}

    def list_tasks(self, region: str, params: dict[str, Any]) -> Response:
        """Handle ListMessageMoveTasks."""
        source = self._find_queue(params["SourceArn"], "SourceArn")
        limit = params.get("MaxResults") or 1
        if not 1 <= limit <= MAX_LISTED:
            raise invalid_value_error(
                f"Value for parameter MaxResults is invalid: 1 to {MAX_LISTED}."
            )
        tasks = [task for task in self._tasks if task.source_arn == source.arn]
        return {"Results": [task.to_response() for task in tasks[::-1][:limit]]}

    def move_due(self) -> None:
        """Move the messages that are due by now."""
        now = self._clock.monotonic()
        for task in self._tasks:
            while task.next_at <= now:
                self._step(task, now)

    def next_change_at(self) -> float:
        """Return when the next message moves; infinity if no task is running."""
        return min((task.next_at for task in self._tasks), default=float("inf"))

    def _make_task(self, source: SimulatedQueue, params: dict[str, Any]) -> MessageMove:
        now = self._clock.monotonic()
        per_second = params.get("MaxNumberOfMessagesPerSecond") or 0
        if not 0 <= per_second <= MAX_PER_SECOND:
            raise invalid_value_error(
                "Value for parameter MaxNumberOfMessagesPerSecond is invalid."
            )
        return MessageMove(
            handle=self._ids.make_handle(),
            source_arn=source.arn,
            destination_arn=params.get("DestinationArn") or "",
            per_second=per_second,
            started_at=now,
            started_ms=int(self._clock.time() * 1000),
            to_move=sum(1 for _ in source.ready_messages(now)),
        )

    def _step(self, task: MessageMove, now: float) -> None:
        """Move one message, or end the task."""
        source = self._registry.find_by_arn(task.source_arn)
        waiting = next(source.ready_messages(now), None) if source else None
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
        wall_ms = int(self._clock.time() * 1000)
        target.add(source.pop(number).redriven(self._ids.make_uuid(), now, wall_ms))
        task.moved += 1

    def _find_queue(self, arn: str, parameter: str) -> SimulatedQueue:
        queue = self._registry.find_by_arn(arn)
        if queue is None:
            raise ServiceError(
                "ResourceNotFoundException",
                f"The resource that you specified for the {parameter} parameter doesn't exist.",
            )
        return queue
