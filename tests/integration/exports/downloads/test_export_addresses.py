"""The allowed addresses of a download: the connected address is checked at every redirect.

Proves JB-34.
"""

from pathlib import Path

import pytest
from export_place import ExportPlace

from support.certificates import make_certificate
from support.http_server import LoopbackServer, file, redirect

DATA = b"data" * 1000


def test_a_private_address_is_not_even_connected_to(place: ExportPlace) -> None:
    """By number, by odd notations, by name and by IPv6 (JB-34)."""
    port = place.server.port
    for host in ("127.0.0.1", "2130706433", "0x7f.1", "0177.0.0.1", "127.1", "localhost"):
        assert place.code(f"http://{host}:{port}/a", allow_hosts=()) == "AddressRefused"
    for host in ("[::1]", "[::ffff:127.0.0.1]", "0", "0.0.0.0"):
        assert place.code(f"http://{host}:{port}/a", allow_hosts=()) == "AddressRefused"
    assert place.server.connections == 0


def test_a_metadata_service_stays_shut_even_where_private_addresses_are_open(
    place: ExportPlace,
) -> None:
    hosts = ["169.254.169.254", "[fd00:ec2::254]", "[::ffff:169.254.169.254]"]
    hosts += ["168.63.129.16", "[fd00:ec2::23]", "[2002:a9fe:a9fe::]", "2852039166"]
    for host in hosts:
        url = f"http://{host}/latest/meta-data/"
        assert place.code(url, allow_private=True) == "AddressRefused"
        assert place.code(url, allow_hosts=("0.0.0.0/0", "::/0")) == "AddressRefused"


@pytest.mark.parametrize("how", ["address", "name", "private"])
def test_what_is_allowed_is_reached(place: ExportPlace, how: str) -> None:
    place.server.on("/a", file(DATA))
    host = "localhost" if how == "name" else "127.0.0.1"
    allowed = () if how == "private" else (f"{host}:{place.server.port}",)
    url = f"http://{host}:{place.server.port}/a"
    assert place.get(url, allow_hosts=allowed, allow_private=how == "private")["success"]


def test_redirects_are_followed_up_to_a_number(place: ExportPlace) -> None:
    place.server.on("/end", file(DATA))
    for number in range(1, 6):
        after = f"/hop{number + 1}" if number < 5 else place.server.url("/end")
        place.server.on(f"/hop{number}", redirect(after, "307 Temporary Redirect"))
    place.server.on("/hop0", redirect("/hop1"))
    assert place.get(place.server.url("/hop1"))["success"]
    assert place.code(place.server.url("/hop0"), "another") == "TooManyRedirects"
    url = place.server.on("/loop", redirect("/loop"))
    assert place.code(url) == "TooManyRedirects"
    assert len(place.server.asked("/loop")) == 6


def test_a_redirect_to_a_private_address_is_not_followed(place: ExportPlace) -> None:
    """The first server is allowed, but the one it redirects to is not (JB-34)."""
    with LoopbackServer() as inside:
        inside.on("/secret", file(b"secret"))
        url = place.server.on("/a", redirect(inside.url("/secret")))
        assert place.code(url) == "AddressRefused"
        assert inside.connections == 0


@pytest.mark.parametrize(
    ("location", "code"),
    [
        ("file:///etc/passwd", "SchemeRefused"),
        ("ftp://127.0.0.1/x", "SchemeRefused"),
        ("gopher://127.0.0.1:25/x", "SchemeRefused"),
        ("http://user:secret@127.0.0.1/", "CredentialsInUrl"),
        ("http://good.example\\@127.0.0.1/", "CredentialsInUrl"),
        ("http://[nowhere/", "BadUrl"),
        ("http://a b/", "BadUrl"),
    ],
)
def test_a_redirect_to_what_we_would_not_fetch_is_not_followed(
    place: ExportPlace, location: str, code: str
) -> None:
    assert place.code(place.server.on("/a", redirect(location))) == code


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://a:b@example.com/", "x", ""])
def test_a_task_with_a_malformed_url_is_refused(place: ExportPlace, url: str) -> None:
    assert place.code(url) in ("SchemeRefused", "CredentialsInUrl", "BadUrl")


def test_proxies_and_passwords_of_the_environment_are_not_used(
    place: ExportPlace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A proxy connects to any address, so the guard would check nothing."""
    (tmp_path / ".netrc").write_text("default login user password secret\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    with LoopbackServer() as proxy:
        for name in ("http_proxy", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url(""))
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert place.get(place.server.on("/a", file(DATA)))["success"]
        assert proxy.connections == 0
    assert "authorization" not in place.server.asks[0].headers


# -- TLS


@pytest.fixture
def certificate(tmp_path: Path) -> str:
    """Make a key and a self-signed certificate for 127.0.0.1."""
    return make_certificate(tmp_path / "server.pem")


def test_an_untrusted_certificate_is_refused(
    place: ExportPlace, certificate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LoopbackServer(certificate) as server:
        place.server = server
        url = server.on("/a", file(DATA))
        assert place.code(url) == "TlsRefused"
        assert server.asks == []
        monkeypatch.setenv("SSL_CERT_FILE", certificate)
        assert place.get(url)["success"]


def test_a_redirect_from_https_to_http_is_not_followed(
    place: ExportPlace, certificate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", certificate)
    plain = place.server.on("/a", file(DATA))
    with LoopbackServer(certificate) as server:
        allowed = (server.origin, place.server.origin)
        url = server.on("/a", redirect(plain))
        assert place.code(url, allow_hosts=allowed) == "RedirectRefused"
        back = place.server.on("/b", redirect(server.on("/c", file(DATA))))
        assert place.get(back, allow_hosts=allowed)["success"]


def test_behind_tls_too_surplus_bytes_reach_no_other_file(
    place: ExportPlace, certificate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", certificate)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"
    with LoopbackServer(certificate) as server:
        place.server = server
        longer = server.on("/a", lambda ask, wire: wire.send(head + b"good" + head + b"evil"))
        url = server.on("/b", file(DATA))
        with place.work() as work:
            for name, source in (("a", longer), ("b", url), ("c", url)):
                assert work.process(place.task(source, name), lambda _: None)["success"]
        assert place.visible() == {"a": b"good", "b": DATA, "c": DATA}
        assert [ask.connection for ask in server.asks] == [1, 2, 3]
