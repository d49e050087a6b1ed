"""Commands for messages: `list`, `show`, `explain`, `cancel`, `purge` and those of `dead`."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import islice
from typing import Annotated, Any, Literal

from holdfast.cli.arguments import (
    ANY_COUNT,
    AsJson,
    Queue,
    QueueAndId,
    WithBody,
    Yes,
    is_service,
    open_manager,
    parse_choice,
    split_queue_and_one,
    split_queue_and_rest,
    to_limit,
)
from holdfast.cli.console import (
    NotFound,
    UsageError,
    confirm,
    print_either,
    print_facts,
    print_json,
    print_list,
    print_result,
    strip_control_characters,
)
from holdfast.cli.live_view import ProgressMeter
from holdfast.lease.clock import utc_now
from holdfast.queue.columns import get_body, select_message_fields
from holdfast.queue.info import Holder, MessageInfo, MessageState, PastAttempt
from holdfast.text import format_count, format_time


@dataclass(frozen=True, slots=True)
class ListOptions:
    """The options of commands that list messages."""

    limit: Annotated[int, ANY_COUNT, "Show at most this many; 0 for all."] = 100
    body: WithBody = False
    as_json: AsJson = False

    def print_messages(
        self, messages: Sequence[MessageInfo], *, with_state: bool = False
    ) -> None:
        """Print the messages as a table or as JSON, the table with their states if asked."""
        print_list(
            self.as_json,
            messages,
            lambda message: _to_json(message, body=self.body, deep=False),
            select_message_fields(state=with_state, body=self.body),
        )


def list_(
    queue: Queue = None,
    state: Annotated[
        str | None,
        "STATE",
        "pending, leased, completed or failed; by default pending, or any state with --where "
        "or --error.",
    ] = None,
    where: Annotated[
        list[str] | None,
        "FIELD=VALUE",
        "Only messages whose body has this value in this field, which may be nested "
        "(site.host=example.com). Can be repeated.",
    ] = None,
    error: Annotated[
        str | None,
        "TEXT",
        "Only messages that failed with a reason that contains this text.",
    ] = None,
    *,
    options: ListOptions,
) -> None:
    """List messages by their state, the fields of their bodies, or their errors."""
    chosen = parse_choice("--state", state, MessageState) if state is not None else None
    fields = _parse_fields(where or ())
    is_search = bool(fields) or error is not None
    limit = to_limit(options.limit)
    with open_manager(queue) as manager, ProgressMeter("searching") as meter:
        messages = list(
            manager.search(
                chosen, where=fields, error=error, limit=limit, on_progress=meter.advance
            )
            if is_search
            else manager.peek(chosen or MessageState.PENDING, limit)
        )
    options.print_messages(messages, with_state=is_search and chosen is None)


def _parse_fields(conditions: Sequence[str]) -> dict[str, str]:
    """Return the value of each field. Raises UsageError for a condition of another form."""
    fields: dict[str, str] = {}
    for condition in conditions:
        field, sign, value = condition.partition("=")
        if not field or not sign:
            raise UsageError(
                f"--where must be FIELD=VALUE, as in domain=example.com; got {condition!r}"
            )
        if fields.setdefault(field, value) != value:
            raise UsageError(f"--where {field!r} is given twice, with different values")
    return fields


def show(words: QueueAndId = None, as_json: AsJson = False) -> None:
    """Show a message with its body."""
    _print_messages(_find_messages(words), as_json, body=True, brief=True)


def explain(words: QueueAndId = None, body: WithBody = False, as_json: AsJson = False) -> None:
    """Show a message's holder, lease, past attempts and last error."""
    _print_messages(_find_messages(words), as_json, body=body)


def list_dead_letters(queue: Queue = None, *, options: ListOptions) -> None:
    """List dead letters with their reasons."""
    with open_manager(queue) as manager:
        letters = list(manager.dead_letters(to_limit(options.limit)))
    options.print_messages(letters)


def show_dead_letter(
    words: QueueAndId = None, body: WithBody = False, as_json: AsJson = False
) -> None:
    """Show a dead letter with its reason, its attempts and the last traceback."""
    _print_messages(_find_messages(words, dead=True), as_json, body=body)


def _find_messages(words: Sequence[str] | None, *, dead: bool = False) -> list[MessageInfo]:
    """Return every message, or `dead` letter, with the given id. Raises NotFound."""
    queue, message_id = split_queue_and_one(words, "ID", "explain enrich 4f1c")
    with open_manager(queue) as manager:
        if dead and is_service(manager):
            letters = manager.dead_letters(to_limit(0))
            messages = [letter for letter in letters if letter.id == message_id]
        else:
            messages = manager.find(message_id)
    if chosen := [each for each in messages if each.state.value == "failed" or not dead]:
        return chosen
    missing = "no dead letter" if dead else "no message"
    remedy = "see `holdfast list`; completed messages are removed by a purge"
    if dead:
        remedy = "see `holdfast dead list`"
    if messages:
        remedy = "`holdfast explain` shows its state"
    raise NotFound(f"there is {missing} {message_id!r} in {manager.name}: {remedy}")


# -- a message for scripts


def _to_json(message: MessageInfo, *, body: bool, deep: bool = True) -> dict[str, Any]:
    """Return the message as JSON. `deep` adds the parts that only `find` looks up."""
    hidden = {"fence"}
    hidden |= set() if deep else {"past", "checkpoint"}
    hidden |= set() if body else {"body"}
    data = {name: value for name, value in asdict(message).items() if name not in hidden}
    if body:
        data["body"] = get_body(message)
    if holder := data["holder"]:
        holder |= {"host": holder["host"] or None, "pid": holder["pid"] or None}
    return {"lease" if name == "holder" else name: value for name, value in data.items()}


