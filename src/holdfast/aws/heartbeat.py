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

import atexit
import logging
import os
from collections.abc import Mapping
from functools import partial
from threading import Event, Lock, Thread, current_thread
from typing import Any, Self

from holdfast import events as ev
from holdfast.aws import clients
from holdfast.aws.checked_call import call_checked
from holdfast.aws.errors import translate_error
from holdfast.aws.heartbeat_run import (
    MAX_VISIBILITY_SECONDS,
    HeartbeatOptions,
    HeartbeatRun,
    get_queue_name,
)
from holdfast.errors import ConfigError, LeaseLost
from holdfast.lease import after_fork
from holdfast.lease.lease import Lease
from holdfast.queues.sqs.address import parse_address

INTERVAL_VARIABLE = "SQS_HEARTBEAT_INTERVAL_MS"

# Assumed age of a message without `received_at`: it was received before this object was
# made, and SQS must not refuse the last extension before its cap for the seconds in between.
_UNKNOWN_RECEIVE_SECONDS = 60.0

_log = logging.getLogger("holdfast")


class SQSHeartbeat(HeartbeatOptions):
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

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lost = Event()
        """Set when another worker may hold the message. Stop working on it then."""
        self.history: tuple[BaseException, ...] = ()
        """The errors of all losses, over all starts."""
        now = self.clock.monotonic()
        self._received_at = now - _UNKNOWN_RECEIVE_SECONDS
        self._hidden_until: float | None = None  # as far as is known; None before the start
        if self.received_at is not None:  # converted at once: the wall clock may be changed
            self._received_at = now - max(0.0, self.clock.time() - self.received_at)
            if self.initial_visibility_sec is None:
                self._hidden_until = self._received_at + self.visibility_timeout_sec
        self._stop_event = Event()
        self._thread: Thread | None = None
        self._error: BaseException | None = None
        self._running = False
        self._lock = Lock()
        self._call_lock = Lock()
        self._latest_run: HeartbeatRun | None = None
        self._reason = ""
        self._sqs_client = self.client
        if self.client is None:
            # A call must fail within half an interval, because `stop` waits for it.
            lease_seconds = min(self.visibility_timeout_sec, 4 * self.interval_sec)
            location = parse_address(self.queue_url).location  # maybe of another region
            self._sqs_client = clients.make_fail_fast_client("sqs", lease_seconds, **location)
        after_fork.run_after_fork(self, SQSHeartbeat._reset_in_child)
        if self.renew_after > 0.5:  # one failed beat leaves no time for the next
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
        return f"<SQSHeartbeat {self.queue_name} {self.label} {state}>"

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
                _running_heartbeats.discard(self)
                run.loop.request_stop()
                run.lease.release("not started")  # without a check, which needs the lock
                raise
            self._thread = run.loop.thread
            _running_heartbeats.add(self)
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
        # Not under the lock, because the thread needs it to end. An earlier run may still be
        # in its last call, too.
        wait_seconds = self.join_seconds
        if run.loop.stop(wait_seconds) and self._call_lock.acquire(timeout=wait_seconds):
            self._call_lock.release()
        else:
            self._log_event(logging.WARNING, "still_in_a_call", waited_sec=wait_seconds)
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
            run.lease.beat(self.clock.monotonic())

    def raise_if_lost(self) -> None:
        """Raise LeaseLost if another worker may hold the message.

        Call it before any action that cannot be undone.
        """
        if (error := self.check_for_errors()) is not None:
            raise LeaseLost(self._reason) from error

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
                    _running_heartbeats.discard(self)

    def _change_visibility(self, seconds: int) -> None:
        call_checked(
            self._sqs_client,
            "change_message_visibility",
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
                if self.on_near_cap is not None:
                    self.on_near_cap(left)

    def _lose(self, run: HeartbeatRun, lease: Lease) -> None:
        """Record and report the loss. Called once per run, in the thread that noticed it."""
        reason = f"message {self.label} of {run.name} is lost: {lease.reason}"
        error = run.error or LeaseLost(reason)
        with self._lock:
            run.loop.request_stop()  # first, so that a start from now on begins a new run
            self.history = (*self.history, error)
            if self._latest_run is run:
                self._error, self._reason = error, reason
                self.lost.set()
        self._log_event(logging.ERROR, "lost", reason=lease.reason)
        try:
            if self.on_lost is not None:
                self.on_lost(error)
        except (Exception, SystemExit):  # it would end this thread, or the caller's work
            _log.exception("heartbeat_on_lost_failed message=%s", self.label)

    def _log_event(self, level: int, event: str, **more: object) -> None:
        """Log one line of key=value pairs.

        The label comes from a hash, because a reader of the receipt handle itself could
        delete the message.
        """
        fields = {"queue": self.queue_name, "message": self.label, **more}
        pairs = " ".join(f"{key}={value}" for key, value in fields.items())
        _log.log(level, "heartbeat_%s %s", event, pairs)

    # -- under the lock

    def _begin_run(self) -> HeartbeatRun:
        if self._latest_run is not None:
            self._hidden_until = self._latest_run.lease.deadline
        elif self._hidden_until is None:
            first_seconds = self.initial_visibility_sec
            if first_seconds is None:
                first_seconds = self.visibility_timeout_sec
            self._hidden_until = self.clock.monotonic() + first_seconds
        run = HeartbeatRun(
            self,
            self._change_visibility,
            self._call_lock,
            received_at=self._received_at,
            trusted_until=self._hidden_until,
            events=ev.Events(self._on_event),
            target=lambda: self._run(run),
        )
        run.lease.on_lost(partial(self._lose, run))
        self._latest_run, self._stop_event, self._error = run, run.loop.stop_event, None
        self.lost.clear()
        return run

    def _is_alive(self) -> bool:
        return self._running and self._thread is not None and self._thread.is_alive()

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
        _running_heartbeats.discard(self)


# -- where the options may come from


def interval_from_env(environ: Mapping[str, str] = os.environ) -> float | None:
    """Return the interval of SQS_HEARTBEAT_INTERVAL_MS in seconds, or None if it is unset."""
    text = environ.get(INTERVAL_VARIABLE, "").strip()
    if not text:
        return None
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = -1.0
    if not 0 < milliseconds <= MAX_VISIBILITY_SECONDS * 1000:  # false for NaN, too
        raise ConfigError(
            f"{INTERVAL_VARIABLE} must be milliseconds, above 0 and at most "
            f"{MAX_VISIBILITY_SECONDS * 1000}, not {text[:40]!r}"
        )
    return milliseconds / 1000


def visibility_timeout_of(queue_url: str, client: Any = None) -> int:
    """Return the queue's own visibility timeout. Needs `sqs:GetQueueAttributes`.

    Raises ConfigError or QueueUnavailable, whose one line names the remedy.
    """
    if client is None:
        client = clients.make_retrying_client("sqs", **parse_address(queue_url).location)
    try:
        response = call_checked(
            client,
            "get_queue_attributes",
            QueueUrl=queue_url,
            AttributeNames=["VisibilityTimeout"],
        )
        return int(response["Attributes"]["VisibilityTimeout"])
    except Exception as error:  # translate_error has the only table of error codes
        raise translate_error(get_queue_name(queue_url), error) from error


# -- the running heartbeats of this process, so that all of them can be stopped

# There is no lock, which a forked child could inherit while it is locked: `add`, `discard` and
# `list` of a set are atomic.
_running_heartbeats: set[SQSHeartbeat] = set()


def stop_all() -> int:
    """Stop all heartbeats that still run in this process, and return their number.

    Call it at the start and at the end of a Lambda handler. Lambda freezes a heartbeat that
    an invocation leaves running, and the next invocation thaws it; it would then extend a
    message that was settled long ago.
    """
    heartbeats = _end_all()  # all first, so that their last calls finish in parallel
    for heartbeat in heartbeats:
        heartbeat.stop()
    return len(heartbeats)


@atexit.register  # without waiting, because heartbeats must not delay the interpreter's exit
def _end_all() -> list[SQSHeartbeat]:
    heartbeats = list(_running_heartbeats)
    for heartbeat in heartbeats:
        heartbeat.end()
    return heartbeats
