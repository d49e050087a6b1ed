"""Every schedule of the rename protocol, for one task in a small world.

    idle ─look─▶ judged ─ask─▶ asked ─rename─▶ holding ─decide─▶ settling ─rename─▶ idle
       ◀─stamp─ listed ◀─look─ idle

A worker compares the deadline of a lease of its own host with the clock. It never reads the
deadline of another host's lease: it remembers the name with the time when it saw it, and
takes the lease when the name is the same a whole lease later.

Each arrow is one step; between any two of them other workers step, time passes or one is
killed. A rename is a compare-and-swap on the whole name. `explore` walks all states
breadth first and gives back the shortest way to a broken promise, or none.

Mutations take single rules out of the protocol, to see which of them carry the promises.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

LEASE = 2  # ticks; with one, a late renewal would be worth nothing and prove nothing


class Mutation(Enum):
    """A rule taken out."""

    RENEW_IN_PLACE = auto()  # the deadline is an attribute of the file, not of its name
    LATE_RENEWAL_COUNTS = auto()  # an answer after the old deadline is believed
    DEADLINE_AFTER_CLAIM = auto()  # the claim keeps the old deadline; a later step sets it
    TAKE_OVER_UNJUDGED = auto()  # take what is leased, whatever its deadline
    SETTLE_UNCHECKED = auto()  # move the task whatever its name is now
    SETTLE_LATE = auto()  # settle without looking at one's own deadline
    FENCE_FALLS = auto()  # giving back takes the fence back too
    SHARED_IDENTITY = auto()  # two workers write the same token (a fork that kept it)
    NO_TARGET_PROOF = auto()  # a rename that was repeated by the network counts as lost
    WATCH_TOO_SHORT = auto()  # a name that is the same one tick less than a lease later
    SEEN_BEFORE_LISTING = auto()  # a new name counts from before the listing


class Place(Enum):
    PENDING = "pending"
    LEASED = "leased"
    COMPLETED = "completed"
    FAILED = "failed"


class Name(NamedTuple):
    place: Place
    fence: int
    owner: int = -1
    deadline: int = 0


class Step(Enum):
    IDLE = auto()
    LISTED = auto()  # it has a listing with another host's lease, whose name is new to it
    JUDGED = auto()
    ASKED = auto()
    CLAIMED = auto()  # only with DEADLINE_AFTER_CLAIM: holding, deadline not yet set
    HOLDING = auto()
    RENEWING = auto()
    ACKING = auto()
    NACKING = auto()
    RELEASING = auto()
    DEAD_LETTERING = auto()
    KILLED = auto()


_DECISIONS = (Step.RENEWING, Step.ACKING, Step.NACKING, Step.RELEASING, Step.DEAD_LETTERING)
_AT_WORK = (Step.CLAIMED, Step.HOLDING, Step.RENEWING)


class Worker(NamedTuple):
    step: Step = Step.IDLE
    name: Name | None = None  # the name it saw, or holds
    until: int = 0  # its own trust; of one that is idle: since when it knows the name
    asks: int = 0  # the deadline it asks for


class World(NamedTuple):
    file: Name
    workers: tuple[Worker, ...]
    now: int = 0
    kills: int = 0
    acks: int = 0
    granted: int = 0  # the highest fence any worker got
    regranted: bool = False  # a fence was given out a second time


IDLE, KILLED = Worker(), Worker(Step.KILLED)


@dataclass(frozen=True, slots=True)
class Scope:
    """How large a world to look through."""

    workers: int = 3
    hosts: int = 1
    ticks: int = 3
    fences: int = 3
    kills: int = 1
    repeats: bool = True  # the network may repeat a rename whose answer was lost


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken promise, and the shortest way to it."""

    promise: str
    path: tuple[World, ...]


@dataclass(frozen=True, slots=True)
class Exploration:
    states: int
    finding: Finding | None


def explore(scope: Scope, *mutations: Mutation) -> Exploration:
    """All worlds that can be reached, until one breaks a promise."""
    protocol = Protocol(scope, frozenset(mutations))
    start = World(Name(Place.PENDING, 0), (IDLE,) * scope.workers)
    came_from: dict[World, World | None] = {start: None}
    frontier = [start]
    while frontier:
        later: list[World] = []
        for world in frontier:
            if promise := broken(world):
                return Exploration(len(came_from), Finding(promise, _path(came_from, world)))
            for following in protocol.steps(world):
                if following not in came_from:
                    came_from[following] = world
                    later.append(following)
        frontier = later
    return Exploration(len(came_from), None)


