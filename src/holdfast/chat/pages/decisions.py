"""What a person can do to conversations: decide about a parked batch, and assign one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from holdfast.chat.errors import ParkedNotFound
from holdfast.chat.model import ParkedBatch
from holdfast.chat.operator import Operator
from holdfast.chat.pages.conversations import ConversationPages
from holdfast.errors import HoldfastError
from holdfast.web.actions import Form
from holdfast.web.console import Console
from holdfast.web.rendering import Page, Renderer

_DECISIONS: dict[str, Callable[[Operator, str], ParkedBatch]] = {
    "retry": Operator.retry,
    "sent": Operator.sent,
    "drop": Operator.drop,
}


class Decisions:
    """The actions on conversations. Logs name a conversation as `redact_id` does."""

    def __init__(self, console: Console, pages: ConversationPages, renderer: Renderer) -> None:
        self._console, self._pages, self._renderer = console, pages, renderer

    def decide(self, request: Request, form: Form) -> Response:
        """Carry out a decision about a parked batch. A drop is confirmed first."""
        decision, parked_id = form.get("decision", ""), form.get("id", "")
        if decision not in _DECISIONS:
            raise HTTPException(400, "decision must be retry, sent or drop.")
        action = f"{decision} parked batch"
        with self._report(request, action, batch=parked_id):
            if decision == "drop" and form.get("confirmed") != "yes":
                return self._ask(request, parked_id)
            self._console.log_action(request, action, batch=parked_id)
            batch = _DECISIONS[decision](self._pages.chat.get().operator, parked_id)
        self._console.log_action(
            request, f"{action}: done", batch=parked_id, conversation=batch.key.log_name
        )
        return _redirect(request, f"/conversations/parked?done={decision}")

    def _ask(self, request: Request, parked_id: str) -> Response:
        if (batch := self._pages.find_batch(parked_id)) is None:
            raise ParkedNotFound(f"nothing is parked under {parked_id!r}")
        context = {"batch": batch, "section": "conversations"}
        return self._renderer.render(request, Page("confirm_batch.html", context))

    def assign(self, request: Request, form: Form) -> Response:
        """Let a person, or the writer, answer a conversation from now on."""
        to, reference = form.get("to", ""), form.get("ref", "")
        if to not in ("person", "writer"):
            raise HTTPException(400, "to must be person or writer.")
        with self._report(request, f"assign conversation to {to}", reference=reference):
            conversation = self._pages.find(reference)
            if conversation is None:
                raise HTTPException(404, "That conversation no longer exists.")
            key = conversation.key
            self._console.log_action(
                request, f"assign conversation to {to}", conversation=key.log_name
            )
            operator = self._pages.chat.get().operator
            if to == "person":
                operator.assign_to_person(key)
            else:
                operator.resume_automation(key)
        return _redirect(request, f"/conversations/conversation?ref={reference}")

    def search(self, request: Request, form: Form) -> Response:
        """Show the conversation with an id. A POST, because the id may be a phone number."""
        with self._report(request, "search conversations"):
            matches = self._pages.search(form.get("id", "").strip())
        page = self._pages.show_matches(matches)
        if len(matches) == 1:
            reference = page.context["make_reference"](matches[0].key)
            return _redirect(request, f"/conversations/conversation?ref={reference}")
        return self._renderer.render(request, page)

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
            self._pages.expire()


def _redirect(request: Request, path: str) -> Response:
    return RedirectResponse(f"{request.scope.get('root_path', '')}{path}", 303)
