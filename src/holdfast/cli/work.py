"""`holdfast work`: run a worker in the foreground until it is stopped or the queue is empty.

The worker has a thread of its own. The main thread only waits, draws and takes signals,
so a signal never interrupts the worker in the middle of a step.

    running ─ Ctrl-C or SIGTERM ─▶ draining ─ again ─▶ stopping now ─ again ─▶ gone
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from holdfast.cli.arguments import QUEUE_HELP, AsJson, queue_and_rest
from holdfast.cli.console import answer, answer_json, is_terminal, say
from holdfast.cli.durations import in_words, seconds
from holdfast.cli.failures import Usage
from holdfast.cli.gauge import Gauge, Quiet, Tally
from holdfast.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from holdfast.core.events import Events
    from holdfast.core.worker import Isolation, Worker, WorkerReport

_LOOK_SECONDS = 0.1
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _duration(text: str) -> Any:
    return typer.Option(parser=seconds, metavar="DURATION", help=text)


def work(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUEUE MODULE:HANDLER",
            help=f"{QUEUE_HELP} Then the function that handles a message; the current "
            "folder is looked in first.",
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1)] = 1,
    isolation: Annotated[
        str, typer.Option(metavar="thread|process|async", help="Where handlers run.")
    ] = "thread",
    lease: Annotated[float | None, _duration("How long a message is held at a time.")] = None,
    stall: Annotated[
        float | None, _duration("The longest a handler may go without ctx.beat().")
    ] = None,
    timeout: Annotated[float | None, _duration("The longest one attempt may take.")] = None,
    drain: Annotated[float, _duration("How long running work may finish on Ctrl-C.")] = 30.0,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, help="Then the message is a dead letter.")
    ] = None,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End when nothing is left to do.")
    ] = False,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve Prometheus metrics there.")
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Address for the metrics.")] = "127.0.0.1",
    log_format: Annotated[
        str | None, typer.Option(metavar="text|json", help="A line for each event.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Handle messages. Ctrl-C lets running work finish; Ctrl-C again stops now."""
    from holdfast.bootstrap import open_queue
    from holdfast.core.events import Events
    from holdfast.core.handler import load_handler, message_model
    from holdfast.core.worker import Worker

    queue_url, path = _queue_and_handler(words)
    _put_here_on_path()
    handler = load_handler(path)
    tally, events = Tally(), Events()
    events.subscribe(tally)
    settings = {"lease_seconds": lease, "max_attempts": max_attempts}
    given: dict[str, Any] = {
        name: value for name, value in settings.items() if value is not None
    }
    with (
        _metrics(events, metrics_port, metrics_host),
        open_queue(queue_url, message_model(handler), events=events, **given) as queue,
    ):
        worker = Worker(
            queue,
            handler,
            concurrency=concurrency,
            isolation=cast("Isolation", isolation),
            stall_seconds=stall,
            timeout_seconds=timeout,
            drain_seconds=drain,
            events=events,
        )
        gauge = _screen(events, tally, queue.name, log_format)
        shift = Shift(worker, tally, gauge, drain)
        report = shift.run(until_empty=until_empty)
    _report(report, as_json)
    if shift.stopped_now_by:
        raise typer.Exit(128 + shift.stopped_now_by)


def _queue_and_handler(words: list[str] | None) -> tuple[str, str]:
    queue, rest = queue_and_rest(words, wanted=1)
    if len(rest) != 1:
        raise Usage("one MODULE:HANDLER is needed, as in `holdfast work enrich tasks:handle`")
    return queue, rest[0]


def _put_here_on_path() -> None:
    # A console script's path begins with its own folder, not with where one stands.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


@contextmanager
def _metrics(events: "Events", port: int | None, host: str) -> Iterator[None]:
    if port is None:
        yield
        return
    from holdfast.bootstrap import serve_metrics

    server = serve_metrics(port, host)
    events.subscribe(server.subscriber)
    say(f"metrics at http://{host}:{server.port}/metrics")
    try:
        yield
    finally:
        server.close()


def _screen(events: "Events", tally: Tally, name: str, style: str | None) -> Gauge | Quiet:
    """On a terminal one live line, and a line for what is out of the ordinary; else, or
    when asked for, a line for every event."""
    from holdfast.bootstrap import log_events

    if style not in (None, "text", "json"):
        raise Usage(f"--log-format {style!r}: it is text or json")
    live = is_terminal() and style is None
    chosen = cast(Literal["text", "json"], style or "text")
    least = "warning" if live else "info"
    events.subscribe(log_events(say, chosen, at_least=least))
    return Gauge(name, tally) if live else Quiet()


def _report(report: "WorkerReport", as_json: bool) -> None:
    counts = asdict(report)
    if as_json:
        answer_json(counts)
    else:
        answer(", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in counts.items()))


class Shift:
    """One worker at work, and the person who may want it to stop."""

    def __init__(
        self, worker: "Worker[Any]", tally: Tally, gauge: Gauge | Quiet, drain: float
    ) -> None:
        self._worker, self._tally, self._gauge, self._drain = worker, tally, gauge, drain
        self._over = Event()
        self._signals: list[int] = []
        self._heard = 0
        self._report: WorkerReport | None = None
        self._error: BaseException | None = None
        self.stopped_now_by = 0

    def run(self, *, until_empty: bool) -> "WorkerReport":
        thread = Thread(target=self._work, args=(until_empty,), name="holdfast-worker")
        with _signals_to(self._signals), self._gauge:
            thread.start()
            while not SYSTEM_CLOCK.wait(self._over, _LOOK_SECONDS):
                self._listen()
                self._gauge.draw()
            thread.join()
        if self._error is not None:
            raise self._error
        assert self._report is not None
        return self._report

    def _work(self, until_empty: bool) -> None:
        try:
            self._report = self._worker.run(until_empty=until_empty)
        except BaseException as error:  # it is raised again where it can be told
            self._error = error
        finally:
            self._over.set()

    def _listen(self) -> None:
        while self._heard < len(self._signals):
            self._heard += 1
            self._obey(self._heard, self._signals[self._heard - 1])

    def _obey(self, time: int, number: int) -> None:
        running = self._tally.running
        match time:
            case 1:
                self._worker.stop()
                say(
                    f"draining: {running} running, up to {in_words(self._drain)}; "
                    "Ctrl-C again stops now"
                )
            case 2:
                self._worker.stop_now()
                self.stopped_now_by = number
                say(f"stopping now: {running} running, to be given back")
            case _:
                # Even the end hangs. The leases run out, and the work comes back.
                os._exit(128 + number)


@contextmanager
def _signals_to(heard: list[int]) -> Iterator[None]:
    """Note signals and do nothing else: a handler must not touch what it interrupts."""

    def note(number: int, frame: object) -> None:
        heard.append(number)

    before = {number: signal.signal(number, note) for number in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
