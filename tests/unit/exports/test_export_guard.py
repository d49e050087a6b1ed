"""The guard's decision for each kind of address and URL (JB-34)."""

import errno
import inspect
import re
from ipaddress import IPv6Address, ip_address, ip_network
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.exports.downloads import url_guard
from holdfast.exports.downloads.response_head import HeadReader, ResponseHead
from holdfast.exports.downloads.task import TaskError, from_os_error
from holdfast.exports.downloads.url_guard import (
    AddressScope,
    UrlGuard,
    classify_address,
    explain_refusal,
    is_host_service,
    parse_address,
    parse_url,
)
from holdfast.exports.downloads.work import RetryCounter

PUBLIC = "1.1.1.1 8.8.8.8 100.63.255.255 100.128.0.1 172.15.0.1 172.32.0.1 192.167.0.1 "
PUBLIC += (
    "198.20.0.1 223.255.255.255 2606:4700::1111 2a00:1450::1 ::ffff:8.8.8.8 64:ff9b::808:808"
)
PRIVATE = "10.0.0.1 127.0.0.1 127.255.0.9 172.16.0.1 172.31.255.255 192.168.1.1 100.64.0.1 "
PRIVATE += "198.18.0.1 ::1 fc00::1 fd12::1 ::ffff:10.0.0.1 64:ff9b::a00:1 ::ffff:127.0.0.1"
SPECIAL = "0.0.0.0 0.1.2.3 169.254.169.254 169.254.0.1 192.0.0.192 192.0.2.1 192.88.99.1 "
SPECIAL += "198.51.100.1 203.0.113.9 224.0.0.1 239.1.1.1 240.0.0.1 255.255.255.255 :: fe80::1 "
SPECIAL += "fe80::1%eth0 ff02::1 fd00:ec2::254 100.100.100.200 2002:7f00:1::1 2001::1 "
SPECIAL += (
    "2001:db8::1 ::127.0.0.1 ::8.8.8.8 64:ff9b:1::1 fec0::1 100::1 ::ffff:169.254.169.254 "
)
SPECIAL += "64:ff9b::a9fe:a9fe 4000::1"


@pytest.mark.parametrize(
    ("addresses", "reach"),
    [
        (PUBLIC, AddressScope.PUBLIC),
        (PRIVATE, AddressScope.PRIVATE),
        (SPECIAL, AddressScope.SPECIAL),
    ],
)
def test_every_address_has_its_scope(addresses: str, reach: AddressScope) -> None:
    for text in addresses.split():
        address = parse_address(text)
        assert address is not None, text
        assert classify_address(address) is reach, text


@given(st.ip_addresses())
def test_public_addresses_are_global_in_the_iana_registry_too(address: object) -> None:
    """Our set of public addresses may be narrower than the standard library's, never wider."""
    from ipaddress import IPv4Address, IPv6Address

    assert isinstance(address, IPv4Address | IPv6Address)
    if classify_address(address) is AddressScope.PUBLIC:
        mapped = getattr(address, "ipv4_mapped", None)
        assert mapped is not None or address.is_global
        assert not address.is_multicast


def can_connect(guard: UrlGuard, url: str, address: str) -> bool:
    place = parse_url(url)
    return guard.can_connect(place, address, place.port)


def test_only_public_addresses_are_allowed_by_default() -> None:
    guard = UrlGuard(allow_private=False)
    assert can_connect(guard, "http://a.example/", "8.8.8.8")
    for address in (PRIVATE + " " + SPECIAL).split():
        assert not can_connect(guard, "http://a.example/", address)
    assert not can_connect(guard, "http://a.example/", "not an address")


def test_private_addresses_can_be_allowed_and_special_ones_stay_refused() -> None:
    guard = UrlGuard(allow_private=True)
    assert all(can_connect(guard, "http://a.example/", address) for address in PRIVATE.split())
    assert not any(
        can_connect(guard, "http://a.example/", address) for address in SPECIAL.split()
    )


