"""The pages that show queues. Each view reads what its page needs, and changes nothing."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from holdfast.errors import HoldfastError
from holdfast.queue.dead_view import (
    DeadFilter,
    DeadPage,
    ReasonKinds,
    group_reasons,
    read_dead_page,
)
from holdfast.queue.info import MessageInfo, MessagePage, MessageState, QueueWorker
from holdfast.queue.watch import (
    MINUTES,
    Activity,
    LeaseHealth,
    LiveLeases,
    QueueCounts,
    Reading,
    is_polling,
    judge_activity,
    judge_lease,
)
from holdfast.web.console import Console, WatchedQueue
from holdfast.web.operations import Operations
from holdfast.web.rendering import Page, parse_number, wants_part

FIRST_WAIT_SECONDS = 0.2  # for counts that are being read: a page must come at once
SEARCH_SECONDS = 1.5
PAGE_ROWS = 50
MAX_BODY_CHARACTERS = 64 * 1024
_KINDS_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class QueueOverview:
    """A queue as pages show it now."""

    slug: str
    name: str
    counts: QueueCounts | None
    live: LiveLeases | None
    activity: Activity
    depths: Any

    @property
    def problem(self) -> str:
        """Why the queue cannot be read, or an empty text."""
        return (self.counts.problem if self.counts else "") or (
            self.live.problem if self.live else ""
        )

    @property
    def workers(self) -> list[QueueWorker]:
        """The workers, those that poll first, in an order that a poll does not change."""
        live = self.live
        if live is None:
            return []
        return sorted(
            live.workers or (),
            key=lambda worker: (not is_polling(worker, live.at), worker.worker_id),
        )

    @property
    def depths_since(self) -> datetime | None:
        """When the line of the depth begins, or None if it covers the whole hour.

        No queue keeps how deep it was, so the line begins with the console.
        """
        if not self.depths or self.counts is None:
            return None
        first: datetime = self.depths[0][0]
        is_whole = self.counts.at - first > timedelta(minutes=MINUTES - 1)
        return None if is_whole else first

    def count_held(self, worker_id: str) -> tuple[int, int]:
        """Return how many leases of a worker are held, and how many ended."""
        if self.live is None:
            return 0, 0
        holders = [message.holder for message in self.live.leases or () if message.holder]
        ended = [
            judge_lease(holder, self.live.at) is LeaseHealth.EXPIRED
            for holder in holders
            if worker_id in ("", holder.worker_id)
        ]
        return len(ended) - sum(ended), sum(ended)

    def count_ended(self) -> int:
        """Return how many of the leases that are shown ended and wait for a worker."""
        return self.count_held("")[1]


class QueuePages:
    """The views of queues."""

    def __init__(self, console: Console, operations: Operations) -> None:
        self._console, self._operations = console, operations
        self._kinds: dict[str, Reading[ReasonKinds]] = {
            slug: Reading(partial(_read_kinds, queue), console.clock, _KINDS_SECONDS)
            for slug, queue in console.queues.items()
        }

    # -- overview

    def show_queues(self, request: Request) -> Page:
        """Show all queues with their counts."""
        self._console.start()
        queues = self._view_all(list(self._console.queues.values()))
        return Page("queues.html", {"queues": queues, "section": "queues"})

    def show_queue(self, request: Request) -> Page:
        """Show a queue with its leases and its workers."""
        self._console.start()
        view = self._view(self.find_queue(request))
        return Page(
            "queue.html",
            {
                "queue": view,
                "section": "queues",
                "judge_lease": judge_lease,
                "is_polling": is_polling,
            },
        )

    def _view_all(self, queues: Sequence[WatchedQueue]) -> list[QueueOverview]:
        """Return the views of queues, after a wait that is the same for one and for many."""
        clock = self._console.clock
        late_at = clock.monotonic() + FIRST_WAIT_SECONDS
        for queue in queues:  # begin all reads, then wait for them together
            queue.watch.live.get()
            queue.watch.counts.get()
        return [self._view(queue, late_at - clock.monotonic()) for queue in queues]

    def _view(
        self, queue: WatchedQueue, wait_seconds: float = FIRST_WAIT_SECONDS
    ) -> QueueOverview:
        watch = queue.watch
        late_at = self._console.clock.monotonic() + wait_seconds
        watch.counts.get()
        live = watch.live.get(wait_seconds)
        counts = watch.counts.get(late_at - self._console.clock.monotonic())
        activity = judge_activity(live)
        return QueueOverview(queue.slug, queue.name, counts, live, activity, watch.depths)

    def find_queue(self, request: Request) -> WatchedQueue:
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
        page, problem = MessagePage(()), ""
        try:
            queue = watched.watch.get_queue()
            after = request.query_params.get("after")
            page = queue.browse(state, after=after, limit=PAGE_ROWS)
        except (HoldfastError, OSError) as error:
            problem = str(error)
        return Page(
            "messages.html",
            {
                "queue": self._view(watched),
                "page": page,
                "problem": problem,
                "section": "queues",
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
        messages, problem = self._find(watched, message_id, key)
        if not messages and not problem:
            raise HTTPException(
                404, "The queue holds no message with that id. It may have been purged."
            )
        show_body = self._console.show_bodies and "body" in request.query_params
        return Page(
            "message.html",
            {
                "queue": self._view(watched),
                "bodies": [
                    _format_body(message) if show_body else None for message in messages
                ],
                "checkpoints": [_format_checkpoint(message) for message in messages],
                "is_live": self._is_live(watched),
                "judge_lease": judge_lease,
                "key": key,
                "message_id": messages[0].id if key and messages else message_id,
                "messages": messages,
                "problem": problem,
                "section": "queues",
                "show_body": show_body,
            },
        )

    def _is_live(self, watched: WatchedQueue) -> bool:
        """Return whether a message may be read every second. On SQS that hides it."""
        try:
            return "find" in watched.watch.get_queue().capabilities
        except (HoldfastError, OSError):
            return True

    def _find(
        self, watched: WatchedQueue, message_id: str, key: str
    ) -> tuple[list[MessageInfo], str]:
        try:
            queue = watched.watch.get_queue()
            if key and "find" in queue.capabilities:
                push = queue.find_push(key)
                return [push] if push else [], ""
            if "find" in queue.capabilities:
                return queue.find(message_id), ""
            letters = queue.dead_letters(PAGE_ROWS)
            return [letter for letter in letters if letter.id == message_id], ""
        except (HoldfastError, OSError) as error:
            return [], str(error)

    # -- dead letters

    def show_dead_letters(self, request: Request) -> Page:
        """Show dead letters by the kinds of their reasons, with a search."""
        watched = self.find_queue(request)
        wanted = parse_filter(request.query_params)
        clock = self._console.clock
        late_at = clock.monotonic() + FIRST_WAIT_SECONDS
        view = self._view(watched)  # before the kinds, because grouping them slows the count
        letters, problem, kinds = DeadPage((), None), "", None
        if not wants_part(request):
            letters, problem = self._read_letters(watched, wanted, request)
            if watched.watch.can("peek"):
                kinds = self._kinds[watched.slug].get(late_at - clock.monotonic())
        failed = view.counts.stats.failed if view.counts and view.counts.stats else None
        if failed is not None:
            # The count may be older than the list, whose messages are not new to its reader.
            failed = max(failed, len(letters.messages))
        seen = parse_number(request.query_params.get("seen", ""))
        return Page(
            "dead.html",
            {
                "queue": view,
                "can_group": watched.watch.can("peek"),
                "failed": failed,
                "filter": wanted,
                "kinds": kinds,
                "letters": letters,
                "new": 0 if seen is None or failed is None else max(0, failed - seen),
                "problem": problem,
                "section": "queues",
            },
        )

    def _read_letters(
        self, watched: WatchedQueue, wanted: DeadFilter, request: Request
    ) -> tuple[DeadPage, str]:
        clock = self._console.clock
        late_at = clock.monotonic() + SEARCH_SECONDS
        try:
            page = read_dead_page(
                watched.watch.get_queue(),
                wanted,
                after=request.query_params.get("after"),
                limit=PAGE_ROWS,
                is_late=lambda: clock.monotonic() > late_at,
            )
        except (HoldfastError, OSError) as error:
            return DeadPage((), None), str(error)
        return page, ""

    def show_operation(self, request: Request) -> Page:
        """Show how far an action on many dead letters is."""
        number = parse_number(request.path_params["number"])
        operation = None if number is None else self._operations.get(number)
        if operation is None:
            raise HTTPException(404, "This console does not know that action any more.")
        return Page("operation.html", {"operation": operation, "section": "queues"})


def _read_kinds(queue: WatchedQueue) -> ReasonKinds:
    try:
        return group_reasons(queue.watch.get_queue())
    except (HoldfastError, OSError):  # the list of the same page shows the problem
        return ReasonKinds((), 0, True)


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


@dataclass(frozen=True, slots=True)
class BodyText:
    """The text of a body, of which a page shows only the beginning if it is long."""

    text: str
    size: int
    is_cut: bool


def _format_body(message: MessageInfo) -> BodyText:
    if message.body is None:
        return BodyText("(the body is not a JSON object)", 0, False)
    return _cut(json.dumps(message.body, indent=2, ensure_ascii=False))


def _format_checkpoint(message: MessageInfo) -> BodyText | None:
    if message.checkpoint is None:
        return None
    return _cut(json.dumps(message.checkpoint, indent=2, ensure_ascii=False))


def _cut(text: str) -> BodyText:
    size = len(text.encode("utf-8", "surrogatepass"))
    return BodyText(text[:MAX_BODY_CHARACTERS], size, len(text) > MAX_BODY_CHARACTERS)
