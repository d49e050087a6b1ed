"""The point at which a process sends itself a signal, between two calls of its ports."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

STEPS = {
    "store.create": "staging",
    "store.stage": "staging",
    "store.open_window": "staging",
    "store.mark_triggered": "staging",
    "queue.push": "a trigger is sent",
    "queue.poll": "step 1",
    "store.acquire": "step 2",
    "store.staged": "step 4, or 15",
    "store.processed": "step 4",
    "store.drop_staged": "step 4",
    "store.close_window": "step 6",
    "secrets.get": "step 8",
    "writer.open_thread": "step 9",
    "store.note(WritingReply)": "step 9",
    "writer.write": "step 9",
    "store.note(PreparedReply)": "step 9",
    "store.note(SendingReply)": "step 10",
    "store.note(UnclearReply)": "step 10, unclear send",
    "sender.connect": "step 10",
    "sender.send": "step 10",
    "sender.find": "step 10, unclear send",
    "store.get": "parking",
    "store.park": "parking",
    "store.finish": "steps 11 to 14",
    "store.window": "step 15",
    "store.release": "releasing the lock",
    "queue.ack": "step 15",
    "queue.nack": "released to the queue",
}

CALL_SECONDS = 0.01


class Doom:
    """A counter of calls that strikes the process after `after` of them, if that is not None.

    The point after a call and the point before the next one are the same. `meanwhile` has
    what another process does just before the first call of that name.
    """

    def __init__(
        self,
        after: int | None = None,
        by: signal.Signals = signal.SIGKILL,
        meanwhile: Mapping[str, Callable[[], None]] | None = None,
    ) -> None:
        self._after, self._by = after, by
        self._meanwhile = dict(meanwhile or {})
        self.calls: list[str] = []
        self.last_word: Callable[[], None] = lambda: None
        self.call_ended: Callable[[], None] = lambda: None
        self.returned: Callable[[Any], None] = lambda result: None

    def watch(self, name: str, port: Any) -> Any:
        return _Watched(self, name, port)

    def pause(self) -> None:
        """Strike if this is the point; called between two calls and after the last."""
        if len(self.calls) == self._after:
            self._after = None
            self.last_word()
            os.kill(os.getpid(), self._by)

    def make_call(self, label: str, call: Callable[[], Any]) -> Any:
        self.pause()
        if (meanwhile := self._meanwhile.pop(label, None)) is not None:
            self.last_word()
            meanwhile()
        try:
            result = call()
            self.returned(result)
            return result
        finally:  # also if it was refused
            self.calls.append(label)
            self.call_ended()


class _Watched:
    """A port whose calls are counted."""

    def __init__(self, doom: Doom, name: str, port: Any) -> None:
        self._doom, self._name, self._port = doom, name, port

    def __getattr__(self, method: str) -> Any:
        value = getattr(self._port, method)
        if not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            label = f"{self._name}.{method}"
            if method == "note":
                label += f"({type(args[1]).__name__})"
            return self._doom.make_call(label, lambda: value(*args, **kwargs))

        return call

    @contextmanager
    def connect(self, *args: Any, **kwargs: Any) -> Iterator[Callable[[], Any]]:
        """Make a sender's two calls, because a process may be struck between them."""
        with ExitStack() as opened:
            connection = self._port.connect(*args, **kwargs)
            enter = partial(opened.enter_context, connection)
            send = self._doom.make_call(f"{self._name}.connect", enter)
            yield lambda: self._doom.make_call(f"{self._name}.send", send)


def describe_blow(calls: list[str], after: int) -> str:
    """Describe the point of the blow, for the report of a failure."""
    names = [f"{name} ({STEPS.get(name, '?')})" for name in calls]
    before, then = ["the beginning", *names][after], [*names, "the end"][after]
    return f"struck after call {after} of {len(calls)}: after {before}, before {then}"
