"""SIGKILL and SIGSTOP between any two calls of a conversation's ports.

A process answers three messages over SQLite and a file queue, and is struck after its k-th
call of store, queue, writer, sender or secrets: killed, or frozen until another process has
taken over. Other processes continue, and may be struck as well. Afterwards every message is
either once in the history, or parked because it is unknown whether its reply was sent. No
part of a reply was sent twice, unless the policy allows that. Nothing is staged, locked or
unfinished. Then the webhooks of all messages are repeated, and one more message arrives; only
that one is answered. A sweeper is needed only if a stager died and its webhook is not
repeated.

`make test` kills the worker of three scenes, and `make nightly` does the rest.

R002; MS-01, 02, 03, 04, 05, 06, 07, 08, 09, 14, 20, 21, 22; I-MS-1…6.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.test_chaos import SECONDS
from support.chat.crashes.signalled_process import (
    copy_place,
    list_missing,
    make_place,
    make_staged_place,
    record_calls,
    stage_three,
    work,
)
from support.chat.crashes.trial import Trial
from support.chat.crashes.worker_process import AWAY_SECONDS, Place, Scene

PREPARED, SENDING = "store.note(PreparedReply)", "store.note(SendingReply)"

SCENES = {
    "the sender can be queried": Scene(),
    "the sender cannot be queried": Scene("blind", since=PREPARED),
    "it may be sent again": Scene("blind", in_doubt="at_least_once", since=PREPARED),
    "the writer keeps no thread": Scene(
        threads=False, since="store.note(WritingReply)", until=SENDING
    ),
    "replies in a folder": Scene("outbox", since=PREPARED),
    "three equal parts": Scene(pages=3, since=PREPARED),
    "three parts of a sender that cannot be queried": Scene("blind", pages=3, since=PREPARED),
    "the sender's answer is lost": Scene(
        unclear="sent", since=SENDING, shows=("store.note(UnclearReply)", "sender.find")
    ),
    "the sender fails without an answer": Scene(
        unclear="not sent", since=SENDING, shows=("store.note(UnclearReply)", "sender.find")
    ),
    "the sender is unavailable at first": Scene(
        refusals=1, since=PREPARED, shows=("store.release", "queue.nack")
    ),
    "the customer is still typing": Scene(
        third_at=9.5, until="queue.ack", shows=("queue.push", "store.release")
    ),
    "a message arrives before the window is closed": Scene(
        late="store.processed",
        since="store.processed",
        until="queue.ack",
        shows=("store.window", "queue.push"),
    ),
    "a message arrives while the reply is written": Scene(
        late="writer.write", since="writer.write", until="queue.ack", shows=("store.window",)
    ),
}
DAILY_SCENES = {
    "the sender can be queried",
    "three equal parts",
    "the sender's answer is lost",
}
KILL_SCENES = [
    pytest.param(name, marks=() if name in DAILY_SCENES else pytest.mark.nightly)
    for name in SCENES
]
STALE_HOLDER_SCENES = [
    "the sender can be queried",
    "the sender cannot be queried",
    "the sender fails without an answer",
    "a message arrives before the window is closed",
]
IN_EVERY_TURN = {
    "queue.poll",
    "store.acquire",
    "store.staged",
    "store.processed",
    "store.close_window",
    "secrets.get",
    "writer.open_thread",
    "store.note(WritingReply)",
    "writer.write",
    "store.note(PreparedReply)",
    "store.note(SendingReply)",
    "sender.connect",
    "sender.send",
    "store.finish",
    "queue.ack",
}


class Matrix:
    """A place that is copied for each blow."""

    def __init__(self, folder: Path, scene: Scene) -> None:
        self.folder, self.scene = folder, scene
        self.first = make_staged_place(folder / "staged", scene)
        self.calls = record_calls(self.copy("unharmed"), work)

    def copy(self, name: str) -> Place:
        """Return a copy of the place."""
        return copy_place(self.first, self.folder / name)

    def list_blows(self) -> Sequence[int]:
        """Return the numbers of calls after which to strike."""
        return self.scene.list_blows(self.calls)


@pytest.mark.parametrize("name", KILL_SCENES)
def test_a_batch_survives_a_kill_between_any_two_of_its_calls(
    name: str, fast_path: Path
) -> None:
    matrix = Matrix(fast_path, SCENES[name])
    for after in matrix.list_blows():
        with Trial(matrix.copy(f"{after}")) as trial:
            trial.kill(work, matrix.calls, after)
            trial.recover()
            trial.judge()
    assert set(matrix.calls) >= IN_EVERY_TURN.union(matrix.scene.shows)


@pytest.mark.nightly
@pytest.mark.parametrize("name", STALE_HOLDER_SCENES)
def test_a_batch_survives_a_stale_holder_that_resumes_between_any_two_calls(
    name: str, fast_path: Path
) -> None:
    """Its clock was frozen, too, so only the fence stops it (MS-07, MS-08, I-MS-3)."""
    matrix = Matrix(fast_path, SCENES[name])
    for after in matrix.list_blows():
        with Trial(matrix.copy(f"{after}")) as trial:
            stale = trial.freeze(work, matrix.calls, after)
            trial.recover()
            stale.thaw()
            trial.recover()
            trial.judge()


FROZEN_AFTER = ["store.note(WritingReply)", "sender.send"]


@pytest.mark.nightly
@pytest.mark.parametrize("frozen_after", FROZEN_AFTER)
def test_a_stale_holder_that_resumes_while_another_worker_answers_is_refused(
    frozen_after: str, fast_path: Path
) -> None:
    """The status alone does not show which worker has the lock (MS-07, MS-08, I-MS-3).

    The other worker is stopped at each of its calls, and the stale holder resumes meanwhile.
    """
    matrix = Matrix(fast_path, SCENES["the sender can be queried"])
    after = matrix.calls.index(frozen_after) + 1
    with Trial(matrix.copy("dead")) as dead:
        dead.kill(work, matrix.calls, after)
    again = record_next_calls(dead.place)
    for then in range(find_takeover(again), len(again) + 1):
        with Trial(matrix.copy(f"{then}")) as trial:
            stale = trial.freeze(work, matrix.calls, after)
            other = trial.freeze(work, again, then, AWAY_SECONDS)
            stale.thaw()
            other.thaw()
            trial.recover()
            trial.judge()


# -- the worker that takes over is struck as well

TWICE = SCENES if SECONDS else ["the sender can be queried"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", TWICE)
def test_a_batch_survives_a_kill_of_the_worker_that_takes_over_too(
    name: str, fast_path: Path
) -> None:
    """Try all pairs of blows while the reply is sent and finished.

    If HOLDFAST_CHAOS_SECONDS is set, try all pairs of all scenes.
    """
    scene = SCENES[name] if SECONDS else replace(SCENES[name], since=SENDING)
    matrix = Matrix(fast_path, scene)
    for after in matrix.list_blows():
        with Trial(matrix.copy(f"{after}")) as dead:
            dead.kill(work, matrix.calls, after)
        again = record_next_calls(dead.place)
        for then in range(0 if SECONDS else find_takeover(again), len(again) + 1):
            with dead.copy(fast_path / f"{after}-{then}") as trial:
                trial.kill(work, again, then, AWAY_SECONDS)
                trial.recover()
                trial.judge()


def record_next_calls(place: Place) -> list[str]:
    """Return the calls of the next worker if nothing strikes it, recorded at a copy."""
    copy = copy_place(place, place.folder.with_name(f"{place.folder.name}-unharmed"))
    return record_calls(copy, work, AWAY_SECONDS)


def find_takeover(calls: list[str]) -> int:
    """Return the call that takes over; before it the dead worker's lock is still held."""
    polls = [number for number, name in enumerate(calls) if name == "queue.poll"]
    return polls[-1] if polls else 0


