"""Fake OpenAI and Twilio servers on a free port of the loopback interface.

They implement the part of the HTTP APIs that Holdfast uses.

    with VendorServer() as vendors:
        vendors.books.order("twilio.send", Fault(status=429))

    openai.open .look .list .write, twilio.send .list   can fail

The error texts repeat everything that was sent, including the key, so tests detect code that
forwards them.
"""

import base64
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate, parsedate_to_datetime
from itertools import count
from threading import Lock
from typing import Any, Literal
from urllib.parse import parse_qsl, urlencode

from holdfast.chat.outbox import SentPart
from holdfast.chat.ports import ReplyPart, ReplySender, Secret
from support import http_server
from support.http_server import LoopbackServer, Wire, status

How = Literal["answer", "close", "hang", "garbage", "cut"]


@dataclass(frozen=True)
class Fault:
    """What happens instead of a good response; with `acted` after the request took effect.

    `answer` returns the status and the vendor's code; `close` closes the connection without a
    response; `hang` never responds; `garbage` returns 200 with an unreadable body, and `cut`
    with the beginning of one.
    """

    status: int = 0
    code: str = ""
    param: str = ""
    how: How = "answer"
    acted: bool = False


class Refused(Exception):
    """A response with the status and the vendor's code of an error."""

    def __init__(self, status: int, code: str | None = None, param: str | None = None) -> None:
        super().__init__(status, code)
        self.status, self.code, self.param = status, code, param


@dataclass(frozen=True)
class Ask:
    """One request."""

    on: str
    path: str
    query: dict[str, str]
    body: dict[str, Any]
    user: str  # the key; user:password for Twilio


