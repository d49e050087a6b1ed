"""The policy for IP addresses: public, private, or a service of the machine's cloud.

Services of the cloud stay refused whatever is allowed.
"""

from collections.abc import Iterator
from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class AddressScope(Enum):
    """The part of the network that an address belongs to."""

    PUBLIC = "public"
    PRIVATE = "private"  # this host or its network: loopback, private, unique local, CGNAT
    SPECIAL = "special"  # not for downloads: metadata, multicast, reserved, …


def _parse_networks(*texts: str) -> tuple[Network, ...]:
    return tuple(map(ip_network, " ".join(texts).split()))


# These services give the machine's credentials, or its configuration, to every process that
# asks. Some are inside private ranges and one is public, but allowing a file server must not
# allow them. metadata.google.internal and similar names resolve to 169.254.169.254. Each has a
# comment with the cloud, the service and the document that names it.
HOST_SERVICES = _parse_networks(
    # AWS, Azure, Google, Oracle, DigitalOcean, Akamai, OpenStack: instance metadata
    # (EC2 User Guide: Use the Instance Metadata Service)
    "169.254.169.254",
    # AWS: DNS resolver (VPC User Guide: Understanding Amazon DNS)
    "169.254.169.253",
    # AWS: time (EC2 User Guide: Amazon Time Sync Service)
    "169.254.169.123",
    # AWS: Windows activation (EC2 User Guide: Troubleshoot Windows activation)
    "169.254.169.250/31",
    # AWS: credentials and metadata of ECS tasks (ECS Developer Guide: Task metadata endpoint)
    "169.254.170.2",
    # AWS: credentials of EKS pods (EKS User Guide: Set up the EKS Pod Identity Agent)
    "169.254.170.23",
    # AWS: all of these in IPv6, which are ::254, ::253, ::123 and ::23
    # (EC2, VPC and EKS User Guides: the chapters named above)
    "fd00:ec2::/32",
    # Azure: WireServer, DNS and health probes
    # (Azure Virtual Network: What is IP address 168.63.129.16?)
    "168.63.129.16",
    # Google: instance metadata (Compute Engine: About VM metadata)
    "fd20:ce::254",
    # Google: metadata server of GKE (GKE: About Workload Identity Federation)
    "169.254.169.252",
    # Oracle: instance metadata
    # (Oracle Cloud Infrastructure Classic: Retrieving Instance Metadata)
    "192.0.0.192",
    # Oracle: instance metadata (Oracle Cloud Infrastructure: Getting Instance Metadata)
    "fd00:c1::a9fe:a9fe",
    # Alibaba: instance metadata (Elastic Compute Service: Instance metadata)
    "100.100.100.200",
    # Alibaba: instance metadata (Elastic Compute Service: Instance metadata)
    "fd00:100::100:200",
    # Tencent: instance metadata (Cloud Virtual Machine: Querying Instance Metadata)
    "169.254.0.23",
    # Scaleway: instance metadata (cloud-init: Datasource Scaleway)
    "169.254.42.42",
    # Scaleway: instance metadata (cloud-init: Datasource Scaleway)
    "fd00:42::42",
    # Akamai: instance metadata (cloud-init: Datasource Akamai)
    "fd00:a9fe:a9fe::1",
    # OpenStack: instance metadata (Nova: Metadata service)
    "fe80::a9fe:a9fe",
)
_PRIVATE = _parse_networks(
    "10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 172.16.0.0/12 192.168.0.0/16 198.18.0.0/15",
    "::1/128 fc00::/7",
)
_SPECIAL = _parse_networks(
    "0.0.0.0/8 169.254.0.0/16 192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 198.51.100.0/24",
    "203.0.113.0/24 224.0.0.0/4 240.0.0.0/4",
    "2001::/23 2001:db8::/32 2002::/16 3fff::/20",  # Teredo, 6to4, …
)
_GLOBAL_V6 = ip_network("2000::/3")  # all public IPv6 addresses are in this range
_NAT64 = ip_network("64:ff9b::/96")
_LOCAL_NAT64 = ip_network("64:ff9b:1::/48")
_COMPATIBLE = ip_network("::/96")


def classify_address(address: Address) -> AddressScope:
    """Return the scope of an address. A mapped or translated address has its target's."""
    if is_host_service(address):
        return AddressScope.SPECIAL
    address = unwrap_ipv4(address)
    if any(address in network for network in _PRIVATE):
        return AddressScope.PRIVATE
    is_local_v6 = address.version == 6 and address not in _GLOBAL_V6
    special = is_local_v6 or any(address in network for network in _SPECIAL)
    return AddressScope.SPECIAL if special else AddressScope.PUBLIC


def is_host_service(address: Address) -> bool:
    """Return whether an address is, or may be translated to, a service of the cloud."""
    return any(
        target in service
        for target in (address, *_list_embedded(address))
        for service in HOST_SERVICES
    )


def _list_embedded(address: Address) -> Iterator[IPv4Address]:
    """Yield all IPv4 addresses that an IPv6 address may stand for, in any notation."""
    if isinstance(address, IPv4Address):
        return
    low_32, interface = int(address) & 0xFFFFFFFF, int(address) >> 32 & 0xFFFFFFFF
    if address.ipv4_mapped or any(address in net for net in (_NAT64, _COMPATIBLE)):
        yield IPv4Address(low_32)
    if interface in (0x00005EFE, 0x02005EFE):  # ISATAP
        yield IPv4Address(low_32)
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    if address in _LOCAL_NAT64:
        # The network chooses the length of the prefix: 96 bits, or 48 around a zero octet.
        yield IPv4Address(low_32)
        yield IPv4Address((int(address) >> 64 & 0xFFFF) << 16 | int(address) >> 40 & 0xFFFF)


def unwrap_ipv4(address: Address) -> Address:
    """Return the IPv4 address of a mapped or translated one; return others unchanged."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def parse_address(text: str) -> Address | None:
    """Parse an IP address, without its zone; return None if it is not one."""
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None
