"""The stage of a schedule: one queue folder, the actors' queues, and the checks."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from holdfast.errors import LeaseLost
from holdfast.lease.lease import Lease
from holdfast.queue.manager import MessageState
from holdfast.queue.message import get_lease
from holdfast.testing.clock import ManualClock
from support.files import audit
from support.files.queue_folder import LEASE, Ground, Queue, drain, get_key, get_today
from support.files.watched import TAKES_SPACE, WatchedFs
from support.interleaving import Baton, Policy, explore, wander

Actor = Callable[[], None]
LATER_SECONDS = 4 * LEASE + 100


NOTICEABLE = TAKES_SPACE - {"write"} | {
    *("readlink", "unlink", "rmdir", "stat", "listdir", "flock"),
}


class SteppingFs(WatchedFs):
    """Lets other actors run before each call that they could notice, or that notices them.

    With `repeats`, each rename is sent twice, as a network file system does when the first
    response is lost. The second is refused, because the first was done.
    """

    def __init__(
        self, server_time: Callable[[], float], baton: Baton, *, repeats: bool = False
    ) -> None:
        super().__init__(server_time)
        self._baton, self._repeats = baton, repeats

    def call(self, name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if name in NOTICEABLE or (name == "open" and _is_shared(*args)):
            self._baton.step()
        result = real(*args, **kwargs)
        if name == "rename" and self._repeats:
            self._baton.step()
            return real(*args, **kwargs)
        if name == "close":
            self._baton.wake()  # a closed file is an unlocked file
        return result


class SteppingClock(ManualClock):
    """A clock whose sleep lets other actors run until one closes a file.

    Code sleeps when a lock is taken, and closing a file releases its lock.
    """

    baton: Baton

    def sleep(self, seconds: float) -> None:
        self.baton.pause()


def _is_shared(path: str, flags: int, *_: object) -> bool:
    """Return whether other actors may notice this open.

    Files in tmp/ are used only by their writer, unless they are in a folder that a sweep may
    remove. The listing of a folder is a step by itself.
    """
    own = path.startswith("tmp/") and path.count("/") == 1
    return not own and not flags & os.O_DIRECTORY


class Stage:
    """One run of a scenario. Promises are checked at every step and at the end.

    At most one actor is at work on a task (it has polled the task, has not begun to settle
    it, and its lease is good by its own clock). At most one ack succeeds.
    """

    def __init__(self, folder: Path, policy: Policy, **options: Any) -> None:
        self.baton = Baton(policy, self._watch)
        self.clock = SteppingClock(time=get_today())
        self.clock.baton = self.baton
        self.ground = Ground(folder, self.clock, **options)
        self.repeats = False
        self._at_work: list[tuple[str, Lease]] = []
        self._fences: set[tuple[str, int]] = set()
        self.acked: Counter[str] = Counter()
        self.lost = 0

    def queue(self, **options: Any) -> Queue:
        fs = SteppingFs(self.clock.time, self.baton, repeats=self.repeats)
        fs.lock_clock = self.clock
        return self.ground.queue(fs, **options)

    def worker(self, **options: Any) -> Queue:
        """Make a worker that is registered already, as the scenarios begin after that."""
        queue = self.queue(**options)
        assert queue.poll() == []
        return queue

    # -- what actors do

    def poll(self, queue: Queue) -> Any:
        """Return a message to work on, or None."""
        for message in queue.poll():
            self.begin(message)
            return message
        return None

    def begin(self, message: Any) -> None:
        claim = get_key(message), get_lease(message).fence
        assert claim not in self._fences, "a fence was given out twice"
        self._fences.add(claim)
        self._at_work.append((claim[0], get_lease(message)))

    def settle(self, queue: Queue, message: Any, verb: str) -> None:
        self._at_work.remove((get_key(message), get_lease(message)))
        try:
            VERBS[verb](queue, message)
        except LeaseLost:
            self.lost += 1
        else:
            self.acked[get_key(message)] += verb == "ack"

    def work(self, queue: Queue, verb: str = "ack", times: int = 1) -> Actor:
        def act() -> None:
            for _ in range(times):
                if message := self.poll(queue):
                    self.baton.step()  # at work
                    self.settle(queue, message, verb)

        return act

    def time(self, *seconds: float) -> Actor:
        """Return time as an actor, so that it passes between any two steps of the others."""

        def act() -> None:
            for leap in seconds:
                self.baton.step()
                self.clock.advance(leap)

        return act

    # -- the checks

    def _watch(self) -> None:
        now = self.clock.monotonic()
        busy = Counter(k for k, lease in self._at_work if lease.live and now < lease.deadline)
        assert all(times == 1 for times in busy.values()), "two hold a task at once"

    def close(self, *expected: str) -> None:
        """Have a new worker do the rest later, and check that each id was done once."""
        folder = self.ground.folder
        assert audit.find_faults(folder) == {}
        self.clock.advance(LATER_SECONDS)
        finisher = self.ground.queue()
        finisher.redrive()
        drain(finisher)
        self.clock.advance(1)
        drain(finisher)
        assert audit.find_faults(folder) == {}
        assert not [key for key, times in self.acked.items() if times > 1]
        assert sorted(view.id for view in finisher.peek(MessageState.COMPLETED)) == sorted(
            expected
        )
        assert {state for state, _, _ in audit.list_tasks(folder)} <= {"completed"}


VERBS: dict[str, Callable[[Queue, Any], None]] = {
    "ack": lambda queue, message: queue.ack(message),
    "nack": lambda queue, message: queue.nack(message, delay_seconds=0),
    "release": lambda queue, message: queue.release(message),
    "dead_letter": lambda queue, message: queue.dead_letter(message, "no use"),
}


ENDS_IN = {
    "ack": "completed",
    "nack": "pending",
    "release": "pending",
    "dead_letter": "failed",
}

# -- all schedules

PREEMPTIONS = 2
LIMIT = 200  # schedules of one scenario; if there are more, a random selection
SEEDS = range(20)

Setting = tuple[Sequence[Actor], Callable[[], None]]
"""The actors on a stage, and a check that runs when they are done."""


def all_schedules(folder: Path, set_up: Callable[[Stage], Setting], **options: object) -> None:
    """Run every schedule with few preemptions and some random ones, each on a new stage."""
    number = count()

    def play(policy: Policy) -> Baton:
        stage = Stage(folder / str(next(number)), policy, **options)
        actors, check = set_up(stage)
        stage.baton.run(actors)
        check()
        return stage.baton

    explore(play, preemptions=PREEMPTIONS, limit=LIMIT)
    wander(play, SEEDS)
