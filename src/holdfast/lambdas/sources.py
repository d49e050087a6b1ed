"""Batches from SQS, for the functions of conversations.

They never raise. After any error, every record that is not certainly done is reported as a
failure.
"""

from collections.abc import Callable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any

from holdfast.config.queue import SqsSettings
from holdfast.config.reading import read_settings
from holdfast.core.errors import ConfigError
from holdfast.core.queue.message import QueueMessage
from holdfast.core.urls import QUEUES, parse_url
from holdfast.core.worker.handler import Handler
from holdfast.lambdas.batch import EntryPoint, sqs_batch
from holdfast.lambdas.chat import ChatRuntime, log, log_safe_error
from holdfast.lambdas.deadlines import seconds_left
from holdfast.lambdas.event import BatchResponse, report_failures

if TYPE_CHECKING:
    from holdfast.bootstrap.chats import ChatApp

RESERVE_SECONDS = 5.0
_START_SECONDS = 10.0  # the part of the first invocation that a cold start may take


class EventSources:
    """The event sources of one function. It is safe for threads.

    Each queue is opened once, with the settings of its URL in the chat configuration.
    `work_seconds` is the maximum time of one message. If the function's timeout is shorter,
    each batch logs an error, because the function would release every message unstarted,
    forever.
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
        """Handle the batch in the event, and return its failures."""
        left = seconds_left(context)  # before anything is built
        try:
            check_time(left, self._work_seconds(self._chat.app))
            return self._get_entry_point(_get_queue_name(event))(event, context)
        except Exception as error:  # Lambda would treat it as the failure of all records
            ids = record_ids(event)
            log.error("batch_failed records=%d error=%s", len(ids), log_safe_error(error))
            return report_failures(ids)

    def _get_entry_point(self, name: str) -> EntryPoint:
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
    """Return the settings with which triggers are pushed to the queue of that name.

    Both ends must agree on `max_attempts`, or a batch is dead-lettered before it is parked.
    """
    urls = [*app.settings.queue_urls.values(), app.settings.inbound_queue or ""]
    for url in urls:
        parsed = parse_url(url, QUEUES)
        if parsed.path.rpartition("/")[2] == name:
            return read_settings(SqsSettings, env, parsed.options)
    return read_settings(SqsSettings, env)


def check_time(left_seconds: float, work_seconds: float | None) -> None:
    """Raise ConfigError if the function has too little time for one message."""
    needed = (work_seconds or 0.0) + RESERVE_SECONDS
    if left_seconds < needed:
        raise ConfigError(
            f"the function has {left_seconds:.0f} s, but one message may take {needed:.0f} s: "
            f"set its timeout to {needed + _START_SECONDS:.0f} s or more, or lower "
            "HOLDFAST_CHAT_WRITER_SECONDS and HOLDFAST_CHAT_SENDER_SECONDS"
        )


def record_ids(event: Any) -> list[str]:
    """Return the message ids in an event that may be malformed, each once."""
    records = event.get("Records") if isinstance(event, Mapping) else None
    if not isinstance(records, list):
        return []
    ids = [_get_text(record, "messageId") for record in records]
    return [message_id for message_id in dict.fromkeys(ids) if message_id]


def _get_queue_name(event: Any) -> str:
    records = event.get("Records") if isinstance(event, Mapping) else None
    first = records[0] if isinstance(records, list) and records else None
    return _get_text(first, "eventSourceARN").rpartition(":")[2]


def _get_text(record: Any, name: str) -> str:
    value = record.get(name) if isinstance(record, Mapping) else None
    return value if isinstance(value, str) else ""