# -- a message for a terminal


def _print_messages(
    messages: Sequence[MessageInfo], as_json: bool, *, body: bool, brief: bool = False
) -> None:
    """Print everything that is known of some messages, or only their ids and states."""
    if as_json:
        print_json([_to_json(message, body=body) for message in messages])
        return
    for number, message in enumerate(messages):
        if number and not brief:
            print_result("")
        facts = _describe_message(message, utc_now())
        print_facts(islice(facts, 2 if brief else None), width=11)
        if not brief and (detail := _find_last_detail(message)):
            print_result("detail", *(f"    {line}" for line in detail.splitlines()))
        if body and message.body is None:
            print_result("(the body is not a JSON object)")
        elif body:
            text = json.dumps(get_body(message), indent=2, ensure_ascii=False)
            print_result(*text.splitlines())


def _describe_message(message: MessageInfo, now: datetime) -> Iterator[tuple[str, str]]:
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


def _format_state(message: MessageInfo, now: datetime) -> str:
    tried = format_count(message.attempts, "attempt") if message.attempts else "not tried yet"
    match message.state.value:
        case "pending" if message.due_at is not None and message.due_at > now:
            return f"pending, due {format_time(message.due_at, now)}; {tried}"
        case "failed":
            return f"failed (dead letter); {tried}"
        case state:
            return f"{state}; {tried}"


def _describe_holder(holder: Holder, now: datetime) -> Iterator[tuple[str, str]]:
    process = f" (pid {holder.pid} on {holder.host})" if holder.host else ""
    yield "held by", holder.worker_id + process
    yield "since", f"{format_time(holder.timestamp, now)}, as attempt {holder.attempt}"
    what_next = ": the next worker that polls takes it over"
    if holder.expires_at > now:
        what_next = ", unless it is renewed"
    yield "until", f"{format_time(holder.expires_at, now)}{what_next}"
    if holder.last_seen is not None:
        yield "last seen", format_time(holder.last_seen, now)


def _describe_attempt(past: PastAttempt, now: datetime) -> tuple[str, str]:
    by_operator = past.outcome in ("redriven", "cancelled")
    heading = past.outcome if by_operator else f"attempt {past.attempt}"
    preposition = "while it was held by" if by_operator else "by"
    by = f" {preposition} {past.worker_id}" if past.worker_id else ""
    return heading, f"{past.outcome} {format_time(past.at, now)}{by}: {past.reason}"


def _find_last_detail(message: MessageInfo) -> str | None:
    """Return the newest traceback or stack dump, if there is one."""
    return next((past.detail for past in reversed(message.past) if past.detail), None)


# -- changes


def _change(
    words: Sequence[str] | None,
    as_json: bool,
    action: Literal["cancel", "redrive", "drop"],
    verb: str,
    *,
    thing: str = "dead letter",
    shown_by: str = "holdfast dead list",
    alternative: str = "",
    question: str | None = None,
) -> None:
    """Change messages by their ids, and print the total. Raises NotFound for the others.

    `action` is the method of a queue that makes the change. `thing` is what the ids name, and
    `shown_by` a command that lists them. `alternative` says what may be given in place of ids.
    With a `question`, the user has to confirm it first.
    """
    queue, ids = split_queue_and_rest(words, min_rest=1)
    if not ids:
        raise UsageError(
            f"no id is given: give the ids of {thing}s, which `{shown_by}` shows{alternative}"
        )
    with open_manager(queue) as manager:
        if question is not None:
            name = strip_control_characters(manager.name)
            confirm(question.format(count=format_count(len(ids), thing), queue=name))
        change: Callable[[str], int] = getattr(manager, action)
        counts = {message_id: change(message_id) for message_id in ids}
    missing = [message_id for message_id, count in counts.items() if not count]
    total = sum(counts.values())
    print_either(as_json, {verb: total, "missing": missing}, f"{verb} {total:,}")
    if missing:
        ids_text = ", ".join(map(repr, missing))
        raise NotFound(f"found no {thing} {ids_text}: see `{shown_by}`")


def cancel(words: QueueAndId = None, as_json: AsJson = False) -> None:
    """Make waiting or running messages dead letters, and tell their handlers."""
    _change(
        words,
        as_json,
        "cancel",
        "cancelled",
        thing="waiting or leased message",
        shown_by="holdfast list",
    )


def purge(
    queue: Queue = None,
    *,
    older_than: Annotated[float, "Remove messages completed longer ago than this."],
    as_json: AsJson = False,
) -> None:
    """Remove completed messages, and files that killed processes left behind."""
    with open_manager(queue) as manager:
        purged = manager.purge(older_than)
    print_either(as_json, {"purged": purged}, f"purged {purged:,}")


def redrive(
    words: QueueAndId = None,
    everything: Annotated[bool, "--all", "Redrive all dead letters."] = False,
    as_json: AsJson = False,
) -> None:
    """Put dead letters back into the queue and count their attempts from 0 again."""
    if not everything:
        _change(words, as_json, "redrive", "redriven", alternative=", or --all")
        return
    queue, ids = split_queue_and_rest(words, min_rest=0)
    if ids:
        raise UsageError("ids and --all cannot be combined; give one of them")
    with (
        open_manager(queue) as manager,
        ProgressMeter("redriving", manager.stats().failed) as meter,
    ):
        redriven = manager.redrive(on_progress=meter.advance)
    print_either(as_json, {"redriven": redriven, "missing": []}, f"redriven {redriven:,}")


def drop(words: QueueAndId = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove dead letters permanently."""
    question = None if yes else "Permanently drop {count} of {queue}?"
    _change(words, as_json, "drop", "dropped", question=question)