HOST_SERVICES = "169.254.169.254 169.254.169.253 169.254.169.123 169.254.170.2 169.254.170.23 "
HOST_SERVICES += "fd00:ec2::254 fd00:ec2::253 fd00:ec2::123 fd00:ec2::23 fd20:ce::254 "
HOST_SERVICES += "168.63.129.16 100.100.100.200 192.0.0.192 169.254.42.42 fd00:42::42 "
HOST_SERVICES += "fd00:c1::a9fe:a9fe fd00:a9fe:a9fe::1 fe80::a9fe:a9fe fd00:100::100:200"


def spellings(text: str) -> list[str]:
    """Return an address, and every IPv6 address that is translated or tunnelled to it."""
    address = ip_address(text)
    if isinstance(address, IPv6Address):
        return [text, f"{text}%eth0"]
    high, low = divmod(int(address), 1 << 16)
    inverted = f"{high ^ 0xFFFF:x}:{low ^ 0xFFFF:x}"
    return [
        text,
        f"::ffff:{text}",  # mapped
        f"::{text}",  # compatible
        f"64:ff9b::{high:x}:{low:x}",  # NAT64
        f"64:ff9b:1::{high:x}:{low:x}",  # NAT64 of the local network, prefix of 96 bits
        f"64:ff9b:1:{high:x}:{low >> 8:x}:{(low & 0xFF) << 8:x}::",  # the same, of 48 bits
        f"2002:{high:x}:{low:x}::1",  # 6to4
        f"2001:0:{high:x}:{low:x}::1",  # Teredo, server
        f"2001:0:808:808:0:0:{inverted}",  # Teredo, client
        f"fe80::5efe:{text}",  # ISATAP
        f"fd12::200:5efe:{text}",
    ]


@pytest.mark.parametrize("address", HOST_SERVICES.split())
def test_a_service_of_the_cloud_stays_shut_whatever_is_allowed(address: str) -> None:
    named = UrlGuard(allow_private=True, allow_hosts=["0.0.0.0/0", "::/0", "a.example"])
    for text in spellings(address):
        assert not can_connect(named, "http://a.example/", text), text
        found = parse_address(text)
        assert found is not None
        assert classify_address(found) is not AddressScope.PUBLIC, text
    neighbour = str(ip_address(address) + 1)
    assert can_connect(named, "http://a.example/", neighbour) or is_host_service(
        ip_address(neighbour)
    )


@pytest.mark.parametrize("entry", ["169.254.169.254", "[fd00:ec2::23]:80", "168.63.129.16/32"])
def test_a_service_of_the_cloud_cannot_be_named_as_allowed(entry: str) -> None:
    with pytest.raises(ConfigError, match="never allowed"):
        UrlGuard(allow_private=True, allow_hosts=[entry])


def test_every_service_of_the_cloud_has_its_source() -> None:
    """The comment above each network says whose service it is, which, and who says so."""
    table = inspect.getsource(url_guard).partition("HOST_SERVICES = ")[2].partition("\n)")[0]
    rows = re.findall(r'    # ((?:.|\n    # )+?)\n    "([^"]+)",', table)
    assert [ip_network(network) for _, network in rows] == list(url_guard.HOST_SERVICES)
    assert len(set(url_guard.HOST_SERVICES)) == len(url_guard.HOST_SERVICES)
    for comment, network in rows:
        text = comment.replace("\n    # ", " ")
        assert re.fullmatch(r"[^:]+: [^()]+ \([^()]+: [^()]+\)", text), network


def test_an_address_that_is_named_is_open_on_its_port_alone() -> None:
    guard = UrlGuard(
        allow_private=False, allow_hosts=["127.0.0.1:8080", "[::1]:81", "10.1.0.0/16"]
    )
    assert can_connect(guard, "http://any.name:8080/", "127.0.0.1")
    assert can_connect(guard, "http://any.name:8080/", "::ffff:127.0.0.1")
    assert not can_connect(guard, "http://any.name:8081/", "127.0.0.1")
    assert can_connect(guard, "http://x:81/", "::1")
    assert can_connect(guard, "http://x/", "10.1.2.3")
    assert not can_connect(guard, "http://x/", "10.2.0.1")
    assert can_connect(
        UrlGuard(allow_private=False, allow_hosts=["169.254.0.0/16"]),
        "http://x/",
        "169.254.1.1",
    )


