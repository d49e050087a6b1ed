"""The guard that decides which URLs and addresses a download may use.

The URL comes from a message, so it cannot be trusted. Two checks are needed. The first
checks the text, before anything is sent. The second checks the exact address that libcurl
is about to connect to, after names and odd spellings (0x7f.1, 2130706433) were resolved, so
that a name server which changes its reply cannot bypass it. Redirects go through both again.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import NoReturn
from urllib.parse import quote, urljoin

from holdfast.errors import ConfigError
from holdfast.exports.downloads.errors import TaskError
from holdfast.exports.downloads.ip_policy import (
    Address,
    AddressScope,
    classify_address,
    is_host_service,
    parse_address,
    unwrap_ipv4,
)

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
