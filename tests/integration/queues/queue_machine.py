"""A local queue against a model of plain values: any order of verbs, any lapse of time.

Two workers and an operator act on one queue. A worker may forget its claims (it was killed),
time passes, or the wall clock is set. After every act the queue's counts equal the model's, and
the audit finds no faults.
"""

import shutil
from math import inf
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.errors import LeaseLost
from holdfast.queue.message import get_lease
from support import memory_folder
from support.files.queue_folder import LEASE, make_message

MAX_ATTEMPTS = 2
MAX_LEASE = 3 * LEASE
LOOK_SECONDS = 0.5  # a worker scans for leases that ran out no more often than this
WORKERS = st.integers(0, 1)
IDS = st.sampled_from(["a", "b", "ä/../\n"])
# Exact in binary, so that the model and the names agree to the millisecond.
LEAPS = st.sampled_from([0.25, 0.5, 2.25, LEASE / 2, LEASE - 0.25, LEASE, 90.0])
DELAYS = st.sampled_from([0.0, 0.0, 1.5, LEASE])


class ExpectedTask:
    """The model of one push."""

    def __init__(self, message_id: str, due: float) -> None:
        self.id = message_id
        self.state = "pending"
        self.due = due  # wall clock
        self.ripe = False  # it was due before the wall clock was set back
        self.attempts = self.fence = 0
        self.ends_at = 0.0  # monotonic; of the lease
        self.lease_seconds = 0.0  # at the last renewal
        self.cancelled_at: float | None = None  # by the clock of due times, while leased
        self.offset = 0.0  # the offset that its holder measured when it started
        self.checkpoint: Any = None
        self.done_at = 0.0  # wall clock


