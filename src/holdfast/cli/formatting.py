"""A task as JSON for scripts, and as lines for people."""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from holdfast.cli.durations import in_words

if TYPE_CHECKING:
    from holdfast.core.queue.manager import Holder, MessageInfo, PastAttempt


def as_json(view: "MessageInfo", *, body: bool, deep: bool = True) -> dict[str, Any]:
    """Everything known of it; `deep` with what only `find` looks up."""
    data: dict[str, Any] = {
        "id": view.id,
        "key": view.key,
        "state": view.state.value,
        "attempts": view.attempts,
        "where": view.where,
        "due_at": _iso(view.due_at),
        "lease": lease_json(view.holder),
        "reason": view.reason,
    }
    if deep:
        data["past"] = [_past_json(past) for past in view.past]
        data["checkpoint"] = view.checkpoint
    if body:
        data["body"] = view.body
    return data


def lease_json(holder: "Holder | None") -> dict[str, Any] | None:
    """The seed's lease.json, and what else is known of the holder."""
    if holder is None:
        return None
    return {
        "worker_id": holder.worker_id,
        "timestamp": _iso(holder.timestamp),
        "attempt": holder.attempt,
        "expires_at": _iso(holder.expires_at),
        "host": holder.host or None,
        "pid": holder.pid or None,
        "last_seen": _iso(holder.last_seen),
    }


def _past_json(past: "PastAttempt") -> dict[str, Any]:
    return {
        "attempt": past.attempt,
        "outcome": past.outcome,
        "at": _iso(past.at),
        "worker_id": past.worker_id,
        "reason": past.reason,
        "detail": past.detail,
    }


def _iso(when: datetime | None) -> str | None:
    return when.isoformat() if when else None


def story(view: "MessageInfo", now: datetime) -> Iterator[tuple[str, str]]:
    """What `explain` tells: (heading, text) in the order of interest."""
    yield "id", view.id
    yield "state", _state(view, now)
    if view.holder is not None:
        yield from _holding(view.holder, now)
    if view.reason is not None:
        yield "why", view.reason
    for past in view.past:
        yield _heading(past), _told(past, now)
    if view.checkpoint is not None:
        yield "checkpoint", json.dumps(view.checkpoint, ensure_ascii=False)
    yield "where", view.where


def _state(view: "MessageInfo", now: datetime) -> str:
    tried = {0: "not tried yet", 1: "1 attempt"}.get(view.attempts, f"{view.attempts} attempts")
    match view.state.value:
        case "pending" if view.due_at is not None and view.due_at > now:
            return f"pending, due {when(view.due_at, now)}; {tried}"
        case "failed":
            return f"failed, a dead letter; {tried}"
        case state:
            return f"{state}; {tried}"


def _holding(holder: "Holder", now: datetime) -> Iterator[tuple[str, str]]:
    process = f" (pid {holder.pid} on {holder.host})" if holder.host else ""
    yield "held by", holder.worker_id + process
    yield "since", f"{when(holder.timestamp, now)}, as attempt {holder.attempt}"
    if holder.expires_at > now:
        yield "until", f"{when(holder.expires_at, now)}, unless it is renewed"
    else:
        yield (
            "until",
            (f"{when(holder.expires_at, now)}: the next worker that polls takes it over"),
        )
    if holder.last_seen is not None:
        yield "last seen", when(holder.last_seen, now)


def _heading(past: "PastAttempt") -> str:
    return past.outcome if past.outcome == "redriven" else f"attempt {past.attempt}"


def _told(past: "PastAttempt", now: datetime) -> str:
    by = f" by {past.worker_id}" if past.worker_id else ""
    return f"{past.outcome} {when(past.at, now)}{by}: {past.reason}"


def when(moment: datetime, now: datetime) -> str:
    """A time as people want it: the clock, and how far away it is."""
    away = (moment - now).total_seconds()
    clock = f"{moment:%H:%M:%S}" if abs(away) < 43_200 else f"{moment:%Y-%m-%d %H:%M}"
    return f"{clock} UTC ({f'in {in_words(away)}' if away > 0 else f'{in_words(-away)} ago'})"


def summary(view: "MessageInfo", now: datetime) -> str:
    """One cell for a list: what matters in this state."""
    match view.state.value:
        case "pending":
            due = view.due_at
            return f"due {when(due, now)}" if due and due > now else "ready"
        case "leased" if view.holder is not None:
            over = "" if view.holder.expires_at > now else "ran out "
            return f"{view.holder.worker_id}, {over}{when(view.holder.expires_at, now)}"
        case "failed":
            return view.reason or ""
    return ""


def last_detail(view: "MessageInfo") -> str | None:
    """The newest traceback or stack dump."""
    return next((past.detail for past in reversed(view.past) if past.detail), None)
