"""What seed 003 asks of an adaptive consumer (R003-…), where no other test says it.

On the simulator of SQS, its hours in a moment; the whole story with real processes is in
test_watchdog_example.py and test_worker_*.py.
"""

import random
from dataclasses import dataclass
from threading import Event, Thread, current_thread

import pytest
from examples import watchdog
from examples.watchdog import Books, Dice, State, Task, create_tasks, is_successful

from holdfast import LeaseKeeper, LeaseLost, Worker
from holdfast.adapters.aws.sqs import SQSQueue
from holdfast.core import events as ev
from holdfast.core.events import Events
from holdfast.core.queue.message import lease_of
from holdfast.testing import ManualClock, SimulatedSqs

LEASE = 5.0
HOUR = 3600.0


@dataclass
class Ground:
    clock: ManualClock
    sqs: SimulatedSqs
    queue: SQSQueue[Task]
    keeper: LeaseKeeper
    told: list[ev.Event]

    def another_consumer_gets(self) -> list[Task]:
        """What somebody else, who knows nothing of this process, would receive now."""
        return opened(self.sqs, self.clock).poll()

    def let_pass(self, seconds: float) -> None:
        """With the keeper at work, as its thread would be."""
        until = self.clock.monotonic() + seconds
        while True:
            next_at = self.keeper.tick().next_at
            if next_at is None or next_at > until:
                break
            self.clock.advance(max(0.0, next_at - self.clock.monotonic()))
        self.clock.advance(until - self.clock.monotonic())


def opened(
    sqs: SimulatedSqs, clock: ManualClock, events: Events | None = None
) -> SQSQueue[Task]:
    return SQSQueue(
        "test-queue", Task, lease_seconds=LEASE, client=sqs.client(), clock=clock, events=events
    )


@pytest.fixture
def ground() -> Ground:
    clock = ManualClock()
    sqs = SimulatedSqs(clock)
    sqs.client().create_queue(
        QueueName="test-queue", Attributes={"MessageRetentionPeriod": "1209600"}
    )
    told: list[ev.Event] = []
    events = Events(told.append)
    keeper = LeaseKeeper(clock, events)
    return Ground(clock, sqs, opened(sqs, clock, events), keeper, told)


def at_system_time() -> tuple[SimulatedSqs, SQSQueue[Task]]:
    """For a Worker, whose threads wait by the real clock."""
    sqs = SimulatedSqs()
    sqs.client().create_queue(QueueName="test-queue")
    return sqs, SQSQueue("test-queue", Task, client=sqs.client())


# -- concepts


@pytest.mark.parametrize("work_seconds", [1.0, 30.0, HOUR, 6 * HOUR])
def test_a_message_stays_hidden_for_as_long_as_its_work_takes(
    ground: Ground, work_seconds: float
) -> None:
    """R003-001, R003-005, R003-006, R003-012, R003-013, R003-039: extended while it is
    worked on, whatever that takes; deleted when it is complete."""
    ground.queue.push(Task(title="a"))
    [task] = ground.queue.poll()
    ground.keeper.hold(lease_of(task))
    for _ in range(10):
        ground.let_pass(work_seconds / 10)
        assert ground.another_consumer_gets() == []
    ground.queue.ack(task)
    ground.clock.advance(12 * HOUR)
    assert ground.another_consumer_gets() == []
    beats = ground.sqs.calls.count("ChangeMessageVisibilityBatch")
    assert beats == pytest.approx(work_seconds / (LEASE / 3), abs=2)


@pytest.mark.parametrize("age_seconds", [0.0, 60.0, 6 * HOUR])
def test_when_the_beats_stop_the_message_is_back_within_one_hold_however_old_it_is(
    ground: Ground, age_seconds: float
) -> None:
    """R003-003, R003-004, R003-014, R003-026; D-13 for R003-038: the seed's timeout grew
    with every beat, and with it the time until anybody noticed a death (WD-01)."""
    ground.queue.push(Task(title="a"))
    [task] = ground.queue.poll()
    ground.keeper.hold(lease_of(task))
    ground.let_pass(age_seconds)  # and here the process dies
    ground.clock.advance(LEASE + 0.01)
    [again] = ground.another_consumer_gets()
    assert again.id == task.id


def test_a_message_delivered_twice_is_worked_on_once_here(ground: Ground) -> None:
    """R003-002: exclusive is usual, not sure; the newest receipt takes over."""
    ground.queue.push(Task(title="a"))
    [task] = ground.queue.poll()
    assert ground.sqs.duplicate("test-queue") == 1
    assert ground.queue.poll() == []
    ground.queue.ack(task)
    ground.clock.advance(HOUR)
    assert ground.another_consumer_gets() == []


def test_twelve_hours_are_the_end_and_it_is_said_before(ground: Ground) -> None:
    """R003-047: SQS refuses to go beyond; so it is not asked, and the work is told."""
    ground.queue.push(Task(title="a"))
    [task] = ground.queue.poll()
    lease = lease_of(task)
    ground.keeper.hold(lease)
    ground.let_pass(12 * HOUR - 2 * LEASE)
    assert lease.live
    ground.let_pass(3 * LEASE)
    assert lease.lost.is_set()
    kinds = [type(event) for event in ground.told]
    assert kinds.index(ev.NearCap) < kinds.index(ev.MessageLeaseLost)
    assert ev.LeaseAtRisk not in kinds  # nothing was refused: nothing too long was asked
    with pytest.raises(LeaseLost):
        ground.queue.ack(task)


