"""One task of an export, over real connections: download, checksum, publish.

Proves  (download),  (checksum),  (bytes, error),
JB-33 and I-JB-12 (visible files are complete and checked; a repetition has the same result).
"""

import hashlib
import pickle
from threading import Event, Thread
from typing import Any

import pytest
from export_place import ExportPlace, chunked, cut, rest, sha256, until_closed

from holdfast.exports.downloads.work import make_work
from holdfast.lease.clock import SYSTEM_CLOCK
from support.http_server import ETAG, Ask, LoopbackServer, Wire, file, status
from support.waiting import wait_until

DATA = bytes(range(256)) * 12_000  # about 3 MB
HALF = 2_000_000


@pytest.mark.requirement("R004-046", "R004-099")
def test_files_arrive_whole_over_one_kept_connection(place: ExportPlace) -> None:
    url = place.server.on("/a", file(DATA))
    with place.work() as work:
        for name in ("a.bin", "b/b.bin", "b/c/c.bin"):
            task = place.task(url, name, checksum=sha256(DATA), size=len(DATA))
            result = work.process(task, place.reported.append)
            assert result == {"success": True, "bytesProcessed": len(DATA), "error": None}
    assert place.visible() == {"a.bin": DATA, "b/b.bin": DATA, "b/c/c.bin": DATA}
    assert place.hidden() == []
    assert sum(place.reported) == 3 * len(DATA)
    assert place.server.connections == 1
    assert place.server.asks[0].headers["accept-encoding"] == "identity"


def test_the_work_is_made_in_another_process_from_what_can_be_pickled(
    place: ExportPlace,
) -> None:
    work = pickle.loads(pickle.dumps(make_work(place.settings())))()
    url = place.server.on("/a", file(DATA))
    assert work.process(place.task(url), place.reported.append)["success"]
    work.close()


@pytest.mark.parametrize("durable", [False, True])
def test_a_name_that_is_there_is_replaced(place: ExportPlace, durable: bool) -> None:
    """A repeated upload is idempotent (I-JB-12)."""
    url = place.server.on("/a", file(b"old"), file(b"new"), file(b"new"))
    for n in range(3):
        assert place.get(url, "x/file.bin", durable=durable, jobCreatedAt=n)["success"]
    assert place.visible() == {"x/file.bin": b"new"}


def test_a_chunked_body_is_whole_when_its_last_chunk_came(place: ExportPlace) -> None:
    url = place.server.on("/a", chunked(DATA, whole=False), chunked(DATA))
    assert place.get(url)["success"]
    assert place.visible() == {"file.bin": DATA}
    assert len(place.server.asks) == 2


def test_an_incomplete_chunked_body_is_not_published(place: ExportPlace) -> None:
    url = place.server.on("/a", chunked(DATA, whole=False))
    assert place.code(url, attempts=2) in ("Truncated", "ConnectionLost")
    assert place.hidden() == []


@pytest.mark.parametrize("route", [file(b""), chunked(b"")])
def test_an_empty_file_is_published(place: ExportPlace, route: Any) -> None:
    result = place.get(place.server.on("/a", route), checksum=sha256(b""), size=0)
    assert result == {"success": True, "bytesProcessed": 0, "error": None}
    assert place.visible() == {"file.bin": b""}


# -- verification


@pytest.mark.requirement("R004-100")
def test_a_wrong_checksum_is_tried_once_more_from_zero_and_never_seen(
    place: ExportPlace,
) -> None:
    url = place.server.on("/a", file(DATA))
    assert place.code(url, checksum=sha256(b"other")) == "ChecksumMismatch"
    assert [ask.start for ask in place.server.asks] == [0, 0]
    assert place.hidden() == []


def test_a_resume_that_went_wrong_is_healed_by_a_clean_download(place: ExportPlace) -> None:
    wrong = rest(DATA[:HALF] + bytes(len(DATA) - HALF))
    url = place.server.on("/a", cut(DATA, HALF), wrong, file(DATA))
    assert place.get(url, checksum=sha256(DATA))["success"]
    assert [ask.start for ask in place.server.asks] == [0, HALF, 0]
    assert place.visible() == {"file.bin": DATA}


@pytest.mark.requirement("R004-100")
def test_md5_is_accepted_in_upper_and_lower_case(place: ExportPlace) -> None:
    url = place.server.on("/a", file(DATA))
    digest = hashlib.md5(DATA, usedforsecurity=False).hexdigest()
    assert place.get(url, checksum=f"MD5:{digest.upper()}")["success"]
    assert place.code(url, checksum=f"md5:{'0' * 32}") == "ChecksumMismatch"


@pytest.mark.parametrize("route", [file(DATA), chunked(DATA), until_closed(DATA)])
@pytest.mark.parametrize("size", [len(DATA) - 1, len(DATA) + 1])
def test_a_file_of_another_size_is_not_the_file(
    place: ExportPlace, route: Any, size: int
) -> None:
    code = place.code(place.server.on("/a", route), size=size, attempts=2)
    assert code in ("SizeMismatch", "Truncated")


def test_a_body_that_ends_with_the_connection_needs_something_to_tell_that_it_is_all(
    place: ExportPlace,
) -> None:
    url = place.server.on("/a", until_closed(DATA))
    assert place.code(url) == "LengthUnknown"
    assert place.get(url, "by-size", size=len(DATA))["success"]
    assert place.get(url, "by-sum", checksum=sha256(DATA))["success"]
    assert place.visible() == {"by-size": DATA, "by-sum": DATA}


