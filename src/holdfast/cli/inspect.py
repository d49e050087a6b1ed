"""The read-only commands `status`, `list`, `show`, `explain`, `dead list` and `dead show`."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.arguments import (
    MAX_COUNT,
    AsJson,
    Queue,
    QueueAndId,
    WithBody,
    is_service,
    make_duration_option,
    open_manager,
    parse_choice,
    split_queue_and_one,
    to_limit,
)
from holdfast.cli.console import (
    make_console,
    print_facts,
    print_json,
    print_list,
    print_result,
    print_table,
)
from holdfast.cli.errors import NotFound
from holdfast.cli.formatting import format_duration, format_time
from holdfast.cli.ids import complete_id, list_message_ids
from holdfast.cli.search import parse_fields, search_messages
from holdfast.lease.clock import SYSTEM_CLOCK, utc_now
from holdfast.text import format_count

if TYPE_CHECKING:
    from holdfast.queue.manager import (
        Holder,
        MessageInfo,
        PastAttempt,
        QueueManager,
        QueueStats,
    )
    from holdfast.queue.message import AnyMessage

_STATES = ("ready", "delayed", "leased", "completed", "failed")
_STORED_STATES = ("pending", "leased", "failed", "completed")
_ID = ("ID", "explain enrich 4f1c")  # with an example


@dataclass(frozen=True, slots=True)
class ListOptions:
    """The options of commands that list messages."""

    limit: Annotated[
        int, typer.Option(min=0, max=MAX_COUNT, help="Show at most this many; 0 for all.")
    ] = 100
    body: WithBody = False
    as_json: AsJson = False

    def print_messages(
        self, messages: "Sequence[MessageInfo]", *, with_state: bool = False
    ) -> None:
        """Print the messages as a table or as JSON, the table with their states if asked."""
        now = utc_now()
        headings = ["id", *(["state"] if with_state else []), "attempts", "about"]
        print_list(
            self.as_json,
            messages,
            lambda message: message_to_json(message, body=self.body, deep=False),
            [*headings, *(["body"] if self.body else [])],
            lambda message: self._to_row(message, with_state, now),
        )

    def _to_row(self, message: "MessageInfo", with_state: bool, now: datetime) -> list[str]:
        row = [message.id, *([message.state.value] if with_state else [])]
        row += [str(message.attempts), _summarize_message(message, now)]
        return [*row, json.dumps(_get_body(message), ensure_ascii=False)] if self.body else row


def status(
    queue: Queue = None,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C.")] = False,
    every: Annotated[float, make_duration_option("Time between two updates.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Show how many messages are ready, leased, completed and failed."""
    with open_manager(queue) as manager:
        if watch:
            _watch(manager, max(every, 0.1), as_json)
        elif as_json:
            print_json(_stats_to_json(manager))
        else:
            print_table(("state", manager.name), _stats_to_rows(manager.stats()))


def _watch(manager: "QueueManager[AnyMessage]", every: float, as_json: bool) -> None:
    """Show the counts until Ctrl-C, which is the normal way to end this."""
    try:
        if sys.stdout.isatty() and not as_json:
            _watch_live(manager, every)
        while True:
            print_json(_stats_to_json(manager)) if as_json else print_result(
                _format_stats(manager)
            )
            SYSTEM_CLOCK.sleep(every)
    except KeyboardInterrupt:
        return


def _watch_live(manager: "QueueManager[AnyMessage]", every: float) -> None:
    from rich.live import Live

    from holdfast.cli.live_view import QueueView

    view = QueueView(manager.name)
    with Live(console=make_console(), auto_refresh=False, transient=False) as live:
        while True:
            view.record(manager.stats(), SYSTEM_CLOCK.monotonic())
            live.update(view.render(), refresh=True)
            SYSTEM_CLOCK.sleep(every)


def _stats_to_json(manager: "QueueManager[AnyMessage]") -> dict[str, Any]:
    return {"queue": manager.name, "at": utc_now(), **asdict(manager.stats())}


