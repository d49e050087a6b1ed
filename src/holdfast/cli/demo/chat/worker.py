"""A worker process of the chat scenario: `python -m …chat.worker [--hold]`.

The processor, the queue, the store and the outbox folder are the real ones. The writer is
slow. With --hold the reply is never sent, because once it is written the worker waits where
it would get a sender, until it is killed.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event as ThreadEvent
from typing import Any

from holdfast.bootstrap.chats import ChatApp, build_chat
from holdfast.cli.demo.chat.customer import KEY
from holdfast.cli.demo.chat.effect_log import EffectLog
from holdfast.cli.foreground import ForegroundRunner
from holdfast.cli.observability import subscribe_log
from holdfast.cli.status_line import EventCounts, NoStatus
from holdfast.cli.work import RunnableWorker
from holdfast.conversations.messages import Trigger
from holdfast.conversations.outbox import SentPart, WriterAnswer
from holdfast.conversations.ports import (
    ProviderSource,
    ReplyPart,
    ReplyRequest,
    ReplySender,
    ReplyWriter,
    SecretStore,
)
from holdfast.conversations.processor import BatchProcessor
from holdfast.conversations.secret import Secret
from holdfast.core.clock import SYSTEM_CLOCK
from holdfast.core.events import Event, Events, WorkerStopping
from holdfast.core.worker.worker import Worker

HOLD = "--hold"
_WRITING_SECONDS = 0.9
_DRAIN_SECONDS = 5.0
_FOREVER_SECONDS = 3600.0


class SlowWriter:
    """A writer that takes a while and records its calls."""

    secret_fields: tuple[str, ...] = ()

    def __init__(self, writer: ReplyWriter, effects: EffectLog) -> None:
        self._writer, self._effects = writer, effects

    def open_thread(self, config: Mapping[str, Any], secret: Secret) -> str:
        """Open a thread with the real writer."""
        return self._writer.open_thread(config, secret)

    def write(
        self,
        question: ReplyRequest,
        config: Mapping[str, Any],
        secret: Secret,
        *,
        timeout_seconds: float,
    ) -> WriterAnswer:
        """Write a reply, slowly."""
        self._effects.record("asked", question.text)
        SYSTEM_CLOCK.sleep(_WRITING_SECONDS)
        answer = self._writer.write(question, config, secret, timeout_seconds=timeout_seconds)
        self._effects.record("written", answer.text)
        return answer


class RecordedSender:
    """A sender that records each reply."""

    secret_fields: tuple[str, ...] = ()

    def __init__(self, sender: ReplySender, effects: EffectLog) -> None:
        self._sender, self._effects = sender, effects
        self.repeatable = sender.repeatable

    @contextmanager
    def connect(
        self, part: ReplyPart, secret: Secret, *, timeout_seconds: float
    ) -> Iterator[Callable[[], SentPart]]:
        """Connect the real sender."""
        with self._sender.connect(part, secret, timeout_seconds=timeout_seconds) as send:
            yield partial(self._send_recorded, part, send)

    def _send_recorded(self, part: ReplyPart, send: Callable[[], SentPart]) -> SentPart:
        self._effects.record("sent", part.text)
        return send()

    def find(
        self, part: ReplyPart, secret: Secret, *, since: float, known: Sequence[str]
    ) -> SentPart | None:
        """Find a part with the real sender."""
        return self._sender.find(part, secret, since=since, known=known)


class DemoProviders:
    """The real providers, slowed down and recorded.

    With `hold`, no sender is returned after a reply was written. By then the reply is stored
    as prepared, and no part of it is sent.
    """

    def __init__(self, real: ProviderSource, effects: EffectLog, hold: bool) -> None:
        self._real, self._effects, self._hold = real, effects, hold
        self._stopping = ThreadEvent()

    @property
    def secrets(self) -> SecretStore:
        """Return the real secrets."""
        return self._real.secrets

    def writer(self, name: str) -> ReplyWriter:
        """Return the writer of that name."""
        return SlowWriter(self._real.writer(name), self._effects)

    def sender(self, name: str) -> ReplySender:
        """Return the sender of that name, or wait if the reply is to be held."""
        # The processor also gets a sender before a reply is written, to check the profile.
        if self._hold and self._effects.read_texts("written"):
            self._effects.record("held")
            SYSTEM_CLOCK.wait(self._stopping, _FOREVER_SECONDS)
        return RecordedSender(self._real.sender(name), self._effects)

    def handle_event(self, event: Event) -> None:
        """Stop waiting when the worker stops."""
        if isinstance(event, WorkerStopping):
            self._stopping.set()


def main(arguments: Sequence[str]) -> None:
    """Work until a signal stops the process."""
    counts, events = EventCounts(), Events()
    events.subscribe(counts)
    subscribe_log(events, "json")
    with build_chat(os.environ, events=events) as app:
        effects = EffectLog(Path(app.settings.data_dir))
        providers = DemoProviders(app.providers, effects, hold=HOLD in arguments)
        events.subscribe(providers.handle_event)
        app.keeper.start()
        worker = _build_worker(app, providers, events)
        runnable = RunnableWorker(worker, counts, until_empty=False)
        ForegroundRunner(runnable, NoStatus(), _DRAIN_SECONDS).run()


def _build_worker(app: ChatApp, providers: DemoProviders, events: Events) -> Worker[Trigger]:
    processor = BatchProcessor(
        app.store,
        providers,
        app.queues,
        keeper=app.keeper,
        policy=app.settings.policy,
        events=events,
    )
    return Worker(
        app.queues[KEY.channel],
        processor,
        drain_seconds=_DRAIN_SECONDS,
        keeper=app.keeper,
        events=events,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
