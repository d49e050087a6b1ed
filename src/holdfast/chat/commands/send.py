"""`holdfast chat send`: stage messages as if a provider had delivered them."""

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.chat.commands.inspect import MASKED, history_to_json
from holdfast.chat.errors import InvalidInbound
from holdfast.cli.arguments import STDIN, AsJson
from holdfast.cli.console import info, print_either
from holdfast.cli.errors import InputRefused, NotFound, UsageError
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.text import format_duration

if TYPE_CHECKING:
    from holdfast.chat.building import ChatApp
    from holdfast.chat.model import ConversationKey, HistoryMessage

_POLL_SECONDS = 0.2
_MAX_HISTORY = 100  # messages that are searched for the reply


def send(
    text: Annotated[
        str,
        typer.Argument(
            metavar="TEXT", help="The message; - reads one per line from standard input."
        ),
    ],
    address: Annotated[
        str,
        "--from",
        "ADDRESS",
        "The sender: whatsapp:NAME, a number for SMS, or a mail address.",
    ] = "whatsapp:you",
    to: Annotated[str, "ADDRESS", "The recipient, which selects the profile."] = "",
    conversation: Annotated[
        str,
        "--id",
        "CONVERSATION",
        "The conversation; by default that of the two addresses.",
    ] = "",
    sid: Annotated[
        str | None, "The id of the message; the same id is staged only once."
    ] = None,
    wait: Annotated[bool, "Wait for the reply."] = False,
    timeout: Annotated[float | None, "Maximum time to wait for the reply."] = None,
    as_json: AsJson = False,
) -> None:
    """Send a message as a customer. Without a profile, a new conversation gets an echo."""
    from holdfast.chat.building import LOCAL_PROFILE, build_chat

    if text == STDIN and sid is not None:
        raise UsageError(
            "--sid needs a single message, but - reads many; give the text as an argument"
        )
    fields = {
        "primary_channel": address,
        "recipient": to,
        "conversation_id": conversation,
        "message_sid": sid,
    }
    with build_chat(os.environ, fallback=LOCAL_PROFILE) as app:
        key, sids = _stage(app, fields, text)
        if not wait:
            _print_staged(app, key, sids, as_json)
            return
        replies = _wait_for_reply(app, key, sids, timeout)
        lines = (line for reply in replies for line in reply.body.splitlines())
        print_either(as_json, [history_to_json(reply) for reply in replies], *lines)


def _stage(
    app: "ChatApp", fields: dict[str, str | None], text: str
) -> "tuple[ConversationKey, list[str]]":
    """Stage each message as it arrives.

    Raises InputRefused, which says how many messages were staged before.
    """
    from holdfast.chat.messages import parse_inbound
    from holdfast.queue.message import make_id

    key: ConversationKey | None = None
    sids: list[str] = []
    for where, line in _read_texts(text):
        try:
            sid = fields["message_sid"]
            made = {"message_sid": f"local-{make_id()}" if sid is None else sid, "body": line}
            message = parse_inbound({**fields, **made})
        except InvalidInbound as problem:
            before = f"; the {len(sids):,} before it were staged" if sids else ""
            raise InputRefused(f"{where}{problem}{before}") from None
        key = app.stager.stage(message).key
        sids.append(message.message_sid)
    if key is None:
        raise InputRefused("standard input has no message: write one per line")
    return key, sids


def _read_texts(text: str) -> Iterator[tuple[str, str]]:
    """Yield each message after its place in the input."""
    if text != STDIN:
        yield "", text
        return
    if sys.stdin is None:
        raise UsageError("standard input is closed; give the text as an argument instead")
    for number, line in enumerate(sys.stdin.buffer, 1):
        if line.strip():
            # Bytes that are not UTF-8 become surrogates, which are refused like other bad text.
            decoded = line.decode("utf-8", "surrogateescape").rstrip("\r\n")
            yield f"line {number}: ", decoded


def _print_staged(
    app: "ChatApp", key: "ConversationKey", sids: list[str], as_json: bool
) -> None:
    name = key.conversation_id
    print_either(as_json, {"conversation": name, "staged": sids}, MASKED.format_id(name))
    if not as_json:
        window = format_duration(app.settings.window_seconds)
        info(f"staged {len(sids):,}; `holdfast chat work` answers in about {window}")


# -- the reply


def _wait_for_reply(
    app: "ChatApp", key: "ConversationKey", sids: list[str], timeout: float | None
) -> "list[HistoryMessage]":
    """Wait for the replies, usually one, and return them in order.

    Raises NotFound if none came in time or the batch was parked.
    """
    policy = app.settings.policy  # a reply takes at most this long if nothing fails
    seconds = policy.max_wait_seconds + policy.writer_seconds + policy.sender_seconds
    if timeout is not None:
        seconds = timeout
    until = SYSTEM_CLOCK.monotonic() + seconds
    while app.store.processed(key, sids) != set(sids):
        if SYSTEM_CLOCK.monotonic() >= until:
            raise NotFound(
                f"no reply after {format_duration(seconds)}; the message is kept: run "
                "`holdfast chat work`, here or in another terminal"
            )
        SYSTEM_CLOCK.sleep(_POLL_SECONDS)
    for batch in app.store.parked():
        if not set(sids).isdisjoint(batch.sids):
            raise NotFound(
                f"the batch was parked ({batch.reason}); decide with `holdfast chat parked`"
            )
    return _find_replies(app, key, set(sids))


def _find_replies(
    app: "ChatApp", key: "ConversationKey", sids: set[str]
) -> "list[HistoryMessage]":
    """Return the replies to batches that hold one of the messages."""
    history = app.store.history(key, limit=_MAX_HISTORY)
    batches = {
        message.seq
        for message in history
        if message.role == "user"
        and not sids.isdisjoint([message.message_sid, *message.details.get("sids", ())])
    }
    return [
        message
        for message in history
        if message.role == "assistant" and message.seq - 1 in batches
    ]
