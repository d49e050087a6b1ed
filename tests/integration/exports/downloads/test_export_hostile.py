"""Hostile servers, messages and users: no secret gets out, and no wrong file gets in.

Proves JB-34 (names), JB-35 for signed URLs, and JB-33 for wrong lengths.
"""

import os
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from export_place import ExportPlace, chunked, cut, result_of, sha256

from holdfast.errors import ConfigError
from holdfast.exports.file_names import OWN_FOLDER
from support.http_server import Ask, Wire, file, redirect, status

DATA = b"data" * 1000
MIB = 1 << 20


# -- bodies and heads


@pytest.mark.parametrize("framing", ["chunked", "length"])
def test_an_endless_body_ends_at_the_limit(place: ExportPlace, framing: str) -> None:
    def endless(ask: Ask, wire: Wire) -> None:
        if framing == "chunked":
            wire.head("200 OK", "Transfer-Encoding: chunked")
            while not wire.stopped.is_set():
                wire.body(b"10000\r\n" + bytes(65_536) + b"\r\n")
        wire.head("200 OK", f"Content-Length: {1 << 62}")
        wire.hang()

    url = place.server.on("/a", endless)
    assert place.code(url, max_bytes=4 * MIB) == "TooLarge"
    assert len(place.server.asks) == 1
    assert place.server.body_bytes < 32 * MIB
    assert place.hidden() == []


def test_a_limit_lets_a_file_of_just_that_size_through(place: ExportPlace) -> None:
    url = place.server.on("/a", chunked(DATA))
    assert place.get(url, max_bytes=len(DATA))["success"]
    assert place.code(url, "other.bin", max_bytes=len(DATA) - 1) == "TooLarge"


def test_memory_stays_as_it_is_whatever_the_size_of_the_file(place: ExportPlace) -> None:
    piece, pieces = bytes(MIB), 128

    def large(ask: Ask, wire: Wire) -> None:
        wire.head("200 OK", f"Content-Length: {len(piece) * pieces}", 'ETag: "x"')
        for _ in range(pieces):
            wire.body(piece)

    task = place.task(place.server.on("/a", large), checksum=f"sha256:{'0' * 64}")
    result = result_of(place.process(task, attempts=1))
    assert result["error"]["code"] == "ChecksumMismatch"  # all of it was read
    assert place.server.body_bytes == len(piece) * pieces
    assert result["grownKiB"] < 24 << 10


def test_more_bytes_than_stated_are_no_part_of_this_file_or_the_next(
    place: ExportPlace,
) -> None:
    """Bytes behind the end must not be read as the response to the next request."""
    forged = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"

    def more(ask: Ask, wire: Wire) -> None:
        wire.head("200 OK", "Content-Length: 4")
        wire.send(b"good" + forged)

    first, second = place.server.on("/a", more), place.server.on("/b", file(b"better"))
    with place.work() as work:
        assert work.process(place.task(first, "one"), lambda _: None)["success"]
        assert work.process(place.task(second, "two"), lambda _: None)["success"]
    assert place.visible() == {"one": b"good", "two": b"better"}
    assert place.server.connections == 2


def test_fewer_bytes_than_declared_are_not_published(place: ExportPlace) -> None:
    url = place.server.on("/a", cut(DATA, len(DATA), length=len(DATA) + 1))
    assert place.code(url, attempts=2) == "Truncated"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
        b"HTTP/1.1 206 Partial\r\nContent-Length: 1\r\nContent-Range: bytes 5-5/9\r\n\r\nx",
        b"HTTP/9.9 200 OK\r\nContent-Length: 4\r\n\r\nabcd",
        b"no HTTP, just bytes\r\n\r\n",
    ],
)
def test_a_malformed_response_is_not_published(place: ExportPlace, answer: bytes) -> None:
    def route(ask: Ask, wire: Wire) -> None:
        wire.send(answer)
        wire.close()

    place.code(place.server.on("/a", route), attempts=2)


@pytest.mark.parametrize("lines", [["X: y"] * 6000, [f"X: {'y' * 80}"] * 1000])
def test_an_endless_head_fails(place: ExportPlace, lines: list[str]) -> None:
    url = place.server.on("/a", file(DATA, *lines))
    assert place.code(url) == "BadAnswer"


def test_a_provisional_response_is_skipped(place: ExportPlace) -> None:
    def route(ask: Ask, wire: Wire) -> None:
        wire.head("103 Early Hints", "Content-Length: 9", "Location: http://10.0.0.1/")
        file(DATA)(ask, wire)

    assert place.get(place.server.on("/a", route))["success"]
    assert place.visible() == {"file.bin": DATA}


@pytest.mark.parametrize("part", ["head", "body"])
def test_a_server_that_sends_too_slowly_is_abandoned(place: ExportPlace, part: str) -> None:
    tick = Event()

    def drips(ask: Ask, wire: Wire) -> None:
        wire.send(b"HTTP/1.1 200 OK\r\n")
        if part == "body":
            wire.send(b"Content-Length: 1000000\r\n\r\n")
        while not wire.stopped.is_set():
            wire.send(b"x")
            tick.wait(0.05)

    url = place.server.on("/a", drips)
    assert place.code(url, attempts=1, stall_seconds=1) == "TimedOut"