class QueueMachine(RuleBasedStateMachine):
    """The machine of one kind of queue, which says how it is made and audited."""

    dedupe = False
    cancel_fences = 1  # by which a cancel raises the fence
    lease_slack_seconds = 0.0  # by which a lease may last longer than its holder trusts it

    def __init__(self) -> None:
        super().__init__()
        self.root = memory_folder.new_folder()
        self.ground = self.make_ground(dedupe=self.dedupe, max_attempts=MAX_ATTEMPTS)
        self.clock = self.ground.clock
        self.workers: list[Any] = [self.ground.queue(), self.ground.queue()]
        self.offsets = [self.offset()] * 2
        self.person = self.ground.queue()
        self.expected: dict[str, ExpectedTask] = {}
        self.in_hand: list[tuple[int, Any]] = []  # including claims that are no longer held

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    # -- what each kind of queue says about itself

    def make_ground(self, **options: Any) -> Any:
        """Return what opens queues below `root`."""
        raise NotImplementedError

    def list_states(self) -> dict[str, str]:
        """Return the state of each push by its key."""
        raise NotImplementedError

    def get_key(self, message: Any) -> str:
        raise NotImplementedError

    def now(self) -> float:
        """Return the time by which messages become due."""
        raise NotImplementedError

    def find_faults(self) -> Any:
        raise NotImplementedError

    def check_late(self, worker: int) -> None:
        """Check that the poll of this worker found every lease that had ended."""
        assert not [t for t in self.expected.values() if self.is_late(t)]

    # -- producing

    @rule(ids=st.lists(IDS, min_size=1, max_size=3), delay=DELAYS, worker=WORKERS)
    def push(self, ids: list[str], delay: float, worker: int) -> None:
        known = self.keys()
        pushed = self.workers[worker].push_many(
            [make_message(i) for i in ids], delay_seconds=delay
        )
        assert pushed == ids
        if self.dedupe:
            alive = {t.id for t in self.expected.values() if t.state != "failed"}
            ids = [i for i in dict.fromkeys(ids) if i not in alive]
        new = sorted(self.keys() - known)
        assert len(new) == len(ids)
        for key, message_id in zip(self.by_id(new), sorted(ids), strict=True):
            self.expected[key] = ExpectedTask(message_id, self.compute_due(delay))

    def compute_due(self, delay: float) -> float:
        """Return when a message is due. Due now means due, whatever the clock says later."""
        return self.now() + delay if delay > 0 else -inf

    def keys(self) -> set[str]:
        return set(self.list_states())

    def by_id(self, keys: list[str]) -> list[str]:
        views = {
            view.key: view.id for i in ("a", "b", "ä/../\n") for view in self.person.find(i)
        }
        return sorted(keys, key=lambda key: views[key])

    # -- consuming

    @rule(worker=WORKERS, limit=st.integers(1, 3))
    def poll(self, worker: int, limit: int) -> None:
        due = {
            k
            for k, expected in self.expected.items()
            if self.may_be_taken(expected) or expected.ripe
        }
        messages = self.workers[worker].poll(limit)
        for message in messages:
            key = self.get_key(message)
            assert key in due
            due.remove(key)
            self.check_delivery(self.expected[key], message, worker)
        self.settle_used_up(due)
        if len(messages) < limit:
            waiting = [
                self.expected[key] for key in due if self.expected[key].state == "pending"
            ]
            assert not [expected for expected in waiting if self.may_be_taken(expected)]

    def may_be_taken(self, expected: ExpectedTask) -> bool:
        if expected.state == "leased":
            return expected.ends_at <= self.clock.monotonic()
        return expected.state == "pending" and expected.due <= self.now()

    def check_delivery(self, expected: ExpectedTask, message: Any, worker: int) -> None:
        expected.state, expected.ends_at = "leased", self.clock.monotonic() + LEASE
        expected.lease_seconds = LEASE
        expected.offset = self.offsets[worker]
        expected.ripe = False
        expected.attempts += 1
        expected.fence += 1
        assert (message.id, message.attempts) == (expected.id, expected.attempts)
        assert get_lease(message).fence == expected.fence
        assert message.attempts <= MAX_ATTEMPTS
        assert self.workers[worker].load_checkpoint(message) == expected.checkpoint
        self.in_hand.append((worker, message))

    def settle_used_up(self, due: set[str]) -> None:
        """Tasks that were claimed too often may have been dead-lettered meanwhile."""
        failed = {key for key, state in self.list_states().items() if state == "failed"}
        for key in due & failed:
            assert self.expected[key].attempts == MAX_ATTEMPTS
            self.expected[key].state, self.expected[key].ripe = "failed", False
            self.expected[key].fence += 1
            due.remove(key)

    # -- holding and settling

    @precondition(lambda self: self.in_hand)
    @rule(which=st.integers(0, 99), seconds=st.sampled_from([0.5, LEASE, MAX_LEASE]))
    def extend(self, which: int, seconds: float) -> None:
        queue, message, expected = self.held(which)
        if expected is None:
            with pytest.raises(LeaseLost):
                queue.extend(message, seconds)
        else:
            queue.extend(message, seconds)
            expected.ends_at = self.clock.monotonic() + seconds
            expected.lease_seconds = seconds

    @precondition(lambda self: self.in_hand)
    @rule(which=st.integers(0, 99), page=st.integers(0, 3))
    def save_checkpoint(self, which: int, page: int) -> None:
        queue, message, expected = self.held(which)
        if expected is None:
            with pytest.raises(LeaseLost):
                queue.save_checkpoint(message, {"page": page})
        else:
            queue.save_checkpoint(message, {"page": page})
            expected.checkpoint = {"page": page}

    @precondition(lambda self: self.in_hand)
    @rule(which=st.integers(0, 99), verb=st.sampled_from(["ack", "nack", "release", "dead"]))
    def settle(self, which: int, verb: str) -> None:
        queue, message, expected = self.held(which)
        act = getattr(self, f"do_{verb}")
        if expected is None:
            with pytest.raises(LeaseLost):
                act(queue, message, ExpectedTask("", 0.0))
        else:
            act(queue, message, expected)
            act(queue, message, ExpectedTask("", 0.0))  # a second call does nothing
            del self.in_hand[
                which % len(self.in_hand)
            ]  # by position, because equal messages are not identical

    def do_ack(self, queue: Any, message: Any, expected: ExpectedTask) -> None:
        queue.ack(message)
        expected.state, expected.done_at = "completed", self.now()

    def do_nack(self, queue: Any, message: Any, expected: ExpectedTask) -> None:
        queue.nack(message, delay_seconds=1.5)
        expected.state, expected.due = "pending", self.now() + 1.5

    def do_release(self, queue: Any, message: Any, expected: ExpectedTask) -> None:
        queue.release(message)
        expected.state, expected.due = "pending", self.compute_due(0.0)
        expected.attempts -= 1

    def do_dead(self, queue: Any, message: Any, expected: ExpectedTask) -> None:
        queue.dead_letter(message, "no use")
        expected.state = "failed"

    def held(self, which: int) -> tuple[Any, Any, ExpectedTask | None]:
        """Return a message that a worker polled, and its model if it is still held."""
        worker, message = self.in_hand[which % len(self.in_hand)]
        expected = self.expected.get(self.get_key(message))
        fence = get_lease(message).fence
        if (
            expected is None
            or (expected.state, expected.fence) != ("leased", fence)
            or expected.ends_at <= self.clock.monotonic()
        ):
            expected = None
        return self.workers[worker], message, expected

    @precondition(lambda self: self.expected)
    @rule(worker=WORKERS)
    def fail_again(self, worker: int) -> None:
        """Fail a task until its attempts are used up."""
        self.nothing_sleeps_for_ever(worker)
        for which in reversed(range(len(self.in_hand))):
            self.settle(which, "nack")
        self.clock.advance(2.0)

    @rule(worker=WORKERS)
    def kill(self, worker: int) -> None:
        self.workers[worker] = self.ground.queue()
        self.offsets[worker] = self.offset()
        self.in_hand = [held for held in self.in_hand if held[0] != worker]

    # -- operators

    @rule(message_id=st.one_of(st.none(), IDS))
    def redrive(self, message_id: str | None) -> None:
        dead = [t for t in self.expected.values() if t.state == "failed"]
        dead = [t for t in dead if message_id in (None, t.id)]
        if self.dedupe:
            alive = {t.id for t in self.expected.values() if t.state != "failed"}
            ids = {t.id for t in dead} - alive
            assert self.person.redrive(message_id) == len(ids)
            self.see_which_came_back(dead)
        else:
            assert self.person.redrive(message_id) == len(dead)
            self.come_back(dead)

    def see_which_came_back(self, dead: list[ExpectedTask]) -> None:
        pending = {key for key, state in self.list_states().items() if state == "pending"}
        self.come_back([t for t in dead if any(self.expected.get(k) is t for k in pending)])

    def come_back(self, back: list[ExpectedTask]) -> None:
        for expected in back:
            held = 0.0 if expected.cancelled_at is None else self.count_held_seconds(expected)
            expected.due, expected.cancelled_at = self.compute_due(held), None
            expected.state, expected.attempts = "pending", 0

    def count_held_seconds(self, expected: ExpectedTask) -> float:
        """Return for how long the holder of a cancelled task may still trust its lease."""
        return max(0.0, expected.ends_at - self.clock.monotonic())

    @rule(message_id=IDS)
    def cancel(self, message_id: str) -> None:
        live = [
            t
            for t in self.expected.values()
            if t.id == message_id and t.state in ("pending", "leased")
        ]
        assert self.person.cancel(message_id) == len(live)
        for expected in live:
            expected.cancelled_at = self.now() if expected.state == "leased" else None
            expected.state, expected.ripe = "failed", False
            expected.fence += self.cancel_fences

    @rule(message_id=IDS)
    def drop(self, message_id: str) -> None:
        dead = [
            key for key, t in self.expected.items() if (t.state, t.id) == ("failed", message_id)
        ]
        assert self.person.drop(message_id) == len(dead)
        for key in dead:
            del self.expected[key]

    @rule(age=st.sampled_from([0.0, LEASE]))
    def purge(self, age: float) -> None:
        old = [
            key
            for key, expected in self.expected.items()
            if expected.state == "completed" and expected.done_at <= self.now() - age
        ]
        assert self.person.purge(age) == len(old)
        for key in old:
            del self.expected[key]

    # -- time

    @rule(seconds=LEAPS)
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(seconds=st.sampled_from([-3600.0, -1.0, 1.0, 3600.0]))
    def set_wall_clock(self, seconds: float) -> None:
        for expected in self.expected.values():
            expected.ripe = expected.ripe or (
                expected.state == "pending" and self.may_be_taken(expected)
            )
        self.clock.step_time(seconds)

    @rule(worker=WORKERS)
    def nothing_sleeps_for_ever(self, worker: int) -> None:
        """Check that a poll after the shortest pause finds every lease that ran out."""
        self.clock.advance(LOOK_SECONDS)
        self.poll(worker, 99)
        waiting = [t for t in self.expected.values() if t.state == "pending"]
        assert not [t for t in waiting if self.may_be_taken(t)]
        self.check_late(worker)

    def is_late(self, expected: ExpectedTask) -> bool:
        ended_at = expected.ends_at + self.lease_slack_seconds
        return expected.state == "leased" and ended_at <= self.clock.monotonic()

    def offset(self) -> float:
        return self.clock.time() - self.clock.monotonic()

    # -- always

    @invariant()
    def the_queue_counts_what_the_model_counts(self) -> None:
        stats = self.person.stats()
        states = [expected.state for expected in self.expected.values()]
        assert stats.ready + stats.delayed == states.count("pending")
        assert stats.leased == states.count("leased")
        assert stats.completed == states.count("completed")
        assert stats.failed == states.count("failed")
        assert stats.foreign == 0

    @invariant()
    def the_queue_is_in_order(self) -> None:
        assert not self.find_faults()


QUICK = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
