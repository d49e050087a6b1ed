"""The conversation's lock as a lease, which the keeper renews like any other."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from holdfast.conversations.model import LockGrant
from holdfast.conversations.ports import ConversationStore
from holdfast.core.clock import Clock
from holdfast.core.lease.lease import RENEWED, Lease, Refused, Renewal


class ConversationLocks:
    """The LeaseSource that renews locks in the conversation store."""

    name = "conversations"
    renew_batch = 1

    def __init__(self, store: ConversationStore, clock: Clock) -> None:
        self._store, self._clock = store, clock

    def make_lease(
        self, grant: LockGrant, *, attempt: int, asked_at: float, seconds: float
    ) -> Lease:
        """Return the lease of a lock that was acquired.

        `asked_at` is a monotonic time from before the call that acquired the lock.
        """
        return Lease(
            self,
            grant,
            message_id=grant.key.log_name,
            attempt=attempt,
            fence=grant.fence,
            claimed_at=asked_at,
            seconds=seconds,
        )

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        """Renew each lock in the store, with one call for each."""
        return [self._renew(lease.handle, seconds) for lease in leases]

    def _renew(self, grant: LockGrant, seconds: float) -> Renewal:
        now = self._clock.time()
        if self._store.renew(grant, now=now, expires_at=now + seconds):
            return RENEWED
        return Refused("the conversation's lock was taken over, or it expired")


@contextmanager
def release_on_error(
    release: Callable[[LockGrant, str | None], None], grant: LockGrant
) -> Iterator[None]:
    """Release the lock if the block raises anything, and raise that again.

    Otherwise the customer would wait until the lock expires. A release that fails is not
    reported, because the lock expires by itself, and a block that ended with the lock has
    already released it.
    """
    try:
        yield
    except BaseException:
        with suppress(Exception):
            release(grant, None)
        raise
