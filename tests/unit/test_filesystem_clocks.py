"""When a lease ends: to the millisecond, on whose clock, and for whom."""

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fs.ground import Ground, Queue, clock_of_today, note
from holdfast.adapters.local.filesystem import FsOps
from holdfast.core.message import lease_of
from holdfast.core.queue import TaskState
from holdfast.testing.clock import ManualClock

LEASE = 30.0
MARGIN = 0.25  # between hosts


@pytest.fixture
def ground(fast_path: Path) -> Ground:
    return Ground(fast_path, lease_seconds=LEASE)


def claim(queue: Queue) -> Any:
    queue.push(note("a"))
    [message] = queue.poll()
    return message


def is_good(message: Any, clock: ManualClock) -> bool:
    lease = lease_of(message)
    return lease.live and clock.monotonic() < lease.deadline


FRACTIONS = st.floats(0, 0.01, allow_nan=False)


@settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    start=FRACTIONS,
    lease=FRACTIONS,
    renew_after=st.none() | FRACTIONS,
    before_end=st.floats(1e-5, 0.01),  # what a float can tell apart, this long after 1970
)
def test_no_fraction_of_a_millisecond_is_stolen_from_a_holder(
    fast_path: Path, start: float, lease: float, renew_after: float | None, before_end: float
) -> None:
    ground = Ground(fast_path / uuid4().hex, lease_seconds=1 + lease)
    holder, thief = ground.queue(), ground.queue()
    ground.clock.advance(start)
    message = claim(holder)
    if renew_after is not None:
        ground.clock.advance(renew_after)
        holder.extend(message, 2 + lease)
    left = lease_of(message).deadline - ground.clock.monotonic()
    ground.clock.advance(max(0.0, left - before_end / 4))
    was_good = is_good(message, ground.clock)
    stolen = thief.poll()
    assert not (was_good and stolen)
    ground.clock.advance(0.5)
    assert stolen or thief.poll()


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_setting_the_wall_clock_neither_expires_a_lease_nor_prolongs_it(
    ground: Ground, step: float
) -> None:
    holder, thief = ground.queue(), ground.queue()
    claim(holder)
    ground.clock.step_time(step)
    ground.clock.advance(LEASE - 0.5)
    assert thief.poll() == []
    late_comer = ground.queue()
    assert late_comer.poll() == []
    ground.clock.advance(0.5)
    assert len(late_comer.poll()) == 1


def test_what_is_pushed_after_the_clock_was_set_back_is_not_an_hour_late(
    ground: Ground,
) -> None:
    queue = ground.queue()
    queue.push(note("a"))
    ground.clock.step_time(-3600.0)
    queue.push(note("b"))
    assert [message.id for message in queue.poll(2)] == ["b"]


def test_the_card_of_a_worker_that_holds_something_is_kept(ground: Ground) -> None:
    """Without it, its lease would be judged by the wall clock."""
    holder, other = ground.queue(), ground.queue()
    message = claim(holder)
    other.poll()
    for _ in range(3):
        holder.extend(message, 86_400.0)
        ground.clock.advance(80_000.0)
    [card] = holder.peek(TaskState.LEASED)
    assert card.holder is not None
    other.sweep()
    tokens = {path.stem for path in (ground.folder / "workers").glob("*.json")}
    assert [token for token in tokens if card.holder.worker_id.endswith(token)]
    assert len(tokens) == 1  # the other's, who holds nothing and was not seen for days


def test_the_card_of_a_worker_that_paused_for_hours_is_kept(ground: Ground) -> None:
    queue = ground.queue()
    queue.poll()
    ground.clock.advance(20 * 3600.0)
    queue.sweep()
    assert len(list((ground.folder / "workers").glob("*.json"))) == 1


def test_setting_the_wall_clock_ahead_sweeps_nothing_that_is_being_written(
    fast_path: Path,
) -> None:
    clock = clock_of_today()
    mine = ManualClock(time=clock.time())
    queue = Ground(fast_path, mine).queue(FsOps(server_time=clock.time))
    (queue.folder / "tmp" / "0123456789abcdef01").write_text("being written")
    clock.advance(1)
    mine.advance(1)
    mine.step_time(7200)
    assert queue.sweep() == 0


# -- hosts


def move_to_another_host(queue: Queue) -> None:
    """Its card says another boot; so others judge its leases by the file server's clock."""
    assert queue._claims is not None
    path = queue.folder / "workers" / f"{queue._claims.me.token}.json"
    card = json.loads(path.read_text())
    path.write_text(json.dumps({**card, "boot_id": "another", "host": "elsewhere"}))


@pytest.mark.parametrize("skew", [0.0, 7200.0, -7200.0])
def test_hosts_with_different_clocks_judge_by_the_file_servers(
    fast_path: Path, skew: float
) -> None:
    """The thief's clock is wrong by two hours; the server's is the holder's."""
    clock = clock_of_today()
    wrong = ManualClock(time=clock.time() + skew)
    holder = Ground(fast_path, clock).queue()
    thief = Ground(fast_path, wrong).queue(FsOps(server_time=clock.time))
    claim(holder)
    move_to_another_host(holder)

    def both(seconds: float) -> None:
        clock.advance(seconds)
        wrong.advance(seconds)

    assert thief.poll() == []
    both(LEASE)
    assert thief.poll() == []
    both(MARGIN + 0.5)
    assert len(thief.poll()) == 1


def test_setting_the_wall_clock_right_after_asking_the_server_steals_nothing(
    fast_path: Path,
) -> None:
    clock = clock_of_today()
    mine = ManualClock(time=clock.time())
    holder = Ground(fast_path, clock).queue()
    often = Ground(fast_path, mine, lease_seconds=0.4)  # looks every tenth of a second
    thief = often.queue(FsOps(server_time=clock.time))
    claim(holder)
    move_to_another_host(holder)
    mine.advance(1)
    clock.advance(1)
    assert thief.poll() == []
    mine.step_time(3600)
    for _ in range(10):
        mine.advance(0.125)
        clock.advance(0.125)
        assert thief.poll() == []


@pytest.mark.parametrize("offset", ["soon", None, [], float("nan"), float("inf"), True])
def test_a_card_that_makes_no_sense_does_not_stop_the_others(
    ground: Ground, offset: object
) -> None:
    holder, thief = ground.queue(), ground.queue()
    claim(holder)
    [path] = (ground.folder / "workers").glob("*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "clock_offset": offset}))
    assert thief.poll() == []
    ground.clock.advance(LEASE + MARGIN + 0.5)
    assert len(thief.poll()) == 1


def test_a_lease_whose_card_is_gone_is_judged_as_another_hosts(ground: Ground) -> None:
    holder, thief = ground.queue(), ground.queue()
    claim(holder)
    [path] = (ground.folder / "workers").glob("*.json")
    path.unlink()
    ground.clock.advance(LEASE)
    assert thief.poll() == []
    ground.clock.advance(MARGIN + 0.5)
    assert len(thief.poll()) == 1