@dataclass
class Books:
    """The state of the fake vendors."""

    conversations: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)
    openai_key: str = ""  # the only one that OpenAI accepts; if empty, any
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    reply: Callable[[str], str] = "Re: {}".format
    shape: dict[str, Any] = field(default_factory=dict)  # merged into OpenAI's responses
    now: Callable[[], float] = time.time
    listed_after_seconds: float = 0.0  # Twilio lists a message so long after it accepted it
    listed_at: dict[str, float] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)
    numbers: Any = field(default_factory=lambda: count(1))

    def order(self, on: str, fault: Fault, times: int = 1) -> None:
        """Let the next calls of that kind fail, this many times."""
        with self.lock:
            self.faults.setdefault(on, []).extend([fault] * times)

    def asked(self, on: str) -> list[Ask]:
        return [ask for ask in self.asks if ask.on == on]

    def sent(self) -> list[str]:
        """Return the texts that Twilio accepted, in order."""
        return [item["body"] for item in self.messages]

    def next_fault(self, on: str) -> Fault | None:
        with self.lock:
            waiting = self.faults.get(on)
            return waiting.pop(0) if waiting else None

    # -- OpenAI

    def open(self, ask: Ask) -> dict[str, Any]:
        name = f"conv_{next(self.numbers):032x}"
        self.conversations[name] = []
        return self._conversation(name)

    def look(self, ask: Ask) -> dict[str, Any]:
        return self._conversation(ask.path.split("/")[3])

    def _conversation(self, name: str) -> dict[str, Any]:
        self._items(name)
        return {"id": name, "object": "conversation", "created_at": 1, "metadata": {}}

    def list_items(self, ask: Ask) -> dict[str, Any]:
        items = list(self._items(ask.path.split("/")[3]))
        if ask.query.get("order", "desc") == "desc":
            items.reverse()
        if after := ask.query.get("after"):
            at = [n for n, item in enumerate(items) if item["id"] == after]
            if not at:
                raise Refused(404)
            items = items[at[0] + 1 :]
        limit = int(ask.query.get("limit", 20))
        page, more = items[:limit], len(items) > limit
        ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {}
        return {"object": "list", "data": page, "has_more": more, **ends}

    def write(self, ask: Ask) -> dict[str, Any]:
        if ask.body.get("model") in (None, "no-such-model"):
            raise Refused(400, "model_not_found", "model")
        items = self._items(str(ask.body.get("conversation")))
        questions = [
            self._message("user", item["content"]) for item in ask.body.get("input", [])
        ]
        texts = [
            item["content"][0]["text"] for item in items + questions if item["role"] == "user"
        ]
        if not texts:
            raise Refused(400, "missing_required_parameter", "input")
        answer = self._message("assistant", self.reply(texts[-1]))
        items.extend([*questions, answer])
        words = (len(texts[-1].split()), len(answer["content"][0]["text"].split()))
        return _response(ask.body, answer, *words) | self.shape

    def _items(self, name: str) -> list[dict[str, Any]]:
        if not name.startswith("conv_"):
            raise Refused(400, "invalid_value", "conversation")
        if name not in self.conversations:
            raise Refused(404)  # OpenAI names the missing object only in the text
        return self.conversations[name]

    def _message(self, role: str, text: str) -> dict[str, Any]:
        kind = "input_text" if role == "user" else "output_text"
        return {
            "id": f"msg_{next(self.numbers):032x}",
            "type": "message",
            "role": role,
            "status": "completed",
            "content": [{"type": kind, "text": text, "annotations": []}],
        }

    # -- Twilio

    def send(self, ask: Ask) -> dict[str, Any]:
        self._check_number(ask.body)
        message = {
            "sid": f"SM{next(self.numbers):032x}",
            "status": "queued",
            "direction": "outbound-api",
            "to": ask.body["To"],
            "from": ask.body.get("From"),
            "body": ask.body.get("Body", ""),
            "messaging_service_sid": ask.body.get("MessagingServiceSid"),
            "date_created": formatdate(self.now()),
            "date_sent": None,  # it is in the queue
            "error_code": None,
        }
        self.messages.append(message)
        self.listed_at[str(message["sid"])] = self.now() + self.listed_after_seconds
        return message

    def list_messages(self, ask: Ask) -> dict[str, Any]:
        size, page = int(ask.query.get("PageSize", 50)), int(ask.query.get("Page", 0))
        now = self.now()
        listed = [item for item in self.messages if self.listed_at.get(item["sid"], now) <= now]
        matching = [item for item in reversed(listed) if _matches(item, ask.query)]
        matching.sort(key=_created, reverse=True)
        more = matching[(page + 1) * size :]
        query = urlencode({**ask.query, "Page": page + 1, "PageToken": f"PA{page + 1}"})
        return {
            "messages": matching[page * size : (page + 1) * size],
            "page": page,
            "page_size": size,
            "next_page_uri": f"{ask.path}?{query}" if more else None,
        }

    def _check_number(self, body: dict[str, str]) -> None:
        number = body.get("To", "").removeprefix("whatsapp:")
        if number == "+15005550004":  # Twilio's test number for this error
            raise Refused(400, "21610")
        if not re.fullmatch(r"\+\d{7,15}", number) or number == "+15005550001":
            raise Refused(400, "21211")
        if not body.get("From") and not body.get("MessagingServiceSid"):
            raise Refused(400, "21603")
        if len(body.get("Body", "")) > 1600:
            raise Refused(400, "21617")


def _response(order: dict[str, Any], answer: Any, asked: int, answered: int) -> dict[str, Any]:
    usage = {"input_tokens": asked, "output_tokens": answered, "total_tokens": asked + answered}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": order["model"],
        "metadata": order.get("metadata", {}),
        "output": [answer],
        "usage": usage,
        "error": None,
    }


def _created(message: dict[str, Any]) -> Any:
    return parsedate_to_datetime(message["date_created"])


def _matches(message: dict[str, Any], query: dict[str, str]) -> bool:
    wanted = {"To": "to", "From": "from"}
    if any(name in query and message[key] != query[name] for name, key in wanted.items()):
        return False
    return message["date_sent"] is not None or not any("DateSent" in name for name in query)


