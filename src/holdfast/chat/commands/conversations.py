"""`holdfast chat show`, `outbox` and `send`, and how conversations are found and shown.

Phone numbers and addresses are masked by default, because terminals are shared, filmed and
pasted into tickets. Bodies are shown, without anything that could control the terminal.
"""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from holdfast.chat.building import (
    LOCAL_PROFILE,
    ChatApp,
    build_chat,
    open_conversations,
    read_outbox,
)
from holdfast.chat.errors import InvalidInbound
from holdfast.chat.messages import parse_inbound
from holdfast.chat.model import (
    Conversation,
    ConversationKey,
    HistoryMessage,
    Staged,
    Window,
    redact_id,
)
from holdfast.chat.operator import (
    format_body,
    format_status,
    get_received_at,
    has_id_prefix,
    mask_address,
)
from holdfast.chat.outbox import get_outbox_state
from holdfast.chat.ports import ConversationStore
from holdfast.chat.settings import ChatSettings
from holdfast.cli.arguments import ANY_COUNT, AsJson
from holdfast.cli.console import (
    InputRefused,
    NotFound,
    UsageError,
    info,
    print_either,
    print_facts,
    print_json,
    print_list,
    print_result,
)
from holdfast.cli.live_view import repeat
from holdfast.lease.clock import SYSTEM_CLOCK, to_utc
from holdfast.listing import Field, Moment, format_cell
from holdfast.queue.message import make_id
from holdfast.settings import read_settings
from holdfast.text import format_age, format_count, format_duration
from holdfast.urls import require_store

_POLL_SECONDS = 0.5
_REPLY_POLL_SECONDS = 0.2
_MAX_HISTORY = 100  # messages that are searched for the reply
From = Annotated[
    str | None,
    "--from",
    "ADDRESS",
    "The customer's address, if several have the same id.",
]


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """The options of commands that show conversations."""

    full: Annotated[bool, "Show phone numbers and addresses unmasked."] = False
    as_json: AsJson = False

    def format_address(self, conversation: Conversation) -> str:
        """Return the customer's address, masked unless `full`."""
        address = conversation.key.primary_channel
        return address if self.full else mask_address(address)

    def format_id(self, conversation_id: str) -> str:
        """Return a conversation's id, redacted unless `full`."""
        return conversation_id if self.full else redact_id(conversation_id)


MASKED = ViewOptions()


# -- stores


def open_chat() -> ChatApp:
    """Open the application with an existing store. Raises as `open_store` does."""
    _find_store()
    return build_chat(os.environ)


def open_store() -> ConversationStore:
    """Open only an existing store, which the caller closes.

    Raises ConfigError with every problem of the settings, and StoreUnavailable if the store
    does not exist.
    """
    return open_conversations(_find_store())


def _find_store() -> str:
    return require_store(
        read_settings(ChatSettings, os.environ).store_url,
        "there is no conversation store",
        "start one with `holdfast chat send`, or name another store with HOLDFAST_CHAT_STORE",
    )


def find_conversation(store: ConversationStore, name: str, address: str | None) -> Conversation:
    """Return the conversation. Raises NotFound, and UsageError if several match."""
    exact = list(store.conversations(name))
    by_prefix = (each for each in store.conversations() if has_id_prefix(each, name))
    found = exact or islice(by_prefix, 2)
    matches = [match for match in found if address in (None, match.key.primary_channel)]
    if not matches:
        raise NotFound(f"there is no conversation {name!r}: see `holdfast chat show`")
    if len(matches) > 1:
        customers = sorted(set(map(MASKED.format_address, matches)))
        raise UsageError(
            f"{name!r} matches several conversations ({', '.join(customers)}): write more of "
            "the id, or add --from"
        )
    return matches[0]


# -- conversations


def show(
    conversation: Annotated[
        str | None,
        "<[CONVERSATION]>",
        "Its id, or the beginning of it; without one, all conversations are listed.",
    ] = None,
    address: From = None,
    last: Annotated[int, ANY_COUNT, "Show this many messages of the history."] = 20,
    *,
    view: ViewOptions,
) -> None:
    """List all conversations, or show one with its history and staged messages."""
    with open_store() as store:
        if conversation is None:
            _list(store, view)
        else:
            _show(store, find_conversation(store, conversation, address), last, view)


