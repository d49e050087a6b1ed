"""The pages that show queues. Each view reads what its page needs, and changes nothing."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from starlette.exceptions import HTTPException
from starlette.requests import Request

from holdfast.errors import HoldfastError
from holdfast.queue.columns import LEASE_FIELDS, get_body, select_message_fields
from holdfast.queue.info import MessageInfo, MessagePage, MessageState
from holdfast.queue.watch import (
    DeadFilter,
    DeadPage,
    QueueWatch,
    Reading,
    ReasonKinds,
    group_reasons,
    is_polling,
    read_dead_page,
)
from holdfast.web.console import Console
from holdfast.web.rendering import Page, parse_number, wants_part

T = TypeVar("T")
NONE: list[MessageInfo] = []

FIRST_WAIT_SECONDS = 0.2  # for counts that are being read: a page must come at once
SEARCH_SECONDS = 1.5
PAGE_ROWS = 50
_KINDS_SECONDS = 5.0


class QueuePages:
    """The views of queues."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._kinds: dict[str, Reading[ReasonKinds]] = {
            slug: Reading(partial(_read_kinds, queue), console.clock, _KINDS_SECONDS)
            for slug, queue in console.queues.items()
        }

    # -- overview

    def show_queues(self, request: Request) -> Page:
        """Show all queues with their counts."""
        self._console.start()
        clock, queues = self._console.clock, self._console.queues.values()
        late_at = clock.monotonic() + FIRST_WAIT_SECONDS
        for queue in queues:  # begin all reads, then wait for them together
            queue.live.get()
            queue.counts.get()
        views = [queue.view(late_at - clock.monotonic()) for queue in queues]
        return Page("queues.html", {"queues": views})

    def show_queue(self, request: Request) -> Page:
        """Show a queue with its leases and its workers."""
        self._console.start()
        view = self.find_queue(request).view(FIRST_WAIT_SECONDS)
        context = {"queue": view, "lease_fields": LEASE_FIELDS, "is_polling": is_polling}
        return Page("queue.html", context)

    def find_queue(self, request: Request) -> QueueWatch:
        """Return the queue that the address names. Raises 404."""
        queue = self._console.queues.get(request.path_params["slug"])
        if queue is None:
            raise HTTPException(404, "This console watches no queue of that name.")
        return queue

    # -- messages

    def show_messages(self, request: Request) -> Page:
        """Show the messages in one state, a page at a time."""
        watched = self.find_queue(request)
        state = _parse_state(request.query_params.get("state", "pending"))
        page, problem = read_or_explain(
            lambda: watched.get_queue().browse(
                state, after=request.query_params.get("after"), limit=PAGE_ROWS
            ),
            MessagePage(()),
        )
        return Page(
            "messages.html",
            {
                "queue": watched.view(FIRST_WAIT_SECONDS),
                "fields": select_message_fields(),
                "page": page,
                "problem": problem,
                "state": state,
                "states": list(MessageState),
            },
        )

    def show_message(self, request: Request) -> Page:
        """Show one message with its attempts, its checkpoint, and its body if asked."""
        watched = self.find_queue(request)
        if wants_part(request) and not self._is_live(watched):
            raise HTTPException(404, "This page does not change by itself. Reload it.")
        message_id = request.query_params.get("id", "")
        key = request.query_params.get("key", "")
        messages, problem = read_or_explain(lambda: _find(watched, message_id, key), NONE)
        if not messages and not problem:
            raise HTTPException(
                404, "The queue holds no message with that id. It may have been purged."
            )
        show_body = self._console.show_bodies and "body" in request.query_params
        return Page(
            "message.html",
            {
                "queue": watched.view(FIRST_WAIT_SECONDS),
                "format_choice": format_choice,
                "get_body": get_body,
                "is_live": self._is_live(watched),
                "lease_fields": LEASE_FIELDS,
                "key": key,
                "message_id": messages[0].id if key and messages else message_id,
                "messages": messages,
                "problem": problem,
                "show_body": show_body,
            },
        )

    def _is_live(self, watched: QueueWatch) -> bool:
        """Return whether a message may be read every second. On SQS that hides it."""
        return read_or_explain(lambda: "find" in watched.get_queue().capabilities, True)[0]

    # -- dead letters

    def show_dead_letters(self, request: Request) -> Page:
        """Show dead letters by the kinds of their reasons, with a search."""
        watched = self.find_queue(request)
        wanted = parse_filter(request.query_params)
        clock = self._console.clock
        late_at = clock.monotonic() + FIRST_WAIT_SECONDS
        # Before the kinds, because grouping them slows the count.
        view = watched.view(FIRST_WAIT_SECONDS)
        letters, problem, kinds = DeadPage((), None), "", None
        if not wants_part(request):
            letters, problem = read_or_explain(
                lambda: self._read_letters(watched, wanted, request), letters
            )
            if watched.can("peek"):
                kinds = self._kinds[watched.slug].get(late_at - clock.monotonic())
        failed = view.failed
        if failed is not None:
            # The count may be older than the list, whose messages are not new to its reader.
            failed = max(failed, len(letters.messages))
        seen = parse_number(request.query_params.get("seen", ""))
        return Page(
            "dead.html",
            {
                "queue": view,
                "can_group": watched.can("peek"),
                "failed": failed,
                "fields": select_message_fields(),
                "filter": wanted,
                "format_choice": format_choice,
                "kinds": kinds,
                "letters": letters,
                "new": 0 if seen is None or failed is None else max(0, failed - seen),
                "problem": problem,
            },
        )

    def _read_letters(
        self, watched: QueueWatch, wanted: DeadFilter, request: Request
    ) -> DeadPage:
        clock = self._console.clock
        late_at = clock.monotonic() + SEARCH_SECONDS
        return read_dead_page(
            watched.get_queue(),
            wanted,
            after=request.query_params.get("after"),
            limit=PAGE_ROWS,
            is_late=lambda: clock.monotonic() > late_at,
        )