def test_an_encoded_body_is_taken_as_it_is_only_if_the_checksum_is_of_that(
    place: ExportPlace,
) -> None:
    url = place.server.on("/a", file(b"\x1f\x8bzipped", "Content-Encoding: gzip"))
    assert place.code(url) == "EncodedBody"
    assert place.get(url, checksum=sha256(b"\x1f\x8bzipped"))["success"]
    assert place.visible() == {"file.bin": b"\x1f\x8bzipped"}


# -- retries


def test_a_download_survives_an_outage(place: ExportPlace) -> None:
    unavailable = status("503 Service Unavailable", body=b"x" * 100_000)

    def reset(ask: Ask, wire: Wire) -> None:
        wire.head("200 OK", f"Content-Length: {len(DATA)}")
        wire.reset()

    def nothing(ask: Ask, wire: Wire) -> None:
        wire.close()

    url = place.server.on("/a", unavailable, reset, nothing, status("408 Late"), file(DATA))
    assert place.get(url)["success"]
    assert len(place.server.asks) == 5


def test_attempts_end_and_the_last_error_is_reported(place: ExportPlace) -> None:
    url = place.server.on("/a", status("500 Oops"))
    assert place.code(url, attempts=3) == "Http500"
    assert len(place.server.asks) == 3


@pytest.mark.parametrize(("asked", "waited"), [("7", 7.0), ("4000", 60.0)])
def test_retry_after_is_respected_up_to_a_limit(
    place: ExportPlace, asked: str, waited: float
) -> None:
    url = place.server.on("/a", status("429 Slow Down", f"Retry-After: {asked}"), file(DATA))
    began = place.clock.monotonic()
    assert place.get(url)["success"]
    assert place.clock.monotonic() - began == pytest.approx(waited)


@pytest.mark.parametrize("line", ["404 Not Found", "403 Forbidden", "410 Gone", "204 Nothing"])
def test_a_permanent_error_fails_at_once(place: ExportPlace, line: str) -> None:
    url = place.server.on("/a", status(line))
    assert place.code(url) == f"Http{line[:3]}"
    assert len(place.server.asks) == 1


def test_a_large_file_is_not_given_up_while_it_grows(place: ExportPlace) -> None:
    """Three breaks with two allowed attempts: each break was a mebibyte further."""

    def a_bit(ask: Ask, wire: Wire) -> None:
        span = f"Content-Range: bytes {ask.start}-{len(data) - 1}/{len(data)}"
        first = ("206 Partial Content", span) if ask.start else ("200 OK",)
        wire.head(*first, f"Content-Length: {len(data) - ask.start}", f"ETag: {ETAG}")
        wire.body(data[ask.start : ask.start + (1 << 20)])
        wire.close()

    data = bytes(4 << 20)
    assert place.get(place.server.on("/a", a_bit), attempts=2)["success"]
    assert len(place.server.asks) == 4


def test_a_server_that_starts_over_each_time_is_given_up(place: ExportPlace) -> None:
    url = place.server.on("/a", cut(DATA, HALF, etag=None))
    assert place.code(url, attempts=3) == "Truncated"
    assert len(place.server.asks) == 3


def test_a_closed_port_is_tried_as_often_as_configured(place: ExportPlace) -> None:
    with LoopbackServer() as gone:
        url, origin = gone.url("/a"), gone.origin
    assert place.code(url, attempts=3, allow_hosts=(origin,)) == "ConnectFailed"


# -- cancellation and limits


@pytest.mark.parametrize("by", ["cancel", "close"])
def test_a_transfer_ends_soon_after_it_is_cancelled(place: ExportPlace, by: str) -> None:
    """Its partial file is kept, because the job may continue in another process."""
    url, results = place.server.on("/a", cut(DATA, HALF, then=Wire.hang)), []
    with place.work() as work:
        task = place.task(url)
        thread = Thread(target=lambda: results.append(work.process(task, lambda _: None)))
        thread.start()
        wait_until(lambda: place.part_size() > 1 << 20)
        work.cancel("another job")
        assert not results
        work.cancel("job-1") if by == "cancel" else work.close()
        thread.join(30)
    assert results[0]["error"]["code"] == "Cancelled"
    assert place.visible() == {}
    assert place.hidden()


def test_a_wait_between_attempts_ends_when_the_job_is_cancelled(place: ExportPlace) -> None:
    place.clock = SYSTEM_CLOCK
    url = place.server.on("/a", status("503 Later", "Retry-After: 3000"))
    results = []
    with place.work() as work:
        task = place.task(url)
        thread = Thread(target=lambda: results.append(work.process(task, lambda _: None)))
        thread.start()
        wait_until(lambda: len(place.server.asks) == 1)
        work.cancel("job-1")
        thread.join(30)
    assert results[0]["error"]["code"] == "Cancelled"


def test_bytes_of_a_slow_body_are_on_disk_and_reported_before_it_ends(
    place: ExportPlace,
) -> None:
    """Otherwise a kill would cost them, and the pool would take the task for stalled."""
    place.clock = SYSTEM_CLOCK
    reports: list[int] = []
    checked = Event()

    def slow(ask: Ask, wire: Wire) -> None:
        wire.head("200 OK", "Content-Length: 8", f"ETag: {ETAG}")
        wire.body(b"half")
        wait_until(lambda: sum(reports) == place.part_size() == 4)
        checked.set()
        wire.body(b"full")

    with place.work() as work:
        task = place.task(place.server.on("/a", slow))
        assert work.process(task, reports.append)["success"]
    assert checked.is_set()
    assert sum(reports) == 8
