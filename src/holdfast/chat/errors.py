"""What can go wrong with a conversation, and what follows from it.

    TransientError   retry later: throttled, unreachable, timed out
    PermanentError   no retry helps: the batch is parked for an operator
    SendUnclear      the reply may have been sent: it is looked up at the provider, then the
                     policy decides (see replies.py)

The texts of these errors go to logs. None of them contains a body, a number, an address or a
secret.
"""

from holdfast.errors import HoldfastError


class TransientError(HoldfastError):
    """The call may work later, and everything done so far can be repeated safely."""


class PermanentError(HoldfastError):
    """The call will fail until an operator changes something."""


class AuthenticationFailed(TransientError):
    """The provider rejects the secret. It may have been rotated, so fetch it again."""


class ThreadGone(HoldfastError):
    """The writer no longer knows the thread, so a new one must be opened."""


class SendUnclear(HoldfastError):
    """No response came, so the message may have been sent."""


class SendStatusUnknown(HoldfastError):
    """The provider cannot report whether a message was sent."""


class LockLost(HoldfastError):
    """The write was refused because this grant no longer holds the conversation's lock."""


class InvalidInbound(HoldfastError):
    """The input is not a message that could be answered, now or later."""


class ParkedNotFound(HoldfastError):
    """Nothing is parked under that id."""
