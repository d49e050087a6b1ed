"""A server that sends more than it declared: no file ever gets the bytes of another file.

Surplus bytes behind a correct body can be a complete response. On a connection that is used
again they would be read as the response to the next request.
"""

import time
from collections import deque
from typing import Any

import pytest
from export_place import ExportPlace, sha256

from holdfast.exports.downloads.work import ExportWork, make_work
from holdfast.exports.model import TaskResult
from holdfast.exports.pool.pool import WorkerPool
from holdfast.exports.pool.worker import Assignment
from support.http_server import Ask, Route, Wire, file, redirect, status
from support.waiting import wait_until

FILES = range(40)
FORGED = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nforged-xx"
GOOD = b"Content-Length: 4\r\n\r\ngood"


def body(number: int) -> bytes:
    """Make bodies of different files with one length, which a size cannot distinguish."""
    return f"honest-{number:02}".encode()


def surplus(data: bytes, delay_seconds: float) -> Route:
    """Send a correct response, then a forged one that was not requested."""

    def route(ask: Ask, wire: Wire) -> None:
        wire.head("200 OK", f"Content-Length: {len(data)}")
        wire.body(data)
        time.sleep(delay_seconds)
        wire.send(FORGED)

    return route


def known_of(number: int, name_known: str) -> dict[str, Any]:
    facts = {"checksum": sha256(body(number)), "size": len(body(number))}
    return {name: value for name, value in facts.items() if name == name_known}


def fetch(work: ExportWork, task: dict[str, Any]) -> str | None:
    """Do one task and return the code of its error."""
    error = work.process(task, lambda _: None)["error"]
    return None if error is None else error["code"]


@pytest.mark.parametrize("known", ["nothing", "size", "checksum"])
@pytest.mark.parametrize("delay_ms", [0, 1, 2, 5, 10])
def test_surplus_bytes_are_never_published_as_the_next_file(
    place: ExportPlace, delay_ms: int, known: str
) -> None:
    codes = {}
    with place.work() as work:
        for n in FILES:
            url = place.server.on(f"/{n}", surplus(body(n), delay_ms / 1000))
            codes[n] = fetch(work, place.task(url, f"{n}", **known_of(n, known)))
    assert set(codes.values()) == {None}
    assert place.visible() == {str(n): body(n) for n in FILES}


class Tasks:
    """The pool's source: tasks of several jobs in turn."""

    def __init__(self, tasks: list[Assignment]) -> None:
        self.waiting = deque(tasks)
        self.results: dict[str, TaskResult] = {}

    def take(self) -> Assignment | None:
        return self.waiting.popleft() if self.waiting else None

    def finish(self, result: TaskResult) -> None:
        self.results[result.task_id] = result

    def give_back(self, assignment: Assignment) -> None:
        raise AssertionError(assignment.task_id)


@pytest.mark.parametrize("known", ["nothing", "checksum"])
@pytest.mark.parametrize("delay_ms", [0, 2, 10])
def test_two_jobs_in_a_pool_never_get_each_others_bytes(
    place: ExportPlace, delay_ms: int, known: str
) -> None:
    urls = [place.server.on(f"/{n}", surplus(body(n), delay_ms / 1000)) for n in FILES]
    plain = [place.task(urls[n], f"{n}", **known_of(n, known)) for n in FILES]
    tasks = Tasks([Assignment(f"job-{n % 2}", f"t{n}", plain[n]) for n in FILES])
    pool = WorkerPool(make_work(place.settings()), tasks, size=1, slots=4)
    try:
        pool.start()
        wait_until(lambda: len(tasks.results) == len(FILES), 120)
    finally:
        pool.stop(0.0)
    assert all(result.success for result in tasks.results.values())
    assert place.visible() == {str(n): body(n) for n in FILES}
    jobs_of: dict[int, set[int]] = {}
    for ask in place.server.asks:
        jobs_of.setdefault(ask.connection, set()).add(int(ask.path[1:]) % 2)
    assert [jobs for jobs in jobs_of.values() if len(jobs) > 1] == []


# -- which connection a task has


def connections_of(place: ExportPlace, tasks: list[dict[str, Any]]) -> list[int]:
    with place.work() as work:
        assert [fetch(work, task) for task in tasks] == [None] * len(tasks)
    return [ask.connection for ask in place.server.asks]


