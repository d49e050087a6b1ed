"""What seed 003 asks of an adaptive consumer (R003-…), where no other test says it.

On the simulator of SQS, its hours in a moment; the whole story with real processes is in
test_watchdog_example.py and test_worker_*.py.
"""

import random
from dataclasses import dataclass
from threading import Event, Thread, current_thread

import pytest
from examples import watchdog
from examples.watchdog import Dice, Progress, State, Task, create_tasks, is_successful

from holdfast import LeaseKeeper, LeaseLost, Worker
from holdfast import events as ev
from holdfast.events import Events
from holdfast.queue.message import get_lease
from holdfast.queues.sqs import SQSQueue
from holdfast.testing import ManualClock, SimulatedSqs

LEASE = 5.0
HOUR = 3600.0


@dataclass
class Ground:
    clock: ManualClock
    sqs: SimulatedSqs
    queue: SQSQueue[Task]
    keeper: LeaseKeeper
    events_seen: list[ev.Event]

    def another_consumer_gets(self) -> list[Task]:
        """Return what a consumer in another process would receive now."""
        return opened(self.sqs, self.clock).poll()

    def let_pass(self, seconds: float) -> None:
        """Advance the clock while the keeper renews, as its thread would."""
        until = self.clock.monotonic() + seconds
        while True:
            next_at = self.keeper.tick().next_at
            if next_at > until:
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
    events_seen: list[ev.Event] = []
    events = Events(events_seen.append)
    keeper = LeaseKeeper(clock, events)
    return Ground(clock, sqs, opened(sqs, clock, events), keeper, events_seen)


def at_system_time() -> tuple[SimulatedSqs, SQSQueue[Task]]:
    """Return SQS and a queue on the real clock, for a Worker whose threads wait on it."""
    sqs = SimulatedSqs()
    sqs.client().create_queue(QueueName="test-queue")
    return sqs, SQSQueue("test-queue", Task, client=sqs.client())


# -- concepts


@pytest.mark.requirement("R003-001", "R003-005", "R003-006", "R003-012", "R003-013", "R003-039")
@pytest.mark.parametrize("work_seconds", [1.0, 30.0, HOUR, 6 * HOUR])
def test_a_message_stays_hidden_for_as_long_as_its_work_takes(
    ground: Ground, work_seconds: float
) -> None:
    """Extended while it is
    worked on, whatever that takes; deleted when it is complete."""
    ground.queue.push(Task(title="a"))
    [task] = ground.queue.poll()
    ground.keeper.hold(get_lease(task))
    for _ in range(10):
        ground.let_pass(work_seconds / 10)
        assert ground.another_consumer_gets() == []
    ground.queue.ack(task)
    ground.clock.advance(12 * HOUR)
    assert ground.another_consumer_gets() == []
    beats = ground.sqs.calls.count("ChangeMessageVisibilityBatch")
    assert beats == pytest.approx(work_seconds / (LEASE / 3), abs=2)


@pytest.mark.requirement("R003-003", "R003-004", "R003-006", "R003-014", "R003-026", "R003-038")
@pytest.mark.parametrize("age_seconds", [0.0, 60.0, 6 * HOUR])
def test_when_the_beats_stop_the_message_is_back_within_one_lease_however_old_it_is(
    ground: Ground, age_seconds: float
) -> None:
    """The seed's timeout grew
    with every beat, and with it the time until a death was noticed (W)."""
    ground.queue.push(Task(title="a"))
    [task] = ground.queue.poll()
    ground.keeper.hold(get_lease(task))
    ground.let_pass(age_seconds)  # the process dies here
    ground.clock.advance(LEASE + 0.01)
    [again] = ground.another_consumer_gets()
    assert again.id == task.id


@pytest.mark.requirement("R003-002")
def test_a_message_delivered_twice_is_worked_on_once_here(ground: Ground) -> None:
    """SQS may deliver a message twice; then the newest receipt is used."""
    ground.queue.push(Task(title="a"))
    [task] = ground.queue.poll()
    assert ground.sqs.duplicate("test-queue") == 1
    assert ground.queue.poll() == []
    ground.queue.ack(task)
    ground.clock.advance(HOUR)
    assert ground.another_consumer_gets() == []


