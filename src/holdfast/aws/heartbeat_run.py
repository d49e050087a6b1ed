"""One run of a heartbeat: a message's visibility as a lease, from start to stop.

    start ──── first beat ──── beat ──── beat ─ ─ ─ ─ ─ last beat ───── cap
      │ interval, or sooner      │ interval               │ requests the  │ given up
      │ if little time is left   │                        │ time left     │

SQS allows twelve hours of visibility, counted from the receive. It does not shorten an
extension that would exceed them; it refuses it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from hashlib import sha256
from math import inf, isfinite
from threading import Lock
from typing import Any

from holdfast.aws.errors import get_error_code, is_transient
from holdfast.errors import LeaseLost
from holdfast.events import Events
from holdfast.lease.background import BackgroundLoop
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.lease.keeper import LeaseKeeper
from holdfast.lease.lease import RENEWED, Lease, Refused, Renewal, Unanswered
from holdfast.lease.renewal_schedule import compute_loss_time

DEFAULT_VISIBILITY_TIMEOUT_EXTENSION_SEC = 600
MAX_VISIBILITY_SECONDS = 43_200
"""The longest time for which SQS hides a message, counted from its receive."""

_CAP_MARGIN_SECONDS = 1.0  # SQS's clock and this process's may differ by part of a second
_CAP_WARNING_SECONDS = 60.0
_JOIN_SECONDS = 1.0  # added to the interval

# The network or the service failed, and another try may succeed. Any other error is a bug in
# this process, and trying again would only delay the report to the handler. The types are
# matched by name, because the caller may give a client that is not boto3's.
_OUTAGES = frozenset({"OSError", "BotoCoreError", "ClientError", "InvalidResponse"})
_BUGS = frozenset({"ParamValidationError"})

# What a value must be, and whether a number is that at a time of the wall clock.
_Rule = tuple[str, Callable[[Any, float], bool]]
_ABOVE_0: _Rule = ("a number of seconds above 0", lambda seconds, _: seconds > 0)
_RULES: Mapping[str, _Rule] = {
    "visibility_timeout_sec": (
        f"whole seconds, above 0 and at most {MAX_VISIBILITY_SECONDS} (12 hours, SQS's limit)",
        lambda seconds, _: seconds == int(seconds) and 0 < seconds <= MAX_VISIBILITY_SECONDS,
    ),
    "interval_sec": _ABOVE_0,
    # SQS's milliseconds are far in the future when read as seconds.
    "received_at": (
        "the receive's time in seconds since 1970 (SQS reports milliseconds)",
        lambda at, now: 0 < at < now + 86_400,
    ),
    "initial_visibility_sec": ("a number of seconds", lambda *_: True),
    "max_transient_failures": (
        "a whole number, 0 or more",
        lambda count, _: isinstance(count, int) and count >= 0,
    ),
    "join_timeout_sec": _ABOVE_0,
    "stall_timeout_sec": _ABOVE_0,
    "max_duration_sec": _ABOVE_0,
}


@dataclass(eq=False, repr=False)
class HeartbeatOptions:
    """The parameters of a heartbeat, which `SQSHeartbeat` explains.

    Raises ValueError, with the parameter's name, for a value that cannot work.
    """

    queue_url: str
    receipt_handle: str
    interval_sec: float
    visibility_timeout_sec: int = DEFAULT_VISIBILITY_TIMEOUT_EXTENSION_SEC
    _: KW_ONLY
    client: Any = None
    received_at: float | None = None
    initial_visibility_sec: float | None = None
    initial_beat: bool = False
    max_transient_failures: int | None = None
    join_timeout_sec: float | None = None
    stall_timeout_sec: float | None = None
    max_duration_sec: float | None = None
    on_lost: Callable[[BaseException], None] | None = None
    on_near_cap: Callable[[float], None] | None = None
    clock: Clock = SYSTEM_CLOCK
    transient_errors: int = field(default=0, init=False)
    """How many calls failed with a transient error, over all starts."""

    def __post_init__(self) -> None:
        for name in ("queue_url", "receipt_handle"):
            if not isinstance(text := getattr(self, name), str) or not text.strip():
                raise ValueError(f"{name} must be a string that is not empty")
        for name, (requirement, is_allowed) in _RULES.items():
            value: Any = getattr(self, name)
            if value is None and name not in ("visibility_timeout_sec", "interval_sec"):
                continue
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (is_number and isfinite(value) and is_allowed(value, self.clock.time())):
                raise ValueError(f"{name} must be {requirement}, not {value!r}")
        if self.interval_sec >= self.visibility_timeout_sec:
            raise ValueError(
                f"visibility_timeout_sec ({self.visibility_timeout_sec}) must be greater "
                f"than interval_sec ({self.interval_sec}): the message would reappear "
                "before each beat"
            )
        self.queue_name = get_queue_name(self.queue_url)
        self.label = sha256(self.receipt_handle.encode()).hexdigest()[-6:]

    @property
    def renew_after(self) -> float:
        """The fraction of the visibility that passes between two extensions."""
        return self.interval_sec / self.visibility_timeout_sec

    @property
    def join_seconds(self) -> float:
        """How long a stop waits for a call in progress."""
        return self.join_timeout_sec or self.interval_sec + _JOIN_SECONDS


@dataclass(eq=False)
class HeartbeatRun:
    """The lease of one run, its source, and the loop that extends it.

    Each run has its own lease, keeper, thread and stop event. So a run that hung in a call
    while it was stopped does not resume when the next run starts, and cannot be mistaken for
    it. All times are monotonic.
    """

    renew_batch = 1

    options: HeartbeatOptions
    change_visibility: Callable[[int], object]
    # One call at a time over all runs of a heartbeat: a run that was stopped may still be in
    # its last call when the next run makes its first.
    call_lock: Lock
    received_at: float
    trusted_until: float
    events: Events
    target: Callable[[], None] | None = None  # of the thread; see BackgroundLoop
    error: BaseException | None = None  # the first since a success
    consecutive_failures: int = 0

    def __post_init__(self) -> None:
        options, self.clock = self.options, self.options.clock
        self.name, now = options.queue_name, self.clock.monotonic()
        cap_at = self.received_at + MAX_VISIBILITY_SECONDS - _CAP_MARGIN_SECONDS
        duration_end_at = now + (options.max_duration_sec or inf)
        self.lease = Lease(
            self,
            None,  # the receipt handle stays in the heartbeat's documented attribute
            message_id=options.label,
            attempt=1,
            fence=0,
            claimed_at=now if duration_end_at < cap_at else self.received_at,
            seconds=options.visibility_timeout_sec,
            cap_at=(cap_at := min(duration_end_at, cap_at)),
        )
        self.lease.deadline = self.trusted_until
        if options.initial_beat:  # an earlier deadline makes a renewal due now
            rest_seconds = options.visibility_timeout_sec - options.interval_sec
            self.lease.deadline = min(self.trusted_until, now + rest_seconds)
        self._keeper = LeaseKeeper(
            self.clock,
            self.events,
            renew_after=options.renew_after,
            # Short runs are warned of their cap at their last quarter.
            cap_warning_seconds=max(0.0, min(_CAP_WARNING_SECONDS, (cap_at - now) / 4)),
        )
        self._keeper.hold(self.lease, stall_seconds=options.stall_timeout_sec)
        # If less time is left than usual (the message was received some time ago, or with a
        # shorter visibility), extend within half of it, so that the other half remains for
        # retries. If more time is left, the keeper extends later, because an extension would
        # shorten it.
        wait_seconds = min(options.interval_sec, (self.lease.deadline - now) / 2)
        soon_at = now if options.initial_beat else now + wait_seconds
        self.first_at = min(soon_at, compute_loss_time(self.lease))
        thread_name = f"sqs-heartbeat-{options.label}"
        self.loop = BackgroundLoop(thread_name, self.tick, self.clock, target=self.target)

    # -- in the thread

    def tick(self) -> float:
        """Extend the visibility if it is time, and return when to do so next.

        Any error loses the lease, because the handler must learn of an error that ends the
        run.
        """
        if self.clock.monotonic() < self.first_at:
            return self.first_at
        try:
            return self._keeper.tick().next_at
        except BaseException as error:
            self.error = self.error or error
            self.lease.lose(_summarize_error(error))
            return inf

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        """Extend the message's visibility, unless a call is still in progress."""
        # Not waiting, because the call in progress may outlast the lease.
        if not self.call_lock.acquire(blocking=False):
            return [Unanswered("an earlier call is still in progress")]
        try:
            self.change_visibility(int(seconds))
        except Exception as error:  # any kind: the renewal says what it means for the lease
            return [self._to_renewal(error)]
        finally:
            self.call_lock.release()
        self.error, self.consecutive_failures = None, 0
        return [RENEWED]

    def _to_renewal(self, error: Exception) -> Renewal:
        self.error = self.error or error
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if not kinds & _OUTAGES or kinds & _BUGS or not is_transient(error):
            return Refused(_summarize_error(error))
        self.options.transient_errors += 1
        self.consecutive_failures += 1
        max_failures = self.options.max_transient_failures
        if max_failures is not None and self.consecutive_failures > max_failures:
            return Refused(f"{_summarize_error(error)}, {self.consecutive_failures} in a row")
        return Unanswered(_summarize_error(error))

    # -- from any thread

    def check_deadline(self) -> None:
        """Mark the lease as lost if its deadline has passed.

        The run's thread may not have woken up since then.
        """
        with suppress(LeaseLost):  # the lease's callbacks have reported the loss
            self.lease.check(self.clock.monotonic())

    def end(self) -> None:
        """Make no further call, and ignore the response of a call in progress."""
        self.check_deadline()
        self.lease.release("stopped")
        self.loop.request_stop()


def get_queue_name(queue_url: str) -> str:
    """Return the last part of the queue's URL."""
    return queue_url.rstrip("/").rpartition("/")[2]


def _summarize_error(error: BaseException) -> str:
    """Return the error's code or type, for logs.

    Its text must not be logged, because SQS quotes the receipt handle in some errors.
    """
    return get_error_code(error) or type(error).__name__
