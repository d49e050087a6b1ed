"""Run work in the foreground until it ends or a signal stops it.

The work has its own thread. The main thread only waits, draws and receives signals, so a
signal never interrupts the work in the middle of a step.

    running ─ Ctrl-C or SIGTERM ─▶ draining ─ again ─▶ stopping now ─ again ─▶ exit
"""

import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Annotated, Any, Generic, Literal, TypeVar, cast

import typer

from holdfast.cli.arguments import PORT, AsJson
from holdfast.cli.console import UsageError, info, is_terminal, print_either
from holdfast.cli.live_view import LiveStatus, LiveView
from holdfast.errors import HoldfastError
from holdfast.events import Events
from holdfast.queue.manager import QueueManager
from holdfast.telemetry.logging import make_line_log
from holdfast.telemetry.setup import QueueSampler, has_metrics, make_telemetry
from holdfast.text import format_count, format_duration
from holdfast.worker.worker import Worker, WorkerReport

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

# What happens to running work if it is stopped now. Processes can be ended, threads cannot.
GIVEN_BACK = "giving back {running} running"
LEFT_TO_EXPIRE = "{running} running in threads come back when their leases run out"

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """The options of commands that work until they are stopped."""

    metrics_port: Annotated[int | None, PORT, "Serve Prometheus metrics on this port."] = None
    metrics_host: Annotated[str, "Address to serve the metrics on."] = "127.0.0.1"
    log_format: Annotated[str | None, "text|json", "Log a line for each event."] = None
    as_json: AsJson = False

    @contextmanager
    def attach_subscribers(self, events: Events) -> Iterator[None]:
        """Report metrics, and protect an ECS task, until the block is left.

        The options and the environment say which metrics. Raises UsageError for a wrong option,
        before a queue is created.
        """
        if self.log_format not in (None, "text", "json"):
            raise UsageError(f"--log-format must be text or json; got {self.log_format!r}")
        for subscriber in make_telemetry(os.environ):
            events.subscribe(subscriber)
        with ExitStack() as at_the_end:
            at_the_end.callback(events.flush)
            if agent_uri := os.environ.get("ECS_AGENT_URI"):  # ECS sets it
                from holdfast.aws.task_protection import TaskProtection

                events.subscribe(at_the_end.enter_context(TaskProtection(agent_uri)))
            if self.metrics_port is not None:
                from holdfast.telemetry.prometheus import MetricsServer

                server = MetricsServer(self.metrics_port, self.metrics_host)
                at_the_end.enter_context(closing(server))
                events.subscribe(server.subscriber)
                info(f"metrics at http://{self.metrics_host}:{server.port}/metrics")
            yield

    def run(
        self,
        runner: "ForegroundRunner[WorkerReport]",
        queues: Sequence[QueueManager[Any]],
        events: Events,
        make_view: Callable[[], LiveView],
        ending: "EndOptions | None" = None,
        **log_options: Any,
    ) -> None:
        """Run workers of these queues to the end, and print the counts of their report.

        The depth of the queues is reported if there are metrics. Exits as the second signal
        demands.
        """
        status = self._choose_status(events, make_view, **log_options)
        with ExitStack() as samplers:
            if self.metrics_port is not None or has_metrics(os.environ):
                for queue in queues:
                    samplers.enter_context(QueueSampler(queue, events))
            report = runner.run(status)
        if ending is not None and not runner.first_signal:
            ending.report_held(queues[0])
        counts = asdict(report).items()
        texts = (f"{name.replace('_', ' ')} {count:,}" for name, count in counts)
        print_either(self.as_json, report, ", ".join(texts))
        if runner.stopped_now_by:
            raise typer.Exit(128 + runner.stopped_now_by)

    def _choose_status(
        self,
        events: Events,
        make_view: Callable[[], LiveView],
        *,
        tracebacks: bool = False,
        explain: str | None = None,
    ) -> LiveStatus:
        """Log events to stderr, and return the view to show.

        On a terminal without a chosen format, only warnings and errors are logged, as plain
        lines. Otherwise every event is logged, and no view is shown. `tracebacks` shows those
        of failed attempts, and `explain` is a command that shows more about a failed message.
        """
        live = is_terminal() and self.log_format is None
        log_style = cast(Literal["text", "json"], self.log_format or "text")
        events.subscribe(
            make_line_log(
                info,
                "plain" if live else log_style,
                min_level=logging.WARNING if live else logging.INFO,
                tracebacks=tracebacks,
                explain=explain,
            )
        )
        return make_view() if live else LiveStatus()


