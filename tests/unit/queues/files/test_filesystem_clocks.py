"""The end of a lease: to the millisecond, and on which clock."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.lease.clock import to_utc
from holdfast.queue.manager import MessageState
from holdfast.queue.message import get_lease
from holdfast.queues.files import FsOps, layout
from holdfast.testing.clock import ManualClock
from support.files import audit
from support.files.queue_folder import Ground, Queue, make_clock, make_message
from support.files.watched import WatchedFs

LEASE = 30.0
WATCHED = LEASE * 1.001 + 0.001
"""How long a name must not change: clocks of two hosts may run at slightly different rates."""


@pytest.fixture
def ground(fast_path: Path) -> Ground:
    return Ground(fast_path, lease_seconds=LEASE)


def claim(queue: Queue) -> Any:
    queue.push(make_message("a"))
    [message] = queue.poll()
    return message


def is_good(message: Any, clock: ManualClock) -> bool:
    lease = get_lease(message)
    return lease.live and clock.monotonic() < lease.deadline


FRACTIONS = st.floats(0, 0.01, allow_nan=False)


@settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    start=FRACTIONS,
    lease=FRACTIONS,
    renew_after=st.none() | FRACTIONS,
    before_end=st.floats(1e-5, 0.01),  # the resolution of a float, this long after 1970
)
def test_a_holder_does_not_lose_a_fraction_of_a_millisecond(
    fast_path: Path, start: float, lease: float, renew_after: float | None, before_end: float
) -> None:
    ground = Ground(fast_path / uuid4().hex, lease_seconds=1 + lease)
    holder, successor = ground.queue(), ground.queue()
    ground.clock.advance(start)
    message = claim(holder)
    if renew_after is not None:
        ground.clock.advance(renew_after)
        holder.extend(message, 2 + lease)
    left = get_lease(message).deadline - ground.clock.monotonic()
    ground.clock.advance(max(0.0, left - before_end / 4))
    was_good = is_good(message, ground.clock)
    taken_over = successor.poll()
    assert not (was_good and taken_over)
    ground.clock.advance(0.5)
    assert taken_over or successor.poll()


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_setting_the_wall_clock_neither_expires_a_lease_nor_prolongs_it(
    ground: Ground, step: float
) -> None:
    holder, successor = ground.queue(), ground.queue()
    claim(holder)
    ground.clock.step_time(step)
    ground.clock.advance(LEASE - 0.5)
    assert successor.poll() == []
    ground.clock.advance(0.5)
    assert len(successor.poll()) == 1


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_a_process_that_starts_after_the_clock_was_set_watches_older_leases(
    ground: Ground, step: float
) -> None:
    """Its measured offset differs, so it is unknown whether it shares the holder's clock."""
    claim(ground.queue())
    ground.clock.step_time(step)
    ground.clock.advance(LEASE - 0.5)
    late_comer = ground.queue()
    assert late_comer.poll() == []
    ground.clock.advance(WATCHED - 0.5)
    assert late_comer.poll() == []
    ground.clock.advance(0.5)
    assert len(late_comer.poll()) == 1


@pytest.mark.parametrize("start", [0.0, 0.001, 1.999])  # 0.0: where delayed tasks begin
def test_what_is_due_now_stays_due_and_in_order_when_the_clock_is_set_back(
    ground: Ground, start: float
) -> None:
    ground.clock.advance(start)
    queue = ground.queue()
    queue.push(make_message("a"))
    queue.push_many([make_message("b"), make_message("c")])
    queue.push(make_message("later"), delay_seconds=60.0)
    [failed] = queue.poll()
    queue.nack(failed, delay_seconds=0.0)
    ground.clock.step_time(-86_400.0)
    queue.push(make_message("d"))
    other = ground.queue()
    assert other.stats().ready == 4
    due_at = {info.id: info.due_at for info in other.peek(MessageState.PENDING)}
    assert due_at.pop("later") == to_utc(ground.clock.time() + 86_460.0)
    assert max(due_at.values()) <= to_utc(ground.clock.time())
    assert [message.id for message in other.poll(5)] == ["a", "b", "c", "d"]
    assert other.poll() == []


def test_the_folder_of_tasks_from_a_clock_that_was_ahead_is_removed(ground: Ground) -> None:
    queue = ground.queue()
    queue.push(make_message("a"))
    ground.clock.step_time(-86_400.0)
    other = ground.queue()
    [message] = other.poll()
    other.ack(message)
    other.poll()
    assert list((ground.folder / "pending").iterdir()) == []


def test_the_card_of_a_worker_that_holds_something_is_kept(ground: Ground) -> None:
    """Without it, its lease would have to be watched from when it is first seen."""
    holder, other = ground.queue(), ground.queue()
    message = claim(holder)
    other.poll()
    for _ in range(3):
        holder.extend(message, 86_400.0)
        ground.clock.advance(80_000.0)
    [card] = holder.peek(MessageState.LEASED)
    assert card.holder is not None
    other.operator.sweep()
    tokens = {path.stem for path in (ground.folder / "workers").glob("*.json")}
    assert [token for token in tokens if card.holder.worker_id.endswith(token)]
    assert (
        len(tokens) == 1
    )  # that of the other worker, which holds no lease and was not seen for days


