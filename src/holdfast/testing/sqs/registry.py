"""The queues by name: create, find, configure and delete."""

import re
from typing import Any

from holdfast.lease.clock import Clock
from holdfast.testing.sqs.errors import (
    QUEUE_MISSING,
    ServiceError,
    invalid_value_error,
    out_of_range_error,
)
from holdfast.testing.sqs.message import IdSource
from holdfast.testing.sqs.queue import QueueAttributes, SimulatedQueue

ACCOUNT = "123456789012"
REGION = "us-east-1"

_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")

Params = dict[str, Any]
Response = dict[str, Any]


class QueueRegistry:
    """All queues. The caller must hold the service's lock."""

    def __init__(self, clock: Clock, ids: IdSource) -> None:
        self._clock, self._ids = clock, ids
        self._queues: dict[str, SimulatedQueue] = {}

    # -- finding

    def find(self, url: str) -> SimulatedQueue:
        """Return the queue with this URL; raise if there is none."""
        queue = self._queues.get(url.rsplit("/", 1)[-1])
        # A bare name is enough. A URL must be this queue's, including region and account.
        if queue is None or url not in (queue.name, queue.url):
            raise ServiceError(*QUEUE_MISSING)
        return queue

    def find_by_name(self, name: str) -> SimulatedQueue:
        """Return the queue with this name. Only for tests."""
        if name not in self._queues:
            raise ValueError(f"there is no queue {name!r}")
        return self._queues[name]

    def find_by_arn(self, arn: str) -> SimulatedQueue | None:
        """Return the queue with this ARN, or None."""
        return next((queue for queue in self._queues.values() if queue.arn == arn), None)

    # -- operations

    def create(self, params: Params) -> Response:
        """Handle CreateQueue."""
        name, attributes = params["QueueName"], params.get("Attributes") or {}
        _check_name(name, is_fifo=attributes.get("FifoQueue") == "true")
        settings = QueueAttributes.of(attributes)
        if (existing := self._queues.get(name)) is not None:
            return {"QueueUrl": _check_unchanged(existing, attributes).url}
        self._check_redrive(settings)
        queue = SimulatedQueue(name, REGION, ACCOUNT, settings, self._clock, self._ids)
        self._queues[name] = queue
        return {"QueueUrl": queue.url}

    def delete(self, queue: SimulatedQueue, params: Params) -> Response:
        """Handle DeleteQueue."""
        del self._queues[queue.name]
        queue.wake()
        return {}

    def get_url(self, params: Params) -> Response:
        """Handle GetQueueUrl."""
        queue = self._queues.get(params["QueueName"])
        if queue is None or params.get("QueueOwnerAWSAccountId", ACCOUNT) != ACCOUNT:
            raise ServiceError(*QUEUE_MISSING)
        return {"QueueUrl": queue.url}

    def list_all(self, params: Params) -> Response:
        """Handle ListQueues."""
        prefix = params.get("QueueNamePrefix") or ""
        found = (q for name, q in self._queues.items() if name.startswith(prefix))
        urls = sorted(queue.url for queue in found)
        start = int(params.get("NextToken") or 0)
        end = start + (params.get("MaxResults") or 1000)
        response: Response = {"QueueUrls": urls[start:end]} if urls[start:end] else {}
        # AWS pages only if the request has MaxResults.
        if params.get("MaxResults") and end < len(urls):
            response["NextToken"] = str(end)
        return response

    def get_attributes(self, queue: SimulatedQueue, params: Params) -> Response:
        """Handle GetQueueAttributes."""
        names = params.get("AttributeNames") or ()
        all_attributes = {**queue.settings.texts, **queue.measure()}
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
        queue.clear()
        return {}

    # -- checks

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
