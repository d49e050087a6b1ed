"""`holdfast chat parked` and `hand`: what a person decides."""

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from holdfast.cli.arguments import AsJson
from holdfast.cli.chat import formatting
from holdfast.cli.chat.finding import From, Full, Named, chat, store, the_one
from holdfast.cli.console import (
    info,
    print_json,
    print_result,
    print_table,
    strip_control_characters,
)
from holdfast.cli.durations import in_words
from holdfast.cli.errors import ExitCode, NotFound, UsageError
from holdfast.conversations.errors import ParkedNotFound
from holdfast.conversations.outbox import state_of
from holdfast.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from holdfast.bootstrap.chats import ChatApp
    from holdfast.conversations.model import ParkedBatch

HEADINGS = ("parked", "conversation", "messages", "reply", "age", "reason")
Verb = Literal["retry", "sent", "drop"]


def parked(
    retry: Annotated[
        str | None, typer.Option(metavar="ID", help="Have it answered after all.")
    ] = None,
    sent: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Its reply is out: write it into the history."),
    ] = None,
    drop: Annotated[
        str | None, typer.Option(metavar="ID", help="Forget it: no reply is wanted.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bodies: Annotated[
        bool, typer.Option("--body", help="Show the messages themselves, too.")
    ] = False,
    full: Full = False,
    as_json: AsJson = False,
) -> None:
    """Batches that wait for a person: why, since when; and what is to become of them."""
    given: dict[Verb, str | None] = {"retry": retry, "sent": sent, "drop": drop}
    chosen = [(verb, name) for verb, name in given.items() if name is not None]
    if len(chosen) > 1:
        raise UsageError("one at a time: --retry, --sent or --drop")
    if chosen:
        _decide(*chosen[0], yes=yes, full=full, as_json=as_json)
    else:
        _list(bodies, full, as_json)


def _list(bodies: bool, full: bool, as_json: bool) -> None:
    with store() as kept:
        found = list(kept.parked())
    if as_json:
        print_json([formatting.parked_json(one, full) for one in found])
        return
    print_table(HEADINGS, [_row(one, full) for one in found])
    for one in found if bodies else ():
        print_result(f"\n{one.parked_id}")
        for row in one.staged:
            for line in formatting.lines_of(
                "customer", formatting.staged_at(row), formatting.body_of(row)
            ):
                print_result(line)


def _row(one: "ParkedBatch", full: bool) -> tuple[str, ...]:
    return (
        one.parked_id,
        formatting.id_of(one.key.conversation_id, full),
        f"{len(one.staged)}",
        "-" if one.outbox is None else state_of(one.outbox),
        in_words(max(0.0, SYSTEM_CLOCK.time() - one.parked_at)),
        one.reason,
    )


_DONE = {
    "retry": "staged again: it is answered while `holdfast chat work` runs",
    "sent": "its reply counts as sent",
    "drop": "forgotten",
}


def _decide(verb: Verb, parked_id: str, *, yes: bool, full: bool, as_json: bool) -> None:
    with chat() as app:
        if verb == "drop" and not yes:
            _ask()
        try:
            one = _done(app, verb, parked_id)
        except ParkedNotFound:
            raise NotFound(
                f"nothing is parked as {parked_id!r}: `holdfast chat parked` lists what is"
            ) from None
    if as_json:
        print_json(formatting.parked_json(one, full))
    else:
        print_result(f"{strip_control_characters(one.parked_id)}: {_DONE[verb]}")


def _done(app: "ChatApp", verb: Verb, parked_id: str) -> "ParkedBatch":
    match verb:
        case "retry":
            return app.desk.retry(parked_id)
        case "sent":
            return app.desk.sent(parked_id)
        case "drop":
            return app.desk.drop(parked_id)


def _ask() -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("dropping is for good: add --yes to do it without being asked")
    if not typer.confirm("Drop these messages for good, unanswered?", err=True):
        info("nothing was dropped")
        raise typer.Exit(ExitCode.NO)


def assign(
    conversation: Named,
    *,
    to: Annotated[
        str, typer.Option("--to", metavar="person|writer", help="Who answers from now on.")
    ],
    address: From = None,
    as_json: AsJson = False,
) -> None:
    """Hand a conversation to a person, whose messages are then parked, or to the writer."""
    if to not in ("person", "writer"):
        raise UsageError(f"--to {to!r}: it is person or writer")
    with chat() as app:
        key = the_one(app.store, conversation, address).key
        done = app.desk.hand_over(key) if to == "person" else app.desk.take_back(key)
    name = formatting.id_of(key.conversation_id, full=False)
    if not done:
        raise NotFound(f"there is no conversation {name!r} any more")
    if as_json:
        print_json({"conversation": name, "with": to})
    else:
        print_result(f"{strip_control_characters(name)}: {_handed(to)}")


def _handed(to: str) -> str:
    if to == "person":
        return "a person answers; new messages are parked (`holdfast chat parked`)"
    return "the writer answers again"
