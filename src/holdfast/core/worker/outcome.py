"""The outcome of one attempt. Handlers return these values and `settle` acts on them.

`reason` and `detail` are stored with the message, where operators can read them. They may
quote the message or an error of the handler, so they are never logged. Logs show
`log_reason` in their place.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Done:
    """The work is finished. Returning None means the same."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again after `after_seconds`, or after the queue's backoff if that is None."""

    after_seconds: float | None = None
    reason: str = "the handler asked for a retry"
    detail: str | None = None  # a traceback or stack dump for operators
    log_reason: str = "the handler asked for a retry"


@dataclass(frozen=True, slots=True)
class Reject:
    """Dead-letter the message with this reason and never try again."""

    reason: str
    detail: str | None = None
    log_reason: str = "the handler rejected it"


@dataclass(frozen=True, slots=True)
class GiveBack:
    """The work is unfinished through no fault of its own, because the worker stops.

    Another worker can claim the message at once. The attempt is not charged, if the queue
    can refund it.
    """


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The lease is lost, so its new holder settles the message and this worker must not."""

    reason: str


DONE = Done()
GIVE_BACK = GiveBack()

Outcome = Done | Retry | Reject | GiveBack | Abandoned
