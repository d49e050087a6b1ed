"""The queues of all regions, by name: create, find, configure, delete."""

import re
from collections.abc import Iterator
from typing import Any

from holdfast.core.clock import Clock
from holdfast.testing.sqs.attributes import (
    MEASURED,
    READABLE,
    QueueAttributes,
    invalid_policy_error,
)
from holdfast.testing.sqs.errors import (
    ServiceError,
    invalid_value_error,
    queue_missing_error,
    sqs_error,
)
from holdfast.testing.sqs.message import IdSource
from holdfast.testing.sqs.queue import SimulatedQueue

ACCOUNT = "123456789012"

# The wait that AWS requires between two deletions or purges of one name.
COOLDOWN_SECONDS = 60.0

_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")

Params = dict[str, Any]
Response = dict[str, Any]


class QueueRegistry:
    """All queues. The caller must hold the service's lock."""

    def __init__(self, clock: Clock, ids: IdSource) -> None:
        self._clock = clock
        self._ids = ids
        self._queues: dict[tuple[str, str], SimulatedQueue] = {}
        self._stamps: dict[str, dict[str, str]] = {}  # creation and change times, by ARN
        self._cooldowns: dict[tuple[str, ...], float] = {}  # their ends

    # -- finding

    def find(self, region: str, url: str) -> SimulatedQueue:
        """Return the queue with this URL in the client's region; raise if there is none."""
        queue = self._queues.get((region, url.rsplit("/", 1)[-1]))
        # A bare name is enough. A URL must be this queue's, including region and account.
        if queue is None or url not in (queue.name, queue.url):
            raise queue_missing_error()
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
        queue = SimulatedQueue(name, region, ACCOUNT, settings, self._ids)
        self._check_redrive(queue, settings)
        self._queues[region, name] = queue
        self._stamps[queue.arn] = {"CreatedTimestamp": self._wall()}
        self._touch(queue)
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
            raise queue_missing_error()
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
        names = params.get("AttributeNames") or []
        if unknown := [name for name in names if name not in READABLE]:
            raise ServiceError("InvalidAttributeName", f"Unknown Attribute {unknown[0]}.")
        all_attributes = {**queue.settings.texts, **self._measured(queue)}
        selected = {n: v for n, v in all_attributes.items() if n in names or "All" in names}
        return {"Attributes": selected} if selected else {}

    def set_attributes(self, queue: SimulatedQueue, params: Params) -> Response:
        """Handle SetQueueAttributes."""
        settings = queue.settings.changed(params["Attributes"])
        self._check_redrive(queue, settings)
        queue.settings = settings
        self._touch(queue)
        queue.wake()
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

    def _check_redrive(self, queue: SimulatedQueue, settings: QueueAttributes) -> None:
        if settings.redrive is None:
            return
        text = settings.texts["RedrivePolicy"]
        target = self.find_by_arn(settings.redrive.target_arn)
        if target is None:
            raise invalid_policy_error(text, "Dead letter target does not exist.")
        if target.settings.is_fifo != settings.is_fifo:
            raise invalid_policy_error(
                text, "Dead-letter queue must be same type of queue as the source."
            )

    def _measured(self, queue: SimulatedQueue) -> dict[str, str]:
        counts = queue.counts(self._clock.monotonic())
        measured = {**counts, **self._stamps[queue.arn], "QueueArn": queue.arn}
        return {name: measured[name] for name in MEASURED}

    def _touch(self, queue: SimulatedQueue) -> None:
        self._stamps[queue.arn]["LastModifiedTimestamp"] = self._wall()

    def _wall(self) -> str:
        return str(int(self._clock.time()))


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
