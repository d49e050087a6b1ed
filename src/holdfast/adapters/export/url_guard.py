"""Where a download may go. The URL comes from a message, so nobody vouches for it.

Two looks, both needed: at the text, before anything is sent; and at the very address that
libcurl is about to connect to, when names, odd spellings (0x7f.1, 2130706433) and a name
server that changes its mind are all behind us. Redirects go through both again.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import NoReturn
from urllib.parse import quote, urljoin

from holdfast.adapters.export.errors import TaskError
from holdfast.adapters.export.ip_policy import (
    Address,
    AddressScope,
    address_scope,
    is_host_service,
    meant_by,
    read_address,
)
from holdfast.core.errors import ConfigError

MOST_REDIRECTS = 5

_MAX_URL = 16_384
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/?#]*))?([^#]*)(?:#.*)?", re.DOTALL)
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")
# No backslash, no blank, no second meaning: libcurl must read the same host as we do.
_AUTHORITY = re.compile(
    r"(?P<host>[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9_.])?|\[[0-9A-Fa-f:.]{2,45}\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
)
_PORTS = {"http": 80, "https": 443}
# Written as they are; all else is percent-encoded. "%" too: what is encoded stays so.
_AS_THEY_ARE = "/?:@!$&'()*+,;=-._~%[]|"


@dataclass(frozen=True, slots=True)
class CheckedUrl:
    """A checked URL. Only `url` may hold secrets; it is for libcurl alone."""

    url: str
    scheme: str
    host: str  # as in the URL, lower case, without brackets
    port: int

    @property
    def origin(self) -> str:
        """For people and for counting: host, and port where it is not the usual one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def server(self) -> tuple[str, str, int]:
        """Who answers: what a connection is good for."""
        return self.scheme, self.host, self.port

    def __repr__(self) -> str:
        return f"Place({self.scheme}://{self.origin})"


def read_url(text: str) -> CheckedUrl:
    """Raises TaskError when it is not a plain address of http or https."""
    match = _URL.fullmatch(text)
    if match is None or len(text) > _MAX_URL or _CONTROLS.search(text):
        raise TaskError(
            "BadUrl", "the address is not a URL, is too long or has control characters"
        )
    scheme, authority, rest = match[1].lower(), match[2], match[3]
    if scheme not in _PORTS:
        raise TaskError(
            "SchemeRefused", f"files are fetched by http and https, not by {scheme}"
        )
    if "@" in (authority or ""):
        raise TaskError("CredentialsInUrl", "the address has a user or a password in it")
    host, port = _authority(authority or "")
    place = CheckedUrl("", scheme, host, port or _PORTS[scheme])
    tail = quote(rest, safe=_AS_THEY_ARE)
    slash = "" if tail.startswith("/") else "/"
    return replace(place, url=f"{scheme}://{place.origin}{slash}{tail}")


def _authority(text: str) -> tuple[str, int]:
    match = _AUTHORITY.fullmatch(_in_ascii(text))
    if match is None or int(match["port"] or 1) not in range(1, 65_536):
        raise TaskError("BadUrl", "the address has no host, or one that cannot be read")
    return match["host"].lower().strip("[]"), int(match["port"] or 0)


def _in_ascii(text: str) -> str:
    if text.isascii():
        return text
    try:
        return text.encode("idna").decode("ascii")
    except UnicodeError:
        return ""


class UrlGuard:
    """Decides. Safe for threads.

    `allow_private` opens private addresses, and so does a host named in `allow_hosts`.
    An address or a network named there is open even if it is neither public nor private.
    Services of the cloud (metadata, credentials) are never open. Entries may end with a port,
    and are for that port then.
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
                _not_allowed(entry)
            self._names.add((_plain(text), port))
            return
        if network.num_addresses == 1 and is_host_service(network[0]):
            raise ConfigError(
                f"allowed host {entry[:80]!r}: services of the cloud (metadata, credentials) "
                "are never allowed; remove it"
            )
        self._networks.append((network, port))

    def redirected(self, before: CheckedUrl, location: str) -> CheckedUrl:
        """Where a redirect leads. Raises TaskError."""
        try:
            place = read_url(urljoin(before.url, location))
        except ValueError:
            raise TaskError("BadUrl", f"{before.origin} leads to what is no URL") from None
        if before.scheme == "https" and place.scheme == "http":
            raise TaskError("RedirectRefused", f"{before.origin} leads from https to http")
        return place

    def lets(self, place: CheckedUrl, address: str, port: int) -> bool:
        """May we connect there, to fetch that?"""
        found = read_address(address)
        if found is None or is_host_service(found):
            return False
        reach = address_scope(found)
        if reach is AddressScope.PUBLIC or self._is_open(found, port):
            return True
        return reach is AddressScope.PRIVATE and (self._allow_private or self._is_named(place))

    def _is_open(self, address: Address, port: int) -> bool:
        return any(
            meant_by(address) in network and only in (None, port)
            for network, only in self._networks
        )

    def _is_named(self, place: CheckedUrl) -> bool:
        name = _plain(place.host)
        return (name, None) in self._names or (name, place.port) in self._names


def _split_port(entry: str) -> tuple[str, int | None]:
    text, colon, port = entry.rpartition(":")
    if colon and port.isdecimal() and (":" not in text or text.endswith("]")):
        return text, int(port)
    return entry, None


def _plain(host: str) -> str:
    return host.lower().rstrip(".")


def _not_allowed(entry: str) -> NoReturn:
    raise ConfigError(
        f"allowed host {entry[:80]!r}: give a name, an address or a network, with or without "
        "a port: intranet.example, 127.0.0.1:8080, 10.0.0.0/8"
    )