def test_a_name_opens_private_addresses_for_itself_alone() -> None:
    guard = UrlGuard(
        allow_private=False, allow_hosts=["Intranet.Example.", "other.example:8443"]
    )
    assert can_connect(guard, "http://intranet.example/", "10.0.0.1")
    assert can_connect(guard, "https://INTRANET.example.:99/", "10.0.0.1")
    assert not can_connect(guard, "http://intranet.example/", "169.254.169.254")
    assert not can_connect(guard, "http://evil.example/", "10.0.0.1")
    assert not can_connect(guard, "http://intranet.example.evil.example/", "10.0.0.1")
    assert can_connect(guard, "https://other.example:8443/", "10.0.0.1")
    assert not can_connect(guard, "https://other.example/", "10.0.0.1")


@pytest.mark.parametrize("entry", ["", "http://x", "10.0.0.0/99", "a b", "user@host", "x/y"])
def test_an_entry_that_names_nothing_is_refused(entry: str) -> None:
    with pytest.raises(ConfigError, match="allowed host"):
        UrlGuard(allow_private=False, allow_hosts=[entry])


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("file:///etc/passwd", "SchemeRefused"),
        ("FTP://x/", "SchemeRefused"),
        ("javascript:alert(1)", "SchemeRefused"),
        ("http://u@x/", "CredentialsInUrl"),
        ("http://u:p@x/", "CredentialsInUrl"),
        ("http://a\\@b/", "CredentialsInUrl"),
        ("http://a%40b/", "BadUrl"),
        ("http://a\\b/", "BadUrl"),
        ("http://a b/", "BadUrl"),
        ("http://a\tb/", "BadUrl"),
        ("ht\ntp://a/", "BadUrl"),
        ("http://a/\r\nX-Evil: 1", "BadUrl"),
        ("http:///x", "BadUrl"),
        ("http:x", "BadUrl"),
        ("//x/", "BadUrl"),
        ("x", "BadUrl"),
        ("http://[::1/", "BadUrl"),
        ("http://[fe80::1%25eth0]/", "BadUrl"),
        ("http://x:0/", "BadUrl"),
        ("http://x:65536/", "BadUrl"),
        ("http://x:80:80/", "BadUrl"),
        ("http://-x/", "BadUrl"),
        ("http://" + "x" * 300 + "/", "BadUrl"),
        ("http://x/" + "y" * 20_000, "BadUrl"),
        ("http://\ud800/", "BadUrl"),
    ],
)
def test_a_malformed_url_is_refused_without_being_quoted(url: str, code: str) -> None:
    with pytest.raises(TaskError) as refusal:
        parse_url(url)
    assert refusal.value.code == code
    assert not refusal.value.retryable
    assert "passwd" not in refusal.value.message


@pytest.mark.parametrize(
    ("url", "read", "origin"),
    [
        ("HTTP://Example.COM", "http://example.com/", "example.com"),
        ("https://x:443/a?b=c#d", "https://x/a?b=c", "x"),
        ("https://x:444?q", "https://x:444/?q", "x:444"),
        ("http://[::1]:81/ä b/%20%zz", "http://[::1]:81/%C3%A4%20b/%20%zz", "[::1]:81"),
        ("http://bücher.example/", "http://xn--bcher-kva.example/", "xn--bcher-kva.example"),
        ("http://１２７.0.0.1/", "http://127.0.0.1/", "127.0.0.1"),
        ("http://x/a/../b?sig=a%2Fb+c=", "http://x/a/../b?sig=a%2Fb+c=", "x"),
    ],
)
def test_a_plain_address_is_written_so_that_it_can_be_read_one_way_only(
    url: str, read: str, origin: str
) -> None:
    place = parse_url(url)
    assert (place.url, place.origin) == (read, origin)
    assert place.url not in repr(place) or place.url == f"{place.scheme}://{place.origin}/"
    assert parse_url(place.url) == place


