"""SQSHeartbeat: keeps one SQS message hidden while somebody works on it.

    heartbeat = SQSHeartbeat(queue_url, receipt_handle, interval_sec=60)
    heartbeat.start()
    try:
        work()
    finally:
        heartbeat.stop()
    if error := heartbeat.check_for_errors():
        raise error

or the same in two lines: `with SQSHeartbeat(…) as heartbeat: work()`.

It is a face of the lease engine: a lease on the message's visibility and a keeper of its
own, whose passes a daemon thread makes. So what passes (throttling, an outage) is ridden
out while the message is still hidden; a refusal, or waking up too late, is final.
"""

import logging
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from threading import Event, Lock, Thread, current_thread
from types import TracebackType
from typing import Any, Self

from holdfast.adapters.aws import heartbeat_options, running_heartbeats
from holdfast.adapters.aws.heartbeat_options import (
    HeartbeatOptions,
    interval_from_env,
    prompt_client,
    queue_name,
    visibility_timeout_of,
)
from holdfast.adapters.aws.running_heartbeats import stop_all
from holdfast.adapters.aws.visibility import CallLock, HeartbeatRun, VisibilitySource
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

# When nobody says when the message was received: it was before we heard of it, and the
# last extension before SQS's cap must not be refused for the seconds in between.
_UNKNOWN_RECEIVE_SECONDS = 60.0
_JOIN_SECONDS = 1.0  # beyond the interval

_log = logging.getLogger("holdfast")