@pytest.mark.parametrize("known", ["nothing", "size"])
def test_a_file_without_a_checksum_has_its_own_connection(
    place: ExportPlace, known: str
) -> None:
    """It uses no earlier connection and leaves none. The files around it have a checksum."""
    urls = [place.server.on(f"/{n}", file(body(n))) for n in range(5)]
    facts = ["checksum", known, known, "checksum", "checksum"]
    tasks = [place.task(urls[n], f"{n}", **known_of(n, facts[n])) for n in range(5)]
    first, second, third, *others = connections_of(place, tasks)
    assert len({first, second, third}) == 3
    assert others == [first, first]  # the connection of the checksummed file was kept
    assert place.server.connections == 3


def test_a_redirect_and_a_retry_have_their_own_connections_too(place: ExportPlace) -> None:
    place.server.on("/there", status("503 Busy"), file(body(1)))
    task = place.task(place.server.on("/here", redirect("/there")))
    assert connections_of(place, [task]) == [1, 2, 3, 4]


def test_a_retry_with_a_checksum_does_not_use_the_connection_that_failed(
    place: ExportPlace,
) -> None:
    """It may be one response behind. Then every later file would get a wrong response."""
    url = place.server.on("/1", file(body(2)), file(body(1)))
    tasks = [
        place.task(url, "1", **known_of(1, "checksum")),
        place.task(place.server.on("/3", file(body(3))), "3", **known_of(3, "checksum")),
    ]
    assert connections_of(place, tasks) == [1, 2, 3]
    assert place.visible() == {"1": body(1), "3": body(3)}


def test_jobs_share_no_connection(place: ExportPlace) -> None:
    url = place.server.on("/1", file(body(1)))
    jobs = ["a", "a", "b", "a", "b"]
    tasks = [
        place.task(url, f"{n}.bin", jobId=job, **known_of(1, "checksum"))
        for n, job in enumerate(jobs)
    ]
    assert connections_of(place, tasks) == [1, 1, 2, 1, 2]


def test_jobs_share_no_connection_where_more_servers_are_used_than_are_kept(
    place: ExportPlace,
) -> None:
    """The handle that is closed to free a slot still has the other job's connection."""
    url = place.server.on("/1", file(body(1)))
    tasks = [
        place.task(url, f"{n}.bin", jobId=f"job-{n}", **known_of(1, "checksum"))
        for n in range(20)
    ]
    assert connections_of(place, tasks) == list(range(1, 21))


AFTERWARDS = {
    "a forged response": lambda wire: wire.send(FORGED),
    "a part of one": lambda wire: wire.send(FORGED[:1]),
    "its end": Wire.half_close,
}


@pytest.mark.parametrize("sent", AFTERWARDS)
def test_a_kept_connection_on_which_something_arrived_is_not_used_again(
    place: ExportPlace, sent: str
) -> None:
    """It would be taken for the response to the next request, or cost that request a retry."""
    wires: list[Wire] = []

    def respond(ask: Ask, wire: Wire) -> None:
        wires.append(wire)
        wire.head("200 OK", f"Content-Length: {len(body(1))}")
        wire.body(body(1))

    urls = [place.server.on("/1", respond), place.server.on("/2", file(body(2)))]
    first, second = (
        place.task(url, f"{n}", **known_of(n, "checksum")) for n, url in enumerate(urls, 1)
    )
    with place.work() as work:
        assert fetch(work, first) is None
        AFTERWARDS[sent](wires[0])
        wires[0].await_arrival()
        assert fetch(work, second) is None
    assert [(ask.path, ask.connection) for ask in place.server.asks] == [("/1", 1), ("/2", 2)]


# -- a body that is longer than declared


@pytest.mark.parametrize("known", ["nothing", "size", "checksum"])
@pytest.mark.parametrize(
    "pieces",
    [
        [b"HTTP/1.1 200 OK\r\n" + GOOD + FORGED],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", b"good" + FORGED],
        [b"HTTP/1.0 200 OK\r\n" + GOOD + b"!" * 70_000],
    ],
)
def test_a_body_ends_where_its_head_says(
    place: ExportPlace, pieces: list[bytes], known: str
) -> None:
    def route(ask: Ask, wire: Wire) -> None:
        for piece in pieces:
            wire.send(piece)

    facts = {"checksum": sha256(b"good"), "size": 4}
    url = place.server.on("/a", route)
    assert place.get(url, **{name: facts[name] for name in facts if name == known})["success"]
    assert place.visible() == {"file.bin": b"good"}