Deed = Callable[[Books, Ask], dict[str, Any]]
_TWILIO = r"/2010-04-01/Accounts/[^/]+/Messages\.json"
_ROUTES: list[tuple[str, str, str, Deed]] = [
    ("POST", r"/v1/conversations", "openai.open", Books.open),
    ("GET", r"/v1/conversations/[^/]+", "openai.look", Books.look),
    ("GET", r"/v1/conversations/[^/]+/items", "openai.list", Books.list_items),
    ("POST", r"/v1/responses", "openai.write", Books.write),
    ("POST", _TWILIO, "twilio.send", Books.send),
    ("GET", _TWILIO, "twilio.list", Books.list_messages),
]
_JSON = "Content-Type: application/json"


class VendorServer(LoopbackServer):
    """The fake vendors behind one port. `books` is their state."""

    def __init__(self) -> None:
        super().__init__(otherwise=self._respond)
        self.books = Books()

    @property
    def twilio(self) -> str:
        """Return the base_url for channel_config."""
        return self.url("")

    @property
    def openai(self) -> str:
        """Return the base_url for ai_config, or for OPENAI_BASE_URL."""
        return self.url("/v1")

    def _respond(self, request: http_server.Ask, wire: Wire) -> None:
        matching = (
            (on, deed)
            for method, pattern, on, deed in _ROUTES
            if method == request.method and re.fullmatch(pattern, request.path)
        )
        on, deed = next(matching, ("", _refuse_path))
        ask = _read(request, on)
        try:
            code, content = 200, self._act(ask, deed, wire)
        except Refused as refused:
            code, content = refused.status, _explain(refused, ask)
        if not wire.closed:
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            location = f"Location: {request.path}"  # where a redirect leads
            status(f"{code} Status", _JSON, location, body=data)(request, wire)

    def _act(self, ask: Ask, deed: Deed, wire: Wire) -> dict[str, Any] | bytes:
        """Do what is asked, or what a fault makes of it. Returns the content of a response."""
        fault = self.books.next_fault(ask.on)
        with self.books.lock:
            self.books.asks.append(ask)
            key = self.books.openai_key
            if ask.on.startswith("openai") and key not in ("", ask.user):
                raise Refused(401, "invalid_api_key")
            answer = deed(self.books, ask) if fault is None or fault.acted else {}
        match fault:
            case Fault(how="answer"):
                raise Refused(fault.status, fault.code or None, fault.param or None)
            case Fault(how="garbage"):
                return b"<html>no JSON at all</html>"
            case Fault(how="hang"):
                wire.hang()
            case Fault(how=how):
                if how == "cut":
                    wire.head("200 OK", "Content-Length: 99")
                    wire.send(b"{")
                wire.close()
        return answer


def _read(request: http_server.Ask, on: str) -> Ask:
    is_json = "json" in request.headers.get("content-type", "")
    body = json.loads(request.body or b"{}") if is_json else _parse(request.body.decode())
    kind, _, word = request.headers.get("authorization", "").partition(" ")
    user = base64.b64decode(word).decode() if kind == "Basic" else word
    return Ask(on, request.path, _parse(request.query), body, user)


def _parse(form: str) -> dict[str, str]:
    return dict(parse_qsl(form))


def _refuse_path(books: Books, ask: Ask) -> dict[str, Any]:
    raise Refused(404)


def _explain(refused: Refused, ask: Ask) -> dict[str, Any]:
    """Return the content of an error, which repeats the request as vendors do."""
    text = f"no: {ask.path} {ask.query} {ask.body} {ask.user}"
    if ask.path.startswith("/v1"):
        reason = {"param": refused.param, "code": refused.code}
        return {"error": {"message": text, "type": "invalid_request_error", **reason}}
    code = int(refused.code or refused.status)
    return {"code": code, "message": text, "status": refused.status}


def send(sender: ReplySender, part: ReplyPart, secret: Secret, **how: Any) -> SentPart:
    """Connect and hand the part over, with nothing in between."""
    with sender.connect(part, secret, **how) as hand_over:
        return hand_over()