def _format_stats(manager: "QueueManager[AnyMessage]") -> str:
    counts = " ".join(f"{k}={v}" for k, v in asdict(manager.stats()).items() if v is not None)
    return f"{utc_now():%H:%M:%S} {manager.name} {counts}"


def _stats_to_rows(stats: "QueueStats") -> list[tuple[str, str]]:
    counts = {state: getattr(stats, state) for state in _STATES}
    rows = [(state, f"{count:,}") for state, count in counts.items() if count is not None]
    if stats.oldest_ready_seconds is not None:
        rows.append(("oldest ready", format_duration(stats.oldest_ready_seconds)))
    if stats.expired:
        rows.append(("expired leases", f"{stats.expired:,}"))
    if stats.foreign:
        rows.append(("foreign files", f"{stats.foreign:,} (see `holdfast doctor`)"))
    return rows


def list_(
    queue: Queue = None,
    state: Annotated[
        str | None,
        typer.Option(
            help="pending, leased, completed or failed; by default pending, or any state with "
            "--where or --error.",
            metavar="STATE",
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            help="Only messages whose body has this value in this field, which may be nested "
            "(site.host=example.com). Can be repeated.",
            metavar="FIELD=VALUE",
        ),
    ] = None,
    error: Annotated[
        str | None,
        typer.Option(
            help="Only messages that failed with a reason that contains this text.",
            metavar="TEXT",
        ),
    ] = None,
    *,
    options: ListOptions,
) -> None:
    """List messages by their state, the fields of their bodies, or their errors."""
    from holdfast.queue.manager import MessageState

    chosen = parse_choice("--state", state, MessageState) if state is not None else None
    fields = parse_fields(where or ())
    is_search = bool(fields) or error is not None
    with open_manager(queue) as manager:
        messages = (
            search_messages(manager, chosen, fields, error, to_limit(options.limit))
            if is_search
            else list(manager.peek(chosen or MessageState.PENDING, to_limit(options.limit)))
        )
    options.print_messages(messages, with_state=is_search and chosen is None)


def show(words: QueueAndId = None, as_json: AsJson = False) -> None:
    """Show a message with its body."""
    messages = _find_messages(words)
    if as_json:
        print_json([message_to_json(message, body=True) for message in messages])
        return
    for message in messages:
        print_facts(islice(_describe_message(message, utc_now()), 2), width=11)
        print_result(*_format_body(_get_body(message)))


def explain(words: QueueAndId = None, body: WithBody = False, as_json: AsJson = False) -> None:
    """Show a message's holder, lease, past attempts and last error."""
    _print_descriptions(_find_messages(words), body=body, as_json=as_json)


def _find_messages(words: Sequence[str] | None) -> "list[MessageInfo]":
    """Return every message with the given id, or with the only id that begins with it.

    Raises NotFound, and UsageError if several ids begin with it.
    """
    queue, message_id = split_queue_and_one(words, *_ID)
    with open_manager(queue) as manager:
        messages = manager.find(message_id)
        if not messages:
            full = complete_id(message_id, list_message_ids(manager, _STORED_STATES))
            messages = manager.find(full) if full != message_id else []
        if messages:
            return messages
        raise NotFound(
            f"there is no message {message_id!r} in {manager.name}: see `holdfast list`; "
            "completed messages are removed by a purge"
        )


# -- dead letters


def list_dead_letters(queue: Queue = None, *, options: ListOptions) -> None:
    """List dead letters with their reasons."""
    with open_manager(queue) as manager:
        letters = list(manager.dead_letters(to_limit(options.limit)))
    options.print_messages(letters)


def show_dead_letter(
    words: QueueAndId = None, body: WithBody = False, as_json: AsJson = False
) -> None:
    """Show a dead letter with its reason, its attempts and the last traceback."""
    queue, message_id = split_queue_and_one(words, *_ID)
    with open_manager(queue) as manager:
        _print_descriptions(_find_dead_letters(manager, message_id), body=body, as_json=as_json)


