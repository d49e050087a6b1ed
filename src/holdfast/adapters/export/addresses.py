"""Which addresses of the internet are whose: anybody's, our own network's, nobody's."""

from enum import Enum
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

Address = IPv4Address | IPv6Address


class Reach(Enum):
    PUBLIC = "public"
    PRIVATE = "private"  # ours or a neighbour's: loopback, private, unique local, CGNAT
    SPECIAL = "special"  # nothing to fetch a file from: metadata, multicast, reserved, …


_PRIVATE = [
    ip_network(text)
    for text in (
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "::1/128",
        "fc00::/7",
    )
]
_SPECIAL_V4 = [
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "169.254.0.0/16",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
]
# They hand out the credentials of the machine to whoever asks. They are told apart even
# inside private ranges: to reach a NAS is no reason to reach these.
_METADATA = {
    ip_address("fd00:ec2::254"),
    ip_address("fd20:ce::254"),
    ip_address("100.100.100.200"),
}
# All public addresses of version 6 are in here, but for these.
_GLOBAL_V6 = IPv6Address("2000::"), IPv6Address("3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
_SPECIAL_V6 = [
    ip_network(text)
    for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")  # Teredo, 6to4, …
]
_NAT64 = ip_network("64:ff9b::/96")


def reach_of(address: Address) -> Reach:
    """Whose address it is. One that stands for another is judged by that other."""
    address = meant_by(address)
    if address in _METADATA:
        return Reach.SPECIAL
    if any(address in network for network in _PRIVATE):
        return Reach.PRIVATE
    if isinstance(address, IPv4Address):
        special = any(address in network for network in _SPECIAL_V4)
    else:
        first, last = _GLOBAL_V6
        special = not first <= address <= last or any(
            address in network for network in _SPECIAL_V6
        )
    return Reach.SPECIAL if special else Reach.PUBLIC


def meant_by(address: Address) -> Address:
    """The IPv4 address that a mapped or translated one leads to; others are themselves."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def read_address(text: str) -> Address | None:
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None
