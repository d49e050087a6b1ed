"""`holdfast chat send`: be the customer. Messages are staged as if a provider brought them."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.arguments import AsJson
from holdfast.cli.chat.formatting import id_of, message_json
from holdfast.cli.chat.reply import ReplyWait, await_reply
from holdfast.cli.console import info, print_json, print_result, strip_control_characters
from holdfast.cli.durations import in_words, seconds
from holdfast.cli.errors import InputRefused, UsageError
from holdfast.conversations.errors import InvalidInbound

if TYPE_CHECKING:
    from holdfast.bootstrap.chats import ChatApp
    from holdfast.conversations.messages import Inbound
    from holdfast.conversations.model import ConversationKey

_STDIN = "-"


@dataclass(frozen=True, slots=True)
class SendOptions:
    """Who writes, to whom, and in which conversation."""

    address: str
    recipient: str
    conversation_id: str

    def message(self, text: str, sid: str | None) -> "Inbound":
        """Raises InvalidInbound."""
        from holdfast.conversations.messages import inbound_of
        from holdfast.core.queue.message import new_id

        return inbound_of(
            {
                "message_sid": f"local-{new_id()}" if sid is None else sid,
                "primary_channel": self.address,
                "recipient": self.recipient,
                "conversation_id": self.conversation_id,
                "body": text,
            }
        )


def send(
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="The message; - reads one from each line.")
    ],
    address: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="ADDRESS",
            help="Who writes: whatsapp:NAME, a number for SMS, or a mail address.",
        ),
    ] = "whatsapp:you",
    to: Annotated[
        str,
        typer.Option("--to", metavar="ADDRESS", help="Whom; it chooses the profile."),
    ] = "",
    conversation: Annotated[
        str,
        typer.Option("--id", metavar="CONVERSATION", help="By default the two addresses'."),
    ] = "",
    sid: Annotated[
        str | None,
        typer.Option("--sid", help="The message's own id; the same one is staged once."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the reply.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            parser=seconds, metavar="DURATION", help="How long to wait for it at most."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write as a customer. A new conversation without a profile has an echo for a writer."""
    from holdfast.bootstrap.chat_providers import LOCAL
    from holdfast.bootstrap.chats import build_chat

    if text == _STDIN and sid is not None:
        raise UsageError("--sid is for one message, and - reads many")
    customer = SendOptions(address, to, conversation)
    with build_chat(os.environ, fallback=LOCAL) as app:
        key, sids = _stage(app, customer, text, sid)
        if not wait:
            _tell(app, key, sids, as_json)
            return
        _tell_reply(await_reply(app, key, sids, timeout), as_json)


def _stage(
    app: "ChatApp", customer: SendOptions, text: str, sid: str | None
) -> "tuple[ConversationKey, list[str]]":
    """Each as it comes. Raises InputRefused, saying what was staged before."""
    key: ConversationKey | None = None
    sids: list[str] = []
    for where, line in _texts(text):
        try:
            message = customer.message(line, sid)
        except InvalidInbound as problem:
            before = f"; the {len(sids):,} before it were staged" if sids else ""
            raise InputRefused(f"{where}{problem}{before}") from None
        key = app.stager.stage(message).key
        sids.append(message.message_sid)
    if key is None:
        raise InputRefused("standard input: there is no message in it")
    return key, sids


def _texts(text: str) -> Iterator[tuple[str, str]]:
    """Where it stood, and the message."""
    if text != _STDIN:
        yield "", text
        return
    if sys.stdin is None:
        raise UsageError("standard input is closed: there is nothing to read")
    for number, line in enumerate(sys.stdin.buffer, 1):
        if line.strip():
            # What is no UTF-8 becomes something that is refused like other bad text.
            decoded = line.decode("utf-8", "surrogateescape").rstrip("\r\n")
            yield f"line {number}: ", decoded


def _tell(app: "ChatApp", key: "ConversationKey", sids: list[str], as_json: bool) -> None:
    if as_json:
        print_json({"conversation": key.conversation_id, "staged": sids})
        return
    print_result(strip_control_characters(id_of(key.conversation_id, full=False)))
    window = in_words(app.settings.window_seconds)
    info(f"staged {len(sids):,}: answered in about {window}, while `holdfast chat work` runs")


def _tell_reply(waited: ReplyWait, as_json: bool) -> None:
    if as_json:
        print_json([message_json(one) for one in waited.replies])
        return
    for one in waited.replies:
        for line in one.body.splitlines():
            print_result(strip_control_characters(line))
