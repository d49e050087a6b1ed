"""The guard that decides which URLs and addresses a download may use.

The URL comes from a message, so it cannot be trusted. Two checks are needed. The first
checks the text, before anything is sent. The second checks the exact address that libcurl
is about to connect to, after names and odd spellings (0x7f.1, 2130706433) were resolved, so
that a name server which changes its reply cannot bypass it. Redirects go through both again.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NoReturn
from urllib.parse import quote, urljoin

from holdfast.errors import ConfigError
from holdfast.exports.downloads.task import TaskError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

MAX_REDIRECTS = 5

_MAX_URL = 16_384
_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?://(?P<authority>[^/?#]*))?(?P<rest>[^#]*)(?:#.*)?",
    re.DOTALL,
)
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")
# Without backslashes, blanks and ambiguous forms, so that libcurl reads the same host as we do.
_AUTHORITY = re.compile(
    r"(?P<host>[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9_.])?|\[[0-9A-Fa-f:.]{2,45}\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
)
_PORTS = {"http": 80, "https": 443}
# These characters stay, and all others are percent-encoded. "%" stays, because what is
# encoded must not be encoded twice.
_SAFE_CHARACTERS = "/?:@!$&'()*+,;=-._~%[]|"


@dataclass(frozen=True, slots=True)
class CheckedUrl:
    """A checked URL. Only `url` may hold secrets, so only libcurl gets it."""

    url: str
    scheme: str
    host: str  # as in the URL, lower case, without brackets
    port: int
    origin: str  # host, with the port if it is not the default; for texts and for counting

    @property
    def server(self) -> tuple[str, str, int]:
        """The server that responds; a connection can be used again for the same server."""
        return self.scheme, self.host, self.port

    def __repr__(self) -> str:
        return f"CheckedUrl({self.scheme}://{self.origin})"


def parse_url(text: str) -> CheckedUrl:
    """Parse and check a URL. Raises TaskError unless it is a plain http or https URL."""
    match = _URL.fullmatch(text)
    if match is None or len(text) > _MAX_URL or _CONTROLS.search(text):
        raise TaskError(
            "BadUrl", "the address is not a URL, is too long or has control characters"
        )
    scheme, authority, rest = match["scheme"].lower(), match["authority"], match["rest"]
    if scheme not in _PORTS:
        raise TaskError(
            "SchemeRefused", f"files are downloaded by http or https, not by {scheme}"
        )
    if "@" in (authority or ""):
        raise TaskError("CredentialsInUrl", "the address contains a user or a password")
    host, port, origin = _parse_authority(scheme, authority or "")
    tail = quote(rest, safe=_SAFE_CHARACTERS)
    slash = "" if tail.startswith("/") else "/"
    return CheckedUrl(f"{scheme}://{origin}{slash}{tail}", scheme, host, port, origin)


@lru_cache(maxsize=256)  # most files of a job are on few servers
def _parse_authority(scheme: str, text: str) -> tuple[str, int, str]:
    """Return the host, the port and the origin. Raises TaskError."""
    match = _AUTHORITY.fullmatch(_to_ascii(text))
    if match is None or int(match["port"] or 1) not in range(1, 65_536):
        raise TaskError("BadUrl", "the address has no host, or one that cannot be read")
    host, port = match["host"].lower().strip("[]"), int(match["port"] or _PORTS[scheme])
    name = f"[{host}]" if ":" in host else host
    return host, port, name if port == _PORTS[scheme] else f"{name}:{port}"


def _to_ascii(text: str) -> str:
    if text.isascii():
        return text
    try:
        return text.encode("idna").decode("ascii")
    except UnicodeError:
        return ""


class UrlGuard:
    """Decides which servers may be reached. Safe for threads.

    `allow_private` allows private addresses, and so does a host named in `allow_hosts`.
    An address or a network named there is allowed even if it is neither public nor private.
    Services of the cloud (metadata, credentials) are never allowed. An entry that ends with
    a port is for that port only.
    """

    def __init__(self, *, allow_private: bool, allow_hosts: Iterable[str] = ()) -> None:
        self._allow_private = allow_private
        self._names: set[tuple[str, int | None]] = set()
        self._networks: list[tuple[IPv4Network | IPv6Network, int | None]] = []
        for entry in allow_hosts:
            self._allow(entry)

    def _allow(self, entry: str) -> None:
        text, port = _split_port(entry.strip())
        try:
            network = ip_network(text.strip("[]"))
        except ValueError:
            if not _AUTHORITY.fullmatch(text):
                _refuse_entry(entry)
            self._names.add((_normalize_host(text), port))
            return
        if network.num_addresses == 1 and is_host_service(network[0]):
            raise ConfigError(
                f"allowed host {entry[:80]!r}: services of the cloud (metadata, credentials) "
                "are never allowed; remove it"
            )
        self._networks.append((network, port))

    def follow_redirect(self, before: CheckedUrl, location: str) -> CheckedUrl:
        """Return the URL that a redirect leads to. Raises TaskError if it is refused."""
        try:
            checked_url = parse_url(urljoin(before.url, location))
        except ValueError:
            text = f"{before.origin} redirects to something that is not a URL"
            raise TaskError("BadUrl", text) from None
        if before.scheme == "https" and checked_url.scheme == "http":
            text = f"{before.origin} redirects from https to http"
            raise TaskError("RedirectRefused", text)
        return checked_url

    def can_connect(self, checked_url: CheckedUrl, address: str, port: int) -> bool:
        """Return whether a download of this URL may connect to that address and port."""
        ip = parse_address(address)
        if ip is None or is_host_service(ip):
            return False
        scope = classify_address(ip)
        if scope is AddressScope.PUBLIC or self._is_open(ip, port):
            return True
        is_allowed = self._allow_private or self._is_named(checked_url)
        return scope is AddressScope.PRIVATE and is_allowed

    def _is_open(self, address: Address, port: int) -> bool:
        return any(
            unwrap_ipv4(address) in network and only in (None, port)
            for network, only in self._networks
        )

    def _is_named(self, checked_url: CheckedUrl) -> bool:
        name = _normalize_host(checked_url.host)
        return (name, None) in self._names or (name, checked_url.port) in self._names


def explain_refusal(checked_url: CheckedUrl, address: str) -> str:
    """Return why the guard refused an address of this URL, and how to allow it if possible."""
    ip = parse_address(address)
    if ip is None or is_host_service(ip):
        return "its address is a service of the cloud or no IP address, which is never allowed"
    scope, host = classify_address(ip), checked_url.host
    if scope is not AddressScope.PRIVATE:  # only the address itself can be allowed
        host = str(unwrap_ipv4(ip))
    host = f"[{host}]" if ":" in host else host
    return f"its address is {scope.value}; allow it with --allow-host {host}:{checked_url.port}"


def _split_port(entry: str) -> tuple[str, int | None]:
    text, colon, port = entry.rpartition(":")
    if colon and port.isdecimal() and (":" not in text or text.endswith("]")):
        return text, int(port)
    return entry, None


def _normalize_host(host: str) -> str:
    return host.lower().rstrip(".")


def _refuse_entry(entry: str) -> NoReturn:
    raise ConfigError(
        f"allowed host {entry[:80]!r}: give a name, an address or a network, with or without "
        "a port: intranet.example, 127.0.0.1:8080, 10.0.0.0/8"
    )


# -- addresses: public, private, or a service of the machine's cloud, which is always refused


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