def _list(store: ConversationStore, view: ViewOptions) -> None:
    staged = Counter({waiting.key: waiting.fragments for waiting in store.waiting()})
    now = SYSTEM_CLOCK.time()
    fields: list[Field[Conversation]] = [
        Field("conversation", lambda each, at: view.format_id(each.key.conversation_id)),
        Field("customer", lambda each, at: view.format_address(each)),
        Field("status", lambda each, at: format_status(each, now)),
        Field("messages", lambda each, at: each.message_count),
        Field("staged", lambda each, at: staged[each.key] or None),
        Field("last change", lambda each, at: _show_ago(each.updated_at)),
    ]
    print_list(
        view.as_json,
        list(store.conversations()),
        lambda each: {**_to_json(each, view), "staged": staged[each.key]},
        fields,
    )


def _show(
    store: ConversationStore, conversation: Conversation, last: int, view: ViewOptions
) -> None:
    name = conversation.key.conversation_id
    staged = sorted(store.staged(name), key=lambda row: (get_received_at(row), row.message_sid))
    history = store.history(conversation.key, limit=last) if last else []
    if view.as_json:
        more = {
            "staged": [{"sid": row.message_sid, "body": format_body(row)} for row in staged],
            "history": [history_to_json(message) for message in history],
        }
        print_json({**_to_json(conversation, view), **more})
        return
    print_facts(_describe(conversation, store.window(name), SYSTEM_CLOCK.time(), view))
    lines: list[str] = []
    for message in history:
        speaker = "reply" if message.role == "assistant" else "customer"
        lines += _format_lines(speaker, message.at, message.body)
    for row in staged:
        lines += format_staged("staged", row)
    if lines:
        print_result("", *lines)


def _describe(
    conversation: Conversation, window: Window | None, now: float, view: ViewOptions
) -> Iterator[tuple[str, str]]:
    """Yield (heading, text) for each fact of the conversation."""
    yield "conversation", view.format_id(conversation.key.conversation_id)
    yield "customer", f"{view.format_address(conversation)} ({conversation.key.channel})"
    yield "status", format_status(conversation, now)
    if conversation.is_locked(now):
        left = format_duration(conversation.lock_expires_at - now)
        yield "lock", f"ends in {left}, unless it is renewed"
    if (outbox := conversation.outbox) is not None:
        messages = format_count(len(outbox.sids), "message")
        yield "reply", f"{get_outbox_state(outbox)}, to {messages}"
    yield "window", _format_window(window, now)
    yield "messages", f"{conversation.message_count:,}"
    tokens = (conversation.prompt_tokens, conversation.completion_tokens)
    yield "tokens", f"{tokens[0]:,} read, {tokens[1]:,} written"
    if conversation.thread_id:
        yield "thread", conversation.thread_id
    yield "started", format_cell(_show_ago(conversation.created_at), to_utc(now))
    yield "last change", format_cell(_show_ago(conversation.updated_at), to_utc(now))


def _format_window(window: Window | None, now: float) -> str:
    if window is None or window.expires_at <= now:
        return "none open"
    sent = "its trigger is in the queue" if window.triggered else "its trigger is not sent yet"
    return f"open for {format_age(window.opened_at, now)}; {sent}"


def _show_ago(at: float) -> Moment | None:
    return Moment(to_utc(at)) if at else None


def format_staged(speaker: str, staged: Staged) -> Iterator[str]:
    """Yield the lines of a staged message."""
    return _format_lines(speaker, get_received_at(staged), format_body(staged))


def _format_lines(speaker: str, at: float, body: str) -> Iterator[str]:
    """Yield the lines of a body, after a time in UTC and a speaker."""
    first, *others = body.splitlines() or [""]
    margin = f"{to_utc(at):%Y-%m-%d %H:%M:%S}  {speaker:<8}  "
    yield f"{margin}{first}"
    for line in others:
        yield f"{'':<{len(margin)}}{line}"


