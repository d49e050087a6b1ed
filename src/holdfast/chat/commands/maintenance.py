"""`holdfast chat assign`, `parked`, `sweep`, `tables` and `doctor`: operate conversations."""

import os
from collections import Counter
from collections.abc import Callable, Collection
from typing import Annotated, Any, Literal

from holdfast.chat.checks import CONVERSATION_STORE, examine_conversations
from holdfast.chat.commands.conversations import (
    MASKED,
    From,
    ViewOptions,
    find_conversation,
    format_staged,
    open_chat,
    open_store,
)
from holdfast.chat.errors import ParkedNotFound, PermanentError, TransientError
from holdfast.chat.model import ParkedBatch
from holdfast.chat.operator import format_body
from holdfast.chat.outbox import SendingReply, UnclearReply, get_outbox_state
from holdfast.chat.ports import ConversationStore
from holdfast.chat.settings import ChatSettings
from holdfast.cli.arguments import AsJson, WithBody, Yes
from holdfast.cli.console import (
    NotFound,
    UsageError,
    confirm,
    print_either,
    print_list,
    print_result,
)
from holdfast.cli.doctor import CreateTables, print_check_results, show_tables
from holdfast.cli.live_view import ProgressMeter
from holdfast.errors import HoldfastError
from holdfast.lease.clock import to_utc
from holdfast.listing import Field, Moment
from holdfast.queue.info import contains_text
from holdfast.settings import read_settings
from holdfast.text import format_count, format_duration

_ASSIGNMENTS = {
    "person": "a person answers; new batches are parked (`holdfast chat parked`)",
    "writer": "the writer answers again",
}


def assign(
    conversation: Annotated[str, "<CONVERSATION>", "Its id, or the beginning of it."],
    *,
    to: Annotated[
        str, "person|writer", "Whether an operator or the writer answers from now on."
    ],
    address: From = None,
    as_json: AsJson = False,
) -> None:
    """Assign a conversation to a person, so that its batches are parked, or to the writer."""
    if to not in ("person", "writer"):
        raise UsageError(f"--to must be person or writer; got {to!r}")
    with open_chat() as app:
        key = find_conversation(app.store, conversation, address).key
        changed = (
            app.operator.assign_to_person(key)
            if to == "person"
            else app.operator.resume_automation(key)
        )
    name = MASKED.format_id(key.conversation_id)
    if not changed:
        raise NotFound(f"conversation {name!r} no longer exists")
    print_either(as_json, {"conversation": name, "with": to}, f"{name}: {_ASSIGNMENTS[to]}")


# -- parked batches

Decision = Literal["retry", "sent", "drop"]
_RESULTS: dict[Decision, str] = {
    "retry": "staged again, for `holdfast chat work`",
    "sent": "recorded as sent",
    "drop": "dropped",
}
_QUESTIONS: dict[Decision, str] = {
    "retry": "Answer {batches} after all?",
    "sent": "Record the replies of {batches} as sent?",
    "drop": "Permanently drop {batches} without a reply?",
}
_MAX_PROBLEMS = 3  # that an error names


def parked(
    parked_id: Annotated[str | None, "<ID>", "The batch to decide about."] = None,
    retry: Annotated[bool, "Answer it after all."] = False,
    sent: Annotated[bool, "Record its reply as sent."] = False,
    drop: Annotated[bool, "Drop it without a reply."] = False,
    everything: Annotated[
        bool, "--all", "Decide about all batches, or all with --reason."
    ] = False,
    reason: Annotated[str, "TEXT", "Only batches whose reason contains this text."] = "",
    yes: Yes = False,
    bodies: WithBody = False,
    *,
    view: ViewOptions,
) -> None:
    """List parked batches with their reasons, or decide about one or all of them."""
    given: dict[Decision, bool] = {"retry": retry, "sent": sent, "drop": drop}
    decisions = [decision for decision, is_given in given.items() if is_given]
    _check_usage(decisions, parked_id, everything, reason)
    if parked_id is not None:
        _decide(decisions[0], parked_id, view, yes=yes)
    elif everything:
        _decide_all(decisions[0], reason, view, yes=yes)
    else:
        _list(reason, bodies, view)


def _check_usage(
    decisions: list[Decision], parked_id: str | None, everything: bool, reason: str
) -> None:
    if len(decisions) > 1:
        raise UsageError("--retry, --sent and --drop cannot be combined; give one of them")
    if decisions and parked_id is None and not everything:
        raise UsageError(
            f"--{decisions[0]} needs the id of a batch, which `holdfast chat parked` shows, "
            "or --all"
        )
    if not decisions and (parked_id is not None or everything):
        raise UsageError("no decision is given: add --retry, --sent or --drop")
    if parked_id is not None and (everything or reason):
        raise UsageError("an id cannot be combined with --all or --reason")


