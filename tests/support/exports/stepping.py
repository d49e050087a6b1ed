"""Ports at whose every call another actor may run, or this actor may crash."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from support.interleaving import Baton


class Crashed(BaseException):
    """Simulates the end of the process: no handler of an Exception runs after it."""


class Crash:
    """Ends one actor before its k-th call, while the other actors go on."""

    def __init__(self, actor: int | None = None, call: int = 0) -> None:
        self._actor, self._call = actor, call
        self._calls: dict[int, int] = {}
        self.happened = False

    def before_call(self, actor: int) -> None:
        """Count a call of the actor, and raise Crashed if it is the k-th or a later one.

        So a handler on the way out, which a killed process would not run, changes nothing.
        """
        self._calls[actor] = self._calls.get(actor, 0) + 1
        if actor == self._actor and self._calls[actor] >= self._call:
            self.happened = True
            raise Crashed


class Stepping:
    """Wraps a port. Each call may switch to another actor first, or crash."""

    def __init__(self, port: Any, baton: Baton, crash: Crash, actor: int) -> None:
        self._port, self._baton, self._crash, self._actor = port, baton, crash, actor

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._port, name)

        def stepped(*args: Any, **kwargs: Any) -> Any:
            self._baton.step()
            self._crash.before_call(self._actor)
            return call(*args, **kwargs)

        return stepped


def make_actor(run: Callable[[], None]) -> Callable[[], None]:
    """Return an actor that may crash; then the baton goes on to the others."""

    def actor() -> None:
        with suppress(Crashed):
            run()

    return actor
