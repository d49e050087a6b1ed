"""Processes that are struck, really, and what their deaths leave behind."""

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from chat_crash.doom import Doom
from chat_crash.life import KEY, MESSAGES, Life, Place, Scene

Act = Callable[[Life], None]
"""What a process does, from its beginning to its end."""


@contextmanager
def living(
    place: Place, doom: Doom | None = None, *, away_seconds: float = 0.0
) -> Iterator[Life]:
    """A life in this process, some time after the last one."""
    life = Life(place, place.now() + away_seconds, doom or doomed(place))
    try:
        yield life
    finally:
        life.close()


def doomed(place: Place, after: int | None = None, by: signal.Signals = signal.SIGKILL) -> Doom:
    """With the scene's late message, if there is one."""
    late = place.scene.late
    return Doom(after, by, {late: lambda: _arrive(place)} if late else {})


def _arrive(place: Place) -> None:
    """Another process, as it were: one more message, the first time somebody comes here."""
    if any(one["sid"] == "late" for one in place.came.lines()):
        return
    with living(place, Doom()) as life:
        life.stage(["late"])


def work(life: Life) -> None:
    life.until_quiet()


def stage_three(life: Life) -> None:
    life.stage(MESSAGES)


# -- striking


class Struck:
    """A process that strikes itself after its k-th call."""

    def __init__(
        self, place: Place, act: Act, after: int, by: signal.Signals, away_seconds: float
    ) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            _be(place, act, doomed(place, after, by), away_seconds)
        _, self._status = os.waitpid(self.pid, os.WUNTRACED)

    @property
    def killed(self) -> bool:
        return os.WIFSIGNALED(self._status) and os.WTERMSIG(self._status) == signal.SIGKILL

    @property
    def frozen(self) -> bool:
        return os.WIFSTOPPED(self._status)

    def thaw(self) -> None:
        """It goes on, and comes to its end."""
        os.kill(self.pid, signal.SIGCONT)
        _, self._status = os.waitpid(self.pid, 0)
        assert self._status == 0, f"the zombie ended with {self._status}; see stderr"

    def end(self) -> None:
        if self.frozen:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def _be(place: Place, act: Act, doom: Doom, away_seconds: float) -> None:
    status = 1
    try:
        with living(place, doom, away_seconds=away_seconds) as life:
            act(life)
        status = 0
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(status)  # never back into pytest


# -- places


def empty(folder: Path, scene: Scene | None = None) -> Place:
    folder.mkdir()
    return Place(folder, scene or Scene())


def staged(folder: Path, scene: Scene) -> Place:
    """Three messages have come in, and their trigger is in the queue."""
    place = empty(folder, scene)
    with living(place, Doom()) as life:
        life.stage(MESSAGES, scene.third_at)
    return place


def copied(place: Place, folder: Path) -> Place:
    place.store.close()
    shutil.copytree(place.folder, folder)
    return Place(folder, place.scene)


def calls_of(place: Place, act: Act, away_seconds: float = 0.0) -> list[str]:
    """What a process does there when nothing strikes it."""
    with living(place, away_seconds=away_seconds) as life:
        act(life)
    return list(life.doom.calls)


def owed(place: Place) -> set[str]:
    """What was taken, or is stored: no webhook comes again for it."""
    there = [one.message_sid for one in place.store.staged(KEY.conversation_id)]
    return {one["sid"] for one in place.came.lines()}.union(there)


def missing(place: Place) -> list[str]:
    """Whose webhooks were not answered: they come again."""
    came = {one["sid"] for one in place.came.lines()}
    return [sid for sid in MESSAGES if sid not in came]