class SQSHeartbeat:
    """Extends the visibility of one message every `interval_sec`, from a daemon thread.

    `start` and `stop` may be called from any thread, in any order, any number of times.
    Raises ValueError for parameters that cannot work, ConfigError when no client can be
    made. Many heartbeats should share one `client`: making one takes milliseconds.

    received_at             epoch seconds of the receive: SQS's twelve hours count from
                            there, and the first visibility, taken to be
                            `visibility_timeout_sec`
    initial_visibility_sec  what is left of the first visibility at the first start, where
                            that is something else
    initial_beat            beat at once, not one interval after the start
    max_transient_failures  so many in a row are ridden out; None: what fits into the
                            visibility; 0: the first error ends it
    join_timeout_sec        how long `stop` waits for a call under way
    stall_timeout_sec       without `progress()` for so long, the message is given up
    max_duration_sec        so long after `start`, the message is given up
    on_lost                 called once per loss with its error, by whoever noticed it
    on_near_cap             called once with the seconds left until SQS's cap or
                            `max_duration_sec`: time to save what you have
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
        self._terms = HeartbeatOptions(
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
        """Set when the message may be somebody else's: do nothing more for it."""
        self.history: tuple[BaseException, ...] = ()
        """The error of every loss, over all starts."""
        self._clock = clock
        self._made_at = clock.monotonic()
        self._received_at = _monotonic(received_at, clock)
        self._on_lost = on_lost
        self._on_near_cap = on_near_cap
        self._label = sha256(receipt_handle.encode()).hexdigest()[-6:]
        self._stop_event = Event()
        self._thread: Thread | None = None
        self._error: BaseException | None = None
        self._running = False
        self._lock = Lock()
        self._line = CallLock()
        self._latest: HeartbeatRun | None = None
        self._hidden_until: float | None = None  # as the runs before the latest left it
        self._reason = ""
        self._past_transient_errors = 0
        self._sqs_client = prompt_client(queue_url, self._terms) if client is None else client
        after_fork.run_after_fork(self, SQSHeartbeat._stopped_in_child)
        if self._terms.long_interval:
            self._say(logging.WARNING, "interval_over_half_the_visibility")

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
        """One that extends by the queue's own visibility timeout, which is asked for.

        The interval is `interval_sec`, else what SQS_HEARTBEAT_INTERVAL_MS says, else a
        third of the timeout. With `lambda_timeout_sec` a queue whose timeout is below it
        is warned of: a function that runs to its limit would be run twice. Raises as the
        constructor, `interval_from_env` and `visibility_timeout_of`; the last can be
        called once and its answer be kept.
        """
        timeout = visibility_timeout_of(queue_url, client)
        interval = interval_sec if interval_sec is not None else interval_from_env()
        interval = timeout / 3 if interval is None else interval
        heartbeat = cls(queue_url, receipt_handle, interval, timeout, client=client, **more)
        if lambda_timeout_sec is not None and timeout < lambda_timeout_sec:
            heartbeat._say(
                logging.WARNING,
                "queue_timeout_below_lambda_timeout",
                lambda_timeout_sec=lambda_timeout_sec,
            )
        return heartbeat

    def __repr__(self) -> str:
        state = "running" if self.running else "stopped"
        return f"<SQSHeartbeat {queue_name(self.queue_url)} {self._label} {state}>"

    # -- starting and stopping

    def start(self) -> None:
        """Beat in the background. Returns at once; does nothing when that is so already.

        Forgets the error of an earlier run (`history` does not), but not how long the
        message is known to be hidden: when that is over, this run is lost at once.
        """
        with self._lock:
            if self._alive() and not self._stop_event.is_set():
                return
            run = self._begin()
            self._thread = Thread(
                target=self._run, args=(run,), name=f"sqs-heartbeat-{self._label}", daemon=True
            )
            self._running = True  # before the thread runs: it may end at once
            try:
                self._thread.start()
            except BaseException:  # no more threads to be had: do not seem to run
                self._thread, self._running = None, False
                run.stopping.set()
                run.lease.release("not started")
                raise
            running_heartbeats.add(self)
        self._say(logging.INFO, "started")

    def stop(self) -> None:
        """Beat no more. After the return no call is made, unless waiting for one under
        way took too long: then that one may still take effect, and no other.

        Does nothing when not started; only signals when called in the heartbeat's own
        thread, by a callback.
        """
        with self._lock:
            run, thread = self._latest, self._thread
        if run is None or thread is None:
            return
        run.end()
        if thread is current_thread():  # a thread cannot wait for itself
            return
        thread.join(self._join_seconds)  # not under the lock: the thread needs it to end
        if thread.is_alive() or not self._line.wait(self._join_seconds):
            self._say(logging.WARNING, "still_in_a_call", waited_sec=self._join_seconds)
        with self._lock:
            if self._thread is thread:
                self._thread = None
        self._say(logging.INFO, "stopped")

    def end(self) -> None:
        """As `stop`, without waiting for a call under way."""
        if (run := self._latest) is not None:
            run.end()

    def check_for_errors(self) -> BaseException | None:
        """The error that ended beating, or None. What was ridden out is no error."""
        self._judge()
        with self._lock:
            return self._error

    @property
    def running(self) -> bool:
        with self._lock:
            return self._alive()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop; work that went well while the message was lost fails with that error."""
        self.stop()
        lost = self.check_for_errors()
        if kind is None and lost is not None:
            raise lost

    # -- while it runs

    def progress(self) -> None:
        """The work moved: see `stall_timeout_sec`."""
        if (run := self._latest) is not None:
            run.lease.beat(self._clock.monotonic())

    def raise_if_lost(self) -> None:
        """Raise LeaseLost when the message may be somebody else's. Call it before
        anything that cannot be taken back.
        """
        if (error := self.check_for_errors()) is not None:
            raise LeaseLost(self._reason) from error

    @property
    def transient_errors(self) -> int:
        """How many calls went without an answer, over all starts, ridden out or not."""
        run = self._latest
        return self._past_transient_errors + (run.visibility.transient_errors if run else 0)

    # -- one run

    def _run(self, run: HeartbeatRun) -> None:
        """The thread: wait, beat, until stopped or lost."""
        try:
            next_at: float | None = run.first_at
            while next_at is not None and not self._wait(run.stopping, next_at):
                next_at = run.keeper.tick().next_at
        except BaseException as error:  # whatever ends the beating, the handler must know
            run.fail(error)
        finally:
            run.end()
            with self._lock:
                if self._latest is run:  # else a newer one beats
                    self._running = False
                    running_heartbeats.discard(self)

    def _wait(self, stopping: Event, until: float) -> bool:
        return self._clock.wait(stopping, max(0.0, until - self._clock.monotonic()))

    def _change_visibility(self, seconds: int) -> None:
        self._sqs_client.change_message_visibility(
            QueueUrl=self.queue_url,
            ReceiptHandle=self.receipt_handle,
            VisibilityTimeout=seconds,
        )

    def _heard(self, event: ev.Event) -> None:
        match event:
            case ev.LeaseAtRisk(error=error, left_seconds=left):
                self._say(logging.WARNING, "at_risk", error=error, left_sec=round(left, 1))
            case ev.NearCap(left_seconds=left):
                self._say(logging.WARNING, "near_cap", left_sec=round(left, 1))
                if self._on_near_cap is not None:
                    self._on_near_cap(left)

    def _lose(self, run: HeartbeatRun, lease: Lease) -> None:
        """Called once per run, in the thread of whoever noticed the loss."""
        reason = f"message {self._label} of {run.visibility.name} is lost: {lease.reason}"
        error = run.visibility.error or LeaseLost(reason)
        with self._lock:
            run.stopping.set()  # first, so that a start from now on is a new one
            self.history = (*self.history, error)
            if self._latest is run:
                self._error, self._reason = error, reason
                self.lost.set()
        self._say(logging.ERROR, "lost", reason=lease.reason)
        self._tell(error)

    def _tell(self, error: BaseException) -> None:
        if self._on_lost is None:
            return
        try:
            self._on_lost(error)
        except (Exception, SystemExit):  # it would end the thread, or the caller's work
            _log.exception("heartbeat_on_lost_failed message=%s", self._label)

    def _judge(self) -> None:
        if (run := self._latest) is not None:
            run.judge()

    def _say(self, level: int, what: str, **more: object) -> None:
        """One line, key=value. The label is of a hash: a receipt lets its reader delete."""
        said = {"queue": queue_name(self.queue_url), "message": self._label, **more}
        pairs = " ".join(f"{key}={value}" for key, value in said.items())
        _log.log(level, "heartbeat_%s %s", what, pairs)

    # -- under the lock

    def _begin(self) -> HeartbeatRun:
        self._past_transient_errors = self.transient_errors
        visibility = VisibilitySource(
            queue_name(self.queue_url),
            self._change_visibility,
            self._line,
            self._terms.max_transient_failures,
        )
        run = HeartbeatRun(
            visibility,
            self._terms,
            label=self._label,
            received_at=self._cap_from(),
            trusted_until=self._trusted_until(),
            clock=self._clock,
            events=ev.Events(self._heard),
        )
        run.lease.on_lost(partial(self._lose, run))
        self._latest, self._stop_event, self._error = run, run.stopping, None
        self.lost.clear()
        return run

    def _cap_from(self) -> float:
        if self._received_at is None:
            return self._made_at - _UNKNOWN_RECEIVE_SECONDS
        return self._received_at

    def _trusted_until(self) -> float:
        """Until when the message is hidden, as far as anybody told us."""
        if self._latest is not None:
            return self._latest.lease.deadline
        if self._hidden_until is not None:
            return self._hidden_until
        now = self._clock.monotonic()
        if self._terms.initial_visibility_sec is not None:
            return now + self._terms.initial_visibility_sec
        received_at = now if self._received_at is None else self._received_at
        return received_at + self._terms.visibility_timeout_sec

    def _alive(self) -> bool:
        return self._running and self._thread is not None and self._thread.is_alive()

    @property
    def _join_seconds(self) -> float:
        return self._terms.join_timeout_sec or self._terms.interval_sec + _JOIN_SECONDS

    # -- in a forked child

    def _stopped_in_child(self) -> None:
        """The thread stayed with the parent, and so did the message. Takes no lock: one
        may have been held while the fork happened.
        """
        self._lock, self._line = Lock(), CallLock()
        self._thread, self._running = None, False
        if self._latest is not None:
            self._hidden_until, self._latest = self._latest.lease.deadline, None
        self._stop_event = Event()
        self._stop_event.set()
        running_heartbeats.discard_in_child(self)


def _monotonic(received_at: float | None, clock: Clock) -> float | None:
    """At once, while the two clocks agree: the wall clock may be set later."""
    if received_at is None:
        return None
    return clock.monotonic() - max(0.0, clock.time() - received_at)
