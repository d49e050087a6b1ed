"""A job store and Step Functions whose every call is a place to switch, or to die."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fs.schedule import Baton


class Died(BaseException):
    """The process is gone: nothing of it runs on, no handler and no `finally` that counts."""


class Doom:
    """Ends one actor before its k-th call; the rest of the world goes on."""

    def __init__(self, actor: int | None = None, call: int = 0) -> None:
        self._actor, self._call = actor, call
        self._calls: dict[int, int] = {}
        self.struck = False

    def before_call_of(self, actor: int) -> None:
        self._calls[actor] = self._calls.get(actor, 0) + 1
        if (actor, self._calls[actor]) == (self._actor, self._call):
            self.struck = True
            raise Died


class Stepping:
    """Stands before a port: asks the baton, and fate, before each call goes through."""

    def __init__(self, port: Any, baton: Baton, doom: Doom, actor: int) -> None:
        self._port, self._baton, self._doom, self._actor = port, baton, doom, actor

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._port, name)

        def stepped(*args: Any, **kwargs: Any) -> Any:
            self._baton.step()
            self._doom.before_call_of(self._actor)
            return call(*args, **kwargs)

        return stepped


def mortal(life: Callable[[], None]) -> Callable[[], None]:
    """An actor that may die; the baton goes on to others then."""

    def actor() -> None:
        with suppress(Died):
            life()

    return actor
