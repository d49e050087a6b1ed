"""Find servers of this run that other machines could reach.

Tests and the bench start many servers. One that listens on all addresses opens a door of the
machine, so the listening sockets of this process and its descendants are checked.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from tools import orphans

# A listening TCP socket has state 0A. UDP has no such state: 07 is bound and not connected.
_TABLES = {"tcp": "0A", "tcp6": "0A", "udp": "07", "udp6": "07"}
_FIRST_LINE_IS_A_HEADING = 1
_known_foreign: set[str] = set()


def assert_loopback_only() -> None:
    """Raise AssertionError if a process of this run listens beyond the loopback.

    Sockets of other programs are checked once, so calling it after each test costs little.
    """
    sockets = {inode: where for inode, where in _find_exposed() if inode not in _known_foreign}
    if not sockets:
        return
    own_listeners = [f"{where} by process {pid}" for pid, where in _find_own(sockets)]
    assert not own_listeners, (
        f"test servers must listen on 127.0.0.1 only, not on {'; '.join(own_listeners)}"
    )
    _known_foreign.update(sockets)


def _find_exposed() -> Iterator[tuple[str, str]]:
    """Yield inode and address of each socket of the machine that listens to others."""
    for kind, listening in _TABLES.items():
        with suppress(OSError):  # no IPv6, or not Linux
            for line in (
                Path("/proc/net", kind).read_text().splitlines()[_FIRST_LINE_IS_A_HEADING:]
            ):
                local, state, inode = (line.split()[column] for column in (1, 3, 9))
                host, _, port = local.partition(":")
                if state == listening and not _is_loopback(address := _parse_address(host)):
                    yield inode, f"{kind} {address} port {int(port, 16)}"


def _parse_address(text: str) -> IPv4Address | IPv6Address:
    """Read an address that the kernel writes as 32-bit words in its own byte order."""
    words = (int(text[at : at + 8], 16) for at in range(0, len(text), 8))
    return ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))


def _is_loopback(address: IPv4Address | IPv6Address) -> bool:
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _find_own(sockets: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    orphaned = orphans.find_marked(os.environ.get(orphans.MARK, "not marked"))
    for pid in add_descendants({os.getpid(), *orphaned}):
        with suppress(OSError):  # it has ended
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    inode = str(descriptor.readlink()).removeprefix("socket:[").rstrip("]")
                    if inode in sockets:
                        yield pid, sockets[inode]


def add_descendants(pids: Iterable[int]) -> set[int]:
    """Return these processes and their descendants that still have a parent."""
    parents, family = dict(_list_parents()), set(pids)
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return family


def _list_parents() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            yield (
                int(entry.name),
                int((entry / "stat").read_text().rpartition(")")[2].split()[1]),
            )
