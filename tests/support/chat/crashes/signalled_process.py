"""Real processes that are killed or frozen, and the places they leave behind."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from support.chat.crashes.kill_point import Doom
from support.chat.crashes.worker_process import KEY, MESSAGES, Life, Place, Scene
from support.files.crash import Ending
from support.fork_server import SmallChild

Act = Callable[[Life], None]
"""What a process does, from start to end."""


@contextmanager
def run_life(
    place: Place, doom: Doom | None = None, *, away_seconds: float = 0.0
) -> Iterator[Life]:
    """Run a life in this process, some time after the last one."""
    life = Life(place, place.now() + away_seconds, doom or make_doom(place))
    try:
        yield life
    finally:
        life.close()


def make_doom(
    place: Place, after: int | None = None, by: signal.Signals = signal.SIGKILL
) -> Doom:
    """Return a doom that delivers the scene's late message, if there is one."""
    late = place.scene.late
    return Doom(after, by, {late: lambda: _arrive(place)} if late else {})


def _arrive(place: Place) -> None:
    """Stage one more message the first time, as another process would."""
    if any(line["sid"] == "late" for line in place.accepted.lines()):
        return
    with run_life(place, Doom()) as life:
        life.stage(["late"])


def work(life: Life) -> None:
    """Handle triggers until none is left."""
    life.run_until_quiet()


def stage_three(life: Life) -> None:
    """Stage three messages."""
    life.stage(MESSAGES)


# -- processes that are struck


class Struck:
    """A process that strikes itself after its k-th call."""

    def __init__(
        self, place: Place, act: Act, after: int, by: signal.Signals, away_seconds: float
    ) -> None:
        place.store.close()  # a process that dies is the last that has the file open
        self._child = SmallChild(
            partial(_live, place.folder, place.scene, act, after, by, away_seconds)
        )
        self._ending = self._child.wait_for_stop()

    @property
    def killed(self) -> bool:
        """Check whether the process was killed."""
        return self._ending is not None and self._ending.killed

    @property
    def frozen(self) -> bool:
        """Check whether the process is stopped."""
        return self._ending is None

    def thaw(self) -> None:
        """Let it continue until its end."""
        self._continue_by(signal.SIGCONT)
        assert self._ending == Ending(False, ""), f"the stale holder ended as {self._ending}"

    def end(self) -> None:
        """Kill the process if it is still stopped."""
        if self.frozen:
            self._continue_by(signal.SIGKILL)

    def _continue_by(self, sent: signal.Signals) -> None:
        os.kill(self._child.pid, sent)
        self._ending = self._child.wait_for_stop()


def _live(
    folder: Path,
    scene: Scene,
    act: Act,
    after: int,
    by: signal.Signals,
    away_seconds: float,
    say: Callable[[str], None],
) -> None:
    place = Place(folder, scene)
    with run_life(place, make_doom(place, after, by), away_seconds=away_seconds) as life:
        act(life)


# -- places


def make_place(folder: Path, scene: Scene | None = None) -> Place:
    """Return an empty place."""
    folder.mkdir()
    place = Place(folder, scene or Scene())
    place.start_time()
    return place


def make_staged_place(folder: Path, scene: Scene) -> Place:
    """Return a place with three staged messages and their trigger."""
    place = make_place(folder, scene)
    with run_life(place, Doom()) as life:
        life.stage(MESSAGES, scene.third_at)
    return place


def copy_place(place: Place, folder: Path) -> Place:
    """Copy the place to another folder."""
    place.store.close()
    shutil.copytree(place.folder, folder)
    return Place(folder, place.scene)


def record_calls(place: Place, act: Act, away_seconds: float = 0.0) -> list[str]:
    """Return the calls of a process that nothing strikes."""
    with run_life(place, away_seconds=away_seconds) as life:
        act(life)
    return list(life.doom.calls)


def list_owed(place: Place) -> set[str]:
    """Return the messages that were accepted or stored, whose webhooks are not repeated."""
    staged = [row.message_sid for row in place.store.staged(KEY.conversation_id)]
    return {line["sid"] for line in place.accepted.lines()}.union(staged)


def list_missing(place: Place) -> list[str]:
    """Return the messages whose webhooks failed and are repeated."""
    accepted = {line["sid"] for line in place.accepted.lines()}
    return [sid for sid in MESSAGES if sid not in accepted]
