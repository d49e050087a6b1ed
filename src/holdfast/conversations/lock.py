"""The conversation's lock as a lease: renewed by the keeper, like any other."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from holdfast.conversations.model import LockGrant, redacted_id
from holdfast.conversations.ports import ConversationStore
from holdfast.core.clock import Clock
from holdfast.core.lease.lease import RENEWED, Lease, Refused, Renewal


class ConversationLocks:
    """A LeaseSource: the store's locks."""

    name = "conversations"
    renew_batch = 1

    def __init__(self, store: ConversationStore, clock: Clock) -> None:
        self._store, self._clock = store, clock

    def lease(
        self, grant: LockGrant, *, attempt: int, asked_at: float, seconds: float
    ) -> Lease:
        """`asked_at`: monotonic, from before the lock was asked for."""
        return Lease(
            self,
            grant,
            message_id=redacted_id(grant.key.conversation_id),
            attempt=attempt,
            fence=grant.fence,
            claimed_at=asked_at,
            seconds=seconds,
        )

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        return [self._renew(lease.handle, seconds) for lease in leases]

    def _renew(self, grant: LockGrant, seconds: float) -> Renewal:
        now = self._clock.time()
        if self._store.renew(grant, now=now, expires_at=now + seconds):
            return RENEWED
        return Refused("the conversation's lock was taken over, or ran out")


@contextmanager
def released_on_error(
    release: Callable[[LockGrant, str | None], None], grant: LockGrant
) -> Iterator[None]:
    """Give the lock back if the block raises anything, and raise that.

    Otherwise the customer would wait until the lock expires. A release that fails is not
    told: the lock expires by itself, and a block that ended with it has given it back.
    """
    try:
        yield
    except BaseException:
        with suppress(Exception):
            release(grant, None)
        raise