def test_the_card_of_a_worker_that_paused_for_hours_is_kept(ground: Ground) -> None:
    queue = ground.queue()
    queue.poll()
    ground.clock.advance(20 * 3600.0)
    queue.operator.sweep()
    assert len(list((ground.folder / "workers").glob("*.json"))) == 1


def test_setting_the_wall_clock_ahead_sweeps_nothing_that_is_being_written(
    fast_path: Path,
) -> None:
    clock = make_clock()
    own_clock = ManualClock(time=clock.time())
    queue = Ground(fast_path, own_clock).queue(FsOps(server_time=clock.time))
    (queue.folder / "tmp" / "0123456789abcdef01").write_text("being written")
    clock.advance(1)
    own_clock.advance(1)
    own_clock.step_time(7200)
    assert queue.operator.sweep() == 0


# -- measuring


class PausingServer:
    """A file server whose first responses take `seconds`, before or after reading its clock."""

    def __init__(self, clock: ManualClock, seconds: float, *, slow: int, first: bool) -> None:
        self._clock, self._seconds, self._first = clock, seconds, first
        self._slow = slow
        self.asked = 0

    def time(self) -> float:
        self.asked += 1
        pause = self._seconds if self.asked <= self._slow else 0.0
        if self._first:
            self._clock.advance(pause)
        answer = self._clock.time()
        if not self._first:
            self._clock.advance(pause)
        return answer


@pytest.mark.parametrize("first", [True, False])
def test_a_pause_while_the_clock_is_measured_shifts_no_time(
    ground: Ground, first: bool
) -> None:
    server = PausingServer(ground.clock, 3.0, slow=1, first=first)
    paused, other = ground.queue(FsOps(server_time=server.time)), ground.queue()
    assert paused._server_clock.offset == other._server_clock.offset
    assert paused._server_clock.read_wall_ms() == other._server_clock.read_wall_ms()
    claim(paused)
    ground.clock.advance(LEASE - 0.5)
    assert other.poll() == []
    ground.clock.advance(0.5)
    assert len(other.poll()) == 1


@pytest.mark.parametrize("first", [True, False])
def test_a_file_server_that_is_always_slow_is_asked_a_few_times_only(
    ground: Ground, first: bool
) -> None:
    server = PausingServer(ground.clock, 3.0, slow=1000, first=first)
    queue = ground.queue(FsOps(server_time=server.time))
    assert server.asked <= 5
    right = ground.clock.time() - ground.clock.monotonic()
    assert (
        abs(queue._server_clock.offset - right) <= 1.5
    )  # half of the time that a response takes
    assert abs(queue._server_clock.read_wall_ms() / 1000 - ground.clock.time()) <= 1.5


@pytest.mark.parametrize("slow", [0, 1])
def test_a_quick_answer_is_not_asked_for_again(ground: Ground, slow: int) -> None:
    server = PausingServer(ground.clock, 3.0, slow=slow, first=True)
    ground.queue(FsOps(server_time=server.time))
    assert server.asked == slow + 1


def test_of_several_slow_answers_the_quickest_counts(ground: Ground) -> None:
    pauses = iter([3.0, 0.5, 2.0, 1.0, 2.0])

    def server_time() -> float:
        answer = ground.clock.time()
        ground.clock.advance(next(pauses))
        return answer

    queue = ground.queue(FsOps(server_time=server_time))
    right = ground.clock.time() - ground.clock.monotonic()
    assert queue._server_clock.offset == right - 0.25


class SweptFs(WatchedFs):
    """Has another process sweep just before a task moves to the dead letters."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(server_time=clock.time)
        self.sweep: Callable[[], object] = lambda: None

    def call(self, name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if name == "rename" and layout.FAILED.fullmatch(Path(args[1]).name):
            self.sweep()
        return real(*args, **kwargs)


def test_a_reason_that_a_sweep_took_for_old_is_written_again(ground: Ground) -> None:
    """The file server's clock was set ahead by hours, so new files look old."""
    fs = SweptFs(ground.clock)
    queue, other = ground.queue(fs), ground.queue()
    message = claim(queue)
    fs.sweep = lambda: other.operator.sweep(-7200)
    queue.dead_letter(message, "no use")
    [letter] = queue.dead_letters()
    assert letter.reason == "no use"
    assert audit.find_faults(ground.folder) == {}


class SlowFs(WatchedFs):
    """Lets time pass during every call of one name, as a slow file server does."""

    def __init__(self, clock: ManualClock, slow: str, seconds: float) -> None:
        super().__init__(server_time=clock.time)
        self._clock, self._slow, self._seconds = clock, slow, seconds

    def call(self, name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if name == self._slow:
            self._clock.advance(self._seconds)
        return real(*args, **kwargs)


@pytest.mark.parametrize("slow", ["rename", "read"])
def test_a_holder_trusts_a_slow_claim_no_longer_than_its_name_says(
    ground: Ground, slow: str
) -> None:
    ground.queue().push(make_message("a"))
    holder, successor = ground.queue(SlowFs(ground.clock, slow, 7.0)), ground.queue()
    asked_at = ground.clock.monotonic()
    [message] = holder.poll()
    assert ground.clock.monotonic() >= asked_at + 7.0
    ground.clock.advance(asked_at + LEASE - ground.clock.monotonic() + 0.002)
    assert [taken.id for taken in successor.poll()] == ["a"]
    assert not is_good(message, ground.clock)
