"""The rename protocol in a small model, under all schedules: its promises and their reasons.

    idle ─look─▶ judged ─ask─▶ asked ─rename─▶ holding ─decide─▶ renew, ack, … ─rename─▶ idle
       ◀─stamp─ listed ◀─look─ idle

There is one task. A worker compares the deadline of a lease of its own host with the clock. It
never reads the deadline of another host's lease: it remembers the name with the time when it
saw it, and takes the lease when the name is the same a whole lease later. Each arrow is one
step. Between any two of them other workers step, time passes or one is killed. A rename is a
compare-and-swap on the whole name.

The real code is tested for the same promises in
tests/integration/queues/files/test_schedules.py. Here time, kills and repeated
network calls are unlimited within the scope.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

LEASE = 2  # ticks; with one, a late renewal would be worth nothing and prove nothing
ENDS_IN = {"ack": "completed", "nack": "pending", "release": "pending", "dead-letter": "failed"}
DECISIONS = ("renew", *ENDS_IN)
AT_WORK = ("claimed", "holding", "renew")

TWO_HOLDERS = "two hold the task at once"
TWO_ACKS = "the task was acked twice"
FENCE_TWICE = "a fence was given out twice"

Rules = frozenset[str]
"""Rules that are taken out of the protocol, to see which of them carry the promises:

    renew_by_rename        the deadline is in the name, not in an attribute of the file
    late_renewal_is_lost   an answer after the old deadline is not believed
    deadline_with_claim    the claim itself sets the new deadline, not a later step
    judge_first            only a lease that has ended is taken over
    settle_own_name        a task is only moved under the name that the holder knows
    settle_in_time         a holder looks at its own deadline before it settles
    fence_never_falls      giving back does not take the fence back
    own_identity           no two workers write the same token (a fork must not keep it)
    target_is_proof        a repeated rename whose target exists counts as won
    watch_a_whole_lease    a name of another host must stay the same for a whole lease
    seen_after_listing     a new name counts from after the listing
