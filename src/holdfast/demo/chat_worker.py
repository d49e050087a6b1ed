"""A worker process of the chat act: `python -m holdfast.demo.chat_worker [--hold]`.

The processor, the queue, the store and the outbox folder are the real ones. The writer is
slow. With --hold the reply is never sent, because the worker waits from when the reply is
stored as prepared until it is killed.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event as ThreadEvent
from types import SimpleNamespace
from typing import Any

from holdfast.chat.building import ChatProviders, build_chat
from holdfast.chat.events import ReplyWritten
from holdfast.chat.model import Channel
from holdfast.chat.outbox import SentPart, WriterAnswer
from holdfast.chat.ports import ReplyPart, ReplyRequest
from holdfast.chat.processor import BatchProcessor
from holdfast.cli.console import info
from holdfast.cli.foreground import ForegroundRunner, make_runnable
from holdfast.cli.live_view import EventCounts, LiveStatus
from holdfast.demo.effect_log import open_effects
from holdfast.events import Event, Events, WorkerStopping
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.telemetry.logging import make_line_log
from holdfast.worker.worker import Worker

HOLD = "--hold"
_WRITING_SECONDS = 0.9
_DRAIN_SECONDS = 5.0
_FOREVER_SECONDS = 3600.0


class RecordedProviders(ChatProviders):
    """The real providers, whose calls are recorded, and whose writer takes a while."""

    def writer(self, name: str) -> Any:
        """Return the writer of that name, which records its calls."""
        real = super().writer(name)

        def write(question: ReplyRequest, *given: Any, **more: Any) -> WriterAnswer:
            open_effects().record(kind="asked", text=question.text)
            SYSTEM_CLOCK.sleep(_WRITING_SECONDS)
            return real.write(question, *given, **more)

        return SimpleNamespace(
            secret_fields=real.secret_fields, open_thread=real.open_thread, write=write
        )

    def sender(self, name: str) -> Any:
        """Return the sender of that name, which records the replies that it sends."""
        real = super().sender(name)

        @contextmanager
        def connect(
            part: ReplyPart, *given: Any, **more: Any
        ) -> Iterator[Callable[[], SentPart]]:
            def send_recorded() -> SentPart:
                open_effects().record(kind="sent", text=part.text)
                return send()

            with real.connect(part, *given, **more) as send:
                yield send_recorded

        return SimpleNamespace(
            secret_fields=real.secret_fields,
            repeatable=real.repeatable,
            find=real.find,
            connect=connect,
        )


class ReplyHold:
    """A subscriber that waits once a reply is prepared, until the worker stops.

    By then the reply is stored, and no part of it is sent.
    """

    def __init__(self) -> None:
        self._stopping = ThreadEvent()

    def __call__(self, event: Event) -> None:
        match event:
            case ReplyWritten():
                SYSTEM_CLOCK.wait(self._stopping, _FOREVER_SECONDS)
            case WorkerStopping():
                self._stopping.set()


def main(arguments: Sequence[str]) -> None:
    """Work until a signal stops the process."""
    events = Events(make_line_log(info, "json"))
    if HOLD in arguments:
        events.subscribe(ReplyHold())
    with build_chat(os.environ, events=events) as app:
        app.keeper.start()
        processor = BatchProcessor(
            app.store,
            RecordedProviders(app.settings, os.environ, SYSTEM_CLOCK),
            app.queues,
            keeper=app.keeper,
            policy=app.settings.policy,
            events=events,
        )
        queue = app.queues[Channel.WHATSAPP]
        worker = Worker(
            queue, processor, drain_seconds=_DRAIN_SECONDS, keeper=app.keeper, events=events
        )
        runnable = make_runnable(worker, EventCounts())
        ForegroundRunner(runnable, LiveStatus(), _DRAIN_SECONDS).run()


if __name__ == "__main__":
    main(sys.argv[1:])