@dataclass(frozen=True, slots=True)
class EndOptions:
    """The options of commands that may end when the queue has no more work."""

    until_empty: Annotated[
        bool, "Exit when the queue is empty, even if other workers still hold messages."
    ] = False
    until_done: Annotated[
        bool, "Exit when the queue is empty and no worker holds a message."
    ] = False

    def run(self, worker: Worker[Any]) -> WorkerReport:
        """Run the worker until it is stopped or ends by itself."""
        return worker.run(until_empty=self.until_empty, until_done=self.until_done)

    def report_held(self, queue: QueueManager[Any]) -> None:
        """Say how many messages other workers still hold, if they were not waited for."""
        if not self.until_empty or self.until_done:
            return
        with suppress(HoldfastError):  # the work is done, and this is only a remark
            if leased := queue.stats().leased:
                held = format_count(leased, "message")
                info(f"{held} still held by other workers; --until-done waits for them")


@dataclass
class ForegroundRunner(Generic[R]):
    """Runs work until it is done, or until signals stop it.

    run_work       runs to the end and returns the result
    stop           starts nothing more; running tasks may finish
    stop_now       ends the running tasks
    count_running  returns how many tasks are running
    at_stop_now    says what happens to the {running} tasks then

    `first_signal` and `stopped_now_by` are the numbers of the signals that made it drain and
    stop, or 0.
    """

    run_work: Callable[[], R]
    stop: Callable[[], None]
    stop_now: Callable[[], None]
    count_running: Callable[[], int]
    drain_seconds: float
    at_stop_now: str = GIVEN_BACK
    first_signal = 0
    stopped_now_by = 0

    def __post_init__(self) -> None:
        # None means that the work is over. A signal handler may interrupt any call of a
        # SimpleQueue to put another item.
        self._signals: SimpleQueue[int | None] = SimpleQueue()
        self._result: Future[R] = Future()

    def run(self, status: LiveStatus) -> R:
        """Run the work, and return its result or raise its error."""
        thread = Thread(target=self._work, name="holdfast-worker")
        before = {each: signal.signal(each, self._record_signal) for each in _STOP_SIGNALS}
        try:
            with status:
                thread.start()
                while (number := self._wait_for_signal(status)) is not None:
                    self._handle_signal(number, status)
                thread.join()
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
        return self._result.result()

    def _work(self) -> None:
        try:
            self._result.set_result(self.run_work())
        except BaseException as error:  # run() raises it again in the main thread
            self._result.set_exception(error)
        finally:
            self._signals.put(None)

    def _record_signal(self, number: int, frame: object) -> None:
        """Do nothing else, because a handler must not touch what it interrupts."""
        self._signals.put(number)

    def _wait_for_signal(self, status: LiveStatus) -> int | None:
        """Draw until a signal comes, and return its number, or None when the work is over."""
        while True:
            try:
                # Without a view the main thread sleeps, so that an idle worker costs little.
                return self._signals.get(timeout=status.draw_seconds)
            except Empty:
                status.draw()

    def _handle_signal(self, number: int, status: LiveStatus) -> None:
        if self.stopped_now_by:
            # Stopping hangs. When the leases end, the messages are redelivered.
            os._exit(128 + number)
        running = self.count_running()
        if self.first_signal:
            self.stop_now()
            self.stopped_now_by = number
            status.show_hint("stopping now; Ctrl-C again exits")
            info(f"stopping now: {self.at_stop_now.format(running=running)}")
        else:
            self.first_signal = number
            self.stop()
            status.show_hint("draining; Ctrl-C again stops now")
            info(
                f"draining: {running} running, "
                f"up to {format_duration(self.drain_seconds)}; Ctrl-C again stops now"
            )
