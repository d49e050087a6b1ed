"""SQSHeartbeat: keeps one SQS message hidden while a handler works on it.

    heartbeat = SQSHeartbeat(queue_url, receipt_handle, interval_sec=60)
    heartbeat.start()
    try:
        work()
    finally:
        heartbeat.stop()
    if error := heartbeat.check_for_errors():
        raise error

or the same in two lines: `with SQSHeartbeat(…) as heartbeat: work()`.

It is built on the lease engine: it has a lease on the message's visibility and a keeper of
its own, which a daemon thread runs. So it tolerates transient errors (throttling, an outage)
while the message is still hidden. A refusal, or waking up too late, is final.
"""

import logging
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from threading import Event, Lock, Thread, current_thread
from typing import Any, Self

from holdfast.adapters.aws import heartbeat_options, running_heartbeats
from holdfast.adapters.aws.heartbeat_options import (
    HeartbeatOptions,
    interval_from_env,
    make_heartbeat_client,
    queue_name_from_url,
    visibility_timeout_of,
)
from holdfast.adapters.aws.running_heartbeats import stop_all
from holdfast.adapters.aws.visibility import HeartbeatRun
from holdfast.core import events as ev
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import LeaseLost
from holdfast.core.lease.lease import Lease
from holdfast.core.process import after_fork

__all__ = [
    "DEFAULT_VISIBILITY_TIMEOUT_EXTENSION_SEC",
    "SQSHeartbeat",
    "interval_from_env",
    "stop_all",
    "visibility_timeout_of",
]

DEFAULT_VISIBILITY_TIMEOUT_EXTENSION_SEC = 600

# Assumed age of a message without `received_at`: it was received before this object was
# made, and SQS must not refuse the last extension before its cap for the seconds in between.
_UNKNOWN_RECEIVE_SECONDS = 60.0
_JOIN_SECONDS = 1.0  # added to the interval

_log = logging.getLogger("holdfast")


