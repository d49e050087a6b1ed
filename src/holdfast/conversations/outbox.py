"""The outbox: how far the reply of a batch has come, written down before each step.

    WritingReply ─▶ PreparedReply ─▶ SendingReply ─▶ SentReply ─▶ (history; the outbox is gone)
     the batch   the reply   part n is   every part
     is fixed    is known    on its way  is out

Who finds `PreparedReply` sends it, who finds `SentReply` only writes the history. `SendingReply` is the one
state of doubt: the provider is asked, then the policy decides. A turn that goes well passes
from the last `SendingReply` to the history in one write; `SentReply` is written when that write fails.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class WriterAnswer:
    """What the writer came up with."""

    text: str = field(repr=False)
    thread_mark: str = ""  # the thread's newest item
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class SentPart:
    """One message the provider took."""

    message_sid: str
    status: str


@dataclass(frozen=True, slots=True)
class WritingReply:
    sids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PreparedReply:
    """`parts` are out, when a later part of a long reply could not be sent."""

    sids: tuple[str, ...]
    answer: WriterAnswer
    parts: tuple[SentPart, ...] = ()


@dataclass(frozen=True, slots=True)
class SendingReply:
    """`parts` are out; the next one may be, since `since` (seconds since the epoch)."""

    sids: tuple[str, ...]
    answer: WriterAnswer
    parts: tuple[SentPart, ...]
    since: float


@dataclass(frozen=True, slots=True)
class SentReply:
    sids: tuple[str, ...]
    answer: WriterAnswer
    parts: tuple[SentPart, ...]


Outbox = WritingReply | PreparedReply | SendingReply | SentReply

_KINDS: dict[str, type[Outbox]] = {
    "writing": WritingReply,
    "prepared": PreparedReply,
    "sending": SendingReply,
    "sent": SentReply,
}
_STATES = {kind: state for state, kind in _KINDS.items()}


def mark_in(outbox: Outbox | None) -> str:
    """The thread's mark behind its reply; '' when none was written."""
    return (
        "" if outbox is None or isinstance(outbox, WritingReply) else outbox.answer.thread_mark
    )


def state_of(outbox: Outbox) -> str:
    return _STATES[type(outbox)]


def plain(outbox: Outbox) -> dict[str, Any]:
    """As plain data, for a store: texts, numbers, lists and mappings."""
    return {"state": state_of(outbox), **asdict(outbox)}


def outbox_of(data: Mapping[str, Any]) -> Outbox:
    """What `plain` made. Raises KeyError, TypeError or ValueError for anything else."""
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
    return kind(**values)
