"""Leases of other hosts: taken over when their name did not change for a whole lease."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fs.faults import RefusingFs
from fs.ground import (
    LEASE,
    Ground,
    Queue,
    change_card,
    clock_of_today,
    move_to_another_host,
    note,
)
from fs.litter import KINDS, outside_of, snapshot
from fs.watched import WatchedFs
from holdfast.adapters.local.filesystem import FsOps
from holdfast.adapters.local.filesystem.lease_watch import MAX_BYTES
from holdfast.core.queue.manager import MessageState
from holdfast.core.queue.message import lease_of
from holdfast.testing.clock import ManualClock

WATCHED = LEASE * 1.001 + 0.001
"""How long a name must not change: clocks of two hosts may run at slightly different rates."""
GLANCE = 0.5  # a worker looks at the leases no more often than this


class Hosts:
    """Hosts with clocks of their own, and one file server with another."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.server = clock_of_today()
        self._clocks = [self.server]

    def host(self, *, monotonic: float = 1_000.0, wrong_by: float = 0.0) -> Ground:
        clock = ManualClock(monotonic, time=self.server.time() + wrong_by)
        self._clocks.append(clock)
        return Ground(self._root, clock)

    def open(self, host: Ground, fs: FsOps | None = None, **options: Any) -> Queue:
        return host.queue(fs or FsOps(server_time=self.server.time), **options)

    def pass_time(self, seconds: float) -> None:
        for clock in self._clocks:
            clock.advance(seconds)


@pytest.fixture
def hosts(fast_path: Path) -> Hosts:
    return Hosts(fast_path)


@pytest.fixture
def ground(fast_path: Path) -> Ground:
    return Ground(fast_path)


def claim(queue: Queue) -> Any:
    queue.push(note("a"))
    [message] = queue.poll()
    return message


def is_good(message: Any, clock: ManualClock) -> bool:
    lease = lease_of(message)
    return lease.live and clock.monotonic() < lease.deadline


def watch_file(folder: Path) -> Path:
    [path] = (folder / "workers").glob(".watched-*")
    return path


# -- whose clock is shared


@pytest.mark.parametrize("ahead", [100_000.0, -900.0])
def test_the_same_boot_id_with_clocks_apart_is_another_host(hosts: Hosts, ahead: float) -> None:
    """As in another time namespace, and in a virtual machine that was cloned."""
    lease_seconds = 60.0
    there, here = hosts.host(), hosts.host(monotonic=1_000.0 + ahead)
    holder = hosts.open(there, lease_seconds=lease_seconds)
    thief = hosts.open(here, lease_seconds=lease_seconds)
    message = claim(holder)
    hosts.pass_time(2.0)
    assert thief.poll() == []
    hosts.pass_time(lease_seconds - 2.5)
    assert is_good(message, there.clock)
    assert thief.poll() == []
    hosts.pass_time(lease_seconds)  # it died: nothing is renewed
    assert len(thief.poll()) == 1


@pytest.mark.parametrize("apart", [0.2, -0.2])
def test_a_clone_whose_clock_is_hardly_apart_is_given_the_difference(
    hosts: Hosts, apart: float
) -> None:
    there, here = hosts.host(), hosts.host(monotonic=1_000.0 + apart)
    holder, thief = hosts.open(there), hosts.open(here)
    message = claim(holder)
    hosts.pass_time(LEASE - 0.01)
    assert is_good(message, there.clock)
    assert thief.poll() == []
    hosts.pass_time(GLANCE)
    assert len(thief.poll()) == 1


@pytest.mark.parametrize(
    "card",
    [{"time_namespace": "another"}, {"boot_id": "another"}, {"boot_id": ""}],
    ids=["time namespace", "boot", "unknown boot"],
)
def test_only_processes_of_one_boot_and_time_namespace_compare_deadlines(
    ground: Ground, card: dict[str, str]
) -> None:
    holder, thief = ground.queue(), ground.queue()
    claim(holder)
    change_card(holder, **card)
    ground.clock.advance(LEASE + 1)
    assert thief.poll() == []
    ground.clock.advance(WATCHED)
    assert len(thief.poll()) == 1


def test_where_no_boot_id_is_known_every_lease_is_watched_and_nothing_is_shared(
    ground: Ground,
) -> None:
    """Two empty ids are not two processes of one host."""
    holder, thief = ground.queue(), ground.queue()
    for queue in (holder, thief):
        queue._timeline.boot_id = ""
    claim(holder)
    ground.clock.advance(LEASE + 1)
    assert thief.poll() == []
    ground.clock.advance(WATCHED)
    assert len(thief.poll()) == 1
    assert list((ground.folder / "workers").glob(".watched-*")) == []


