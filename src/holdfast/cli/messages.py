"""Print messages: as JSON for scripts, and as lines for a terminal."""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from holdfast.cli.console import print_facts, print_json, print_result, print_table
from holdfast.cli.formatting import format_time
from holdfast.core.clock import utc_now

if TYPE_CHECKING:
    from holdfast.core.queue.manager import Holder, MessageInfo, PastAttempt


def print_messages(tasks: "Sequence[MessageInfo]", *, body: bool, as_json: bool) -> None:
    """Print messages as a table or as JSON."""
    if as_json:
        print_json([message_to_json(task, body=body, deep=False) for task in tasks])
        return
    now = utc_now()
    rows = [
        (task.id, str(task.attempts), _summarize_message(task, now))
        + ((json.dumps(task.body, ensure_ascii=False),) if body else ())
        for task in tasks
    ]
    print_table(("id", "attempts", "about", *(("body",) if body else ())), rows)


def print_descriptions(tasks: "Sequence[MessageInfo]", *, body: bool, as_json: bool) -> None:
    """Print everything that is known of some messages, as lines or as JSON."""
    if as_json:
        print_json([message_to_json(task, body=body) for task in tasks])
        return
    for number, task in enumerate(tasks):
        if number:
            print_result("")
        print_facts(describe_message(task, utc_now()), width=11)
        if detail := _find_last_detail(task):
            print_result("detail", *(f"    {line}" for line in detail.splitlines()))
        if body:
            print_result(*format_body(task.body))


def format_body(body: dict[str, Any] | None) -> list[str]:
    """Return the lines of the body as indented JSON."""
    if body is None:
        return ["(the body is not a JSON object)"]
    return json.dumps(body, indent=2, ensure_ascii=False).splitlines()


# -- for scripts


def message_to_json(message: "MessageInfo", *, body: bool, deep: bool = True) -> dict[str, Any]:
    """Return the message as JSON. `deep` adds the parts that only `find` looks up."""
    data: dict[str, Any] = {
        "id": message.id,
        "key": message.key,
        "state": message.state.value,
        "attempts": message.attempts,
        "where": message.where,
        "due_at": _format_iso(message.due_at),
        "lease": _lease_to_json(message.holder),
        "reason": message.reason,
    }
    if deep:
        data["past"] = [_attempt_to_json(past) for past in message.past]
        data["checkpoint"] = message.checkpoint
    if body:
        data["body"] = message.body
    return data


def _lease_to_json(holder: "Holder | None") -> dict[str, Any] | None:
    """Return the seed's lease.json, and what else is known of the holder."""
    if holder is None:
        return None
    return {
        "worker_id": holder.worker_id,
        "timestamp": _format_iso(holder.timestamp),
        "attempt": holder.attempt,
        "expires_at": _format_iso(holder.expires_at),
        "host": holder.host or None,
        "pid": holder.pid or None,
        "last_seen": _format_iso(holder.last_seen),
    }


def _attempt_to_json(past: "PastAttempt") -> dict[str, Any]:
    return {
        "attempt": past.attempt,
        "outcome": past.outcome,
        "at": _format_iso(past.at),
        "worker_id": past.worker_id,
        "reason": past.reason,
        "detail": past.detail,
    }


def _format_iso(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


# -- for a terminal


def describe_message(message: "MessageInfo", now: datetime) -> Iterator[tuple[str, str]]:
    """Yield (heading, text) for `explain`, the most important first."""
    yield "id", message.id
    yield "state", _format_state(message, now)
    if message.holder is not None:
        yield from _describe_holder(message.holder, now)
    if message.reason is not None:
        yield "why", message.reason
    for past in message.past:
        yield _format_heading(past), _format_attempt(past, now)
    if message.checkpoint is not None:
        yield "checkpoint", json.dumps(message.checkpoint, ensure_ascii=False)
    yield "where", message.where


def _format_state(message: "MessageInfo", now: datetime) -> str:
    tried = {0: "not tried yet", 1: "1 attempt"}.get(
        message.attempts, f"{message.attempts} attempts"
    )
    match message.state.value:
        case "pending" if message.due_at is not None and message.due_at > now:
            return f"pending, due {format_time(message.due_at, now)}; {tried}"
        case "failed":
            return f"failed (dead letter); {tried}"
        case state:
            return f"{state}; {tried}"


def _describe_holder(holder: "Holder", now: datetime) -> Iterator[tuple[str, str]]:
    process = f" (pid {holder.pid} on {holder.host})" if holder.host else ""
    yield "held by", holder.worker_id + process
    yield "since", f"{format_time(holder.timestamp, now)}, as attempt {holder.attempt}"
    if holder.expires_at > now:
        yield "until", f"{format_time(holder.expires_at, now)}, unless it is renewed"
    else:
        yield (
            "until",
            f"{format_time(holder.expires_at, now)}: the next worker that polls takes it over",
        )
    if holder.last_seen is not None:
        yield "last seen", format_time(holder.last_seen, now)


def _format_heading(past: "PastAttempt") -> str:
    return past.outcome if past.outcome == "redriven" else f"attempt {past.attempt}"


def _format_attempt(past: "PastAttempt", now: datetime) -> str:
    by = f" by {past.worker_id}" if past.worker_id else ""
    return f"{past.outcome} {format_time(past.at, now)}{by}: {past.reason}"


def _summarize_message(message: "MessageInfo", now: datetime) -> str:
    """Return one cell for a list, with what matters in the message's state."""
    match message.state.value:
        case "pending":
            due = message.due_at
            return f"due {format_time(due, now)}" if due and due > now else "ready"
        case "leased" if (holder := message.holder) is not None:
            expired = "" if holder.expires_at > now else "expired "
            return f"{holder.worker_id}, {expired}{format_time(holder.expires_at, now)}"
        case "failed":
            return message.reason or ""
    return ""


def _find_last_detail(message: "MessageInfo") -> str | None:
    """Return the newest traceback or stack dump, if there is one."""
    return next((past.detail for past in reversed(message.past) if past.detail), None)