# -- allowed names


@pytest.mark.parametrize(
    "key",
    [
        "../x",
        "/etc/x",
        "a/../../x",
        "a\\..\\x",
        "x\0y",
        "",
        "a//b",
        ".",
        "a/",
        ".HOLDFAST/x",
    ],
)
def test_a_name_that_leads_out_is_refused(place: ExportPlace, key: str) -> None:
    """The worker checks the name again, whichever process wrote the message (JB-34)."""
    url = place.server.on("/a", file(DATA))
    assert place.code(url, key) == "InvalidTask"
    assert place.server.asks == []
    assert sorted(os.listdir(place.target.parent)) == ["target"]


def test_a_link_in_the_target_does_not_lead_out(place: ExportPlace, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "theirs").write_bytes(b"theirs")
    place.target.mkdir()
    (place.target / "door").symlink_to(outside)
    (place.target / "window").symlink_to(outside / "theirs")
    url = place.server.on("/a", file(DATA))
    assert place.get(url, "door/x")["error"]["code"] == "UnsafePath"
    assert place.get(url, "door/deep/x")["error"]["code"] == "UnsafePath"
    assert place.get(url, "window")[
        "success"
    ]  # the link is replaced, and its target is unchanged
    assert not (place.target / "window").is_symlink()
    assert os.listdir(outside) == ["theirs"]
    assert (outside / "theirs").read_bytes() == b"theirs"


def test_a_link_in_place_of_our_folder_is_refused(place: ExportPlace, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    place.target.mkdir()
    (place.target / OWN_FOLDER).symlink_to(tmp_path / "outside")
    with pytest.raises(ConfigError), place.work():
        pass


def test_a_link_in_place_of_a_half_done_file_is_not_written_through(
    place: ExportPlace, tmp_path: Path
) -> None:
    url = place.server.on("/a", file(DATA))
    victim = tmp_path / "victim"
    victim.write_bytes(b"theirs")
    (place.target / OWN_FOLDER).mkdir(parents=True)
    (place.target / OWN_FOLDER / f"{place.task(url)['taskId']}.part").symlink_to(victim)
    assert place.code(url) == "UnsafePath"
    assert victim.read_bytes() == b"theirs"


@pytest.mark.parametrize("task_id", ["../../x", "a/b", ".", "x" * 300, "ü\0"])
def test_a_task_id_is_not_used_as_a_path(place: ExportPlace, task_id: str) -> None:
    url = place.server.on("/a", file(DATA))
    assert place.get(url, taskId=task_id)["success"]
    assert place.visible() == {"file.bin": DATA}
    assert os.listdir(place.target.parent) == ["target"]


@pytest.mark.parametrize("broken", [{"checksum": "crc32:1"}, {"size": "many"}])
def test_a_malformed_task_fails_with_a_code(place: ExportPlace, broken: dict[str, Any]) -> None:
    assert place.code(place.server.on("/a", file(DATA)), **broken) == "InvalidTask"
    with place.work() as work:
        result = work.process({"jobId": "x"}, lambda _: None)
    assert result["error"]["code"] == "InvalidTask"


@pytest.mark.requirement("R004-040")
def test_a_message_does_not_choose_the_bucket(place: ExportPlace) -> None:
    url = place.server.on("/a", file(DATA))
    assert place.code(url, s3Bucket="foreign-bucket") == "BucketRefused"


# -- error texts


def test_no_error_contains_the_secret_of_a_url(place: ExportPlace) -> None:
    """Signed URLs are secrets, and error pages and redirects may repeat them."""
    secret = "SECRET-SIGNATURE"
    echo = status(f"403 {secret}", f"X-Echo: {secret}", body=secret.encode() * 9000)
    place.server.on("/echo", echo)
    place.server.on("/away", redirect(f"file:///{secret}"))
    place.server.on("/garbage", lambda ask, wire: wire.send(secret.encode()) or wire.close())
    place.server.on("/loop", redirect(f"/loop?sig={secret}"))
    place.server.on("/cut", cut(DATA, 7))
    place.server.on("/good", file(DATA))
    urls = [place.server.url(f"{path}?sig={secret}") for path in _PATHS]
    urls += [f"http://u:{secret}@127.0.0.1/", f"http://10.0.0.1/?{secret}", f"file:///{secret}"]
    urls += [f"http://missing.invalid/?{secret}", f"http://[{secret}/", f"http://x/\n{secret}"]
    with place.work(attempts=1) as work:
        for url in urls:
            task = place.task(url, checksum=sha256(b"other"))
            result = work.process(task, lambda _: None)
            assert result["success"] is False
            assert secret not in str(result)


_PATHS = ("/echo", "/away", "/garbage", "/loop", "/cut", "/good", "/missing")
