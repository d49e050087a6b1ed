"""Errors of jobs, with messages that an operator can act on."""

from holdfast.errors import HoldfastError, InvalidInput
from holdfast.errors import StoreUnavailable as StoreUnavailable


class JobNotFound(HoldfastError):
    """No job has that id."""


class JobExists(HoldfastError):
    """A job with that id is already stored; nothing was changed."""


class JobClosed(HoldfastError):
    """The job is finished or its outcome is decided, so nothing more may be counted."""


class IllegalTransition(HoldfastError):
    """The job cannot move from its state to that one; nothing was changed."""


class AlreadySealed(HoldfastError):
    """The number of tasks is already set, so neither it nor the list of tasks may change."""


class InvalidJob(InvalidInput):
    """The job's description is invalid, so trying again cannot help."""


class TokenClosed(HoldfastError):
    """Step Functions no longer waits for this token.

    The token was completed before, or it timed out, or the service did not issue it.
    `code` is the error code of the service. It does not tell these cases apart, so decide
    by the job's own state.
    """

    def __init__(self, code: str) -> None:
        super().__init__(f"Step Functions does not wait for this task token any more ({code})")
        self.code = code


class CallbackRefused(HoldfastError):
    """Step Functions refused the call before acting on it, e.g. throttled or denied."""


class CallbackUnclear(HoldfastError):
    """No response came, so it is unknown whether Step Functions acted on the call."""
