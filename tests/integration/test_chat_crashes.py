"""SIGKILL and SIGSTOP between any two calls of a conversation's ports.

A process answers three messages over SQLite and a file queue, and is struck after its k-th
call of store, queue, writer, sender or secrets: killed, or frozen until somebody else has
taken over. Others go on after it, and may be struck as well. Afterwards every message is in
the history once or parked because its sending is in doubt; no part of a reply was sent
twice, unless the policy wants that; nothing is staged, held or half done. Then the webhooks
of all messages come again, and one more message: that one is answered, and nothing else.
No sweeper is needed for that, but where a stager died and its webhook does not come again.

R002; MS-01, 02, 03, 04, 05, 06, 07, 08, 09, 14, 20, 21, 22; I-MS-1…6.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.test_chaos import SECONDS
from chat_crash.life import AWAY_SECONDS, Place, Scene
from chat_crash.struck import (
    calls_of,
    copied,
    empty,
    missing,
    stage_three,
    staged,
    work,
)
from chat_crash.trial import Trial

PREPARED, SENDING = "store.note(Prepared)", "store.note(Sending)"

SCENES = {
    "the sender can be asked": Scene(),
    "the sender cannot be asked": Scene("blind", since=PREPARED),
    "it may be sent again": Scene("blind", in_doubt="at_least_once", since=PREPARED),
    "the writer keeps no thread": Scene(
        threads=False, since="store.note(Writing)", until=SENDING
    ),
    "letters in a folder": Scene("outbox", since=PREPARED),
    "three parts alike": Scene(pages=3, since=PREPARED),
    "three parts, nobody can be asked": Scene("blind", pages=3, since=PREPARED),
    "the sender is away at first": Scene(
        refusals=1, since=PREPARED, shows=("store.release", "queue.nack")
    ),
    "the customer is still typing": Scene(
        third_at=9.5, until="queue.ack", shows=("queue.push", "store.release")
    ),
    "a message comes before the window is closed": Scene(
        late="store.processed",
        since="store.processed",
        until="queue.ack",
        shows=("store.window", "queue.push"),
    ),
    "a message comes while the reply is written": Scene(
        late="writer.write", since="writer.write", until="queue.ack", shows=("store.window",)
    ),
}
ZOMBIES = [
    "the sender can be asked",
    "the sender cannot be asked",
    "a message comes before the window is closed",
]
IN_EVERY_TURN = {
    "queue.poll",
    "store.acquire",
    "store.staged",
    "store.processed",
    "store.close_window",
    "secrets.get",
    "writer.open_thread",
    "store.note(Writing)",
    "writer.write",
    "store.note(Prepared)",
    "store.note(Sending)",
    "sender.connect",
    "sender.send",
    "store.finish",
    "queue.ack",
}


class Matrix:
    """A place, copied for each blow."""

    def __init__(self, folder: Path, scene: Scene) -> None:
        self.folder, self.scene = folder, scene
        self.first = staged(folder / "staged", scene)
        self.calls = calls_of(self.copy("unharmed"), work)

    def copy(self, name: str) -> Place:
        return copied(self.first, self.folder / name)

    def blows(self) -> Sequence[int]:
        return self.scene.blows(self.calls)


@pytest.mark.parametrize("name", SCENES)
def test_a_batch_survives_a_kill_between_any_two_of_its_calls(
    name: str, fast_path: Path
) -> None:
    matrix = Matrix(fast_path, SCENES[name])
    for after in matrix.blows():
        with Trial(matrix.copy(f"{after}")) as trial:
            trial.kill(work, matrix.calls, after)
            trial.recover()
            trial.judge()
    assert set(matrix.calls) >= IN_EVERY_TURN.union(matrix.scene.shows)


@pytest.mark.parametrize("name", ZOMBIES)
def test_a_batch_survives_a_zombie_that_wakes_between_any_two_of_its_calls(
    name: str, fast_path: Path
) -> None:
    """MS-07, MS-08, I-MS-3. Its clock stood still with it: nothing but the fence stops it."""
    matrix = Matrix(fast_path, SCENES[name])
    for after in matrix.blows():
        with Trial(matrix.copy(f"{after}")) as trial:
            zombie = trial.freeze(work, matrix.calls, after)
            trial.recover()
            zombie.thaw()
            trial.recover()
            trial.judge()


ASLEEP_AFTER = ["store.note(Writing)", "sender.send"]


@pytest.mark.parametrize("asleep", ASLEEP_AFTER)
def test_a_zombie_that_wakes_while_another_one_is_at_work_is_refused(
    asleep: str, fast_path: Path
) -> None:
    """MS-07, MS-08, I-MS-3: the status alone does not say whose lock it is. The other one
    is stopped at each of his calls in turn, and the zombie wakes meanwhile."""
    matrix = Matrix(fast_path, SCENES["the sender can be asked"])
    after = matrix.calls.index(asleep) + 1
    with Trial(matrix.copy("dead")) as dead:
        dead.kill(work, matrix.calls, after)
    again = calls_of_the_next(dead.place)
    for then in range(until_it_takes_over(again), len(again) + 1):
        with Trial(matrix.copy(f"{then}")) as trial:
            zombie = trial.freeze(work, matrix.calls, after)
            other = trial.freeze(work, again, then, AWAY_SECONDS)
            zombie.thaw()
            other.thaw()
            trial.recover()
            trial.judge()


# -- whoever takes over is struck as well

TWICE = SCENES if SECONDS else ["the sender can be asked"]


@pytest.mark.parametrize("name", TWICE)
def test_a_batch_survives_a_kill_of_whoever_takes_over_too(name: str, fast_path: Path) -> None:
    """All pairs of the part that sends and finishes; all there are, of all scenes, with
    HOLDFAST_CHAOS_SECONDS set."""
    scene = SCENES[name] if SECONDS else replace(SCENES[name], since=SENDING)
    matrix = Matrix(fast_path, scene)
    for after in matrix.blows():
        with Trial(matrix.copy(f"{after}")) as dead:
            dead.kill(work, matrix.calls, after)
        again = calls_of_the_next(dead.place)
        for then in range(0 if SECONDS else until_it_takes_over(again), len(again) + 1):
            with dead.copy(fast_path / f"{after}-{then}") as trial:
                trial.kill(work, again, then, AWAY_SECONDS)
                trial.recover()
                trial.judge()


def calls_of_the_next(place: Place) -> list[str]:
    """What he does, when nothing strikes him; seen at a copy."""
    copy = copied(place, place.folder.with_name(f"{place.folder.name}-unharmed"))
    return calls_of(copy, work, AWAY_SECONDS)


def until_it_takes_over(calls: list[str]) -> int:
    """Before that it meets the dead one's lock, and changes nothing."""
    polls = [number for number, name in enumerate(calls) if name == "queue.poll"]
    return polls[-1] if polls else 0


