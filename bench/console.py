"""console: measure the web console on a queue with a million messages, and its viewers."""

import gzip
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Event, Thread
from time import perf_counter

from bench.own_queues import Holdfast
from bench.payload import BenchTask
from bench.report import Bar, Result, at_most
from bench.session import Figures, Session, cpu_seconds, in_fresh_process
from holdfast.queues.sqlite.queue import SQLiteQueue
from holdfast.worker.worker import Worker

FILE = "work.db"
MESSAGES, DEAD = "orders", "failed"  # the two queues
KB = 1000
POLL_SECONDS = 2.0  # between two requests of an open page
ASSET = re.compile(rb'(?:href|src)="([^"]*/static/[^"]+)"')
ALONE, WATCHED = "worker without a viewer", "worker with one viewer"
VIEWER = "console with one viewer, idle queue"


@dataclass(frozen=True, slots=True)
class View:
    """A page, and the count that must stand there."""

    label: str
    path: str
    count: int
    is_live: bool = True  # whether the count comes in the live part, too

    def has_count(self, body: str) -> bool:
        """Return whether a body shows the count."""
        return f"{self.count:,}" in body


class Console:
    """A running `holdfast web`."""

    def __init__(self, process: "subprocess.Popen[str]", port: int) -> None:
        self._process, self._port = process, port

    @contextmanager
    def get(self, path: str, **headers: str) -> Iterator[HTTPResponse]:
        """Yield the response to a request, which must succeed."""
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=10)) as connection:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            assert response.status == 200, f"{path}: {response.status}"
            yield response

    def read_cpu_seconds(self) -> float:
        """Return the CPU time of the process so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @contextmanager
    def watch(self, path: str) -> Iterator[list[str]]:
        """Ask for the live part of a page, as a browser does, and yield the parts so far."""
        parts: list[str] = []
        left = Event()
        reader = Thread(target=self._poll, args=(path, parts, left), daemon=True)
        reader.start()
        yield parts
        left.set()
        reader.join()

    def _poll(self, path: str, parts: list[str], left: Event) -> None:
        while not left.is_set():
            with self.get(f"{path}?part=1") as response:
                parts.append(response.read().decode())
            left.wait(POLL_SECONDS)


@contextmanager
def serve(folder: Path) -> Iterator[Console]:
    """Run a console of both queues, and end it afterwards."""
    urls = [f"sqlite:{folder / FILE}/{name}" for name in (MESSAGES, DEAD)]
    command = [sys.executable, "-m", "holdfast.cli", "web", *urls, "--port=0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        match = re.search(r"http://[^/]*:(\d+)/", line)
        assert match, line
        console = Console(process, int(match[1]))
        with console.get("/static/icon.svg"):  # it listens before it can answer
            pass
        yield console
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)


def run_console(session: Session) -> Result:
    """Measure first views, the weight of pages, and what a viewer costs."""
    title = "Web console on a SQLite queue with a million messages"
    count, dead = session.size(1_000_000, 100_000), session.size(100_000, 2_000)
    with session.arena.room("console") as folder:
        in_fresh_process(fill, folder, count, dead)
        session.arena.settle(folder)
        views = _list_views(folder, count, dead)
        weights = _weigh_pages(folder, views)
        first = {
            f"first view: {view.label}": partial(_open_first, folder, view) for view in views
        }
        measured = session.measure("first views", first)
        queue, seconds = views[1], session.size(4, 1)
        idle = {VIEWER: partial(_measure_viewer, folder, queue, session.size(10, 3))}
        measured.rounds |= session.measure("a viewer", idle).rounds
        # Last, because the workers empty the queue.
        work = {
            ALONE: partial(in_fresh_process, work_for, folder, seconds),
            WATCHED: partial(_measure_watched, folder, queue, seconds),
        }
        measured.rounds |= session.measure("a worker and a viewer", work).rounds
    slowest, counted = (
        max(measured.median(name, figure) for name in first) for figure in ("page", "counts")
    )
    shares = {name: measured.median(name, "share") for name in (VIEWER, WATCHED)}
    rows = [
        [name, f"{measured.median(name, 'counts'):,.0f} ms with its counts"] for name in first
    ]
    rows += [[f"{name}: the console", f"{shares[name]:.2f} % of a core"] for name in shares]
    rows += [[f"page: {label}", f"{weight:.1f} KB"] for label, weight in weights.items()]
    rows += [[name, f"{measured.median(name):,.0f} messages/s"] for name in (ALONE, WATCHED)]
    return Result(
        title,
        ("", "figure"),
        rows,
        [
            at_most("first view within 300 ms", slowest, 300, "ms"),
            at_most("first view with its counts within 300 ms", counted, 300, "ms"),
            *(
                at_most(f"{name}: the console takes at most 2 % of a core", share, 2, "%")
                for name, share in shares.items()
            ),
            at_most("each page at most 60 KB compressed", max(weights.values()), 60, "KB"),
            Bar(
                "a worker with a viewer at least 95 % of its rate without",
                100 * measured.ratio(WATCHED, ALONE),
                95,
                "%",
            ),
        ],
        measured,
        "The first view is that of a console that has just been started. A viewer is an open "
        "stream of the queue's page. A page's weight is what a browser receives.",
    )


def fill(folder: Path, count: int, dead: int) -> None:
    """Push the messages of both queues, and make dead letters of one queue's."""
    for name, size in ((MESSAGES, count), (DEAD, dead)):
        queue = Holdfast(SQLiteQueue(folder / FILE, BenchTask, queue=name))
        queue.fill(size)
        queue.close()
    with closing(sqlite3.connect(folder / FILE)) as connection, connection:
        connection.execute(
            "UPDATE messages SET state = 3, claims = 5, at_ms = at_ms + message_no % 10000,"
            " reason = 'failed 5 times, last: TimeoutError: host ' || (message_no % 100)"
            " WHERE queue_no = (SELECT queue_no FROM queues WHERE name = ?)",
            (DEAD,),
        )


