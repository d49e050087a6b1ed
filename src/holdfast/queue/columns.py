"""The columns of messages and leases, in every list of the command line and the console."""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from holdfast.listing import Cell, Field, Mark, Meter, Moment, Tone
from holdfast.queue.info import Holder, MessageInfo
from holdfast.queue.watch import LeaseHealth, judge_lease

_TONES: dict[LeaseHealth, Tone] = {
    LeaseHealth.HELD: "good",
    LeaseHealth.STALLED: "warn",
    LeaseHealth.AT_RISK: "warn",
    LeaseHealth.EXPIRED: "bad",
}


def get_body(message: MessageInfo) -> dict[str, Any] | None:
    """Return the body with the attempts of the message, which are stored outside of it."""
    if message.body is None or "attempts" not in message.body:
        return message.body
    return {**message.body, "attempts": message.attempts}


def _summarize(message: MessageInfo, now: datetime) -> Cell:
    """Return what matters in the message's state."""
    due, holder = message.due_at, message.holder
    match message.state.value:
        case "pending" if due is not None and due > now:
            return "due", Moment(due, "until")
        case "pending":
            return "ready" if due is None else ("ready for", Moment(due, "since"))
        case "leased" if holder is not None:
            ends = "ends" if holder.expires_at > now else "expired"
            return f"{holder.worker_id},", ends, Moment(holder.expires_at, "until")
    return message.reason or message.state.value


MESSAGE_FIELDS: tuple[Field[MessageInfo], ...] = (
    Field("id", lambda message, now: message.id, "id"),
    Field("state", lambda message, now: message.state.value),
    Field("attempts", lambda message, now: message.attempts, "num"),
    Field("about", _summarize, "wide"),
    Field("body", lambda message, now: json.dumps(get_body(message), ensure_ascii=False)),
)


def select_message_fields(
    *, state: bool = False, body: bool = False
) -> list[Field[MessageInfo]]:
    """Return the columns of a list of messages, with their states or bodies if asked."""
    shown = {"state": state, "body": body}
    return [field for field in MESSAGE_FIELDS if shown.get(field.name, True)]


# -- leases


def _show_progress(holder: Holder, now: datetime) -> Cell:
    cells: list[Cell] = []
    if holder.progress is not None and 0 <= holder.progress <= 1:
        cells += [Meter(holder.progress, 1, "Progress of the handler")]
        cells += [f"{holder.progress:.0%}"]
    elif holder.progress is not None:
        cells += [holder.progress]
    if judge_lease(holder, now) is LeaseHealth.STALLED:
        cells += [Mark("stalled", "warn")]
    if holder.beat_at is not None:
        cells += [", beat" if cells else "beat", Moment(holder.beat_at)]
    return tuple(cells) or "unknown"


def _show_left(holder: Holder, now: datetime) -> Cell:
    health, left = judge_lease(holder, now), (holder.expires_at - now).total_seconds()
    whole = holder.lease_seconds or (holder.expires_at - holder.timestamp).total_seconds()
    meter = Meter(left, whole, "Time left of the lease", _TONES[health], holder.expires_at)
    if health is LeaseHealth.EXPIRED:
        return "ended", Moment(holder.expires_at), ", waits for a worker", meter
    at_risk = ", at risk" if health is LeaseHealth.AT_RISK else ""
    return Moment(holder.expires_at, "left"), at_risk, meter


def _read_holder(
    read: Callable[[Holder, datetime], Cell],
) -> Callable[[MessageInfo, datetime], Cell]:
    return lambda message, now: read(message.holder, now) if message.holder else None


LEASE_FIELDS: tuple[Field[MessageInfo], ...] = (
    Field("message", lambda message, now: message.id, "id", 8, 36),
    Field("worker", _read_holder(lambda holder, now: holder.worker_id), "id", 4, 30),
    Field("attempt", _read_holder(lambda holder, now: holder.attempt), "num"),
    Field(
        "held for", _read_holder(lambda holder, now: Moment(holder.timestamp, "since")), "num"
    ),
    Field("progress", _read_holder(_show_progress), "", 8),
    Field("redelivered if it died now", _read_holder(_show_left), "", 12),
)
