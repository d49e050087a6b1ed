"""A worker of the third act, in a process of its own: `python -m …chat.worker [--hold]`.

The processor, the queue, the store and the outbox folder are the real ones. The writer
thinks for a while, and with --hold the reply is never sent: once it is written, the worker
waits where it would be handed a sender, to be killed there.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event as Flag
from typing import Any

from holdfast.bootstrap.chats import ChatApp, build_chat
from holdfast.cli.demo.chat.customer import KEY
from holdfast.cli.demo.chat.ledger import EffectLog
from holdfast.cli.foreground import ForegroundRunner
from holdfast.cli.status_line import EventCounts, NoStatus
from holdfast.cli.watching import log_lines
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
_THINKING_SECONDS = 0.9
_DRAIN_SECONDS = 5.0
_FOREVER_SECONDS = 3600.0


class SlowWriter:
    """Thinks, and notes that it was asked."""

    secret_fields: tuple[str, ...] = ()

    def __init__(self, writer: ReplyWriter, ledger: EffectLog) -> None:
        self._writer, self._ledger = writer, ledger

    def open_thread(self, config: Mapping[str, Any], secret: Secret) -> str:
        return self._writer.open_thread(config, secret)

    def write(
        self,
        question: ReplyRequest,
        config: Mapping[str, Any],
        secret: Secret,
        *,
        timeout_seconds: float,
    ) -> WriterAnswer:
        self._ledger.note("asked", question.text)
        SYSTEM_CLOCK.sleep(_THINKING_SECONDS)
        answer = self._writer.write(question, config, secret, timeout_seconds=timeout_seconds)
        self._ledger.note("written", answer.text)
        return answer


class NotedSender:
    """Notes each reply that it is given."""

    secret_fields: tuple[str, ...] = ()

    def __init__(self, sender: ReplySender, ledger: EffectLog) -> None:
        self._sender, self._ledger = sender, ledger
        self.repeatable = sender.repeatable

    @contextmanager
    def connect(
        self, part: ReplyPart, secret: Secret, *, timeout_seconds: float
    ) -> Iterator[Callable[[], SentPart]]:
        with self._sender.connect(part, secret, timeout_seconds=timeout_seconds) as send:
            yield partial(self._noted, part, send)

    def _noted(self, part: ReplyPart, send: Callable[[], SentPart]) -> SentPart:
        self._ledger.note("sent", part.text)
        return send()

    def find(
        self, part: ReplyPart, secret: Secret, *, since: float, known: Sequence[str]
    ) -> SentPart | None:
        return self._sender.find(part, secret, since=since, known=known)


class Actors:
    """The real providers, made slow and honest. With `hold` nobody gets a sender after a
    reply was written: by then it is noted as prepared, and nothing of it is sent."""

    def __init__(self, real: ProviderSource, ledger: EffectLog, hold: bool) -> None:
        self._real, self._ledger, self._hold = real, ledger, hold
        self._ending = Flag()

    @property
    def secrets(self) -> SecretStore:
        return self._real.secrets

    def writer(self, name: str) -> ReplyWriter:
        return SlowWriter(self._real.writer(name), self._ledger)

    def sender(self, name: str) -> ReplySender:
        # The processor also looks for a sender before it has anything written.
        if self._hold and self._ledger.texts("written"):
            self._ledger.note("held")
            SYSTEM_CLOCK.wait(self._ending, _FOREVER_SECONDS)
        return NotedSender(self._real.sender(name), self._ledger)

    def hear(self, event: Event) -> None:
        if isinstance(event, WorkerStopping):  # the play is over, whatever was planned
            self._ending.set()


def main(arguments: Sequence[str]) -> None:
    """Work until a signal says that it is over."""
    tally, events = EventCounts(), Events()
    events.subscribe(tally)
    log_lines(events, "json")
    with build_chat(os.environ, events=events) as app:
        ledger = EffectLog(Path(app.settings.data_dir))
        actors = Actors(app.providers, ledger, hold=HOLD in arguments)
        events.subscribe(actors.hear)
        app.keeper.start()
        stint = RunnableWorker(_worker(app, actors, events), tally, until_empty=False)
        ForegroundRunner(stint, NoStatus(), _DRAIN_SECONDS).run()


def _worker(app: ChatApp, actors: Actors, events: Events) -> Worker[Trigger]:
    processor = BatchProcessor(
        app.store,
        actors,
        app.queues,
        keeper=app.keeper,
        terms=app.settings.terms,
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