def _list_views(folder: Path, count: int, dead: int) -> list[View]:
    with serve(folder) as console, console.get("/") as response:
        slugs = re.findall(r'id="queue-([^"]+)"', response.read().decode())
    messages, failed = slugs
    return [
        View("all queues", "/", count),
        View("the queue", f"/queues/{messages}", count),
        View("dead letters", f"/queues/{failed}/dead", dead, is_live=False),
    ]


# -- the first view


def _open_first(folder: Path, view: View) -> Figures:
    """Open a page first in a console that has just been started."""
    with serve(folder) as console:
        began = perf_counter()
        with console.get(view.path) as response:
            body = response.read().decode()
        page = perf_counter() - began
        while not view.has_count(body):
            with console.get(f"{view.path}?part=1" if view.is_live else view.path) as response:
                body = response.read().decode()
        return {"page": page * 1000, "counts": (perf_counter() - began) * 1000}


# -- the weight


def _weigh_pages(folder: Path, views: list[View]) -> dict[str, float]:
    """Return the KB of each page with its assets, as they are sent to a browser."""
    queue = views[1].path
    paths = {view.label: view.path for view in views}
    paths["messages"] = f"{queue}/messages"
    with serve(folder) as console:
        with console.get(paths["messages"]) as response:
            message = re.search(r'href="([^"]+/message\?[^"]+)"', response.read().decode())
            assert message, "the page of messages links to none"
        paths["one message with its body"] = message[1].replace("&amp;", "&") + "&body=1"
        return {label: _weigh(console, path) / KB for label, path in paths.items()}


def _weigh(console: Console, path: str) -> int:
    sent = _read_compressed(console, path)
    page = gzip.decompress(sent)
    assets = {asset.decode() for asset in ASSET.findall(page)}
    assert len(assets) >= 3, f"{path} refers to {assets}"
    return len(sent) + sum(len(_read_compressed(console, asset)) for asset in assets)


def _read_compressed(console: Console, path: str) -> bytes:
    with console.get(path, **{"Accept-Encoding": "gzip"}) as response:
        return response.read()


# -- the cost of a viewer


@contextmanager
def _watch_console(folder: Path, view: View) -> Iterator[dict[str, float]]:
    """Yield a dict that gets the percentage of a core that a watched console takes."""
    figures: dict[str, float] = {}
    with serve(folder) as console, console.watch(view.path) as parts:
        time.sleep(2)  # the first view is measured on its own
        began, used = perf_counter(), console.read_cpu_seconds()
        yield figures
        spent = console.read_cpu_seconds() - used
        figures["share"] = spent / (perf_counter() - began) * 100
        assert parts, "the page sent no live part"


def _measure_viewer(folder: Path, view: View, seconds: int) -> Figures:
    with _watch_console(folder, view) as figures:
        time.sleep(seconds)
    return figures


def _measure_watched(folder: Path, view: View, seconds: int) -> Figures:
    """Let a worker work while a console shows its queue."""
    with _watch_console(folder, view) as figures:
        figures.update(in_fresh_process(work_for, folder, seconds))
    return figures


def work_for(folder: Path, seconds: float) -> Figures:
    """Work with an empty handler for some seconds."""
    queue = SQLiteQueue(folder / FILE, BenchTask, queue=MESSAGES)
    times: list[float] = []

    def note_time(message: BenchTask) -> None:
        times.append(perf_counter())
        if times[-1] - times[0] >= seconds:
            worker.stop()

    worker = Worker(queue, note_time)
    used = cpu_seconds()
    worker.run(until_empty=True)
    used = cpu_seconds() - used
    queue.close()
    rate = (len(times) - 1) / (times[-1] - times[0])
    return {"rate": rate, "cpu": used / len(times) * 1e6}