# -- staging


@pytest.mark.nightly
def test_no_message_is_lost_when_its_stager_dies_and_the_webhook_comes_again(
    fast_path: Path,
) -> None:
    """This needs no sweeper (MS-14)."""
    calls = record_calls(make_place(fast_path / "unharmed"), stage_three)
    assert calls.count("store.stage") == 3
    for after in range(len(calls) + 1):
        with Trial(make_place(fast_path / f"{after}")) as trial:
            trial.kill(stage_three, calls, after)
            trial.deliver_again(list_missing(trial.place))
            trial.recover()
            trial.judge()


@pytest.mark.nightly
def test_a_stored_message_is_answered_when_its_stager_dies_and_no_webhook_is_repeated(
    fast_path: Path,
) -> None:
    """The sweeper triggers it at the latest (MS-14, I-MS-5)."""
    calls = record_calls(make_place(fast_path / "unharmed"), stage_three)
    for after in range(len(calls) + 1):
        with Trial(make_place(fast_path / f"{after}")) as trial:
            trial.kill(stage_three, calls, after)
            trial.recover(sweep=True)
            trial.judge()


@pytest.mark.nightly
def test_a_stager_that_wakes_when_all_is_answered_does_no_harm(fast_path: Path) -> None:
    calls = record_calls(make_place(fast_path / "unharmed"), stage_three)
    for after in range(len(calls) + 1):
        with Trial(make_place(fast_path / f"{after}")) as trial:
            stale = trial.freeze(stage_three, calls, after)
            trial.recover(sweep=True)
            stale.thaw()
            trial.recover()
            trial.judge()
