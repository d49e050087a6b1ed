"""A download continues where it broke if the file is the same; otherwise it starts over.

Proves  for the partial files of a worker, JB-28, JB-30 and JB-33.
"""

import hashlib
import json
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from export_place import ExportPlace, cut, rest, result_of, sha256, until_closed

from holdfast.exports.file_names import OWN_FOLDER
from support.http_server import ETAG, Ask, Wire, file, status
from support.waiting import wait_until

DATA = bytes(range(256)) * 12_000  # about 3 MB
HALF = 2_000_000


@pytest.mark.requirement("R004-099")
def test_what_came_before_the_connection_broke_is_not_fetched_again(
    place: ExportPlace,
) -> None:
    url = place.server.on("/a", cut(DATA, HALF), file(DATA))
    assert place.get(url, checksum=sha256(DATA))["success"]
    assert place.visible() == {"file.bin": DATA}
    second = place.server.asks[1]
    assert (second.start, second.headers["if-range"]) == (HALF, ETAG)
    assert place.server.body_bytes == len(DATA)


def test_a_killed_process_leaves_its_bytes_to_the_next(place: ExportPlace) -> None:
    """After SIGKILL in the middle, the second run downloads only the rest (JB-28)."""
    url = place.server.on("/a", cut(DATA, HALF, then=Wire.hang), file(DATA))
    task = place.task(url, checksum=sha256(DATA))
    process = place.process(task)
    note = place.target / OWN_FOLDER / f"{task['taskId']}.part.json"
    wait_until(lambda: place.server.body_bytes == HALF)
    wait_until(lambda: note.exists() and place.part_size() >= HALF - (256 << 10))
    process.kill()
    process.communicate()
    assert place.visible() == {}
    kept, place.server.body_bytes = place.part_size(), 0

    with place.work() as work:
        assert work.process(task, place.reported.append)["success"]
    assert place.visible() == {"file.bin": DATA}
    assert place.server.body_bytes == len(DATA) - kept <= len(DATA) - HALF + (256 << 10)
    assert place.hidden() == []


def _left_half_done(place: ExportPlace, **changed: Any) -> str:
    """Make a part as an earlier process would have left it; return its URL."""
    url = place.server.on("/a", file(DATA))
    task_id = place.task(url)["taskId"]
    folder = place.target / OWN_FOLDER
    folder.mkdir(parents=True)
    (folder / f"{task_id}.part").write_bytes(DATA[:HALF])
    boot = Path("/proc/sys/kernel/random/boot_id")
    note = {
        "url": hashlib.sha256(url.encode()).hexdigest()[:32],
        "validator": ETAG,
        "length": len(DATA),
        "boot": boot.read_text().strip() if boot.exists() else "",
    }
    (folder / f"{task_id}.part.json").write_text(json.dumps({**note, **changed}))
    return url


def test_a_part_goes_on_where_it_was_left(place: ExportPlace) -> None:
    url = _left_half_done(place)
    assert place.get(url, checksum=sha256(DATA))["success"]
    assert place.server.asks[0].start == HALF
    assert place.visible() == {"file.bin": DATA}


@pytest.mark.parametrize("changed", [{"boot": "before"}, {"url": "x"}, {"validator": None}])
def test_a_part_that_cannot_be_trusted_starts_over(
    place: ExportPlace, changed: dict[str, Any]
) -> None:
    """After a power cut a file may have its size but not its bytes."""
    assert place.get(_left_half_done(place, **changed))["success"]
    assert place.server.asks[0].start == 0
    assert place.visible() == {"file.bin": DATA}


def test_with_a_checksum_a_part_from_before_the_power_cut_is_good(place: ExportPlace) -> None:
    url = _left_half_done(place, boot="before")
    assert place.get(url, checksum=sha256(DATA))["success"]
    assert place.server.asks[0].start == HALF


def test_a_file_without_validator_starts_over(place: ExportPlace) -> None:
    url = place.server.on("/a", cut(DATA, HALF, etag='W/"weak"'), file(DATA))
    assert place.get(url)["success"]
    assert [ask.start for ask in place.server.asks] == [0, 0]
    assert place.visible() == {"file.bin": DATA}


def test_a_body_that_ends_too_early_with_the_connection_goes_on(place: ExportPlace) -> None:
    """No length was declared, but the known size shows that bytes are missing."""
    url = place.server.on("/a", until_closed(DATA[:HALF], f"ETag: {ETAG}"), file(DATA))
    assert place.get(url, size=len(DATA))["success"]
    assert [ask.start for ask in place.server.asks] == [0, HALF]
    assert place.visible() == {"file.bin": DATA}


def test_a_server_without_ranges_starts_over(place: ExportPlace) -> None:
    url = place.server.on("/a", cut(DATA, HALF), file(DATA, ranges=False))
    assert place.get(url, checksum=sha256(DATA))["success"]
    assert place.visible() == {"file.bin": DATA}


def test_a_file_that_changed_meanwhile_comes_whole(place: ExportPlace) -> None:
    new = DATA[::-1]
    url = place.server.on("/a", cut(DATA, HALF), file(new, etag='"v2"'))
    assert place.get(url)["success"]
    assert place.visible() == {"file.bin": new}


@pytest.mark.parametrize(
    "wrong",
    [
        rest(DATA[::-1], etag='"v2"'),
        rest(DATA, shift=1),
        rest(DATA + b"more"),
        status("416 Range Not Satisfiable"),
    ],
)
def test_the_rest_of_something_else_is_not_taken(place: ExportPlace, wrong: Any) -> None:
    url = place.server.on("/a", cut(DATA, HALF), wrong, file(DATA))
    assert place.get(url)["success"]
    assert [ask.start for ask in place.server.asks] == [0, HALF, 0]
    assert place.visible() == {"file.bin": DATA}


def test_two_processes_at_one_task_do_not_spoil_each_other(place: ExportPlace) -> None:
    """A job was taken over while its first worker is still running (JB-30)."""
    go_on = Event()

    def slow(ask: Ask, wire: Wire) -> None:
        wire.head("200 OK", f"Content-Length: {len(DATA)}", f"ETag: {ETAG}")
        wire.body(DATA[:HALF])
        go_on.wait(60)
        wire.body(DATA[HALF:])

    url = place.server.on("/a", slow, file(DATA))
    task = place.task(url, checksum=sha256(DATA))
    first = place.process(task)
    try:
        wait_until(lambda: (place.target / OWN_FOLDER).exists() and place.part_size() > 1 << 20)
        with place.work() as second:
            assert second.process(task, place.reported.append)["success"]
        assert place.visible() == {"file.bin": DATA}
        assert place.server.asks[1].start == 0
    finally:
        go_on.set()
        assert result_of(first)["success"]
    assert place.visible() == {"file.bin": DATA}
    assert place.hidden() == []
