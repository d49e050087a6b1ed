"""One run of a heartbeat: a message's visibility as a lease, from start to stop.

    start ──── first beat ──── beat ──── beat ─ ─ ─ ─ ─ last beat ───── cap
      │ interval, or sooner      │ interval               │ requests the  │ given up
      │ if little time is left   │                        │ time left     │

SQS allows twelve hours of visibility, counted from the receive. It does not shorten an
extension that would exceed them; it refuses it.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from math import inf
from threading import Lock

from holdfast.adapters.aws.errors import get_error_code, is_transient
from holdfast.adapters.aws.heartbeat_options import MAX_VISIBILITY_SECONDS, HeartbeatOptions
from holdfast.core.background import BackgroundLoop
from holdfast.core.clock import Clock
from holdfast.core.errors import LeaseLost
from holdfast.core.events import Events
from holdfast.core.lease.keeper import LeaseKeeper
from holdfast.core.lease.lease import RENEWED, Lease, Refused, Renewal, Unanswered
from holdfast.core.lease.renewal_schedule import compute_loss_time

_CAP_MARGIN_SECONDS = 1.0  # SQS's clock and this process's may differ by part of a second
_CAP_WARNING_SECONDS = 60.0


@dataclass(eq=False)
class HeartbeatRun:
    """The lease of one run, its source, and the loop that extends it.

    Each run has its own lease, keeper, thread and stop event. So a run that hung in a call
    while it was stopped does not resume when the next run starts, and cannot be mistaken for
    it. All times are monotonic.
    """

    renew_batch = 1

    name: str  # of the queue
    label: str  # of the message
    options: HeartbeatOptions
    change_visibility: Callable[[int], object]
    # One call at a time over all runs of a heartbeat: a run that was stopped may still be in
    # its last call when the next run makes its first.
    call_lock: Lock
    received_at: float
    trusted_until: float
    clock: Clock
    events: Events
    target: Callable[[], None] | None = None  # of the thread; see BackgroundLoop
    error: BaseException | None = None  # the first since a success
    transient_errors: int = 0
    consecutive_failures: int = 0

    def __post_init__(self) -> None:
        now = self.clock.monotonic()
        self.lease = self._make_lease(now)
        # Short runs are warned of their cap at their last quarter.
        left_seconds = inf if self.lease.cap_at is None else self.lease.cap_at - now
        self._keeper = LeaseKeeper(
            self.clock,
            self.events,
            renew_after=self.options.renew_after,
            cap_warning_seconds=max(0.0, min(_CAP_WARNING_SECONDS, left_seconds / 4)),
        )
        self._keeper.hold(self.lease, stall_seconds=self.options.stall_timeout_sec)
        self.first_at = self._compute_first_beat_at(now)
        name = f"sqs-heartbeat-{self.label}"
        self.loop = BackgroundLoop(name, self.tick, self.clock, target=self.target)

    def _make_lease(self, now: float) -> Lease:
        options = self.options
        cap_at = self.received_at + MAX_VISIBILITY_SECONDS - _CAP_MARGIN_SECONDS
        duration_end_at = now + (options.max_duration_sec or inf)
        lease = Lease(
            self,
            None,  # the receipt handle stays in the heartbeat's documented attribute
            message_id=self.label,
            attempt=1,
            fence=0,
            claimed_at=now if duration_end_at < cap_at else self.received_at,
            seconds=options.visibility_timeout_sec,
            cap_at=min(duration_end_at, cap_at),
        )
        lease.deadline = self.trusted_until
        if options.initial_beat:  # an earlier deadline makes a renewal due now
            rest_seconds = options.visibility_timeout_sec - options.interval_sec
            lease.deadline = min(self.trusted_until, now + rest_seconds)
        return lease

    def _compute_first_beat_at(self, started_at: float) -> float:
        """Return when to extend first, which is normally one interval after the start.

        If less time is left than usual (the message was received some time ago, or with a
        shorter visibility), extend within half of it, so that the other half remains for
        retries. If more time is left, extend that much later, because an extension would
        shorten it.
        """
        options, lease = self.options, self.lease
        if options.initial_beat:
            return started_at
        usual_at = lease.deadline - (1 - options.renew_after) * lease.seconds  # as the keeper
        soon_at = started_at + min(options.interval_sec, (lease.deadline - started_at) / 2)
        return min(max(usual_at, soon_at), compute_loss_time(lease))

    # -- in the thread

    def tick(self) -> float:
        """Extend the visibility if it is time, and return when to do so next.

        Any error loses the lease, because the handler must learn of an error that ends the
        run.
        """
        if self.clock.monotonic() < self.first_at:
            return self.first_at
        try:
            next_at = self._keeper.tick().next_at
        except BaseException as error:
            self.error = self.error or error
            self.lease.lose(summarize_error(error))
            return inf
        return inf if next_at is None else next_at

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
        if not _is_outage(error):
            return Refused(summarize_error(error))
        self.transient_errors += 1
        self.consecutive_failures += 1
        max_failures = self.options.max_transient_failures
        if max_failures is not None and self.consecutive_failures > max_failures:
            return Refused(f"{summarize_error(error)}, {self.consecutive_failures} in a row")
        return Unanswered(summarize_error(error))

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


def summarize_error(error: BaseException) -> str:
    """Return the error's code or type, for logs.

    Its text must not be logged, because SQS quotes the receipt handle in some errors.
    """
    return get_error_code(error) or type(error).__name__


def _is_outage(error: Exception) -> bool:
    """Return whether the network or the service failed, and another try may succeed.

    Any other error is a bug in this process, and trying again would only delay the report
    to the handler.
    """
    outages, bugs = _load_error_types()
    return isinstance(error, outages) and not isinstance(error, bugs) and is_transient(error)


@cache
def _load_error_types() -> tuple[tuple[type[Exception], ...], tuple[type[Exception], ...]]:
    try:
        from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError
    except ImportError:  # the caller gave a client that is not boto3's
        return (OSError,), ()
    return (OSError, BotoCoreError, ClientError), (ParamValidationError,)
