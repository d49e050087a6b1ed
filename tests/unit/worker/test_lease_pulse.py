"""The pulse of a worker's child: during an attempt only, with its beats and its deadline."""

import os
from collections.abc import Iterator
from math import inf, nan
from types import SimpleNamespace

import pytest

from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.lease.lease import Lease
from holdfast.process.child_main import ParentLink
from holdfast.process.frames import BrokenFrame
from holdfast.worker.child_main import LeasePulseSender
from holdfast.worker.child_wire import (
    CONTROL,
    MOVED,
    STOPPING,
    pack_call,
    pack_moved,
    unpack_call,
    unpack_moved,
)

ATTEMPT = {"message_id": "m", "attempt": 1, "fence": 1, "cap_at": None}


@pytest.fixture
def pulse() -> Iterator[LeasePulseSender]:
    reads, writes = os.pipe()
    yield LeasePulseSender(ParentLink(reads, writes, reads, writes), pulse_seconds=1.0)
    for descriptor in (reads, writes):
        os.close(descriptor)


def in_seconds(seconds: float) -> float:
    return SYSTEM_CLOCK.monotonic() + seconds


def lease_until(deadline: float) -> Lease:
    frame = pack_call(SimpleNamespace(**ATTEMPT, deadline=deadline), b"")  # type: ignore[arg-type]
    return unpack_call(frame)[0]


def test_there_is_a_pulse_only_during_an_attempt(pulse: LeasePulseSender) -> None:
    """A pulse after the outcome would look like a frame of a broken child."""
    assert pulse.make_pulse() is None
    pulse.begin(3, lease_until(in_seconds(60.0)))
    assert pulse.make_pulse() == (3, b"")
    pulse.end()
    assert pulse.make_pulse() is None


def test_each_beat_is_reported_once(pulse: LeasePulseSender) -> None:
    lease = lease_until(in_seconds(60.0))
    pulse.begin(1, lease)
    lease.beat(in_seconds(0.0))
    lease.beat(in_seconds(0.0))
    assert [pulse.make_pulse(), pulse.make_pulse()] == [(1, MOVED), (1, b"")]


def test_a_beat_carries_the_progress(pulse: LeasePulseSender) -> None:
    lease = lease_until(in_seconds(60.0))
    pulse.begin(1, lease)
    lease.beat(in_seconds(0.0), 0.5)
    beat = pulse.make_pulse()
    assert beat is not None
    assert unpack_moved(beat[1]) == 0.5
    assert unpack_moved(MOVED) is None


@pytest.mark.parametrize(
    "moved", [b"-", MOVED + b"1", pack_moved(1.0) + b"x", pack_moved(inf), pack_moved(nan)]
)
def test_an_invalid_pulse_is_refused(moved: bytes) -> None:
    with pytest.raises(BrokenFrame, match="pulse is invalid"):
        unpack_moved(moved)


def test_the_next_pulse_is_not_later_than_the_deadline(pulse: LeasePulseSender) -> None:
    assert pulse.compute_pause() == 1.0
    pulse.begin(1, lease_until(in_seconds(0.5)))
    assert pulse.compute_pause() <= 0.5
    pulse.begin(1, lease_until(in_seconds(-5.0)))
    assert 0.0 < pulse.compute_pause() <= 0.001


def test_a_deadline_can_only_be_extended(pulse: LeasePulseSender) -> None:
    """A record that was sent for an earlier attempt may come late."""
    early, late = in_seconds(60.0), in_seconds(120.0)
    lease = lease_until(late)
    pulse.begin(2, lease)
    pulse.handle_control(CONTROL.pack(early))
    assert lease.deadline == pytest.approx(late, abs=1e-6)
    pulse.handle_control(CONTROL.pack(late + 1.0) + CONTROL.pack(early))
    assert lease.deadline == late + 1.0


def test_the_child_learns_once_and_for_all_that_the_worker_stops(
    pulse: LeasePulseSender,
) -> None:
    deadline = in_seconds(60.0)
    lease = lease_until(deadline)
    pulse.begin(1, lease)
    pulse.handle_control(CONTROL.pack(deadline))
    assert not pulse.stopping.is_set()
    pulse.handle_control(CONTROL.pack(STOPPING))
    assert pulse.stopping.is_set()
    assert lease.deadline == pytest.approx(deadline, abs=1e-6)