@pytest.mark.requirement("R003-047")
def test_a_warning_precedes_the_end_after_twelve_hours(ground: Ground) -> None:
    """SQS refuses more; so it is not requested, and the work gets a warning."""
    ground.queue.push(Task(title="a"))
    [task] = ground.queue.poll()
    lease = get_lease(task)
    ground.keeper.hold(lease)
    ground.let_pass(12 * HOUR - 2 * LEASE)
    assert lease.live
    ground.let_pass(3 * LEASE)
    assert lease.lost.is_set()
    kinds = [type(event) for event in ground.events_seen]
    assert kinds.index(ev.NearCap) < kinds.index(ev.MessageLeaseLost)
    assert (
        ev.LeaseAtRisk not in kinds
    )  # nothing was refused, because nothing beyond the cap was requested
    with pytest.raises(LeaseLost):
        ground.queue.ack(task)


@pytest.mark.requirement("R003-048")
def test_work_of_known_length_needs_no_beats(ground: Ground) -> None:
    """Without a keeper, the lease is all the time the work has."""
    ground.queue.push(Task(title="a"))
    [task] = ground.queue.poll()
    ground.clock.advance(LEASE - 1)
    ground.queue.ack(task)
    assert ground.sqs.calls.count("ChangeMessageVisibilityBatch") == 0
    ground.clock.advance(HOUR)
    assert ground.another_consumer_gets() == []


@pytest.mark.requirement("R003-007", "R003-009", "R003-010")
def test_work_never_runs_in_the_thread_that_watches_it() -> None:
    """Not even with threads, which share a process."""
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


@pytest.mark.requirement("R003-015", "R003-017", "R003-018", "R003-019", "R003-021")
@pytest.mark.parametrize("count", [0, 3, 25])
def test_as_many_tasks_are_sent_as_requested(
    ground: Ground, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """In batches of ten (WD-04)."""
    titles = create_tasks(ground.queue, count)
    assert list(titles.values()) == [f"Task #{number}" for number in range(count)]
    assert ground.queue.stats().ready == count
    assert ground.sqs.calls.count("SendMessageBatch") == -(-count // 10)
    assert f"sent {count} messages to the queue 'sqs:test-queue'" in capsys.readouterr().out


@pytest.mark.requirement("R003-017")
def test_a_batch_entry_that_sqs_refused_is_sent_again() -> None:
    """WD-04: the seed did not check for failed entries."""
    sqs, queue = at_system_time()
    sqs.faults.refuse("SendMessageBatch", "InternalError", positions=(1,))
    assert len(create_tasks(queue, 3)) == 3
    assert queue.stats().ready == 3


# -- counting


def completed(message_id: str) -> ev.Completed:
    return ev.Completed("q", message_id, 1, seconds=1.0)


@pytest.mark.requirement("R003-023", "R003-024", "R003-031")
def test_tasks_are_counted_by_name_so_that_one_done_twice_counts_once() -> None:
    """(WD-03)."""
    ended: list[bool] = []
    progress = Progress(lambda: ended.append(True), {"a": "Task #0", "b": "Task #1"})
    assert progress.complete == set()
    progress(completed("a"))
    progress(completed("a"))
    progress(completed("of another run"))
    assert (ended, progress.over) == ([], False)
    progress(completed("b"))
    assert (ended, progress.all_complete) == ([True], True)


@pytest.mark.requirement("R003-011", "R003-031", "R003-035")
@pytest.mark.parametrize(
    "event", [ev.Retried("q", "a", 1, 1.0, "x"), ev.MessageLeaseLost("q", "a", 1, "x")]
)
def test_a_failed_or_lost_task_is_not_complete(event: ev.Event) -> None:
    """Complete is what the queue has taken as such (WD-12)."""
    progress = Progress(titles={"a": "Task #0"})
    progress(event)
    assert not progress.over


# -- the hooks


@pytest.mark.requirement("R003-041")
def test_a_chance_comes_true_as_often_as_its_probability() -> None:
    random.seed(3)
    assert not any(is_successful(0) for _ in range(1000))
    assert all(is_successful(100) for _ in range(1000))
    assert sum(is_successful(20) for _ in range(10_000)) == pytest.approx(2000, rel=0.1)


@pytest.mark.requirement("R003-042", "R003-043")
def test_the_dice_fail_one_check_in_five_and_complete_half_of_the_others() -> None:
    """One result per check, so both can never be true (W)."""
    random.seed(5)
    looks = [Dice().state() for _ in range(10_000)]
    assert looks.count(State.FAILED) == pytest.approx(2000, rel=0.1)
    assert looks.count(State.COMPLETE) == pytest.approx(4000, rel=0.1)


@pytest.mark.requirement("R003-022", "R003-042", "R003-043", "R003-044")
def test_the_processing_hook_is_called_for_each_task() -> None:
    """The hook gets the task, and what it starts is its own (WD-10)."""
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