def broken(world: World) -> str | None:
    """Which promise does not hold in this world?"""
    holders = sum(w.step in _AT_WORK and world.now < w.until for w in world.workers)
    if holders > 1:
        return "two hold the task at once"
    if world.acks > 1:
        return "the task was acked twice"
    if world.regranted:
        return "a fence was given out twice"
    return None


def _path(came_from: dict[World, World | None], world: World | None) -> tuple[World, ...]:
    path = []
    while world is not None:
        path.append(world)
        world = came_from[world]
    return tuple(reversed(path))


class Protocol:
    """What may happen next."""

    def __init__(self, scope: Scope, mutations: frozenset[Mutation]) -> None:
        self._scope = scope
        self._in_place = Mutation.RENEW_IN_PLACE in mutations
        self._late_counts = Mutation.LATE_RENEWAL_COUNTS in mutations
        self._deadline_after = Mutation.DEADLINE_AFTER_CLAIM in mutations
        self._unjudged = Mutation.TAKE_OVER_UNJUDGED in mutations
        self._unchecked = Mutation.SETTLE_UNCHECKED in mutations
        self._settle_late = Mutation.SETTLE_LATE in mutations
        self._fence_falls = Mutation.FENCE_FALLS in mutations
        self._shared = Mutation.SHARED_IDENTITY in mutations
        self._proof = Mutation.NO_TARGET_PROOF not in mutations
        self._watch = LEASE - (Mutation.WATCH_TOO_SHORT in mutations)
        self._seen_before = Mutation.SEEN_BEFORE_LISTING in mutations

    def steps(self, world: World) -> Iterator[World]:
        if world.now < self._scope.ticks:
            yield world._replace(now=world.now + 1)
        for index, worker in enumerate(world.workers):
            if worker.step is Step.KILLED:
                continue
            if world.kills < self._scope.kills:
                yield self._with(world._replace(kills=world.kills + 1), index, KILLED)
            yield from self._worker_steps(world, index, worker)

    def _worker_steps(self, world: World, index: int, worker: Worker) -> Iterator[World]:
        match worker.step:
            case Step.IDLE:
                yield from self._look(world, index, worker)
            case Step.LISTED:
                yield self._with(world, index, self._remember(world, worker))
            case Step.JUDGED:
                asked = worker._replace(step=Step.ASKED, asks=world.now + LEASE)
                yield self._with(world, index, asked)
            case Step.ASKED:
                yield from self._claim(world, index, worker)
            case Step.CLAIMED:
                yield from self._set_deadline(world, index, worker)
            case Step.HOLDING:
                yield from self._decide(world, index, worker)
            case Step.RENEWING:
                yield from self._renew(world, index, worker)
            case _:
                yield from self._settle(world, index, worker)

    # -- claiming

    def _look(self, world: World, index: int, worker: Worker) -> Iterator[World]:
        file = world.file
        if file.place is Place.FAILED:
            yield world._replace(file=Name(Place.PENDING, file.fence))  # a person redrives
        if file.fence >= self._scope.fences:
            return
        if self._may_be_taken(world, index, worker):
            yield self._with(world, index, Worker(Step.JUDGED, file))
        elif self._is_elsewhere(file, index) and not self._knows(worker, file):
            yield self._with(world, index, Worker(Step.LISTED, file, world.now))

    def _may_be_taken(self, world: World, index: int, worker: Worker) -> bool:
        file = world.file
        if file.place is not Place.LEASED or self._unjudged:
            return file.place in (Place.PENDING, Place.LEASED)
        if self._is_elsewhere(file, index):
            return self._knows(worker, file) and worker.until + self._watch <= world.now
        return file.deadline <= world.now

    def _is_elsewhere(self, file: Name, index: int) -> bool:
        hosts = self._scope.hosts
        return file.place is Place.LEASED and file.owner % hosts != index % hosts

    def _knows(self, worker: Worker, file: Name) -> bool:
        return worker.name is not None and self._same(worker.name, file)

    def _remember(self, world: World, worker: Worker) -> Worker:
        """The name in the listing, seen when the listing was there, not when it began."""
        if not self._seen_before:
            return Worker(Step.IDLE, worker.name, world.now)
        is_leased = world.file.place is Place.LEASED
        return Worker(Step.IDLE, world.file if is_leased else None, worker.until)

    def _claim(self, world: World, index: int, worker: Worker) -> Iterator[World]:
        seen = _name(worker)
        deadline = seen.deadline if self._deadline_after else worker.asks
        own_name = Name(Place.LEASED, seen.fence + 1, self._token(index), deadline)
        step = Step.CLAIMED if self._deadline_after else Step.HOLDING
        held = Worker(step, own_name, worker.asks)
        for after, won in self._rename(world, seen, own_name):
            yield self._with(after, index, held if won else IDLE)

    def _set_deadline(self, world: World, index: int, worker: Worker) -> Iterator[World]:
        own_name = _name(worker)
        right = own_name._replace(deadline=worker.until)
        if self._same(world.file, own_name):
            held = Worker(Step.HOLDING, right, worker.until)
            yield self._with(world._replace(file=right), index, held)
        else:
            yield self._with(world, index, IDLE)

    # -- holding

    def _decide(self, world: World, index: int, worker: Worker) -> Iterator[World]:
        if world.now >= worker.until and not self._settle_late:
            yield self._with(world, index, IDLE)
            return
        for step in _DECISIONS:
            yield self._with(world, index, worker._replace(step=step, asks=world.now + LEASE))

    def _renew(self, world: World, index: int, worker: Worker) -> Iterator[World]:
        own_name = _name(worker)
        longer = own_name._replace(deadline=worker.asks)
        believed = world.now < worker.until or self._late_counts
        held = Worker(Step.HOLDING, longer, worker.asks) if believed else IDLE
        for after, won in self._rename(world, own_name, longer):
            yield self._with(after, index, held if won else IDLE)

    def _settle(self, world: World, index: int, worker: Worker) -> Iterator[World]:
        own_name = _name(worker)
        if self._unchecked and world.file.place is Place.LEASED:
            own_name = world.file
        for after, won in self._rename(world, own_name, self._target(worker.step, own_name)):
            acked = won and worker.step is Step.ACKING
            yield self._with(after._replace(acks=after.acks + acked), index, IDLE)

    def _target(self, step: Step, own_name: Name) -> Name:
        match step:
            case Step.ACKING:
                return Name(Place.COMPLETED, own_name.fence, own_name.owner)
            case Step.DEAD_LETTERING:
                return Name(Place.FAILED, own_name.fence)
            case Step.RELEASING if self._fence_falls:
                return Name(Place.PENDING, own_name.fence - 1)
            case _:
                return Name(Place.PENDING, own_name.fence)

    # -- the file system

    def _rename(self, world: World, source: Name, target: Name) -> Iterator[tuple[World, bool]]:
        """The worlds after a rename, and whether the caller believes that it won."""
        if self._same(world.file, source):
            moved = self._moved(world, source, target)
            yield moved, True
            if self._scope.repeats and source != target:  # done, but said to have failed
                yield moved, self._proof
        else:
            yield world, self._proof and self._same(world.file, target)

    def _moved(self, world: World, source: Name, target: Name) -> World:
        """Only a claim raises the fence; each must raise it above all before."""
        if target.fence <= source.fence or target.place is not Place.LEASED:
            return world._replace(file=target)
        again = world.regranted or target.fence <= world.granted
        return world._replace(
            file=target, granted=max(world.granted, target.fence), regranted=again
        )

    def _same(self, one: Name, other: Name) -> bool:
        if self._in_place:
            return one._replace(deadline=0) == other._replace(deadline=0)
        return one == other

    def _token(self, index: int) -> int:
        return 0 if self._shared else index

    def _with(self, world: World, index: int, worker: Worker) -> World:
        workers = world.workers
        return world._replace(workers=(*workers[:index], worker, *workers[index + 1 :]))


def _name(worker: Worker) -> Name:
    assert worker.name is not None
    return worker.name
