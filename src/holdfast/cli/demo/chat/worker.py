"""A worker process of the chat scenario: `python -m …chat.worker [--hold]`.

The processor, the queue, the store and the outbox folder are the real ones. The writer is
slow. With --hold the reply is never sent, because once it is written the worker waits where
it would get a sender, until it is killed.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event as ThreadEvent
from typing import Any

from holdfast.bootstrap.chats import build_chat
from holdfast.cli.demo.chat.customer import EFFECTS_FILE, KEY
from holdfast.cli.demo.effect_log import EffectLog
from holdfast.cli.foreground import (
    ForegroundRunner,
    ServiceOptions,
    make_runnable,
    show_status_line,
)
from holdfast.cli.live_view import EventCounts
from holdfast.conversations.outbox import SentPart, WriterAnswer
from holdfast.conversations.ports import ProviderSource, ReplyPart, ReplyRequest, SecretStore
from holdfast.conversations.processor import BatchProcessor
from holdfast.core.clock import SYSTEM_CLOCK
from holdfast.core.events import Event, Events, WorkerStopping
from holdfast.core.worker.worker import Worker

HOLD = "--hold"
_WRITING_SECONDS = 0.9
_DRAIN_SECONDS = 5.0
_FOREVER_SECONDS = 3600.0


class Changed:
    """A real provider with one method replaced."""

    def __init__(self, real: Any, **methods: Callable[..., Any]) -> None:
        self._real = real
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


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

    def writer(self, name: str) -> Any:
        """Return the writer of that name, which takes a while and records its calls."""
        real = self._real.writer(name)

        def write(question: ReplyRequest, *given: Any, **more: Any) -> WriterAnswer:
            self._effects.record(kind="asked", text=question.text)
            SYSTEM_CLOCK.sleep(_WRITING_SECONDS)
            answer = real.write(question, *given, **more)
            self._effects.record(kind="written", text=answer.text)
            return answer

        return Changed(real, write=write)

    def sender(self, name: str) -> Any:
        """Return the sender of that name, which records replies, or wait if one is held."""
        # The processor also gets a sender before a reply is written, to check the profile.
        if self._hold and any(effect["kind"] == "written" for effect in self._effects.read()):
            self._effects.record(kind="held", text="")
            SYSTEM_CLOCK.wait(self._stopping, _FOREVER_SECONDS)
        real = self._real.sender(name)

        @contextmanager
        def connect(
            part: ReplyPart, *given: Any, **more: Any
        ) -> Iterator[Callable[[], SentPart]]:
            def send_recorded() -> SentPart:
                self._effects.record(kind="sent", text=part.text)
                return send()

            with real.connect(part, *given, **more) as send:
                yield send_recorded

        return Changed(real, connect=connect)

    def handle_event(self, event: Event) -> None:
        """Stop waiting when the worker stops."""
        if isinstance(event, WorkerStopping):
            self._stopping.set()


def main(arguments: Sequence[str]) -> None:
    """Work until a signal stops the process."""
    counts, events = EventCounts(), Events()
    events.subscribe(counts)
    status = ServiceOptions(log_format="json").choose_status(
        events, lambda: show_status_line("chat", counts)
    )
    with build_chat(os.environ, events=events) as app:
        effects = EffectLog(Path(app.settings.data_dir, EFFECTS_FILE))
        providers = DemoProviders(app.providers, effects, hold=HOLD in arguments)
        events.subscribe(providers.handle_event)
        app.keeper.start()
        processor = BatchProcessor(
            app.store,
            providers,
            app.queues,
            keeper=app.keeper,
            policy=app.settings.policy,
            events=events,
        )
        queue = app.queues[KEY.channel]
        worker = Worker(
            queue, processor, drain_seconds=_DRAIN_SECONDS, keeper=app.keeper, events=events
        )
        ForegroundRunner(make_runnable(worker, counts), status, _DRAIN_SECONDS).run()


if __name__ == "__main__":
    main(sys.argv[1:])