"""


class Name(NamedTuple):
    place: str = "pending"
    fence: int = 0
    owner: int = -1
    deadline: int = 0


class Worker(NamedTuple):
    step: str = "idle"
    name: Name = Name("nowhere")  # that it saw, or holds
    until: int = 0  # its own trust; of one that is idle: since when it knows the name
    asks: int = 0  # the deadline that it asks for


class World(NamedTuple):
    workers: tuple[Worker, ...]
    file: Name = Name()
    now: int = 0
    kills: int = 0
    acks: int = 0
    granted: int = 0  # the highest fence that a worker got
    regranted: bool = False

    def put(self, index: int, worker: Worker) -> "World":
        workers = self.workers
        return self._replace(workers=(*workers[:index], worker, *workers[index + 1 :]))

    def find_broken_promise(self) -> str | None:
        if sum(w.step in AT_WORK and self.now < w.until for w in self.workers) > 1:
            return TWO_HOLDERS
        if self.acks > 1:
            return TWO_ACKS
        return FENCE_TWICE if self.regranted else None


IDLE = Worker()


class Protocol(NamedTuple):
    """What may happen next, in a world of this size."""

    workers: int
    ticks: int
    fences: int
    kills: int
    hosts: int = 1
    without: Rules = frozenset()

    def explore(self) -> tuple[str | None, int]:
        """Return the first broken promise, and how many worlds were reached until then."""
        worlds = [World((IDLE,) * self.workers)]
        reached = set(worlds)
        for world in worlds:
            if promise := world.find_broken_promise():
                return promise, len(reached)
            for after in self.list_next(world):
                if after not in reached:
                    reached.add(after)
                    worlds.append(after)
        return None, len(reached)

    def list_next(self, world: World) -> Iterator[World]:
        if world.now < self.ticks:
            yield world._replace(now=world.now + 1)
        for index, worker in enumerate(world.workers):
            if worker.step != "killed":
                if world.kills < self.kills:
                    killed = world._replace(kills=world.kills + 1)
                    yield killed.put(index, Worker("killed"))
                yield from self.act(world, index, worker)

    def act(self, world: World, index: int, worker: Worker) -> Iterator[World]:
        step, name, until, asks = worker
        now, without = world.now, self.without
        match step:
            case "idle":
                yield from self.look(world, index, worker)
            case "listed" if "seen_after_listing" not in without:
                yield world.put(index, Worker("idle", name, now))
            case "listed":
                seen = world.file if world.file.place == "leased" else IDLE.name
                yield world.put(index, Worker("idle", seen, until))
            case "judged":
                yield world.put(index, worker._replace(step="asked", asks=now + LEASE))
            case "asked":
                is_late = "deadline_with_claim" in without
                owner = index if "own_identity" not in without else 0
                deadline = name.deadline if is_late else asks
                claim = Name("leased", name.fence + 1, owner, deadline)
                held = Worker("claimed" if is_late else "holding", claim, asks)
                yield from self.rename(world, index, name, claim, held)
            case "claimed":  # only without `deadline_with_claim`
                longer = name._replace(deadline=until)
                if self.is_same(world.file, name):
                    world, held = world._replace(file=longer), Worker("holding", longer, until)
                    yield world.put(index, held)
                else:
                    yield world.put(index, IDLE)
            case "holding" if now >= until and "settle_in_time" not in without:
                yield world.put(index, IDLE)
            case "holding":
                for decision in DECISIONS:
                    yield world.put(index, worker._replace(step=decision, asks=now + LEASE))
            case "renew":
                longer = name._replace(deadline=asks)
                is_believed = now < until or "late_renewal_is_lost" in without
                held = Worker("holding", longer, asks) if is_believed else IDLE
                yield from self.rename(world, index, name, longer, held)
            case _:
                if "settle_own_name" in without and world.file.place == "leased":
                    name = world.file
                falls = step == "release" and "fence_never_falls" in without
                owner = name.owner if step == "ack" else -1
                target = Name(ENDS_IN[step], name.fence - falls, owner)
                yield from self.rename(world, index, name, target, IDLE, acks=step == "ack")

    def look(self, world: World, index: int, worker: Worker) -> Iterator[World]:
        file = world.file
        if file.place == "failed":
            yield world._replace(file=Name("pending", file.fence))  # a person redrives
        if file.place not in ("pending", "leased") or file.fence >= self.fences:
            return
        is_elsewhere = file.owner % self.hosts != index % self.hosts
        is_known = self.is_same(worker.name, file)
        if file.place == "pending" or "judge_first" in self.without:
            may_take = True
        elif is_elsewhere:
            watched = LEASE - ("watch_a_whole_lease" in self.without)
            may_take = is_known and worker.until + watched <= world.now
        else:
            may_take = file.deadline <= world.now
        if may_take:
            yield world.put(index, Worker("judged", file))
        elif is_elsewhere and not is_known:
            yield world.put(index, Worker("listed", file, world.now))

    def rename(
        self,
        world: World,
        index: int,
        source: Name,
        target: Name,
        winner: Worker,
        *,
        acks: bool = False,
    ) -> Iterator[World]:
        """Yield the worlds after a rename. The network may repeat it: done, but refused."""
        has_proof = "target_is_proof" not in self.without
        if self.is_same(world.file, source):
            moved = world._replace(file=target)
            if target.place == "leased" and target.fence > source.fence:  # only a claim
                again = world.regranted or target.fence <= world.granted
                granted = max(world.granted, target.fence)
                moved = moved._replace(granted=granted, regranted=again)
            results = {(moved, True), (moved, has_proof or source == target)}
        else:
            results = {(world, has_proof and self.is_same(world.file, target))}
        for after, won in results:
            after = after._replace(acks=after.acks + (acks and won))
            yield after.put(index, winner if won else IDLE)

    def is_same(self, name: Name, other: Name) -> bool:
        if "renew_by_rename" in self.without:
            return name._replace(deadline=0) == other._replace(deadline=0)
        return name == other


TWO = Protocol(workers=2, ticks=4, fences=3, kills=1)
THREE = Protocol(workers=3, ticks=3, fences=2, kills=0)
TWO_HOSTS = TWO._replace(hosts=2)
THREE_ON_TWO_HOSTS = THREE._replace(hosts=2)
SMALL = TWO._replace(fences=2)

NEEDED = {
    ("deadline_with_claim",): TWO_HOLDERS,
    ("judge_first",): TWO_HOLDERS,
    ("settle_own_name",): TWO_ACKS,
    ("fence_never_falls",): FENCE_TWICE,
    ("own_identity",): TWO_HOLDERS,
    # Each of these two alone breaks nothing, see below. So the renewal by rename and the
    # rule about late responses protect each other.
    ("renew_by_rename", "late_renewal_is_lost"): TWO_HOLDERS,
}

# Between hosts, a renewal must change the name in any case, because nothing else shows it.
NEEDED_BETWEEN_HOSTS = {
    ("renew_by_rename",): TWO_HOLDERS,
    ("watch_a_whole_lease",): TWO_HOLDERS,
    ("seen_after_listing",): TWO_HOLDERS,
    ("judge_first",): TWO_HOLDERS,
    ("settle_own_name",): TWO_ACKS,
    ("fence_never_falls",): FENCE_TWICE,
}

# The promises do not depend on these rules, now that a renewal is a rename too. The rules
# stay in the code for other reasons. Counting trust from before the call is right for every
# kind of lease, and the proof by the own target prevents a lease from idling until its end.
NOT_NEEDED = (
    ("late_renewal_is_lost",),
    ("renew_by_rename",),
    ("settle_in_time",),
    ("target_is_proof",),
    ("late_renewal_is_lost", "settle_in_time", "target_is_proof"),
)


@pytest.mark.parametrize(
    ("protocol", "at_least"),
    [
        (TWO, 30_000),
        (THREE, 50_000),
        (TWO_HOSTS, 50_000),
        pytest.param(THREE_ON_TWO_HOSTS, 150_000, marks=pytest.mark.nightly),
    ],
)
def test_no_schedule_breaks_a_promise(protocol: Protocol, at_least: int) -> None:
    promise, worlds = protocol.explore()
    assert promise is None
    assert worlds >= at_least  # a model that makes no progress proves nothing


@pytest.mark.parametrize("rules", NEEDED, ids="+".join)
def test_a_promise_breaks_without(rules: tuple[str, ...]) -> None:
    promise, _ = TWO._replace(without=frozenset(rules)).explore()
    assert promise == NEEDED[rules]


@pytest.mark.parametrize("rules", NEEDED_BETWEEN_HOSTS, ids="+".join)
def test_between_hosts_a_promise_breaks_without(rules: tuple[str, ...]) -> None:
    promise, _ = TWO_HOSTS._replace(without=frozenset(rules)).explore()
    assert promise == NEEDED_BETWEEN_HOSTS[rules]


@pytest.mark.parametrize("rules", NOT_NEEDED, ids="+".join)
def test_no_promise_rests_on(rules: tuple[str, ...]) -> None:
    assert SMALL._replace(without=frozenset(rules)).explore()[0] is None
