"""Find servers of this run that other machines could reach.

Tests and the bench start many servers. One that listens on all addresses opens a door of the
machine, so the listening sockets of this process and its descendants are checked.
"""

import os
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from tools import orphans

# The states of sockets that others could reach. A listening TCP socket has state 10. UDP has no
# such state: 7 is bound and not connected.
_KINDS = {
    "tcp": (socket.AF_INET, socket.IPPROTO_TCP, 10),
    "tcp6": (socket.AF_INET6, socket.IPPROTO_TCP, 10),
    "udp": (socket.AF_INET, socket.IPPROTO_UDP, 7),
    "udp6": (socket.AF_INET6, socket.IPPROTO_UDP, 7),
}
# The kernel's interface to list sockets, see sock_diag(7). The files in /proc/net hold the
# same, but the kernel takes ten milliseconds to write them, too long to read after each test.
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_A_LIST = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, process
_REQUEST = struct.Struct("=BBBBI48s")  # family, protocol, …, states, any address
_ENTRY = struct.Struct("=4x2s2x16s44xI")  # port, address, …, inode
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
    for kind, (family, protocol, state) in _KINDS.items():
        with suppress(OSError, AttributeError):  # no IPv6, or not Linux
            for entry in _list_sockets(family, protocol, state):
                port, source, inode = _ENTRY.unpack_from(entry)
                address = ip_address(source[:4] if family == socket.AF_INET else source)
                if not _is_loopback(address):
                    yield str(inode), f"{kind} {address} port {int.from_bytes(port)}"


def _list_sockets(family: int, protocol: int, state: int) -> Iterator[bytes]:
    """Yield the kernel's entry for each socket of the machine in this state."""
    request = _REQUEST.pack(family, protocol, 0, 0, 1 << state, b"")
    head = _HEADER.pack(
        _HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _REQUEST_A_LIST, 0, 0
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as kernel:
        kernel.send(head + request)
        while True:
            for kind, body in _split_messages(kernel.recv(1 << 16)):
                if kind in (_ERROR, _DONE):
                    return
                yield body


def _split_messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while data:
        length, kind, *_ = _HEADER.unpack_from(data)
        yield kind, data[_HEADER.size : length]
        data = data[(length + 3) & ~3 :]  # messages begin at multiples of four


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
