"""Leases of other hosts: taken over when their name did not change for a full lease."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.queue.manager import MessageState
from holdfast.queue.message import get_lease
from holdfast.queues.files import FsOps
from holdfast.testing.clock import ManualClock
from support.files.queue_folder import (
    LEASE,
    Ground,
    Queue,
    change_card,
    make_clock,
    make_message,
    move_to_another_host,
)
from support.files.watched import WatchedFs

WATCHED = LEASE * 1.001 + 0.001
"""How long a name must not change: clocks of two hosts may run at slightly different rates."""
GLANCE = 0.5  # a worker scans the leases no more often than this


class Hosts:
    """Hosts with clocks of their own, and a file server with another clock."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.server = make_clock()
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
    queue.push(make_message("a"))
    [message] = queue.poll()
    return message


def is_good(message: Any, clock: ManualClock) -> bool:
    lease = get_lease(message)
    return lease.live and clock.monotonic() < lease.deadline


# -- which workers share a clock


@pytest.mark.parametrize("ahead", [100_000.0, -900.0])
def test_the_same_boot_id_with_clocks_apart_is_another_host(hosts: Hosts, ahead: float) -> None:
    """This happens in another time namespace, and in a cloned virtual machine."""
    lease_seconds = 60.0
    remote_host, local_host = hosts.host(), hosts.host(monotonic=1_000.0 + ahead)
    holder = hosts.open(remote_host, lease_seconds=lease_seconds)
    successor = hosts.open(local_host, lease_seconds=lease_seconds)
    message = claim(holder)
    hosts.pass_time(2.0)
    assert successor.poll() == []
    hosts.pass_time(lease_seconds - 2.5)
    assert is_good(message, remote_host.clock)
    assert successor.poll() == []
    hosts.pass_time(lease_seconds)  # it died, so it renews nothing
    assert len(successor.poll()) == 1


@pytest.mark.parametrize("apart", [0.2, -0.2])
def test_a_clone_whose_clock_is_hardly_apart_is_given_the_difference(
    hosts: Hosts, apart: float
) -> None:
    remote_host, local_host = hosts.host(), hosts.host(monotonic=1_000.0 + apart)
    holder, successor = hosts.open(remote_host), hosts.open(local_host)
    message = claim(holder)
    hosts.pass_time(LEASE - 0.01)
    assert is_good(message, remote_host.clock)
    assert successor.poll() == []
    hosts.pass_time(GLANCE)
    assert len(successor.poll()) == 1


@pytest.mark.parametrize(
    "card",
    [{"time_namespace": "another"}, {"boot_id": "another"}, {"boot_id": ""}],
    ids=["time namespace", "boot", "unknown boot"],
)
def test_only_processes_of_one_boot_and_time_namespace_compare_deadlines(
    ground: Ground, card: dict[str, str]
) -> None:
    holder, successor = ground.queue(), ground.queue()
    claim(holder)
    change_card(holder, **card)
    ground.clock.advance(LEASE + 1)
    assert successor.poll() == []
    ground.clock.advance(WATCHED)
    assert len(successor.poll()) == 1


def test_where_no_boot_id_is_known_every_lease_is_watched(ground: Ground) -> None:
    """Two processes with an empty boot id are not processes of one host."""
    holder, successor = ground.queue(), ground.queue()
    for queue in (holder, successor):
        queue._server_clock.boot_id = ""
    claim(holder)
    ground.clock.advance(LEASE + 1)
    assert successor.poll() == []
    ground.clock.advance(WATCHED)
    assert len(successor.poll()) == 1


@pytest.mark.parametrize("offset", ["soon", None, [], float("nan"), float("inf"), True, 1e300])
def test_a_card_that_makes_no_sense_does_not_stop_the_others(
    ground: Ground, offset: object
) -> None:
    holder, successor = ground.queue(), ground.queue()
    claim(holder)
    change_card(holder, clock_offset=offset)
    assert successor.poll() == []
    ground.clock.advance(WATCHED)
    assert len(successor.poll()) == 1


def test_a_lease_whose_card_is_gone_is_watched(ground: Ground) -> None:
    holder, successor = ground.queue(), ground.queue()
    claim(holder)
    [path] = (ground.folder / "workers").glob("*.json")
    path.unlink()
    ground.clock.advance(LEASE)
    assert successor.poll() == []
    ground.clock.advance(WATCHED)
    assert len(successor.poll()) == 1


