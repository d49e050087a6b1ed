"""What became of one attempt. Handlers return these; `settle` acts on them.

`reason` and `detail` are kept with the message, for whoever asks about it. They may quote
the message or an error of the handler's, so logs never see them: `told` is what logs say.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Done:
    """The work is finished. Returning None means the same."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again later: after `after_seconds`, or by the queue's backoff when None."""

    after_seconds: float | None = None
    reason: str = "the handler asked for a retry"
    detail: str | None = None  # a traceback or stack dump for the person who looks
    log_reason: str = "the handler asked for a retry"


@dataclass(frozen=True, slots=True)
class Reject:
    """Never try again: the message goes to the dead letters with this reason."""

    reason: str
    detail: str | None = None
    log_reason: str = "the handler rejected it"


@dataclass(frozen=True, slots=True)
class GiveBack:
    """The work is not done, through no fault of its own: the worker stops. Not charged,
    where the queue can forget an attempt; somebody else has the message at once."""


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The lease is lost: whoever holds it now settles, we must not."""

    reason: str


Outcome = Done | Retry | Reject | GiveBack | Abandoned
