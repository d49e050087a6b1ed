"""What operators see of a queue: counts, and messages with their holders and histories."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from holdfast.queue.message import MessageState as MessageState
from holdfast.queue.operator import Progress

CANCELLED = "cancelled by an operator"
"""The reason of a message that `cancel` dead-lettered."""


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Message counts for operators. A count is exact if no message moves meanwhile."""

    ready: int
    delayed: int
    leased: int
    failed: int
    expired: int = 0  # of the leased: past their deadline and not yet taken over
    completed: int | None = None  # None if the queue does not record it
    foreign: int = 0  # files that Holdfast did not write
    oldest_ready_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """The worker that holds a message, with the fields of a lease.json file."""

    worker_id: str
    timestamp: datetime  # of the claim
    attempt: int
    expires_at: datetime
    host: str = ""
    pid: int = 0
    last_seen: datetime | None = None
    lease_seconds: float | None = None  # of its extensions, if the queue keeps it
    # As they were at the last renewal. None if the handler did not beat before, or reported
    # no progress, or the queue does not keep it.
    beat_at: datetime | None = None
    progress: float | None = None

    @property
    def renewed_at(self) -> datetime | None:
        """When the lease was claimed or renewed last, or None if that is unknown."""
        if self.lease_seconds is None:
            return None
        return max(self.timestamp, self.expires_at - timedelta(seconds=self.lease_seconds))


@dataclass(frozen=True, slots=True)
class QueueWorker:
    """A process that polls a queue, or did so lately."""

    worker_id: str
    host: str
    pid: int
    last_seen: datetime | None
    version: str = ""  # empty if a release wrote it that did not record it
    started: datetime | None = None


@dataclass(frozen=True, slots=True)
class PastAttempt:
    """The end of one earlier attempt."""

    attempt: int
    outcome: str  # retried | lost | given back | dead-lettered | cancelled | redriven
    at: datetime
    worker_id: str
    reason: str
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class MessageInfo:
    """One message as the command line shows it."""

    id: str
    key: str  # the adapter's name for this push of the id
    state: MessageState
    attempts: int
    fence: int  # the number of claims, charged or not
    where: str
    due_at: datetime | None = None
    holder: Holder | None = None
    reason: str | None = None
    past: tuple[PastAttempt, ...] = ()
    checkpoint: Any = None
    body: dict[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Some messages of a state, without bodies. `after` continues behind the last, if any."""

    messages: Sequence[MessageInfo]
    after: str | None = None


# -- which messages an operator searches for; see QueueOperator.search


def select_messages(
    messages: Iterable[MessageInfo],
    where: Mapping[str, str],
    error: str | None,
    on_progress: Progress,
) -> Iterator[MessageInfo]:
    """Yield the messages that have these fields and this error.

    With `error`, the messages must come with their past attempts.
    """
    for message in messages:
        on_progress(1)
        if has_fields(message.body, where) and (
            error is None or _mentions_error(message, error)
        ):
            yield message


def has_fields(body: dict[str, Any] | None, where: Mapping[str, str]) -> bool:
    """Return whether a body has all of these fields with these values."""
    return all(_has_field(body or {}, name, text) for name, text in where.items())


def list_paths(name: str) -> list[list[str]]:
    """Return the keys that lead to a field, in each way in which its name can be read."""
    paths = [[name]]
    return [*paths, name.split(".")] if "." in name else paths


def contains_text(text: str | None, part: str) -> bool:
    """Return whether a text contains another, whatever the case."""
    return text is not None and part.casefold() in text.casefold()


def _has_field(body: dict[str, Any], name: str, text: str) -> bool:
    return any(_has_value(body, path, text) for path in list_paths(name))


def _has_value(value: Any, path: list[str], text: str) -> bool:
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return False
        value = value[key]
    if isinstance(value, dict | list):
        return False
    return text == (value if isinstance(value, str) else json.dumps(value))


def _mentions_error(message: MessageInfo, error: str) -> bool:
    reasons = [message.reason, *(past.reason for past in message.past)]
    return any(contains_text(reason, error) for reason in reasons)