def _to_json(conversation: Conversation, view: ViewOptions) -> dict[str, Any]:
    """Return the conversation as JSON."""
    outbox = conversation.outbox
    return {
        "conversation": view.format_id(conversation.key.conversation_id),
        "customer": view.format_address(conversation),
        "channel": conversation.key.channel.value,
        "status": conversation.status,
        "messages": conversation.message_count,
        "prompt_tokens": conversation.prompt_tokens,
        "completion_tokens": conversation.completion_tokens,
        "outbox": None if outbox is None else get_outbox_state(outbox),
        "lock_expires_at": conversation.lock_expires_at or None,
        "created_at": conversation.created_at,
        "updated_at": conversation.updated_at,
    }


def history_to_json(message: HistoryMessage) -> dict[str, Any]:
    """Return a message of the history as JSON."""
    return {"seq": message.seq, "role": message.role, "at": message.at, "body": message.body}


# -- replies


def outbox(
    follow: Annotated[bool, "--follow", "-f", "Wait for more until Ctrl-C."] = False,
    *,
    view: ViewOptions,
) -> None:
    """Show the replies in the outbox folder, where local use puts them."""
    folder = read_settings(ChatSettings, os.environ).outbox_folder
    seen: set[str] = set()
    if follow:
        repeat(lambda: _show_new(folder, seen, view), _POLL_SECONDS)
        return
    _show_new(folder, seen, view)
    if not seen:
        info(f"there are no replies in {folder}")


def _show_new(folder: Path, seen: set[str], view: ViewOptions) -> None:
    for reply in read_outbox(folder):
        if reply.message_sid in seen:
            continue
        seen.add(reply.message_sid)
        to = reply.to if view.full else mask_address(reply.to)
        name = view.format_id(reply.conversation_id)
        print_either(
            view.as_json,
            {"conversation": name, "to": to, "at": reply.sent_at, "body": reply.text},
            *_format_lines(f"to {to}", reply.sent_at, reply.text),
        )


# -- messages of a customer


def send(
    text: Annotated[str, "<TEXT>", "The message."],
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
    fields = {
        "primary_channel": address,
        "recipient": to,
        "conversation_id": conversation,
        "message_sid": f"local-{make_id()}" if sid is None else sid,
        "body": text,
    }
    with build_chat(os.environ, fallback=LOCAL_PROFILE) as app:
        try:
            message = parse_inbound(fields)
        except InvalidInbound as problem:
            raise InputRefused(str(problem)) from None
        key, sids = app.stager.stage(message).key, {message.message_sid}
        if wait:
            replies = _wait_for_reply(app, key, sids, timeout)
            lines = (line for reply in replies for line in reply.body.splitlines())
            print_either(as_json, [history_to_json(reply) for reply in replies], *lines)
            return
        name = key.conversation_id
        print_either(as_json, {"conversation": name, "staged": [*sids]}, MASKED.format_id(name))
        if not as_json:
            window = format_duration(app.settings.window_seconds)
            info(f"staged 1; `holdfast chat work` answers in about {window}")


# -- the reply


def _wait_for_reply(
    app: ChatApp, key: ConversationKey, sids: set[str], timeout: float | None
) -> list[HistoryMessage]:
    """Wait for the replies, usually one, and return them in order.

    Raises NotFound if none came in time or the batch was parked.
    """
    policy = app.settings.policy  # a reply takes at most this long if nothing fails
    seconds = policy.max_wait_seconds + policy.writer_seconds + policy.sender_seconds
    if timeout is not None:
        seconds = timeout
    until = SYSTEM_CLOCK.monotonic() + seconds
    while app.store.processed(key, list(sids)) != sids:
        if SYSTEM_CLOCK.monotonic() >= until:
            raise NotFound(
                f"no reply after {format_duration(seconds)}; the message is kept: run "
                "`holdfast chat work`, here or in another terminal"
            )
        SYSTEM_CLOCK.sleep(_REPLY_POLL_SECONDS)
    for batch in app.store.parked():
        if not sids.isdisjoint(batch.sids):
            raise NotFound(
                f"the batch was parked ({batch.reason}); decide with `holdfast chat parked`"
            )
    return _find_replies(app, key, sids)


def _find_replies(app: ChatApp, key: ConversationKey, sids: set[str]) -> list[HistoryMessage]:
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
