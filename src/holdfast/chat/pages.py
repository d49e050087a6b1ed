"""The pages of conversations: windows, locks, replies, and batches that wait for a decision.

A person can decide about a parked batch, and say who answers a conversation from now on.

Addresses name a conversation by a digest, because a browser keeps every address that it
opened. Numbers and texts are masked until a person asks for those of one conversation.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, ClassVar, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from holdfast.chat.building import ChatApp, build_chat
from holdfast.chat.errors import ParkedNotFound
from holdfast.chat.model import (
    Conversation,
    ConversationKey,
    ParkedBatch,
    Window,
    digest_texts,
    redact_id,
)
from holdfast.chat.operator import (
    Operator,
    format_body,
    format_status,
    get_received_at,
    has_id_prefix,
    mask_address,
)
from holdfast.chat.outbox import Outbox, get_answer, get_outbox_state
from holdfast.chat.ports import ConversationStore
from holdfast.errors import HoldfastError
from holdfast.lease.clock import Clock
from holdfast.queue.watch import LazyStore, Reading
from holdfast.urls import require_store
from holdfast.web.console import Console
from holdfast.web.rendering import Action, Form, Page, View, parse_number, redirect
from holdfast.web.views import read_or_explain

T = TypeVar("T")

PAGE_ROWS = 50
MAX_WAITING = 1000  # that are counted
MAX_PARKED = 1000  # that are counted, and searched for those of a conversation
MAX_TEXT_CHARACTERS = 4_000  # of one text
SEARCH_SECONDS = 2.0
_MAX_KNOWN = 10_000
_MIN_SECONDS = 2.0  # between two reads of the lists, each of which costs money on DynamoDB
_WAIT_SECONDS = 0.1


class SearchStopped(HoldfastError):
    """A store has more rows than a page can wait for."""


@dataclass(frozen=True, slots=True)
class ConversationRow:
    """A conversation in a list. The conversation is None if only staged messages exist."""

    key: ConversationKey
    conversation: Conversation | None
    window: Window | None = None
    staged: int = 0
    oldest_staged_at: float = 0.0


@dataclass(frozen=True, slots=True)
class ParkedList:
    """The parked batches that a page shows."""

    batches: tuple[ParkedBatch, ...] = ()
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class ConversationList:
    """The conversations of a store: those with staged messages, and the last that changed."""

    waiting: tuple[ConversationRow, ...] = ()
    waiting_count: int = 0
    recent: tuple[ConversationRow, ...] = ()
    has_more: bool = False
    parked: ParkedList = ParkedList()
    problem: str = ""


def make_reference(key: ConversationKey) -> str:
    """Return the text by which addresses name a conversation."""
    return digest_texts(key.primary_channel, key.conversation_id)[:16]


def has_answer(outbox: Outbox | None) -> bool:
    """Return whether a reply was written, so that it can be recorded as sent."""
    answer = get_answer(outbox)
    return answer is not None and bool(answer.text.strip())


def open_existing_chat(chat: str | ChatApp, clock: Clock) -> ChatApp:
    """Open an application with a store that exists. A console never creates one."""
    if isinstance(chat, ChatApp):
        return chat
    remedy = "check the name, or start one with `holdfast chat send`"
    store = require_store(chat, "there is no conversation store", remedy)
    return build_chat({**os.environ, "HOLDFAST_CHAT_STORE": store}, clock=clock)


class ConversationPages:
    """The views of one store of conversations, which is opened with the first read."""

    section, title = "conversations", "Conversations"
    package, parts = "holdfast.chat", "chat_parts.html"
    names: ClassVar[Mapping[str, Any]] = {
        "format_body": format_body,
        "format_status": format_status,
        "get_answer": get_answer,
        "get_outbox_state": get_outbox_state,
        "get_received_at": get_received_at,
        "has_answer": has_answer,
        "mask_address": mask_address,
        "max_characters": MAX_TEXT_CHARACTERS,
        "max_waiting": MAX_WAITING,
        "page_rows": PAGE_ROWS,
        "redact_id": redact_id,
    }

    def __init__(self, chat: str | ChatApp, console: Console) -> None:
        self._console, self._clock = console, console.clock
        self.chat = LazyStore(partial(open_existing_chat, chat, console.clock))
        self._known: dict[str, ConversationKey] = {}  # by their references
        self._list: Reading[ConversationList] = Reading(
            self._read, console.clock, min_seconds=_MIN_SECONDS
        )

    def list_views(self) -> Mapping[str, View]:
        """Return the views by their addresses."""
        return {
            "/conversations": self.show_conversations,
            "/conversations/conversation": self.show_conversation,
            "/conversations/parked": self.show_parked,
            "/conversations/batch": self.show_batch,
        }

    def list_actions(self) -> Mapping[str, tuple[Action, bool]]:
        """Return the actions by their addresses. A search changes nothing."""
        return {
            "/conversations": (self.search, False),
            "/conversations/conversation": (self.assign, True),
            "/conversations/batch": (self.decide, True),
        }

    def close(self) -> None:
        """Close the store."""
        self.chat.close()

    # -- views

    def show_conversations(self, request: Request) -> Page:
        """Show the conversations that wait, and those that changed last."""
        return self._make_page("conversations.html", {"list": self._list.get(_WAIT_SECONDS)})

    def show_conversation(self, request: Request) -> Page:
        """Show one conversation with a page of its history, and its texts if asked."""
        reference = request.query_params.get("ref", "")
        before = parse_number(request.query_params.get("before", ""))
        context: dict[str, Any] = {"row": None, "staged": (), "history": (), "problem": ""}
        try:
            store = self.chat.get().store
            conversation = self._find(reference)
            if conversation is not None:
                key, name = conversation.key, conversation.key.conversation_id
                staged = sorted(store.staged(name), key=get_received_at)
                context["row"] = ConversationRow(
                    key, conversation, store.window(name), len(staged)
                )
                context["staged"] = staged[:PAGE_ROWS]
                context["history"] = store.history(key, before=before, limit=PAGE_ROWS)
        except (HoldfastError, OSError) as error:
            context["problem"] = str(error)
        if context["row"] is None and not context["problem"]:
            raise HTTPException(
                404, "That conversation was not found. Look for it by its id on the list."
            )
        listed = self._list.get(_WAIT_SECONDS) or ConversationList()
        parked = [b for b in listed.parked.batches if make_reference(b.key) == reference]
        context |= {"reference": reference, "before": before, "parked": parked}
        return self._make_page("conversation.html", context, request)

    def show_parked(self, request: Request) -> Page:
        """Show the parked batches, the oldest first."""
        done = request.query_params.get("done", "")
        parked, problem = read_or_explain(
            lambda: read_parked(self.chat.get().store, PAGE_ROWS), ParkedList()
        )
        context = {"parked": parked, "problem": problem, "done": done}
        return self._make_page("parked.html", context)

    def show_batch(self, request: Request) -> Page:
        """Show one parked batch with the decisions about it, and its texts if asked."""
        parked_id = request.query_params.get("id", "")
        batch, problem = read_or_explain(lambda: self._find_batch(parked_id), None)
        if batch is None and not problem:
            raise HTTPException(
                404, "Nothing is parked under that id. Another person may have decided."
            )
        return self._make_page("batch.html", {"batch": batch, "problem": problem}, request)

    def _make_page(
        self,
        template: str,
        context: dict[str, Any],
        request: Request | None = None,
        status: int = 200,
    ) -> Page:
        wanted = request is not None and request.query_params.get("texts") == "1"
        shown = {
            "make_reference": self._remember,
            "show_texts": wanted and self._console.show_bodies,
        }
        return Page(template, {**shown, **context}, status)

    # -- reads

    def _find(self, reference: str) -> Conversation | None:
        """Return the conversation that an address names.

        A console that never listed it, for example after a restart, searches for it among
        those that changed last. Raises HoldfastError.
        """
        store = self.chat.get().store
        if (key := self._known.get(reference)) is not None:
            return store.get(key)
        for conversation in self._scan(store.conversations()):
            if self._remember(conversation.key) == reference:
                return conversation
        return None

    def _find_batch(self, parked_id: str) -> ParkedBatch | None:
        """Return a parked batch, or None if there is none. Raises HoldfastError."""
        batches = self._scan(self.chat.get().store.parked())
        return next((batch for batch in batches if batch.parked_id == parked_id), None)

    def _scan(self, rows: Iterable[T]) -> Iterator[T]:
        late_at = self._clock.monotonic() + SEARCH_SECONDS
        for row in rows:
            if self._clock.monotonic() > late_at:
                raise SearchStopped(
                    f"the store is too large to be searched in {SEARCH_SECONDS:g} s: look for "
                    "the conversation by its whole id, or use `holdfast chat`"
                )
            yield row

    def _remember(self, key: ConversationKey) -> str:
        """Return the reference of a conversation, which `_find` then knows."""
        reference = make_reference(key)
        if len(self._known) >= _MAX_KNOWN:
            self._known = {}
        self._known[reference] = key
        return reference

    def _read(self) -> ConversationList:
        listed, problem = read_or_explain(
            lambda: _read_list(self.chat.get().store), ConversationList()
        )
        return replace(listed, problem=problem)

    # -- what a person can do. Logs name a conversation as `redact_id` does.

    def decide(self, request: Request, form: Form) -> Response | Page:
        """Carry out a decision about a parked batch. A drop is confirmed first."""
        decision, parked_id = form.get("decision", ""), form.get("id", "")
        if decision not in _DECISIONS:
            raise HTTPException(400, "decision must be retry, sent or drop.")
        action = f"{decision} parked batch"
        with self._report(request, action, batch=parked_id):
            if decision == "drop" and form.get("confirmed") != "yes":
                if (found := self._find_batch(parked_id)) is None:
                    raise ParkedNotFound(f"nothing is parked under {parked_id!r}")
                return Page("confirm_batch.html", {"batch": found})
            self._console.log_action(request, action, batch=parked_id)
            batch = _DECISIONS[decision](self.chat.get().operator, parked_id)
        self._console.log_action(
            request, f"{action}: done", batch=parked_id, conversation=batch.key.log_name
        )
        return redirect(request, f"/conversations/parked?done={decision}")

    def assign(self, request: Request, form: Form) -> Response:
        """Let a person, or the writer, answer a conversation from now on."""
        to, reference = form.get("to", ""), form.get("ref", "")
        if to not in _ASSIGNMENTS:
            raise HTTPException(400, "to must be person or writer.")
        action = f"assign conversation to {to}"
        with self._report(request, action, reference=reference):
            conversation = self._find(reference)
            if conversation is None:
                raise HTTPException(404, "That conversation no longer exists.")
            self._console.log_action(request, action, conversation=conversation.key.log_name)
            _ASSIGNMENTS[to](self.chat.get().operator, conversation.key)
        return redirect(request, f"/conversations/conversation?ref={reference}")

    def search(self, request: Request, form: Form) -> Response | Page:
        """Show the conversations whose id begins so. A POST, because ids may be numbers."""
        name = form.get("id", "").strip()
        with self._report(request, "search conversations"):
            store = self.chat.get().store
            found = list(islice(store.conversations(name), PAGE_ROWS)) if name else []
            if not found:
                each = self._scan(store.conversations())
                found = list(islice((c for c in each if has_id_prefix(c, name)), PAGE_ROWS))
        if len(found) == 1:
            reference = self._remember(found[0].key)
            return redirect(request, f"/conversations/conversation?ref={reference}")
        rows = [ConversationRow(match.key, match) for match in found]
        status = 200 if rows else 404
        return self._make_page("conversation_matches.html", {"rows": rows}, status=status)

    @contextmanager
    def _report(self, request: Request, action: str, **facts: object) -> Iterator[None]:
        """Log an action that failed, and answer with the reason."""
        try:
            yield
        except ParkedNotFound:
            raise HTTPException(
                404, "Nothing is parked under that id. Another person may have decided."
            ) from None
        except (HoldfastError, OSError) as error:
            self._console.log_action(request, f"{action} failed", problem=str(error), **facts)
            raise HTTPException(
                409, f"{error}. The lists of conversations show whether anything was changed."
            ) from error
        finally:
            self._list.expire()  # because a person may have changed something


def _read_list(store: ConversationStore) -> ConversationList:
    waiting = sorted(
        islice(store.waiting(), MAX_WAITING), key=lambda each: each.oldest_staged_at
    )
    rows = [
        ConversationRow(
            each.key,
            store.get(each.key),
            store.window(each.key.conversation_id),
            each.fragments,
            each.oldest_staged_at,
        )
        for each in waiting[:PAGE_ROWS]
    ]
    shown = {row.key for row in rows}
    changed = list(islice(store.conversations(), PAGE_ROWS + 1))
    recent = [each for each in changed[:PAGE_ROWS] if each.key not in shown]
    return ConversationList(
        tuple(rows),
        len(waiting),
        tuple(ConversationRow(each.key, each) for each in recent),
        len(changed) > PAGE_ROWS,
        read_parked(store, MAX_PARKED),
    )


def read_parked(store: ConversationStore, limit: int) -> ParkedList:
    """Return the first parked batches. Raises HoldfastError."""
    batches = list(islice(store.parked(), limit + 1))
    return ParkedList(tuple(batches[:limit]), len(batches) > limit)


_DECISIONS: dict[str, Callable[[Operator, str], ParkedBatch]] = {
    "retry": Operator.retry,
    "sent": Operator.sent,
    "drop": Operator.drop,
}
_ASSIGNMENTS: dict[str, Callable[[Operator, ConversationKey], bool]] = {
    "person": Operator.assign_to_person,
    "writer": Operator.resume_automation,
}