def _list(reason: str, bodies: bool, view: ViewOptions) -> None:
    with open_store() as store:
        batches = _select(store, reason)
    fields: list[Field[ParkedBatch]] = [
        Field("parked", lambda batch, now: batch.parked_id),
        Field("conversation", lambda batch, now: view.format_id(batch.key.conversation_id)),
        Field("messages", lambda batch, now: len(batch.staged)),
        Field("reply", lambda batch, now: _get_reply_state(batch)),
        Field("age", lambda batch, now: Moment(to_utc(batch.parked_at), "since")),
        Field("reason", lambda batch, now: batch.reason),
    ]
    print_list(view.as_json, batches, lambda batch: _to_json(batch, view), fields)
    for batch in batches if bodies and not view.as_json else ():
        print_result("", batch.parked_id)
        for row in batch.staged:
            print_result(*format_staged("customer", row))


def _select(store: ConversationStore, reason: str) -> list[ParkedBatch]:
    return [batch for batch in store.parked() if contains_text(batch.reason, reason)]


def _get_reply_state(batch: ParkedBatch) -> str | None:
    return None if batch.outbox is None else get_outbox_state(batch.outbox)


def _to_json(batch: ParkedBatch, view: ViewOptions) -> dict[str, Any]:
    return {
        "parked": batch.parked_id,
        "conversation": view.format_id(batch.key.conversation_id),
        "reason": batch.reason,
        "parked_at": batch.parked_at,
        "messages": [format_body(staged) for staged in batch.staged],
        "reply": _get_reply_state(batch),
    }


# -- decisions


def _decide(decision: Decision, parked_id: str, view: ViewOptions, *, yes: bool) -> None:
    with open_chat() as app:
        if decision == "drop" and not yes:
            confirm(_QUESTIONS[decision].format(batches="these messages"))
        try:
            batch = getattr(app.operator, decision)(parked_id)
        except ParkedNotFound:
            raise NotFound(
                f"there is no parked batch {parked_id!r}: see `holdfast chat parked`"
            ) from None
    text = f"{batch.parked_id}: {_RESULTS[decision]}"
    print_either(view.as_json, _to_json(batch, view), text)


def _decide_all(decision: Decision, reason: str, view: ViewOptions, *, yes: bool) -> None:
    """Decide about each batch, and print how many there were, also after an error.

    Another operator may decide at the same time. Such a batch is skipped, also if it was
    parked again meanwhile, because that one was not confirmed.
    """
    with open_chat() as app:
        chosen = _select(app.store, reason)
        if chosen and not yes:
            confirm(_ask_about(decision, chosen))
        known = {(batch.parked_id, batch.parked_at) for batch in chosen}
        current = _select(app.store, reason) if chosen else []
        batches = [batch for batch in current if (batch.parked_id, batch.parked_at) in known]
        counts: Counter[str] = Counter()
        problems: dict[str, str] = {}
        try:
            _apply(getattr(app.operator, decision), batches, counts, problems)
        finally:
            skipped = len(chosen) - len(batches) + counts["gone"]
            result = {decision: counts["done"], "skipped": skipped, "failed": problems}
            text = f"{_count_batches(counts['done'])}: {_RESULTS[decision]}"
            others = f"; {skipped:,} decided by another operator" if skipped else ""
            print_either(view.as_json, result, text + others)
    if problems:
        shown = [f"{name}: {text}" for name, text in list(problems.items())[:_MAX_PROBLEMS]]
        raise HoldfastError(
            f"{_count_batches(len(problems))} could not be decided ({'; '.join(shown)})"
        )


def _ask_about(decision: Decision, batches: Collection[ParkedBatch]) -> str:
    question = _QUESTIONS[decision].format(batches=_count_batches(len(batches)))
    unclear = sum(isinstance(batch.outbox, SendingReply | UnclearReply) for batch in batches)
    if decision == "retry" and unclear:
        return f"{unclear:,} of them may have been sent and would be sent twice. {question}"
    return question


def _count_batches(count: int) -> str:
    return format_count(count, "batch", "batches")


def _apply(
    decide: Callable[[str], ParkedBatch],
    batches: Collection[ParkedBatch],
    counts: Counter[str],
    problems: dict[str, str],
) -> None:
    with ProgressMeter("deciding", len(batches)) as meter:
        for batch in batches:
            try:
                decide(batch.parked_id)
                counts["done"] += 1
            except ParkedNotFound:
                counts["gone"] += 1
            except (PermanentError, TransientError) as error:
                problems[batch.parked_id] = str(error)
            meter.advance(1)


# -- maintenance


def sweep(as_json: AsJson = False) -> None:
    """Send new triggers for messages whose trigger was lost. `work` does this too."""
    with open_chat() as app:
        swept = app.sweeper.sweep()
    oldest = (
        f", the longest for {format_duration(swept.oldest_seconds)}" if swept.waiting else ""
    )
    print_either(
        as_json,
        swept,
        f"{format_count(swept.waiting, 'conversation')} waiting{oldest}; "
        f"{swept.triggered:,} triggered, "
        f"{swept.parked:,} parked",
    )


def tables(
    create: CreateTables = False,
    as_json: AsJson = False,
) -> None:
    """Check the DynamoDB tables of conversations."""
    show_tables(
        CONVERSATION_STORE, read_settings(ChatSettings, os.environ).store_url, create, as_json
    )


def doctor(as_json: AsJson = False) -> None:
    """Check settings, store, queues, webhook, profiles and waiting messages for problems."""
    print_check_results(examine_conversations("chat", os.environ), as_json)
