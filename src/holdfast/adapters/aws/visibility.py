"""One message's visibility as a lease, which a heartbeat holds from start to stop.

    start ──── first beat ──── beat ──── beat ─ ─ ─ ─ ─ last beat ───── cap
      │ interval, or sooner      │ interval               │ requests the  │ given up
      │ if little time is left   │                        │ time left     │

SQS allows twelve hours of visibility, counted from the receive. It does not shorten an
extension that would exceed them; it refuses it.
"""

from collections.abc import Callable, Sequence
from functools import cache
from math import inf
from threading import Event, Lock

from holdfast.adapters.aws.errors import get_error_code, is_transient
from holdfast.adapters.aws.heartbeat_options import MAX_VISIBILITY_SECONDS, HeartbeatOptions
from holdfast.core.clock import Clock
from holdfast.core.errors import LeaseLost
from holdfast.core.events import Events
from holdfast.core.lease.keeper import LeaseKeeper
from holdfast.core.lease.lease import RENEWED, Lease, Refused, Renewal, Unanswered
from holdfast.core.lease.renewal_schedule import compute_loss_time

_CAP_MARGIN_SECONDS = 1.0  # SQS's clock and this process's may differ by part of a second
_CAP_WARNING_SECONDS = 60.0


class CallLock:
    """A lock that allows one call at a time over all runs of a heartbeat.

    A run that was stopped may still be in its last call when the next run makes its first.
    """

    def __init__(self) -> None:
        self._free = Event()
        self._free.set()
        self._lock = Lock()

    def try_acquire(self) -> bool:
        """Acquire the lock if it is free, and return whether it was.

        This does not wait, because the call in progress may outlast the lease.
        """
        with self._lock:
            if not self._free.is_set():
                return False
            self._free.clear()
            return True

    def release(self) -> None:
        """Release the lock after a call."""
        self._free.set()

    def wait(self, seconds: float) -> bool:
        """Wait until no call is in progress, and return False if that takes too long."""
        return self._free.wait(seconds)


class VisibilitySource:
    """A lease source for one message, remembering the first error since a success."""

    renew_batch = 1

    def __init__(
        self,
        name: str,
        change_visibility: Callable[[int], object],
        call_lock: CallLock,
        max_failures: int | None,
    ) -> None:
        self.name = name
        self.error: BaseException | None = None
        self.transient_errors = 0
        self._change_visibility = change_visibility
        self._call_lock = call_lock
        self._max_failures = inf if max_failures is None else max_failures
        self._consecutive_failures = 0

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        """Extend the message's visibility, unless a call is still in progress."""
        if not self._call_lock.try_acquire():
            return [Unanswered("an earlier call is still in progress")]
        try:
            self._change_visibility(int(seconds))
        except Exception as error:  # any kind: the renewal says what it means for the lease
            return [self._to_renewal(error)]
        finally:
            self._call_lock.release()
        self.error, self._consecutive_failures = None, 0
        return [RENEWED]

    def _to_renewal(self, error: Exception) -> Renewal:
        self.error = self.error or error
        if not _is_outage(error):
            return Refused(summarize_error(error))
        self.transient_errors += 1
        self._consecutive_failures += 1
        if self._consecutive_failures > self._max_failures:
            return Refused(f"{summarize_error(error)}, {self._consecutive_failures} in a row")
        return Unanswered(summarize_error(error))


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


class HeartbeatRun:
    """One run of a heartbeat, from its start to its stop.

    Each run has its own stop event, lease and keeper. So a run that hung in a call while it
    was stopped does not resume when the next run starts, and cannot be mistaken for it. All
    times are monotonic.
    """

    def __init__(
        self,
        visibility: VisibilitySource,
        options: HeartbeatOptions,
        *,
        label: str,
        received_at: float,
        trusted_until: float,
        clock: Clock,
        events: Events,
    ) -> None:
        self.stop_event = Event()
        self.visibility = visibility
        self._clock = clock
        now = clock.monotonic()
        self.lease = _make_lease(visibility, options, label, received_at, trusted_until, now)
        self.keeper = LeaseKeeper(
            clock,
            events,
            renew_after=options.interval_sec / options.visibility_timeout_sec,
            cap_warning_seconds=_compute_warning_seconds(self.lease, now),
        )
        self.keeper.hold(self.lease, stall_seconds=options.stall_timeout_sec)
        self.first_at = compute_first_beat_at(self.lease, options, now)

    def check_deadline(self) -> None:
        """Mark the lease as lost if its deadline has passed.

        The run's thread may not have woken up since then.
        """
        try:
            self.lease.check(self._clock.monotonic())
        except LeaseLost:
            return  # the lease's callbacks have reported the loss

    def end(self) -> None:
        """Make no further call, and ignore the response of a call in progress."""
        self.check_deadline()
        self.lease.release("stopped")
        self.stop_event.set()

    def fail(self, error: BaseException) -> None:
        """Lose the lease after an unexpected error, because the thread no longer extends it."""
        self.visibility.error = self.visibility.error or error
        self.lease.lose(summarize_error(error))


def compute_first_beat_at(lease: Lease, options: HeartbeatOptions, started_at: float) -> float:
    """Return when to extend first, which is normally one interval after the start.

    If less time is left than usual (the message was received some time ago, or with a
    shorter visibility), extend within half of it, so that the other half remains for
    retries. If more time is left, extend that much later, because an extension would
    shorten it.
    """
    if options.initial_beat:
        return started_at
    left_seconds = lease.deadline - started_at
    renew_after = options.interval_sec / options.visibility_timeout_sec
    usual_at = lease.deadline - (1 - renew_after) * lease.seconds  # as the keeper counts
    soon_at = started_at + min(options.interval_sec, left_seconds / 2)
    return min(max(usual_at, soon_at), compute_loss_time(lease))


def _make_lease(
    visibility: VisibilitySource,
    options: HeartbeatOptions,
    label: str,
    received_at: float,
    trusted_until: float,
    now: float,
) -> Lease:
    cap_at = received_at + MAX_VISIBILITY_SECONDS - _CAP_MARGIN_SECONDS
    duration_end_at = (
        inf if options.max_duration_sec is None else now + options.max_duration_sec
    )
    lease = Lease(
        visibility,
        None,  # the receipt handle stays in the heartbeat's documented attribute
        message_id=label,
        attempt=1,
        fence=0,
        claimed_at=now if duration_end_at < cap_at else received_at,
        seconds=options.visibility_timeout_sec,
        cap_at=min(duration_end_at, cap_at),
    )
    lease.deadline = trusted_until
    if options.initial_beat:  # an earlier deadline makes a renewal due now
        rest_seconds = options.visibility_timeout_sec - options.interval_sec
        lease.deadline = min(trusted_until, now + rest_seconds)
    return lease


def _compute_warning_seconds(lease: Lease, now: float) -> float:
    """Return how early to warn of the cap; short runs are warned at their last quarter."""
    left_seconds = inf if lease.cap_at is None else lease.cap_at - now
    return max(0.0, min(_CAP_WARNING_SECONDS, left_seconds / 4))