class SQSHeartbeat:
    """A daemon thread that extends the visibility of one message every `interval_sec`.

    `start` and `stop` may be called from any thread, in any order, any number of times.
    Raises ValueError if the parameters cannot work, and ConfigError if the client cannot be
    made. Many heartbeats should share one `client`, because making one takes milliseconds.

    received_at             epoch seconds of the receive. SQS's twelve hours count from
                            there, and so does the first visibility, which is assumed to be
                            `visibility_timeout_sec`
    initial_visibility_sec  seconds left of the first visibility at the first start, if
                            they differ from that
    initial_beat            extend at once, not one interval after the start
    max_transient_failures  consecutive transient errors to tolerate; None means as many as
                            fit into the visibility, 0 means that the first error is final
    join_timeout_sec        how long `stop` waits for a call in progress
    stall_timeout_sec       give up the message after so long without `progress()`
    max_duration_sec        give up the message so long after `start`
    on_lost                 called once per loss with its error, in the thread that noticed it
    on_near_cap             called once with the seconds left until SQS's cap or
                            `max_duration_sec`, so that the handler can save its work
    """

    def __init__(
        self,
        queue_url: str,
        receipt_handle: str,
        interval_sec: float,
        visibility_timeout_sec: int = DEFAULT_VISIBILITY_TIMEOUT_EXTENSION_SEC,
        *,
        client: Any = None,
        received_at: float | None = None,
        initial_visibility_sec: float | None = None,
        initial_beat: bool = False,
        max_transient_failures: int | None = None,
        join_timeout_sec: float | None = None,
        stall_timeout_sec: float | None = None,
        max_duration_sec: float | None = None,
        on_lost: Callable[[BaseException], None] | None = None,
        on_near_cap: Callable[[float], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        heartbeat_options.check_text("queue_url", queue_url)
        heartbeat_options.check_text("receipt_handle", receipt_handle)
        heartbeat_options.check_received_at(received_at, clock.time())
        self._options = HeartbeatOptions(
            interval_sec,
            visibility_timeout_sec,
            initial_visibility_sec,
            initial_beat,
            max_transient_failures,
            join_timeout_sec,
            stall_timeout_sec,
            max_duration_sec,
        )
        self.queue_url = queue_url
        self.receipt_handle = receipt_handle
        self.interval_sec = interval_sec
        self.visibility_timeout_sec = visibility_timeout_sec
        self.lost = Event()
        """Set when another worker may hold the message. Stop working on it then."""
        self.history: tuple[BaseException, ...] = ()
        """The errors of all losses, over all starts."""
        self._clock = clock
        self._received_at = clock.monotonic() - _UNKNOWN_RECEIVE_SECONDS
        self._hidden_until: float | None = (
            None  # known before a run, or left by a fork's parent
        )
        if received_at is not None:  # converted at once: the wall clock may be changed later
            self._received_at = clock.monotonic() - max(0.0, clock.time() - received_at)
            if initial_visibility_sec is None:
                self._hidden_until = self._received_at + visibility_timeout_sec
        self._on_lost = on_lost
        self._on_near_cap = on_near_cap
        self._label = sha256(receipt_handle.encode()).hexdigest()[-6:]
        self._stop_event = Event()
        self._thread: Thread | None = None
        self._error: BaseException | None = None
        self._running = False
        self._lock = Lock()
        self._call_lock = Lock()
        self._latest_run: HeartbeatRun | None = None
        self._reason = ""
        self._past_transient_errors = 0
        self._sqs_client = (
            make_heartbeat_client(queue_url, self._options) if client is None else client
        )
        after_fork.run_after_fork(self, SQSHeartbeat._reset_in_child)
        if self._options.renew_after > 0.5:  # one failed beat leaves no time for the next
            self._log_event(logging.WARNING, "interval_over_half_the_visibility")

    @classmethod
    def from_queue(
        cls,
        queue_url: str,
        receipt_handle: str,
        *,
        interval_sec: float | None = None,
        client: Any = None,
        lambda_timeout_sec: float | None = None,
        **more: Any,
    ) -> Self:
        """Make a heartbeat that extends by the queue's own visibility timeout.

        The timeout is read from SQS. The interval is `interval_sec`, else the value of
        SQS_HEARTBEAT_INTERVAL_MS, else a third of the timeout. If `lambda_timeout_sec` is
        longer than the queue's timeout, this logs a warning, because a function that runs
        to its limit would be run twice. Raises what the constructor, `interval_from_env`
        and `visibility_timeout_of` raise; to save calls, call the last one once and keep
        its result.
        """
        timeout = visibility_timeout_of(queue_url, client)
        interval = interval_sec if interval_sec is not None else interval_from_env()
        interval = timeout / 3 if interval is None else interval
        heartbeat = cls(queue_url, receipt_handle, interval, timeout, client=client, **more)
        if lambda_timeout_sec is not None and timeout < lambda_timeout_sec:
            heartbeat._log_event(
                logging.WARNING,
                "queue_timeout_below_lambda_timeout",
                lambda_timeout_sec=lambda_timeout_sec,
            )
        return heartbeat

    def __repr__(self) -> str:
        state = "running" if self.running else "stopped"
        return f"<SQSHeartbeat {queue_name_from_url(self.queue_url)} {self._label} {state}>"

    # -- starting and stopping

    def start(self) -> None:
        """Start to extend in the background and return at once.

        Does nothing if it is running already. Clears the error of an earlier run (`history`
        keeps it), but remembers how long the message is known to be hidden. If that time is
        over, this run is lost at once.
        """
        with self._lock:
            if self._is_alive() and not self._stop_event.is_set():
                return
            run = self._begin_run()
            self._running = True  # before the thread runs: it may end at once
            try:
                run.loop.start()
            except BaseException:  # the process has no threads left: do not appear to run
                self._thread, self._running = None, False
                run.loop.request_stop()
                run.lease.release("not started")  # without a check, which needs the lock
                raise
            self._thread = run.loop.thread
            running_heartbeats.add(self)
        self._log_event(logging.INFO, "started")

    def stop(self) -> None:
        """Stop extending and wait for a call in progress.

        After the return no further call is made. If the wait for the call in progress took
        too long, that one call may still take effect. Does nothing if not started. When a
        callback calls it in the heartbeat's own thread, it only signals.
        """
        with self._lock:
            run, thread = self._latest_run, self._thread
        if run is None or thread is None:
            return
        run.end()
        if thread is current_thread():  # a thread cannot wait for itself
            return
        # Not under the lock, because the thread needs it to end.
        if not (run.loop.stop(self._join_seconds) and self._wait_for_last_call()):
            self._log_event(logging.WARNING, "still_in_a_call", waited_sec=self._join_seconds)
        with self._lock:
            if self._thread is thread:
                self._thread = None
        self._log_event(logging.INFO, "stopped")

    def end(self) -> None:
        """Stop extending, without waiting for a call in progress."""
        if (run := self._latest_run) is not None:
            run.end()

    def check_for_errors(self) -> BaseException | None:
        """Return the error that ended this run, or None.

        Transient errors that were tolerated do not count.
        """
        if (run := self._latest_run) is not None:
            run.check_deadline()
        with self._lock:
            return self._error

    @property
    def running(self) -> bool:
        """Whether the thread is extending the message's visibility."""
        with self._lock:
            return self._is_alive()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop. If the work succeeded but the message was lost, raise the loss's error."""
        self.stop()
        lost = self.check_for_errors()
        if kind is None and lost is not None:
            raise lost

    # -- while it runs

    def progress(self) -> None:
        """Report that the work is moving; see `stall_timeout_sec`."""
        if (run := self._latest_run) is not None:
            run.lease.beat(self._clock.monotonic())

    def raise_if_lost(self) -> None:
        """Raise LeaseLost if another worker may hold the message.

        Call it before any action that cannot be undone.
        """
        if (error := self.check_for_errors()) is not None:
            raise LeaseLost(self._reason) from error

    @property
    def transient_errors(self) -> int:
        """How many calls failed with a transient error, over all starts."""
        run = self._latest_run
        return self._past_transient_errors + (run.transient_errors if run else 0)

    # -- one run

    def _run(self, run: HeartbeatRun) -> None:
        """Wait and extend, in the thread, until stopped or lost."""
        try:
            run.loop.run()
        finally:
            run.end()
            with self._lock:
                if self._latest_run is run:  # otherwise a newer run is active
                    self._running = False
                    running_heartbeats.discard(self)

    def _change_visibility(self, seconds: int) -> None:
        self._sqs_client.change_message_visibility(
            QueueUrl=self.queue_url,
            ReceiptHandle=self.receipt_handle,
            VisibilityTimeout=seconds,
        )

    def _on_event(self, event: ev.Event) -> None:
        match event:
            case ev.LeaseAtRisk(error=error, left_seconds=left):
                self._log_event(
                    logging.WARNING, "at_risk", error=error, left_sec=round(left, 1)
                )
            case ev.NearCap(left_seconds=left):
                self._log_event(logging.WARNING, "near_cap", left_sec=round(left, 1))
                if self._on_near_cap is not None:
                    self._on_near_cap(left)

    def _lose(self, run: HeartbeatRun, lease: Lease) -> None:
        """Record and report the loss. Called once per run, in the thread that noticed it."""
        reason = f"message {self._label} of {run.name} is lost: {lease.reason}"
        error = run.error or LeaseLost(reason)
        with self._lock:
            run.loop.request_stop()  # first, so that a start from now on begins a new run
            self.history = (*self.history, error)
            if self._latest_run is run:
                self._error, self._reason = error, reason
                self.lost.set()
        self._log_event(logging.ERROR, "lost", reason=lease.reason)
        try:
            if self._on_lost is not None:
                self._on_lost(error)
        except (Exception, SystemExit):  # it would end this thread, or the caller's work
            _log.exception("heartbeat_on_lost_failed message=%s", self._label)

    def _log_event(self, level: int, event: str, **more: object) -> None:
        """Log one line of key=value pairs.

        The label comes from a hash, because a reader of the receipt handle itself could
        delete the message.
        """
        fields = {"queue": queue_name_from_url(self.queue_url), "message": self._label, **more}
        pairs = " ".join(f"{key}={value}" for key, value in fields.items())
        _log.log(level, "heartbeat_%s %s", event, pairs)

    # -- under the lock

    def _begin_run(self) -> HeartbeatRun:
        self._past_transient_errors = self.transient_errors
        run = HeartbeatRun(
            queue_name_from_url(self.queue_url),
            self._label,
            self._options,
            self._change_visibility,
            self._call_lock,
            received_at=self._received_at,
            trusted_until=self._compute_trusted_until(),
            clock=self._clock,
            events=ev.Events(self._on_event),
            target=lambda: self._run(run),
        )
        run.lease.on_lost(partial(self._lose, run))
        self._latest_run, self._stop_event, self._error = run, run.loop.stop_event, None
        self.lost.clear()
        return run

    def _compute_trusted_until(self) -> float:
        """Return until when the message is hidden, as far as this heartbeat knows."""
        if self._latest_run is not None:
            return self._latest_run.lease.deadline
        if self._hidden_until is not None:
            return self._hidden_until
        first_seconds = self._options.initial_visibility_sec
        if first_seconds is None:
            first_seconds = self._options.visibility_timeout_sec
        return self._clock.monotonic() + first_seconds

    def _is_alive(self) -> bool:
        return self._running and self._thread is not None and self._thread.is_alive()

    # -- under no lock

    @property
    def _join_seconds(self) -> float:
        return self._options.join_timeout_sec or self._options.interval_sec + _JOIN_SECONDS

    def _wait_for_last_call(self) -> bool:
        """Wait until no call is in progress, also of an earlier run. False: it takes long."""
        if not self._call_lock.acquire(timeout=self._join_seconds):
            return False
        self._call_lock.release()
        return True

    # -- in a forked child

    def _reset_in_child(self) -> None:
        """Forget the run in a forked child.

        The thread and the message stay with the parent. This takes no lock, because another
        thread may have held one during the fork.
        """
        self._lock, self._call_lock = Lock(), Lock()
        self._thread, self._running = None, False
        if self._latest_run is not None:
            self._hidden_until, self._latest_run = self._latest_run.lease.deadline, None
        self._stop_event = Event()
        self._stop_event.set()
        running_heartbeats.discard(self)
