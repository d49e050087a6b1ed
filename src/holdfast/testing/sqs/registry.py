"""The queues of all regions, by name: make, find, configure, delete."""

import re
from collections.abc import Iterator
from typing import Any

from holdfast.core.clock import Clock
from holdfast.testing.sqs.attributes import MEASURED, READABLE, QueueAttributes, bad_policy
from holdfast.testing.sqs.errors import ServiceError, bad_value, batch_refused, no_such_queue
from holdfast.testing.sqs.ids import IdSource
from holdfast.testing.sqs.queue import SimulatedQueue

ACCOUNT = "123456789012"

# What AWS asks you to wait between two deletions or purges of one name.
COOLING_SECONDS = 60.0

_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")

Params = dict[str, Any]
Answer = dict[str, Any]


class QueueRegistry:
    """Called under the service's lock."""

    def __init__(self, clock: Clock, mint: IdSource) -> None:
        self._clock = clock
        self._mint = mint
        self._queues: dict[tuple[str, str], SimulatedQueue] = {}
        self._stamps: dict[str, dict[str, str]] = {}  # by ARN: made and changed when
        self._deleted_at: dict[tuple[str, str], float] = {}
        self._purged_at: dict[str, float] = {}

    # -- finding

    def find(self, region: str, url: str) -> SimulatedQueue:
        """By URL in the client's region: one of another region is not there."""
        queue = self._queues.get((region, url.rsplit("/", 1)[-1]))
        # A bare name will do. A URL must be this queue's, region and account included.
        if queue is None or url not in (queue.name, queue.url):
            raise no_such_queue()
        return queue

    def by_name(self, name: str) -> SimulatedQueue:
        """In any region: for tests, who know what they made."""
        for (_, known), queue in self._queues.items():
            if known == name:
                return queue
        raise ValueError(f"there is no queue {name!r}")

    def by_arn(self, arn: str) -> SimulatedQueue | None:
        return next((queue for queue in self._queues.values() if queue.arn == arn), None)

    def sources_of(self, dead_letters: SimulatedQueue) -> Iterator[SimulatedQueue]:
        """The queues whose redrive policy names this one."""
        for queue in self._queues.values():
            redrive = queue.settings.redrive
            if redrive is not None and redrive.target_arn == dead_letters.arn:
                yield queue

    # -- operations

    def create(self, region: str, params: Params) -> Answer:
        name, attributes = params["QueueName"], params.get("Attributes") or {}
        _check_name(name, is_fifo=attributes.get("FifoQueue") == "true")
        settings = QueueAttributes.of(attributes)
        if (known := self._queues.get((region, name))) is not None:
            return {"QueueUrl": _unchanged(known, attributes).url}
        self._check_not_just_deleted(region, name)
        queue = SimulatedQueue(name, region, ACCOUNT, settings, self._mint)
        self._check_redrive(queue, settings)
        self._queues[region, name] = queue
        self._stamps[queue.arn] = {"CreatedTimestamp": self._wall()}
        self._touch(queue)
        return {"QueueUrl": queue.url}

    def delete(self, region: str, params: Params) -> Answer:
        queue = self.find(region, params["QueueUrl"])
        del self._queues[region, queue.name]
        self._deleted_at[region, queue.name] = self._clock.monotonic()
        queue.wake()
        return {}

    def get_url(self, region: str, params: Params) -> Answer:
        queue = self._queues.get((region, params["QueueName"]))
        if queue is None or params.get("QueueOwnerAWSAccountId", ACCOUNT) != ACCOUNT:
            raise no_such_queue()
        return {"QueueUrl": queue.url}

    def list_all(self, region: str, params: Params) -> Answer:
        prefix = params.get("QueueNamePrefix") or ""
        urls = sorted(
            queue.url
            for (known_region, name), queue in self._queues.items()
            if known_region == region and name.startswith(prefix)
        )
        return _page("QueueUrls", urls, params)

    def get_attributes(self, region: str, params: Params) -> Answer:
        queue = self.find(region, params["QueueUrl"])
        names = params.get("AttributeNames") or []
        if unknown := [name for name in names if name not in READABLE]:
            raise ServiceError("InvalidAttributeName", f"Unknown Attribute {unknown[0]}.")
        known = {**queue.settings.texts, **self._measured(queue)}
        shown = {n: v for n, v in known.items() if n in names or "All" in names}
        return {"Attributes": shown} if shown else {}

    def set_attributes(self, region: str, params: Params) -> Answer:
        queue = self.find(region, params["QueueUrl"])
        settings = queue.settings.changed(params["Attributes"])
        self._check_redrive(queue, settings)
        queue.settings = settings
        self._touch(queue)
        queue.wake()
        return {}

    def purge(self, region: str, params: Params) -> Answer:
        queue, now = self.find(region, params["QueueUrl"]), self._clock.monotonic()
        if now - self._purged_at.get(queue.arn, -COOLING_SECONDS) < COOLING_SECONDS:
            raise batch_refused(
                "PurgeQueueInProgress",
                f"Only one PurgeQueue operation on {queue.name} is allowed every 60 seconds.",
            )
        self._purged_at[queue.arn] = now
        queue.clear()
        return {}

    def list_sources(self, region: str, params: Params) -> Answer:
        queue = self.find(region, params["QueueUrl"])
        urls = sorted(source.url for source in self.sources_of(queue))
        # AWS spells this one with a small letter, and always gives it.
        return {"queueUrls": [], **_page("queueUrls", urls, params)}

    # -- checks and measures

    def _check_not_just_deleted(self, region: str, name: str) -> None:
        deleted_at = self._deleted_at.get((region, name), float("-inf"))
        if self._clock.monotonic() - deleted_at < COOLING_SECONDS:
            raise batch_refused(
                "QueueDeletedRecently",
                "You must wait 60 seconds after deleting a queue before you can create "
                "another with the same name.",
            )

    def _check_redrive(self, queue: SimulatedQueue, settings: QueueAttributes) -> None:
        if settings.redrive is None:
            return
        text = settings.texts["RedrivePolicy"]
        target = self.by_arn(settings.redrive.target_arn)
        if target is None:
            raise bad_policy(text, "Dead letter target does not exist.")
        if target.settings.is_fifo != settings.is_fifo:
            raise bad_policy(
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
        raise bad_value(
            "Can only include alphanumeric characters, hyphens, or underscores. "
            "1 to 80 in length"
        )
    if name.endswith(".fifo") != is_fifo:
        raise bad_value("The name of a FIFO queue can only end in .fifo, and must.")


def _unchanged(known: SimulatedQueue, attributes: dict[str, str]) -> SimulatedQueue:
    """Making the same queue again is no change; making it otherwise is refused."""
    for name, value in attributes.items():
        if known.settings.texts.get(name) != value:
            raise ServiceError(
                "QueueAlreadyExists",
                "A queue already exists with the same name and a different value "
                f"for attribute {name}",
            )
    return known


def _page(name: str, urls: list[str], params: Params) -> Answer:
    start = int(params.get("NextToken") or 0)
    end = start + (params.get("MaxResults") or 1000)
    answer: Answer = {name: urls[start:end]} if urls[start:end] else {}
    # AWS pages only for those who say how long a page is.
    if params.get("MaxResults") and end < len(urls):
        answer["NextToken"] = str(end)
    return answer