# -- staging


def test_no_message_is_lost_when_its_stager_dies_and_the_webhook_comes_again(
    fast_path: Path,
) -> None:
    """MS-14. No sweeper is needed for that."""
    calls = calls_of(empty(fast_path / "unharmed"), stage_three)
    assert calls.count("store.stage") == 3
    for after in range(len(calls) + 1):
        with Trial(empty(fast_path / f"{after}")) as trial:
            trial.kill(stage_three, calls, after)
            trial.deliver_again(missing(trial.place))
            trial.recover()
            trial.judge()


def test_what_was_stored_is_answered_when_its_stager_dies_and_no_webhook_comes(
    fast_path: Path,
) -> None:
    """MS-14, I-MS-5: by the sweeper at the latest."""
    calls = calls_of(empty(fast_path / "unharmed"), stage_three)
    for after in range(len(calls) + 1):
        with Trial(empty(fast_path / f"{after}")) as trial:
            trial.kill(stage_three, calls, after)
            trial.recover(sweep=True)
            trial.judge()


def test_a_stager_that_wakes_when_all_is_answered_does_no_harm(fast_path: Path) -> None:
    calls = calls_of(empty(fast_path / "unharmed"), stage_three)
    for after in range(len(calls) + 1):
        with Trial(empty(fast_path / f"{after}")) as trial:
            zombie = trial.freeze(stage_three, calls, after)
            trial.recover(sweep=True)
            zombie.thaw()
            trial.recover()
            trial.judge()