def _find_dead_letters(
    manager: "QueueManager[AnyMessage]", message_id: str
) -> "list[MessageInfo]":
    """Return the dead letters with an id, or with the only id that begins with it.

    Raises NotFound, and UsageError if several ids begin with it.
    """
    remedy = "see `holdfast dead list`"
    if is_service(manager):
        messages = list(manager.dead_letters(to_limit(0)))
        full = complete_id(message_id, (message.id for message in messages))
        messages = [message for message in messages if message.id == full]
    elif messages := manager.find(message_id):
        remedy = "`holdfast explain` shows its state"
    else:
        messages = manager.find(complete_id(message_id, list_message_ids(manager, ["failed"])))
    letters = [message for message in messages if message.state.value == "failed"]
    if not letters:
        raise NotFound(f"there is no dead letter {message_id!r} in {manager.name}: {remedy}")
    return letters


# -- a message for scripts


def message_to_json(message: "MessageInfo", *, body: bool, deep: bool = True) -> dict[str, Any]:
    """Return the message as JSON. `deep` adds the parts that only `find` looks up."""
    hidden = {"fence"}
    hidden |= set() if deep else {"past", "checkpoint"}
    hidden |= set() if body else {"body"}
    data = {name: value for name, value in asdict(message).items() if name not in hidden}
    if body:
        data["body"] = _get_body(message)
    if holder := data["holder"]:
        holder |= {"host": holder["host"] or None, "pid": holder["pid"] or None}
    return {"lease" if name == "holder" else name: value for name, value in data.items()}


def _get_body(message: "MessageInfo") -> dict[str, Any] | None:
    """Return the body with the attempts of the message, which are stored outside of it."""
    if message.body is None or "attempts" not in message.body:
        return message.body
    return {**message.body, "attempts": message.attempts}


# -- a message for a terminal


def _print_descriptions(
    messages: "Sequence[MessageInfo]", *, body: bool, as_json: bool
) -> None:
    """Print everything that is known of some messages, as lines or as JSON."""
    if as_json:
        print_json([message_to_json(message, body=body) for message in messages])
        return
    for number, message in enumerate(messages):
        if number:
            print_result("")
        print_facts(_describe_message(message, utc_now()), width=11)
        if detail := _find_last_detail(message):
            print_result("detail", *(f"    {line}" for line in detail.splitlines()))
        if body:
            print_result(*_format_body(_get_body(message)))


def _format_body(body: dict[str, Any] | None) -> list[str]:
    """Return the lines of the body as indented JSON."""
    if body is None:
        return ["(the body is not a JSON object)"]
    return json.dumps(body, indent=2, ensure_ascii=False).splitlines()


def _describe_message(message: "MessageInfo", now: datetime) -> Iterator[tuple[str, str]]:
    """Yield (heading, text) for `explain`, the most important first."""
    yield "id", message.id
    yield "state", _format_state(message, now)
    if message.holder is not None:
        yield from _describe_holder(message.holder, now)
    if message.reason is not None:
        yield "why", message.reason
    for past in message.past:
        yield _describe_attempt(past, now)
    if message.checkpoint is not None:
        yield "checkpoint", json.dumps(message.checkpoint, ensure_ascii=False)
    yield "where", message.where


def _format_state(message: "MessageInfo", now: datetime) -> str:
    tried = format_count(message.attempts, "attempt") if message.attempts else "not tried yet"
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
    what_next = ": the next worker that polls takes it over"
    if holder.expires_at > now:
        what_next = ", unless it is renewed"
    yield "until", f"{format_time(holder.expires_at, now)}{what_next}"
    if holder.last_seen is not None:
        yield "last seen", format_time(holder.last_seen, now)


def _describe_attempt(past: "PastAttempt", now: datetime) -> tuple[str, str]:
    by_operator = past.outcome in ("redriven", "cancelled")
    heading = past.outcome if by_operator else f"attempt {past.attempt}"
    preposition = "while it was held by" if by_operator else "by"
    by = f" {preposition} {past.worker_id}" if past.worker_id else ""
    return heading, f"{past.outcome} {format_time(past.at, now)}{by}: {past.reason}"


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
