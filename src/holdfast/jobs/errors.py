"""What can go wrong with a job, in words a person can act on."""

from holdfast.core.errors import HoldfastError
from holdfast.core.errors import StoreUnavailable as StoreUnavailable


class JobNotFound(HoldfastError):
    """There is no job with that id."""


class JobExists(HoldfastError):
    """A job with that id is stored already; nothing was changed."""


class JobClosed(HoldfastError):
    """The job is finished, or its outcome is decided: nothing more may be counted."""


class IllegalTransition(HoldfastError):
    """The job's state does not lead there; nothing was changed."""


class AlreadySealed(HoldfastError):
    """The number of tasks is set once; this is another number, or more tasks."""


class InvalidJob(HoldfastError):
    """The job's description cannot be worked on, now or later."""


class TokenClosed(HoldfastError):
    """Step Functions does not wait for this token: answered, timed out or not its own.

    `code` is what the service said. It does not tell which of the three: decide by the
    job's own state.
    """

    def __init__(self, code: str) -> None:
        super().__init__(f"Step Functions does not wait for this task token any more ({code})")
        self.code = code


class CallbackRefused(HoldfastError):
    """Step Functions turned the call down before acting on it: throttled, denied."""


class CallbackUnclear(HoldfastError):
    """No answer came. The call may have been acted on."""