def test_work_of_known_length_needs_no_beats(ground: Ground) -> None:
    """R003-048: without a keeper, the hold is all the time there is."""
    ground.queue.push(Task(title="a"))
    [task] = ground.queue.poll()
    ground.clock.advance(LEASE - 1)
    ground.queue.ack(task)
    assert ground.sqs.calls.count("ChangeMessageVisibilityBatch") == 0
    ground.clock.advance(HOUR)
    assert ground.another_consumer_gets() == []


def test_work_never_runs_where_the_watching_is_done() -> None:
    """R003-007, R003-009, R003-010: not even in threads, where they share a process."""
    sqs, _ = at_system_time()
    renewed = Event()
    threads: dict[str, Thread] = {}

    def note(event: ev.Event) -> None:
        if isinstance(event, ev.LeaseRenewed):
            threads["watching"] = current_thread()
            renewed.set()

    def handle(task: Task) -> None:
        threads["working"] = current_thread()
        assert renewed.wait(60)

    queue: SQSQueue[Task] = SQSQueue(
        "test-queue", Task, lease_seconds=3, client=sqs.client(), events=Events(note)
    )
    queue.push(Task(title="a"))
    assert Worker(queue, handle).run(until_empty=True).completed == 1
    assert len({threads["watching"], threads["working"], current_thread()}) == 3


# -- creating tasks


@pytest.mark.parametrize("count", [0, 3, 25])
def test_as_many_tasks_are_sent_as_were_asked_for(
    ground: Ground, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """R003-015, R003-017, R003-018, R003-019; D-12, WD-04: in batches of ten."""
    titles = create_tasks(ground.queue, count)
    assert list(titles.values()) == [f"Task #{number}" for number in range(count)]
    assert ground.queue.stats().ready == count
    assert ground.sqs.calls.count("SendMessageBatch") == -(-count // 10)
    assert f"sent {count} messages to the queue 'sqs:test-queue'" in capsys.readouterr().out


def test_an_entry_that_was_not_taken_is_sent_again() -> None:
    """WD-04: the seed did not look at what failed."""
    sqs, queue = at_system_time()
    sqs.faults.refuse("SendMessageBatch", "InternalError", positions=(1,))
    assert len(create_tasks(queue, 3)) == 3
    assert queue.stats().ready == 3


# -- the books


def completed(message_id: str) -> ev.Completed:
    return ev.Completed("q", message_id, 1, seconds=1.0)


def test_tasks_are_counted_by_name_so_that_one_done_twice_counts_once() -> None:
    """R003-023, R003-024, R003-031; WD-03."""
    ended: list[bool] = []
    books = Books(lambda: ended.append(True), {"a": "Task #0", "b": "Task #1"})
    assert books.complete == set()
    books(completed("a"))
    books(completed("a"))
    books(completed("somebody else's"))
    assert (ended, books.over) == ([], False)
    books(completed("b"))
    assert (ended, books.all_complete) == ([True], True)


@pytest.mark.parametrize(
    "event", [ev.Retried("q", "a", 1, 1.0, "x"), ev.MessageLeaseLost("q", "a", 1, "x")]
)
def test_what_failed_or_was_lost_is_not_complete(event: ev.Event) -> None:
    """R003-011, R003-031, R003-035; WD-12: complete is what the queue has taken as such."""
    books = Books(titles={"a": "Task #0"})
    books(event)
    assert not books.over


# -- the hooks


def test_a_chance_is_what_it_says() -> None:
    """R003-041."""
    random.seed(3)
    assert not any(is_successful(0) for _ in range(1000))
    assert all(is_successful(100) for _ in range(1000))
    assert sum(is_successful(20) for _ in range(10_000)) == pytest.approx(2000, rel=0.1)


def test_the_dice_fail_at_one_look_in_five_and_complete_half_of_the_others() -> None:
    """R003-042, R003-043: one answer per look, so both can never be true (WD-11)."""
    random.seed(5)
    looks = [Dice().state() for _ in range(10_000)]
    assert looks.count(State.FAILED) == pytest.approx(2000, rel=0.1)
    assert looks.count(State.COMPLETE) == pytest.approx(4000, rel=0.1)


def test_each_task_is_asked_for_itself() -> None:
    """R003-042 to R003-044; WD-10: the hook gets the task, and what it starts is its own."""
    started: list[str] = []

    class Complete:
        def state(self) -> State:
            return State.COMPLETE

    def start(task: Task) -> Complete:
        started.append(task.title)
        return Complete()

    _, queue = at_system_time()
    create_tasks(queue, 3)
    Worker(queue, watchdog.Watch(start)).run(until_empty=True)
    assert sorted(started) == ["Task #0", "Task #1", "Task #2"]
