"""Interleavings of real code: one thread per actor, and only the one with the baton runs.

Before each file system call that another actor could notice, the running actor asks the
policy which actor continues. `explore` tries every schedule with few preemptions, depth
first, and `wander` tries random ones. A schedule is the list of chosen actors, so a failure
can be repeated.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from heapq import heappop, heappush
from queue import SimpleQueue
from random import Random
from threading import Lock, Thread, local
from typing import Protocol


class Policy(Protocol):
    """Chooses the actor that continues. `running` is None if the last one ended or waits."""

    def __call__(self, ready: tuple[int, ...], running: int | None) -> int: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice of a policy."""

    ready: tuple[int, ...]
    running: int | None
    chosen: int

    def preempts(self, actor: int) -> bool:
        """Return whether choosing this actor preempts the running one."""
        return self.running is not None and actor != self.running


class _State(Enum):
    READY = auto()
    WAITING = auto()
    ENDED = auto()


class Baton:
    """Runs actors one at a time. The running actor calls `watch` at every step."""

    def __init__(self, policy: Policy, watch: Callable[[], None] = lambda: None) -> None:
        self._policy, self._watch = policy, watch
        self._me = local()
        self._turns: list[Lock] = []
        self._states: list[_State] = []
        self._over = Lock()
        self.choices: list[Choice] = []
        self.errors: list[BaseException] = []

    def run(self, actors: Sequence[Callable[[], None]]) -> None:
        """Run all actors to their ends, and raise the first error of any of them."""
        self._turns = [Lock() for _ in actors]
        self._states = [_State.READY for _ in actors]
        for lock in (*self._turns, self._over):
            lock.acquire()
        for index, actor in enumerate(actors):
            _start_in_thread(partial(self._act, index, actor))
        self._pass_on()
        self._over.acquire()
        if self.errors:
            raise self.errors[0]

    def step(self) -> None:
        """Let the policy choose the actor that continues. Does nothing outside a run."""
        me = self._whoami()
        if me is None:
            return
        self._watch()
        chosen = self._choose(me)
        if chosen != me:
            self._turns[chosen].release()
            self._turns[me].acquire()

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Let other actors run until `ready()`. They call `wake` when it may be true."""
        while not ready():
            self.pause()

    def pause(self) -> None:
        """Let other actors run until one calls `wake`."""
        me = self._whoami()
        assert me is not None, "no other actor could change this"
        self._states[me] = _State.WAITING
        self._pass_on()
        self._turns[me].acquire()

    def wake(self) -> None:
        """Let waiting actors check again."""
        self._states = [s if s is _State.ENDED else _State.READY for s in self._states]

    def _whoami(self) -> int | None:
        me: int | None = getattr(self._me, "index", None)
        return me

    def _act(self, index: int, actor: Callable[[], None]) -> None:
        self._turns[index].acquire()
        self._me.index = index
        try:
            actor()
            self._watch()
        except BaseException as error:
            self.errors.append(error)
        self._states[index] = _State.ENDED
        self.wake()
        self._pass_on()

    def _pass_on(self) -> None:
        """Pass the baton to another actor, or end the run."""
        if all(state is _State.ENDED for state in self._states):
            self._over.release()
        elif _State.READY not in self._states:
            self.errors.append(AssertionError("deadlock: all actors wait"))
            self._over.release()
        else:
            self._turns[self._choose(None)].release()

    def _choose(self, running: int | None) -> int:
        ready = tuple(i for i, s in enumerate(self._states) if s is _State.READY)
        chosen = self._policy(ready, running)
        self.choices.append(Choice(ready, running, chosen))
        return chosen


class _ActorThread(Thread):
    """Runs one actor after another, because starting a thread for each takes longer than a play
    of few steps.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.calls: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def run(self) -> None:
        while True:
            self.calls.get()()
            _idle_threads.append(self)


_idle_threads: list[_ActorThread] = []
os.register_at_fork(after_in_child=_idle_threads.clear)  # a child has none of the threads


def _start_in_thread(call: Callable[[], None]) -> None:
    if _idle_threads:
        thread = _idle_threads.pop()
    else:
        thread = _ActorThread()
        thread.start()
    thread.calls.put(call)


class BatonLock:
    """A lock for code under a baton: an actor that waits for it passes the baton on."""

    def __init__(self, baton: Baton) -> None:
        self._baton = baton
        self._taken = False

    def __enter__(self) -> None:
        self._baton.step()
        self._baton.wait_until(lambda: not self._taken)
        self._taken = True

    def __exit__(self, *_: object) -> None:
        self._taken = False
        self._baton.wake()


# -- which schedules

Play = Callable[[Policy], Baton]
"""Plays a scenario from its start under a policy; raises when a promise breaks."""


class Scripted:
    """Makes the given choices first, and then keeps the running actor.

    The number of an actor's steps may depend on the time that they took. So an actor may have
    ended when its choice comes, and the choice is left out.
    """

    def __init__(self, script: Sequence[int]) -> None:
        self._script = iter(script)

    def __call__(self, ready: tuple[int, ...], running: int | None) -> int:
        scripted = next(self._script, None)
        if scripted in ready:
            return scripted
        return running if running is not None else ready[0]


class Wandering:
    """Switches at random."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._restless = self._random.choice((0.1, 0.3, 0.6))

    def __call__(self, ready: tuple[int, ...], running: int | None) -> int:
        if running is not None and self._random.random() > self._restless:
            return running
        return self._random.choice(ready)


def explore(play: Play, *, preemptions: int, limit: int) -> int:
    """Play every schedule with at most so many preemptions; return how many were played.

    Schedules with fewer preemptions come first. If there are more than `limit`, a random
    selection of them is played.
    """
    random = Random(0)
    waiting: list[tuple[int, float, list[int]]] = [(0, 0.0, [])]
    played = 0
    while waiting and played < limit:
        _, _, script = heappop(waiting)
        baton = _replayable(play, Scripted(script), f"schedule {script}")
        played += 1
        for preempted, other in _alternatives(baton.choices, len(script)):
            if preempted <= preemptions:
                heappush(waiting, (preempted, random.random(), other))
    return played


def _alternatives(choices: list[Choice], since: int) -> Iterator[tuple[int, list[int]]]:
    """Yield schedules that differ from this one at a choice that was not scripted."""
    script = [choice.chosen for choice in choices]
    preempted = sum(c.preempts(c.chosen) for c in choices[:since])
    for index in range(since, len(choices)):
        choice = choices[index]
        for other in choice.ready:
            if other != choice.chosen:
                yield preempted + choice.preempts(other), [*script[:index], other]
        preempted += choice.preempts(choice.chosen)


def wander(play: Play, seeds: Sequence[int]) -> None:
    """Play one random schedule for each seed."""
    for seed in seeds:
        _replayable(play, Wandering(seed), f"seed {seed}")


def _replayable(play: Play, policy: Policy, how: str) -> Baton:
    try:
        return play(policy)
    except BaseException as error:
        error.add_note(f"repeat it with {how}")
        raise