class ForbiddenCards(WatchedFs):
    """Cards of other users, which may not be read."""

    def call(self, name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        path = str(args[0])
        if name == "open" and path.startswith("workers/") and path.endswith(".json"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(*args, **kwargs)


def test_a_lease_whose_card_may_not_be_read_is_watched(ground: Ground) -> None:
    holder, successor = ground.queue(), ground.queue(ForbiddenCards(ground.clock.time))
    claim(holder)
    assert successor.poll() == []
    ground.clock.advance(WATCHED)
    assert len(successor.poll()) == 1


# -- watching


@pytest.mark.requirement("R001-024")
@pytest.mark.parametrize("wrong_by", [0.0, 7200.0, -7200.0])
def test_the_wall_clocks_of_two_hosts_need_not_agree(hosts: Hosts, wrong_by: float) -> None:
    holder = hosts.open(hosts.host(monotonic=5_000.0))
    successor = hosts.open(hosts.host(wrong_by=wrong_by))
    claim(holder)
    assert successor.poll() == []
    hosts.pass_time(LEASE)
    assert successor.poll() == []
    hosts.pass_time(WATCHED - LEASE + GLANCE)
    assert len(successor.poll()) == 1


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_a_step_of_the_file_servers_clock_neither_ends_nor_prolongs_a_lease(
    hosts: Hosts, step: float
) -> None:
    remote_host = hosts.host(monotonic=5_000.0)
    holder, successor = hosts.open(remote_host), hosts.open(hosts.host())
    message = claim(holder)
    assert successor.poll() == []
    hosts.server.step_time(step)
    late_comer = hosts.open(hosts.host(monotonic=9_000.0))
    for _ in range(10):
        hosts.pass_time(LEASE / 3)
        assert is_good(message, remote_host.clock)
        assert successor.poll() == []
        assert late_comer.poll() == []
        holder.extend(message)
    hosts.pass_time(GLANCE)
    assert successor.poll() == []  # it sees the last renewal; then the holder dies
    hosts.pass_time(WATCHED)
    assert len(successor.poll()) == 1


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_a_step_of_the_file_servers_clock_between_two_openings_of_a_host_ends_no_lease(
    hosts: Hosts, step: float
) -> None:
    host = hosts.host()
    message = claim(hosts.open(host))
    hosts.server.step_time(step)
    successor = hosts.open(host)
    hosts.pass_time(LEASE - 0.5)
    assert is_good(message, host.clock)
    assert successor.poll() == []
    hosts.pass_time(WATCHED)
    assert len(successor.poll()) == 1


def test_a_renewed_lease_of_another_host_is_never_taken(hosts: Hosts) -> None:
    """This holds however late its renewals come, as long as each is in time."""
    remote_host = hosts.host(monotonic=5_000.0)
    holder, successor = hosts.open(remote_host), hosts.open(hosts.host())
    message = claim(holder)
    for _ in range(20):
        hosts.pass_time(LEASE - 0.25)
        assert successor.poll() == []
        holder.extend(message)
    holder.ack(message)
    assert successor.stats().completed == 1


def test_clocks_slewed_apart_as_far_as_ntp_allows_end_no_lease(hosts: Hosts) -> None:
    remote_host, local_host = hosts.host(monotonic=5_000.0), hosts.host()
    holder, successor = hosts.open(remote_host), hosts.open(local_host)
    message = claim(holder)
    hosts.pass_time(1.0)
    holder.extend(message, 12 * 3600.0)
    assert successor.poll() == []
    remote_host.clock.advance(12 * 3600.0 * 0.9995)
    local_host.clock.advance(12 * 3600.0 * 1.0004)
    assert is_good(message, remote_host.clock)
    assert successor.poll() == []


def test_two_renewals_in_one_moment_do_not_shorten_the_watch(hosts: Hosts) -> None:
    remote_host = hosts.host(monotonic=5_000.0)
    holder, successor = hosts.open(remote_host), hosts.open(hosts.host())
    message = claim(holder)
    assert successor.poll() == []
    hosts.pass_time(0.0009)
    holder.extend(message)
    hosts.pass_time(LEASE - 0.0001)
    assert is_good(message, remote_host.clock)
    assert successor.poll() == []


def test_the_name_says_how_long_to_watch(hosts: Hosts) -> None:
    remote_host = hosts.host(monotonic=5_000.0)
    holder, successor = hosts.open(remote_host), hosts.open(hosts.host())
    message = claim(holder)
    hosts.pass_time(1.0)
    holder.extend(message, 10 * LEASE)
    assert successor.poll() == []
    hosts.pass_time(10 * LEASE - 1)
    assert is_good(message, remote_host.clock)
    assert successor.poll() == []
    holder.extend(message, 2.0)
    hosts.pass_time(GLANCE)
    assert successor.poll() == []
    hosts.pass_time(2.0 + GLANCE)
    assert len(successor.poll()) == 1


def test_a_name_of_an_older_release_is_understood(ground: Ground) -> None:
    """Its only duration counts from the claim, so it is at least as long as the lease."""
    holder, successor = ground.queue(), ground.queue()
    claim(holder)
    move_to_another_host(holder)
    [path] = (ground.folder / "leased").iterdir()
    claimed_ms = path.name.partition("+")[0].rpartition("~")[2]
    path.rename(path.with_name(f"{path.name.partition('+')[0]}+90000.json"))
    [view] = successor.peek(MessageState.LEASED)
    assert view.holder is not None
    assert view.holder.expires_at.timestamp() * 1000 == int(claimed_ms) + 90_000
    assert successor.poll() == []
    ground.clock.advance(90.0)
    assert successor.poll() == []
    ground.clock.advance(0.1 + GLANCE)
    assert len(successor.poll()) == 1


class SlowListing(WatchedFs):
    """Calls a function while the leases are being listed."""

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
    remote_host = hosts.host(monotonic=5_000.0)
    fs = SlowListing(hosts.server.time)
    holder, successor = hosts.open(remote_host), hosts.open(hosts.host(), fs)
    message = claim(holder)
    successor.poll()
    hosts.pass_time(GLANCE)

    def meanwhile() -> None:
        hosts.pass_time(20.0)
        holder.extend(message)

    fs.meanwhile = meanwhile
    assert successor.poll() == []
    assert fs.meanwhile is None
    hosts.pass_time(LEASE - 0.5)
    assert is_good(message, remote_host.clock)
    assert successor.poll() == []
