"""The outbox: the state of a batch's reply, noted before each step.

    WritingReply ─▶ PreparedReply ─▶ SendingReply ─▶ SentReply ─▶ (history, no outbox)
     the batch       the reply        part n is       every part
     is fixed        is known         being sent      was sent
                                         │  ▲
                                         ▼  │ send again
                                      UnclearReply
                                       the call is over, without a clear answer

A worker that finds `PreparedReply` sends it, and one that finds `SentReply` only writes the
history. In `SendingReply` and `UnclearReply` it is unknown whether a part was sent: the
provider is queried, then the policy decides (see replies.py). A turn without failures goes
from the last `SendingReply` to the history in one write. `SentReply` is noted only when that
write fails.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class WriterAnswer:
    """The reply as the writer returned it."""

    text: str = field(repr=False)
    thread_mark: str = ""  # the thread's newest item
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class SentPart:
    """One message that the provider accepted."""

    message_sid: str
    status: str


@dataclass(frozen=True, slots=True)
class WritingReply:
    """The batch is fixed, and the writer is being asked for its reply."""

    sids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PreparedReply:
    """The reply is known; `parts` were sent if a later part of a long reply failed."""

    sids: tuple[str, ...]
    answer: WriterAnswer
    parts: tuple[SentPart, ...] = ()


@dataclass(frozen=True, slots=True)
class SendingReply:
    """One part is being sent.

    `parts` were sent before. The next one may have been sent since `since`, in seconds since
    the epoch.
    """

    sids: tuple[str, ...]
    answer: WriterAnswer
    parts: tuple[SentPart, ...]
    since: float


@dataclass(frozen=True, slots=True)
class UnclearReply:
    """The call that sent one part is over, and its answer does not say whether it was sent.

    Unlike with `SendingReply`, no process can still be about to send. `sends` counts how
    often the part was handed over; `since` is the time before the first of these.
    """

    sids: tuple[str, ...]
    answer: WriterAnswer
    parts: tuple[SentPart, ...]
    since: float
    sends: int


@dataclass(frozen=True, slots=True)
class SentReply:
    """Every part was sent, and only the history is missing."""

    sids: tuple[str, ...]
    answer: WriterAnswer
    parts: tuple[SentPart, ...]


Outbox = WritingReply | PreparedReply | SendingReply | UnclearReply | SentReply

_KINDS: dict[str, type[Outbox]] = {
    "writing": WritingReply,
    "prepared": PreparedReply,
    "sending": SendingReply,
    "unclear": UnclearReply,
    "sent": SentReply,
}
_STATES = {kind: state for state, kind in _KINDS.items()}


def get_answer(outbox: Outbox | None) -> WriterAnswer | None:
    """Return the writer's answer, or None when no reply was written."""
    return None if outbox is None or isinstance(outbox, WritingReply) else outbox.answer


def get_thread_mark(outbox: Outbox | None) -> str:
    """Return the thread's mark after the reply, or '' when no reply was written."""
    answer = get_answer(outbox)
    return answer.thread_mark if answer else ""


def get_outbox_state(outbox: Outbox) -> str:
    """Return the stored name of the outbox's state."""
    return _STATES[type(outbox)]


def to_plain_data(outbox: Outbox) -> dict[str, Any]:
    """Convert the outbox for a store into texts, numbers, lists and mappings."""
    return {"state": get_outbox_state(outbox), **asdict(outbox)}


def outbox_from_data(data: Mapping[str, Any]) -> Outbox:
    """Convert what `to_plain_data` returned back into an outbox.

    Raises KeyError, TypeError or ValueError for anything else.
    """
    values = dict(data)
    kind = _KINDS[values.pop("state")]
    values["sids"] = tuple(values["sids"])
    if "answer" in values:
        answer = dict(values["answer"])
        for count in ("prompt_tokens", "completion_tokens"):
            answer[count] = int(answer.get(count, 0))
        values["answer"] = WriterAnswer(**answer)
    if "parts" in values:
        values["parts"] = tuple(SentPart(**part) for part in values["parts"])
    if "since" in values:
        values["since"] = float(values["since"])
    if "sends" in values:
        values["sends"] = int(values["sends"])
    return kind(**values)
