"""Batches from SQS, for the functions of conversations. Whatever goes wrong, they answer:
what is not surely done is among the failures, and nothing is raised."""

from collections.abc import Callable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from holdfast.config.settings import SqsSettings, queue_settings
from holdfast.core.errors import ConfigError
from holdfast.core.queue.message import QueueMessage
from holdfast.core.worker.handler import Handler
from holdfast.lambdas.batch import EntryPoint, sqs_batch
from holdfast.lambdas.chat import ChatRuntime, log, told
from holdfast.lambdas.deadlines import seconds_left
from holdfast.lambdas.event import BatchResponse, response

if TYPE_CHECKING:
    from holdfast.bootstrap.chats import ChatApp

RESERVE_SECONDS = 5.0
_START_SECONDS = 10.0  # what a cold start may take, of the first invocation's time


class EventSources:
    """The event sources of one function. Each queue is opened once, with the settings that
    its URL has among those of the conversations. Safe for threads.

    `work_seconds`: the longest a message may take. A function that never has so long is
    told about, with each batch: it would give back every message unstarted, for ever.
    """

    def __init__(
        self,
        chat: ChatRuntime,
        handler: "Callable[[ChatApp], Handler]",
        model: type[QueueMessage],
        work_seconds: "Callable[[ChatApp], float | None]" = lambda app: None,
    ) -> None:
        self._chat, self._handler, self._model = chat, handler, model
        self._work_seconds = work_seconds
        self._opening = Lock()
        self._opened: dict[str, EntryPoint] = {}

    def handle(self, event: Any, context: Any) -> BatchResponse:
        left = seconds_left(context)  # before anything is put together
        try:
            check_time(left, self._work_seconds(self._chat.app))
            return self._of(_queue_name(event))(event, context)
        except Exception as error:  # Lambda would take it for the failure of all
            ids = record_ids(event)
            log.error("batch_failed records=%d error=%s", len(ids), told(error))
            return response(ids)

    def _of(self, name: str) -> EntryPoint:
        with self._opening:
            if name not in self._opened:
                self._opened[name] = self._open(name)
            return self._opened[name]

    def _open(self, name: str) -> EntryPoint:
        app = self._chat.app
        settings = source_settings(app, name, self._chat.env)
        return sqs_batch(
            self._handler(app),
            self._model,
            events=self._chat.events,
            reserve_seconds=RESERVE_SECONDS,
            timeout_seconds=self._work_seconds(app),
            lease_seconds=settings.lease_seconds,
            max_attempts=settings.max_attempts,
            on_nack=settings.on_nack,
            dead_letters=settings.dead_letters,
        )


def source_settings(app: "ChatApp", name: str, env: Mapping[str, str]) -> SqsSettings:
    """As the queue of that name has them where triggers are pushed: both ends must agree
    on `max_attempts`, or a batch is a dead letter before it is parked."""
    urls = [*app.settings.queue_urls.values(), app.settings.inbound_queue or ""]
    for url in urls:
        address, _, query = url.partition("?")
        if address.rpartition("/")[2].removeprefix("sqs:") == name:
            return queue_settings(env, dict(parse_qsl(query)), {}, SqsSettings)
    return queue_settings(env, {}, {}, SqsSettings)


def check_time(left_seconds: float, work_seconds: float | None) -> None:
    """Raises ConfigError."""
    needed = (work_seconds or 0.0) + RESERVE_SECONDS
    if left_seconds < needed:
        raise ConfigError(
            f"the function has {left_seconds:.0f} s, and one message may take {needed:.0f}: "
            f"set its timeout to {needed + _START_SECONDS:.0f} s or more, or lower "
            "HOLDFAST_CHAT_WRITER_SECONDS and HOLDFAST_CHAT_SENDER_SECONDS"
        )


def record_ids(event: Any) -> list[str]:
    """Of a batch that may be no batch at all; each once."""
    records = event.get("Records") if isinstance(event, Mapping) else None
    found = [_text(one, "messageId") for one in records] if isinstance(records, list) else []
    return [one for one in dict.fromkeys(found) if one]


def _queue_name(event: Any) -> str:
    records = event.get("Records") if isinstance(event, Mapping) else None
    first = records[0] if isinstance(records, list) and records else None
    return _text(first, "eventSourceARN").rpartition(":")[2]


def _text(record: Any, name: str) -> str:
    value = record.get(name) if isinstance(record, Mapping) else None
    return value if isinstance(value, str) else ""