@pytest.mark.parametrize("offset", ["soon", None, [], float("nan"), float("inf"), True, 1e300])
def test_a_card_that_makes_no_sense_does_not_stop_the_others(
    ground: Ground, offset: object
) -> None:
    holder, thief = ground.queue(), ground.queue()
    claim(holder)
    change_card(holder, clock_offset=offset)
    assert thief.poll() == []
    ground.clock.advance(WATCHED)
    assert len(thief.poll()) == 1


def test_a_lease_whose_card_is_gone_is_watched(ground: Ground) -> None:
    holder, thief = ground.queue(), ground.queue()
    claim(holder)
    [path] = (ground.folder / "workers").glob("*.json")
    path.unlink()
    ground.clock.advance(LEASE)
    assert thief.poll() == []
    ground.clock.advance(WATCHED)
    assert len(thief.poll()) == 1


class ForbiddenCards(WatchedFs):
    """Cards of other users, which may not be read."""

    def call(self, name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        path = str(args[0])
        if name == "open" and path.startswith("workers/") and path.endswith(".json"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(*args, **kwargs)


def test_a_lease_whose_card_may_not_be_read_is_watched(ground: Ground) -> None:
    holder, thief = ground.queue(), ground.queue(ForbiddenCards(ground.clock.time))
    claim(holder)
    assert thief.poll() == []
    ground.clock.advance(WATCHED)
    assert len(thief.poll()) == 1


# -- watching


@pytest.mark.parametrize("wrong_by", [0.0, 7200.0, -7200.0])
def test_the_wall_clocks_of_two_hosts_need_not_agree(hosts: Hosts, wrong_by: float) -> None:
    holder = hosts.open(hosts.host(monotonic=5_000.0))
    thief = hosts.open(hosts.host(wrong_by=wrong_by))
    claim(holder)
    assert thief.poll() == []
    hosts.pass_time(LEASE)
    assert thief.poll() == []
    hosts.pass_time(WATCHED - LEASE + GLANCE)
    assert len(thief.poll()) == 1


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_a_step_of_the_file_servers_clock_steals_nothing_and_keeps_nothing(
    hosts: Hosts, step: float
) -> None:
    there = hosts.host(monotonic=5_000.0)
    holder, thief = hosts.open(there), hosts.open(hosts.host())
    message = claim(holder)
    assert thief.poll() == []
    hosts.server.step_time(step)
    late_comer = hosts.open(hosts.host(monotonic=9_000.0))
    for _ in range(10):
        hosts.pass_time(LEASE / 3)
        assert is_good(message, there.clock)
        assert thief.poll() == []
        assert late_comer.poll() == []
        holder.extend(message)
    hosts.pass_time(GLANCE)
    assert thief.poll() == []  # it sees the last renewal; then the holder dies
    hosts.pass_time(WATCHED)
    assert len(thief.poll()) == 1


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_a_step_of_the_file_servers_clock_between_two_openings_of_a_host_steals_nothing(
    hosts: Hosts, step: float
) -> None:
    host = hosts.host()
    message = claim(hosts.open(host))
    hosts.server.step_time(step)
    thief = hosts.open(host)
    hosts.pass_time(LEASE - 0.5)
    assert is_good(message, host.clock)
    assert thief.poll() == []
    hosts.pass_time(WATCHED)
    assert len(thief.poll()) == 1


def test_a_renewed_lease_of_another_host_is_never_taken(hosts: Hosts) -> None:
    """However late its renewals come: as long as each comes in time."""
    there = hosts.host(monotonic=5_000.0)
    holder, thief = hosts.open(there), hosts.open(hosts.host())
    message = claim(holder)
    for _ in range(20):
        hosts.pass_time(LEASE - 0.25)
        assert thief.poll() == []
        holder.extend(message)
    holder.ack(message)
    assert thief.stats().completed == 1


def test_clocks_that_are_slewed_apart_as_far_as_ntp_does_steal_nothing(hosts: Hosts) -> None:
    there, here = hosts.host(monotonic=5_000.0), hosts.host()
    holder, thief = hosts.open(there), hosts.open(here)
    message = claim(holder)
    hosts.pass_time(1.0)
    holder.extend(message, 12 * 3600.0)
    assert thief.poll() == []
    there.clock.advance(12 * 3600.0 * 0.9995)
    here.clock.advance(12 * 3600.0 * 1.0004)
    assert is_good(message, there.clock)
    assert thief.poll() == []


def test_two_renewals_in_one_moment_do_not_shorten_the_watch(hosts: Hosts) -> None:
    there = hosts.host(monotonic=5_000.0)
    holder, thief = hosts.open(there), hosts.open(hosts.host())
    message = claim(holder)
    assert thief.poll() == []
    hosts.pass_time(0.0009)
    holder.extend(message)
    hosts.pass_time(LEASE - 0.0001)
    assert is_good(message, there.clock)
    assert thief.poll() == []


def test_the_name_says_how_long_to_watch(hosts: Hosts) -> None:
    there = hosts.host(monotonic=5_000.0)
    holder, thief = hosts.open(there), hosts.open(hosts.host())
    message = claim(holder)
    hosts.pass_time(1.0)
    holder.extend(message, 10 * LEASE)
    assert thief.poll() == []
    hosts.pass_time(10 * LEASE - 1)
    assert is_good(message, there.clock)
    assert thief.poll() == []
    holder.extend(message, 2.0)
    hosts.pass_time(GLANCE)
    assert thief.poll() == []
    hosts.pass_time(2.0 + GLANCE)
    assert len(thief.poll()) == 1


def test_a_name_of_an_older_release_is_understood(ground: Ground) -> None:
    """Its one span counts from the claim, so it is at least as long as the lease."""
    holder, thief = ground.queue(), ground.queue()
    claim(holder)
    move_to_another_host(holder)
    [path] = (ground.folder / "leased").iterdir()
    claimed_ms = path.name.partition("+")[0].rpartition("~")[2]
    path.rename(path.with_name(f"{path.name.partition('+')[0]}+90000.json"))
    [view] = thief.peek(MessageState.LEASED)
    assert view.holder is not None
    assert view.holder.expires_at.timestamp() * 1000 == int(claimed_ms) + 90_000
    assert thief.poll() == []
    ground.clock.advance(90.0)
    assert thief.poll() == []
    ground.clock.advance(0.1 + GLANCE)
    assert len(thief.poll()) == 1


class SlowListing(WatchedFs):
    """Something happens while the leases are being listed."""

    def __init__(self, server_time: Callable[[], float]) -> None:
        super().__init__(server_time)
        self.meanwhile: Callable[[], None] | None = None
        self._leases = -1

    def call(self, name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if name == "listdir" and args[0] == self._leases and self.meanwhile:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        result = real(*args, **kwargs)
        if name == "open" and args[0] == "leased":
            self._leases = result
        return result


def test_a_listing_that_takes_long_does_not_shorten_the_watch(hosts: Hosts) -> None:
    there = hosts.host(monotonic=5_000.0)
    fs = SlowListing(hosts.server.time)
    holder, thief = hosts.open(there), hosts.open(hosts.host(), fs)
    message = claim(holder)
    thief.poll()
    hosts.pass_time(GLANCE)

    def meanwhile() -> None:
        hosts.pass_time(20.0)
        holder.extend(message)

    fs.meanwhile = meanwhile
    assert thief.poll() == []
    assert fs.meanwhile is None
    hosts.pass_time(LEASE - 0.5)
    assert is_good(message, there.clock)
    assert thief.poll() == []


# -- observations that outlive a process


def test_short_lived_processes_of_a_host_take_over_together(hosts: Hosts) -> None:
    """As a cron job does: each polls once, and none lives as long as a lease."""
    claim(hosts.open(hosts.host(monotonic=5_000.0)))
    here = hosts.host()
    for _ in range(4):
        assert hosts.open(here).poll() == []
        hosts.pass_time(10.0)
    assert len(hosts.open(here).poll()) == 1


def test_short_lived_processes_never_take_what_is_renewed(hosts: Hosts) -> None:
    holder = hosts.open(hosts.host(monotonic=5_000.0))
    message = claim(holder)
    here = hosts.host()
    for _ in range(20):
        hosts.pass_time(LEASE - 0.25)
        assert hosts.open(here).poll() == []
        holder.extend(message)


def test_leases_of_the_own_host_leave_no_observations(ground: Ground) -> None:
    claim(ground.queue())
    ground.queue().poll()
    assert list((ground.folder / "workers").glob(".watched-*")) == []


def test_observations_of_a_clock_that_is_not_ours_are_not_believed(hosts: Hosts) -> None:
    """A clone of this machine has its boot id, and so the same file."""
    there = hosts.host(monotonic=5_000.0)
    message = claim(hosts.open(there))
    assert hosts.open(hosts.host(monotonic=100.0)).poll() == []
    hosts.pass_time(LEASE - 0.5)
    assert is_good(message, there.clock)
    assert hosts.open(hosts.host(monotonic=9_000.0)).poll() == []


def test_observations_of_a_clone_that_is_hardly_apart_are_given_the_difference(
    hosts: Hosts,
) -> None:
    there = hosts.host(monotonic=5_000.0)
    message = claim(hosts.open(there))
    assert hosts.open(hosts.host(monotonic=1_000.0)).poll() == []
    hosts.pass_time(LEASE - 0.05)
    assert is_good(message, there.clock)
    assert hosts.open(hosts.host(monotonic=1_000.2 + LEASE - 0.05)).poll() == []


def test_processes_that_overwrite_each_others_observations_only_lose_time(
    hosts: Hosts,
) -> None:
    there = hosts.host(monotonic=5_000.0)
    holder = hosts.open(there)
    here = hosts.host()
    claim(holder)
    first, second = hosts.open(here), hosts.open(here)
    assert first.poll() == []
    old = watch_file(here.folder).read_bytes()
    hosts.pass_time(11.0)
    holder.push(note("b"))
    [other] = holder.poll()
    assert second.poll() == []
    watch_file(here.folder).write_bytes(old)  # the first one wrote last
    hosts.pass_time(LEASE - 0.5)
    assert is_good(other, there.clock)
    [taken] = hosts.open(here).poll(5)
    assert taken.id == "a"
    hosts.pass_time(WATCHED)
    assert "b" in [message.id for message in hosts.open(here).poll(5)]


def test_observations_are_written_when_a_name_is_new_and_forgotten_with_it(
    hosts: Hosts,
) -> None:
    holder, thief = hosts.open(hosts.host(monotonic=5_000.0)), hosts.open(hosts.host())
    message = claim(holder)
    thief.poll()
    path = watch_file(thief.folder)
    before = path.stat()
    for _ in range(5):
        hosts.pass_time(3.0)
        thief.poll()
    assert path.stat() == before
    holder.extend(message)
    hosts.pass_time(3.0)
    thief.poll()
    [leased] = (thief.folder / "leased").iterdir()
    assert list(json.loads(path.read_text())["first_seen"]) == [leased.name]
    assert list((thief.folder / "tmp").iterdir()) == []


FIRST_SEEN: list[Any] = [-1.0, -1e308, 1e308, float("nan"), "0", None, True, [], {}]


@pytest.mark.parametrize("first_seen", FIRST_SEEN, ids=repr)
def test_an_observation_that_makes_no_sense_is_not_believed(
    hosts: Hosts, first_seen: object
) -> None:
    there = hosts.host(monotonic=5_000.0)
    message = claim(hosts.open(there))
    here = hosts.host()
    hosts.open(here).poll()
    path = watch_file(here.folder)
    watched = json.loads(path.read_text())
    watched["first_seen"] = dict.fromkeys(watched["first_seen"], first_seen)
    path.write_text(json.dumps(watched))
    thief = hosts.open(here)
    assert thief.poll() == []
    hosts.pass_time(LEASE - 0.5)
    assert is_good(message, there.clock)
    assert thief.poll() == []
    hosts.pass_time(WATCHED)
    assert len(thief.poll()) == 1


def test_observations_of_absurd_size_are_not_read(hosts: Hosts) -> None:
    claim(hosts.open(hosts.host(monotonic=5_000.0)))
    here = hosts.host()
    hosts.open(here).poll()
    path = watch_file(here.folder)
    path.write_text(path.read_text() + " " * MAX_BYTES)
    hosts.pass_time(WATCHED)
    assert hosts.open(here).poll() == []
    assert path.stat().st_size < 1_000


def test_a_full_disk_keeps_no_observations_and_stops_no_poll(hosts: Hosts) -> None:
    claim(hosts.open(hosts.host(monotonic=5_000.0)))
    fs = RefusingFs(hosts.server.time, errno.ENOSPC)
    thief = hosts.open(hosts.host(), fs)
    thief._enrol()
    fs.refusing = True
    assert thief.poll() == []
    fs.refusing = False
    assert list((thief.folder / "tmp").iterdir()) == []
    hosts.pass_time(WATCHED)
    assert len(thief.poll()) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_litter_in_the_place_of_the_observations_is_harmless(
    fast_path: Path, kind: str
) -> None:
    hosts, outside = Hosts(fast_path / "root"), outside_of(fast_path)
    claim(hosts.open(hosts.host(monotonic=5_000.0)))
    here = hosts.host()
    hosts.open(here).poll()
    path = watch_file(here.folder)
    path.unlink()
    KINDS[kind](path, outside)
    theirs = snapshot(outside)
    thief = hosts.open(here)
    assert thief.poll() == []
    hosts.pass_time(WATCHED)
    assert len(thief.poll()) == 1
    assert snapshot(outside) == theirs
    assert list((thief.folder / "tmp").iterdir()) == []
