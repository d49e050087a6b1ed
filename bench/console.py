"""console: measure the web console on a queue with a million messages, and its viewers."""

import gzip
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from statistics import median
from threading import Event, Thread
from time import perf_counter

from bench.figures import cpu_seconds
from bench.holdfast import Holdfast
from bench.payload import BenchTask
from bench.session import Session, in_fresh_process
from bench.verdict import Bar, Result, ratio, spread
from holdfast.queues.sqlite.queue import SQLiteQueue
from holdfast.worker.worker import Worker

NAME = "console"
TITLE = "Web console on a SQLite queue with a million messages"
FILE = "work.db"
MESSAGES, DEAD = "orders", "failed"  # the two queues
KB = 1000
POLL_SECONDS = 2.0  # between two requests of an open page
ASSET = re.compile(rb'(?:href|src)="([^"]*/static/[^"]+)"')
ALONE, WATCHED = "without a viewer", "with one viewer"


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


@dataclass(frozen=True, slots=True)
class FirstView:
    """The milliseconds until a page was there, and until its counts stood there."""

    page: float
    counts: float


@dataclass(frozen=True, slots=True)
class Work:
    """What a worker did in some seconds."""

    per_second: float
    cpu_microseconds: float


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


def run(session: Session) -> Result:
    """Run the benchmark and return its result."""
    count, dead = session.size(1_000_000, 20_000), session.size(100_000, 2_000)
    with session.arena.room("console") as folder:
        in_fresh_process(fill, folder, count, dead)
        session.arena.settle(folder)
        views = _list_views(folder, count, dead)
        first = _measure_first_views(session, folder, views)
        weights = _weigh_pages(folder, views)
        idle = _measure_viewer(folder, views[1], session.size(30, 3))
        work, busy = _measure_work(session, folder, views[1])
    shares = {"idle queue": idle, "busy queue": median(busy)}
    return _result(first, weights, shares, work, dead)


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


def _measure_first_views(
    session: Session, folder: Path, views: list[View]
) -> dict[View, list[FirstView]]:
    """Open each page first in a console that has just been started."""
    measured: dict[View, list[FirstView]] = defaultdict(list)
    for view in session.interleaved("first view", views):
        with serve(folder) as console:
            measured[view].append(_open_first(console, view))
    return measured


def _open_first(console: Console, view: View) -> FirstView:
    began = perf_counter()
    with console.get(view.path) as response:
        body = response.read().decode()
    page = perf_counter() - began
    while not view.has_count(body):
        with console.get(f"{view.path}?part=1" if view.is_live else view.path) as response:
            body = response.read().decode()
    return FirstView(page * 1000, (perf_counter() - began) * 1000)


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


def _measure_viewer(folder: Path, view: View, seconds: int) -> float:
    """Return the percentage of a core that a console with one viewer takes."""
    with serve(folder) as console, console.watch(view.path) as parts:
        time.sleep(2)  # the first view is measured on its own
        began, used = perf_counter(), console.read_cpu_seconds()
        time.sleep(seconds)
        share = (console.read_cpu_seconds() - used) / (perf_counter() - began) * 100
        assert parts, "the page sent no live part"
    return share


def _measure_work(
    session: Session, folder: Path, view: View
) -> tuple[dict[str, list[Work]], list[float]]:
    """Let a worker work with and without a console that shows its queue."""
    work: dict[str, list[Work]] = defaultdict(list)
    shares: list[float] = []
    seconds = session.size(4, 1)
    for way in session.interleaved("a worker and a viewer", (ALONE, WATCHED)):
        if way == ALONE:
            work[way].append(in_fresh_process(work_for, folder, seconds))
            continue
        with serve(folder) as console, console.watch(view.path) as parts:
            time.sleep(1)
            began, used = perf_counter(), console.read_cpu_seconds()
            work[way].append(in_fresh_process(work_for, folder, seconds))
            spent = console.read_cpu_seconds() - used
            shares.append(spent / (perf_counter() - began) * 100)
            assert parts, "the page sent no live part"
    return work, shares


def work_for(folder: Path, seconds: float) -> Work:
    """Work with an empty handler for some seconds."""
    queue = SQLiteQueue(folder / FILE, BenchTask, queue=MESSAGES)
    times: list[float] = []

    def note_time(message: BenchTask) -> None:
        times.append(perf_counter())
        if times[-1] - times[0] >= seconds:
            worker.stop()

    worker = Worker(queue, note_time)
    used = cpu_seconds()
    worker.run()
    used = cpu_seconds() - used
    queue.close()
    return Work((len(times) - 1) / (times[-1] - times[0]), used / len(times) * 1e6)


# -- the result


def _result(
    first: dict[View, list[FirstView]],
    weights: dict[str, float],
    shares: dict[str, float],
    work: dict[str, list[Work]],
    dead: int,
) -> Result:
    rows = [_describe_view(view, rounds) for view, rounds in first.items()]
    rows += [
        [f"console with one viewer, {queue}", f"{share:.2f} % of a core", ""]
        for queue, share in shares.items()
    ]
    rows += [[f"page: {label}", f"{weight:.1f} KB", ""] for label, weight in weights.items()]
    rows += [_describe_work(way, rounds) for way, rounds in work.items()]
    return Result(
        name=NAME,
        title=TITLE,
        columns=("", "figure", "lowest to highest"),
        rows=rows,
        bars=_bars(first, weights, shares, work),
        notes=(
            "A real `holdfast web` and real requests. The first view is that of a console that "
            "has just been started, up to the last byte. Its counts may follow in its live "
            "part, or when it is loaded again.",
            f"The {dead:,} dead letters are in a queue of their own in the same file.",
            "A viewer asks for the live part of the queue's page every 2 s. A page's "
            "weight is what a browser receives, compressed, with style, script and icon.",
        ),
    )


def _describe_view(view: View, rounds: list[FirstView]) -> list[str]:
    page, counts = (median(times) for times in zip(*map(astuple, rounds), strict=True))
    figure = f"{page:,.0f} ms, with counts {counts:,.0f} ms"
    return [f"first view: {view.label}", figure, spread([each.counts for each in rounds])]


def _describe_work(way: str, rounds: list[Work]) -> list[str]:
    rates = [each.per_second for each in rounds]
    cpu = median(each.cpu_microseconds for each in rounds)
    figure = f"{median(rates):,.0f} messages/s, {cpu:.0f} µs of CPU each"
    return [f"worker {way}", figure, spread(rates)]


def _bars(
    first: dict[View, list[FirstView]],
    weights: dict[str, float],
    shares: dict[str, float],
    work: dict[str, list[Work]],
) -> list[Bar]:
    slowest = max(median(each.page for each in rounds) for rounds in first.values())
    counted = max(median(each.counts for each in rounds) for rounds in first.values())
    alone, watched = ([each.per_second for each in work[way]] for way in (ALONE, WATCHED))
    return [
        Bar("first view within 300 ms", slowest, 300, "ms", at_least=False),
        Bar("first view with its counts within 300 ms", counted, 300, "ms", at_least=False),
        *(
            Bar(f"one viewer, {queue}: at most 2 % of a core", share, 2, "%", at_least=False)
            for queue, share in shares.items()
        ),
        Bar("each page at most 60 KB compressed", max(weights.values()), 60, "KB", False),
        Bar(
            "a worker with a viewer at least 95 % of its rate without",
            100 * ratio(watched, alone),
            95,
            "%",
        ),
    ]