def read_or_explain(read: Callable[[], T], otherwise: T) -> tuple[T, str]:
    """Return what a page reads, or the problem that it shows instead."""
    try:
        return read(), ""
    except (HoldfastError, OSError) as error:
        return otherwise, str(error)


def _find(watched: QueueWatch, message_id: str, key: str) -> list[MessageInfo]:
    queue = watched.get_queue()
    if "find" not in queue.capabilities:
        letters = queue.dead_letters(PAGE_ROWS)
        return [letter for letter in letters if letter.id == message_id]
    if not key:
        return queue.find(message_id)
    push = queue.find_push(key)
    return [push] if push else []


def _read_kinds(queue: QueueWatch) -> ReasonKinds:
    # The list of the same page shows the problem.
    unknown = ReasonKinds((), 0, True)
    return read_or_explain(lambda: group_reasons(queue.get_queue()), unknown)[0]


def _parse_state(text: str) -> MessageState:
    try:
        return MessageState(text)
    except ValueError:
        states = ", ".join(state.value for state in MessageState)
        raise HTTPException(404, f"state must be one of {states}.") from None


def parse_filter(params: Any) -> DeadFilter:
    """Return the filter that an address or a form describes. Raises 400 for a bad field."""
    field = params.get("field", "").strip()
    if field and not field.partition("=")[2]:
        raise HTTPException(400, "The field must be NAME=VALUE, as in domain=example.com.")
    return DeadFilter(params.get("text", "").strip(), params.get("kind", ""), field)


# How a form names dead letters: by all that a queue needs to find them again.
_CHOICE = re.compile(r"([0-9A-Za-z-]{1,64}) ([0-9]{1,9}) ([0-9]{1,9}) ([!-~]+)")


def format_choice(message: MessageInfo) -> str:
    """Return the value by which a form names a dead letter.

    The id is quoted, because a form changes line breaks.
    """
    return f"{message.key} {message.fence} {message.attempts} {quote(message.id, safe='')}"


def parse_choices(choices: list[str]) -> list[MessageInfo]:
    """Return the dead letters that a form names. Raises 400 for a value of another form.

    A key becomes part of a path in a file queue, so it is checked here, too.
    """
    messages = []
    for choice in choices:
        if (match := _CHOICE.fullmatch(choice)) is None:
            raise HTTPException(400, "The form names a dead letter that cannot be one.")
        key, fence, attempts, message_id = match.groups()
        messages.append(
            MessageInfo(
                unquote(message_id),
                key,
                MessageState.FAILED,
                int(attempts),
                int(fence),
                where="",
            )
        )
    return messages