# -- pure functions


class FixedRandom(Random):
    """A source of chance that always returns the same value."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def random(self) -> float:
        return self.value


def test_waits_double_with_jitter_up_to_a_limit() -> None:
    tries = RetryCounter(20, FixedRandom(1.0))
    passing = TaskError("X", "", retryable=True)
    waits = [tries.record_failure(passing, 0) for _ in range(9)]
    assert waits == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]
    assert RetryCounter(20, FixedRandom(0.0)).record_failure(passing, 0) == 0.25


def test_a_permanent_error_is_not_retried() -> None:
    with pytest.raises(TaskError):
        RetryCounter(20, FixedRandom(0.0)).record_failure(TaskError("X", ""), 0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 120.0),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 0.0),
        ("-5", 0.0),
        ("soon", 0.0),
        ("9" * 400, 0.0),
        ("²", 0.0),
        (None, 0.0),
    ],
)
def test_retry_after_is_a_number_of_seconds(text: str | None, seconds: float) -> None:
    fields = {} if text is None else {"retry-after": [text]}
    assert ResponseHead(503, fields).retry_after == seconds


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, "DiskFull"),
        (errno.EROFS, "ReadOnly"),
        (errno.EACCES, "Denied"),
        (errno.EFBIG, "FileTooBig"),
        (errno.EIO, "StorageError"),
    ],
)
def test_every_disk_error_has_a_code(number: int, code: str) -> None:
    assert from_os_error(OSError(number, "text", "/a/path"), "key").code == code


@pytest.mark.parametrize("lengths", [("3", "4"), ("-1",), ("",), ("1e3",), ("9" * 20,)])
def test_a_malformed_or_ambiguous_length_is_refused(lengths: tuple[str, ...]) -> None:
    with pytest.raises(TaskError, match="BadAnswer"):
        _ = ResponseHead(200, {"content-length": list(lengths)}).length
    assert ResponseHead(200, {"content-length": ["5", "5"]}).length == 5


@given(st.lists(st.binary(max_size=40), max_size=30))
@example([b": no name"])
def test_a_head_of_any_bytes_is_read_or_refused(lines: list[bytes]) -> None:
    reader = HeadReader()
    for line in [b"HTTP/1.1 200 OK\r\n", *lines, b"\r\n"]:
        try:
            answer = reader.feed(line)
        except TaskError:
            return
    if answer is not None:
        for name in ("validator", "range", "is_encoded", "is_chunked"):
            getattr(answer, name)


@pytest.mark.parametrize(
    ("url", "address", "allow"),
    [
        ("http://localhost:8080/a", "127.0.0.1", "localhost:8080"),
        ("https://intranet/a", "::1", "intranet:443"),
        ("http://[::1]/a", "::1", "[::1]:80"),
        ("http://old.example/a", "192.0.2.1", "192.0.2.1:80"),
        ("http://old.example/a", "::ffff:192.0.2.1", "192.0.2.1:80"),
    ],
)
def test_a_refusal_names_the_option_that_allows_the_address(
    url: str, address: str, allow: str
) -> None:
    checked_url = parse_url(url)
    assert explain_refusal(checked_url, address).endswith(f"--allow-host {allow}")
    closed = UrlGuard(allow_private=False)
    opened = UrlGuard(allow_private=False, allow_hosts=[allow])
    assert not closed.can_connect(checked_url, address, checked_url.port)
    assert opened.can_connect(checked_url, address, checked_url.port)


@pytest.mark.parametrize("address", ["169.254.169.254", "fd00:ec2::254", "", "/a/socket"])
def test_what_can_never_be_allowed_is_not_offered(address: str) -> None:
    assert "--allow-host" not in explain_refusal(parse_url("http://x/"), address)
