"""Conversations in a Lambda function: built with the first event, and kept for the next.

Nothing is built at import. A function that is only being published has no tables and no
secrets yet, and an error there would hide the log line that says what is missing.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any

from holdfast.aws.lambdas.batch import (
    BatchResponse,
    EntryPoint,
    log_safe_error,
    report_failures,
    seconds_left,
    sqs_batch,
)
from holdfast.chat.messages import Inbound, Trigger
from holdfast.chat.model import ConversationPolicy
from holdfast.errors import ConfigError, HoldfastError
from holdfast.events import Events
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.queue.event_log import EventLog
from holdfast.queue.message import QueueMessage
from holdfast.queues.settings import SqsSettings
from holdfast.settings import read_settings
from holdfast.telemetry.setup import make_telemetry
from holdfast.urls import QUEUES, parse_url
from holdfast.worker.handler import Handler

if TYPE_CHECKING:
    from holdfast.chat.building import ChatApp

RESERVE_SECONDS = 5.0
_START_SECONDS = 10.0  # the part of the first invocation that a cold start may take
_STORE_SECONDS = 20.0  # of one batch, for everything except the calls that write and send

_log = logging.getLogger("holdfast")


class ChatRuntime:
    """The chat application of this process, with what only Lambda needs.

    Lambda calls a function in one thread. If something cannot be built, the next event tries
    again.
    """

    def __init__(self, env: Mapping[str, str] | None = None, clock: Clock = SYSTEM_CLOCK):
        self.env = os.environ if env is None else env
        self.clock = clock
        self._entry_points: dict[tuple[type[QueueMessage], str], EntryPoint] = {}

    @cached_property
    def events(self) -> Events:
        """The events of this process, which go to the application's log.

        Tracebacks are left out, because an exception may quote what a customer wrote.
        """
        log = EventLog(min_level=logging.INFO, tracebacks=False)
        return Events(log, *make_telemetry(self.env))

    def flush_events(self) -> None:
        """Let metrics be written, because Lambda may freeze the process now."""
        if "events" in vars(self):
            self.events.flush()

    @cached_property
    def app(self) -> "ChatApp":
        """The application. Raises ConfigError or StoreUnavailable."""
        from holdfast.chat.building import build_chat

        return build_chat(self.env, clock=self.clock, events=self.events)

    # -- the functions

    def stage_batch(self, event: Any, context: Any) -> BatchResponse:
        """Stage the messages that producers push to an SQS queue."""
        return self._handle_batch(event, context, Inbound)

    def answer_batch(self, event: Any, context: Any) -> BatchResponse:
        """Answer the conversations of the triggers in the event."""
        try:
            return self._handle_batch(event, context, Trigger)
        finally:
            # Between two events the keeper has nothing to renew. A handler that was cut off and
            # still runs keeps its lock, and its keeper is not stopped, because this would wait
            # for a call that may hang.
            if "app" in vars(self) and not self.app.keeper.held:
                self.app.keeper.stop()

    def sweep(self, event: Any, context: Any) -> dict[str, float]:
        """Sweep once, and return the counts.

        It raises the errors of the sweep, so that alarms can use the function's error count.
        Lambda retries by itself, and a second sweep is safe.
        """
        try:
            return asdict(self.app.sweeper.sweep())
        except HoldfastError:
            raise
        except Exception as error:  # Lambda logs the error, whose text may contain a number
            raise HoldfastError(f"the sweep failed: {type(error).__name__}") from None
        finally:
            self.flush_events()

    # -- batches from SQS

    def _handle_batch(
        self, event: Any, context: Any, model: type[QueueMessage]
    ) -> BatchResponse:
        """Handle the batch in the event, and return its failures.

        It never raises. After any error, every record that is not certainly done is reported
        as a failure. Each queue is opened once, with the settings of its URL in the chat
        configuration. If the function's timeout is shorter than one trigger may take, each
        batch logs an error, because the function would release every message unstarted,
        forever.
        """
        left = seconds_left(context)  # before anything is built
        try:
            is_trigger = model is Trigger
            seconds = max_batch_seconds(self.app.settings.policy) if is_trigger else None
            check_time(left, seconds)
            name = _get_text(next(iter(_get_records(event)), None), "eventSourceARN")
            name = name.rpartition(":")[2]
            if (model, name) not in self._entry_points:
                handler = self.app.processor if is_trigger else self.app.stager
                made = self._make_entry_point(name, model, handler, seconds)
                self._entry_points[model, name] = made
            return self._entry_points[model, name](event, context)
        except Exception as error:  # Lambda would treat it as the failure of all records
            ids = _list_record_ids(event)
            _log.error("batch_failed records=%d error=%s", len(ids), log_safe_error(error))
            return report_failures(ids)

    def _make_entry_point(
        self, name: str, model: type[QueueMessage], handler: Handler, seconds: float | None
    ) -> EntryPoint:
        settings = source_settings(self.app, name, self.env)
        return sqs_batch(
            handler,
            model,
            events=self.events,
            reserve_seconds=RESERVE_SECONDS,
            timeout_seconds=seconds,
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


def max_batch_seconds(policy: ConversationPolicy) -> float:
    """Return the maximum time of one batch; none is started with less time left.

    A batch that is cut off between two steps would continue from there, but a minute of
    waiting would be lost.
    """
    return policy.writer_seconds + policy.sender_seconds + _STORE_SECONDS


def check_time(left_seconds: float, work_seconds: float | None) -> None:
    """Raise ConfigError if the function has too little time for one message."""
    needed = (work_seconds or 0.0) + RESERVE_SECONDS
    if left_seconds < needed:
        raise ConfigError(
            f"the function has {left_seconds:.0f} s, but one message may take {needed:.0f} s: "
            f"set its timeout to {needed + _START_SECONDS:.0f} s or more, or lower "
            "HOLDFAST_CHAT_WRITER_SECONDS and HOLDFAST_CHAT_SENDER_SECONDS"
        )


def _get_records(event: Any) -> list[Any]:
    """Return the records of an event that may be malformed."""
    records = event.get("Records") if isinstance(event, Mapping) else None
    return records if isinstance(records, list) else []


def _list_record_ids(event: Any) -> list[str]:
    ids = [_get_text(record, "messageId") for record in _get_records(event)]
    return [message_id for message_id in dict.fromkeys(ids) if message_id]


def _get_text(record: Any, name: str) -> str:
    value = record.get(name) if isinstance(record, Mapping) else None
    return value if isinstance(value, str) else ""
