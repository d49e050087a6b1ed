"""One message's visibility as a lease: what a heartbeat holds from start to stop.

    start ──── first beat ──── beat ──── beat ─ ─ ─ ─ ─ last beat ───── cap
      │ interval, or sooner      │ interval               │ asks for      │ given up
      │ when little is left      │                        │ what is left  │

SQS counts visibility from the receive and refuses (it does not shorten) what would go
beyond twelve hours of it.
"""

from collections.abc import Callable, Sequence
from functools import cache
from math import inf
from threading import Event, Lock

from holdfast.adapters.aws.errors import code_of, passes
from holdfast.adapters.aws.heartbeat_options import MAX_SECONDS, HeartbeatOptions
from holdfast.core.clock import Clock
from holdfast.core.errors import LeaseLost
from holdfast.core.events import Events
from holdfast.core.lease.keeper import LeaseKeeper
from holdfast.core.lease.lease import RENEWED, Lease, Refused, Renewal, Unanswered
from holdfast.core.lease.renewal_schedule import over_at

_CAP_MARGIN_SECONDS = 1.0  # Amazon's second and ours need not begin together
_CAP_WARNING_SECONDS = 60.0


class CallLock:
    """One call at a time, whichever run makes it: a run that was stopped may be in its
    last one when the next run wants to make its first.
    """

    def __init__(self) -> None:
        self._free = Event()
        self._free.set()
        self._taking = Lock()

    def take(self) -> bool:
        """Without waiting: it may take longer than the lease does."""
        with self._taking:
            if not self._free.is_set():
                return False
            self._free.clear()
            return True

    def give(self) -> None:
        self._free.set()

    def wait(self, seconds: float) -> bool:
        """Until nobody is on it: True."""
        return self._free.wait(seconds)


class VisibilitySource:
    """The lease source: asks SQS for one message, and keeps the first error unrecovered."""

    renew_batch = 1

    def __init__(
        self, name: str, ask: Callable[[int], object], line: CallLock, max_failures: int | None
    ) -> None:
        self.name = name
        self.error: BaseException | None = None  # the first since the last success
        self.transient_errors = 0
        self._ask = ask
        self._line = line
        self._max_failures = inf if max_failures is None else max_failures
        self._in_a_row = 0

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        if not self._line.take():
            return [Unanswered("an earlier call is still under way")]
        try:
            self._ask(int(seconds))
        except Exception as error:  # whatever it is, the answer says what it means
            return [self._failed(error)]
        finally:
            self._line.give()
        self.error, self._in_a_row = None, 0
        return [RENEWED]

    def _failed(self, error: Exception) -> Renewal:
        self.error = self.error or error
        if not _is_outage(error):
            return Refused(in_a_word(error))
        self.transient_errors += 1
        self._in_a_row += 1
        if self._in_a_row > self._max_failures:
            return Refused(f"{in_a_word(error)}, {self._in_a_row} in a row")
        return Unanswered(in_a_word(error))


def in_a_word(error: BaseException) -> str:
    """For logs. Never its text: SQS quotes the receipt handle in some."""
    return code_of(error) or type(error).__name__


def _is_outage(error: Exception) -> bool:
    """Is it the network's or Amazon's trouble, and worth another try?

    An error of any other make is a bug on this side of the wire: trying again would only
    keep the handler from hearing of it.
    """
    outages, bugs = _kinds()
    return isinstance(error, outages) and not isinstance(error, bugs) and passes(error)


@cache
def _kinds() -> tuple[tuple[type[Exception], ...], tuple[type[Exception], ...]]:
    try:
        from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError
    except ImportError:  # somebody brought a client of their own
        return (OSError,), ()
    return (OSError, BotoCoreError, ClientError), (ParamValidationError,)


class HeartbeatRun:
    """From one start to its stop: a stop event, a lease and a keeper of its own.

    So a run that hung in a call while it was stopped cannot come back to life, or be
    taken for its successor, when the next one starts. All times are monotonic.
    """

    def __init__(
        self,
        visibility: VisibilitySource,
        terms: HeartbeatOptions,
        *,
        label: str,
        received_at: float,
        trusted_until: float,
        clock: Clock,
        events: Events,
    ) -> None:
        self.stopping = Event()
        self.visibility = visibility
        self._clock = clock
        now = clock.monotonic()
        self.lease = _lease(visibility, terms, label, received_at, trusted_until, now)
        self.keeper = LeaseKeeper(
            clock,
            events,
            renew_after=terms.interval_sec / terms.visibility_timeout_sec,
            cap_warning_seconds=_warning_seconds(self.lease, now),
        )
        self.keeper.hold(self.lease, stall_seconds=terms.stall_timeout_sec)
        self.first_at = first_beat_at(self.lease, terms, now)

    def judge(self) -> None:
        """Notice a deadline that passed, though the thread may not have woken up yet."""
        try:
            self.lease.check(self._clock.monotonic())
        except LeaseLost:
            return  # its callbacks have told everybody

    def end(self) -> None:
        """No call goes out after this; how one under way is answered counts no more."""
        self.judge()
        self.lease.release("stopped")
        self.stopping.set()

    def fail(self, error: BaseException) -> None:
        """Something broke that should not: nobody beats any more, so it is lost."""
        self.visibility.error = self.visibility.error or error
        self.lease.lose(in_a_word(error))


def first_beat_at(lease: Lease, terms: HeartbeatOptions, started_at: float) -> float:
    """When to look first: one interval after the start if all is as usual.

    Where less is left than usual (the message was received some time ago, or with a
    shorter visibility), within half of what is left: the other half is for retries.
    Where more is left, so much later: a beat would shorten it.
    """
    if terms.initial_beat:
        return started_at
    left_seconds = lease.deadline - started_at
    renew_after = terms.interval_sec / terms.visibility_timeout_sec
    usual_at = lease.deadline - (1 - renew_after) * lease.seconds  # as the keeper counts
    soon_at = started_at + min(terms.interval_sec, left_seconds / 2)
    return min(max(usual_at, soon_at), over_at(lease))


def _lease(
    visibility: VisibilitySource,
    terms: HeartbeatOptions,
    label: str,
    received_at: float,
    trusted_until: float,
    now: float,
) -> Lease:
    cap_at = received_at + MAX_SECONDS - _CAP_MARGIN_SECONDS
    enough_at = inf if terms.max_duration_sec is None else now + terms.max_duration_sec
    lease = Lease(
        visibility,
        None,  # the handle stays with the heartbeat, where the seed's code finds it
        message_id=label,
        attempt=1,
        fence=0,
        claimed_at=now if enough_at < cap_at else received_at,
        seconds=terms.visibility_timeout_sec,
        cap_at=min(enough_at, cap_at),
    )
    lease.deadline = trusted_until
    if terms.initial_beat:  # count on no more than makes a renewal due now
        rest_seconds = terms.visibility_timeout_sec - terms.interval_sec
        lease.deadline = min(trusted_until, now + rest_seconds)
    return lease


def _warning_seconds(lease: Lease, now: float) -> float:
    """Short runs are warned when a quarter of them is left."""
    left_seconds = inf if lease.cap_at is None else lease.cap_at - now
    return max(0.0, min(_CAP_WARNING_SECONDS, left_seconds / 4))
