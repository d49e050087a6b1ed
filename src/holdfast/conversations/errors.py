"""What can go wrong with a conversation, and what follows from it.

    TransientError     try again later: throttled, away, timed out
    PermanentError   no retry helps: the batch is parked for a person
    SendUnclear the reply may be out: asked of the provider, then by policy

Their texts go to logs. None holds a body, a number, an address or a secret.
"""

from holdfast.core.errors import HoldfastError


class TransientError(HoldfastError):
    """It may work later, and nothing was done that cannot be done again."""


class PermanentError(HoldfastError):
    """It will not work before a person changes something."""


class AuthenticationFailed(TransientError):
    """The provider does not take the secret. It may have been rotated: fetch it anew."""


class ThreadGone(HoldfastError):
    """The writer does not know the thread any more: begin another one."""


class SendUnclear(HoldfastError):
    """No answer came. The message may have been sent."""


class SendStatusUnknown(HoldfastError):
    """The provider cannot say whether a message was sent."""


class LockLost(HoldfastError):
    """The write was refused: somebody else has the conversation's lock by now."""


class InvalidInbound(HoldfastError):
    """What came in is no message that could be answered, now or later."""


class ParkedNotFound(HoldfastError):
    """Nothing is parked under that id."""
