"""Fake OpenAI and Twilio servers on a free port of the loopback interface.

They implement the part of the HTTP APIs that Holdfast uses. Of Secrets Manager they implement
the faults that moto cannot produce.

    with VendorServer() as vendors:
        vendors.books.order("twilio.send", Fault(status=429))

    openai.open .look .list .write .count, twilio.send .list, aws.secret   can fail

The error texts repeat everything that was sent, including the key, so tests detect code that
forwards them.

(`http_server` reads no bodies and knows no methods, so this is a server of its own.)
"""

import base64
import json
import re
import sys
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from threading import Event, Thread
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from holdfast.chat.outbox import SentPart
from holdfast.chat.ports import ReplyPart, ReplySender, Secret
from support.vendors.state import ROUTES, Ask, Books, Deed, Fault, Refused

__all__ = ["Ask", "Books", "Fault", "VendorServer", "send"]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "_Listener"

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def log_message(self, *_: Any) -> None:
        return

    def _serve(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        for method, pattern, on, deed, status in ROUTES:
            if method == self.command and re.fullmatch(pattern, parts.path):
                body = self._body(data)
                ask = Ask(on, method, parts.path, query, body, self._user())
                self._do(ask, deed, status)
                return
        self._refuse(Refused(404), Ask("", self.command, parts.path, query, {}, self._user()))

    def _body(self, data: bytes) -> dict[str, Any]:
        if "json" in self.headers.get("Content-Type", ""):
            return dict(json.loads(data or b"{}"))
        return {name: values[0] for name, values in parse_qs(data.decode()).items()}

    def _user(self) -> str:
        kind, _, word = self.headers.get("Authorization", "").partition(" ")
        return base64.b64decode(word).decode() if kind == "Basic" else word

    def _do(self, ask: Ask, deed: Deed, status: int) -> None:
        books = self.server.books
        fault = books.next_fault(ask.on)
        ask.fault = f"{fault.how} {fault.status or ''}".strip() if fault else ""
        try:
            with books.lock:
                books.asks.append(ask)
                self._check_key(ask, books.keys)
                answer = deed(books, ask) if fault is None or fault.acted else {}
            if fault is None:
                self._answer(status, answer)
            else:
                self._fail(fault, ask)
        except Refused as refused:
            self._refuse(refused, ask)

    def _check_key(self, ask: Ask, keys: dict[str, str]) -> None:
        vendor = ask.on.partition(".")[0]
        if vendor in keys and ask.user.rpartition(":")[2] != keys[vendor]:
            raise Refused(401, "20003" if vendor == "twilio" else "invalid_api_key")

    def _fail(self, fault: Fault, ask: Ask) -> None:
        if fault.how == "answer":
            raise Refused(fault.status, fault.code or None, fault.param or None)
        if fault.how == "garbage":
            self._write(200, b"<html>no JSON at all</html>", "application/json")
            return
        if fault.how == "hang":
            self._hang()
        self.close_connection = True

    def _hang(self) -> None:
        self.connection.settimeout(0.05)
        while not self.server.stopped.is_set():
            try:
                if not self.connection.recv(1):
                    return
            except TimeoutError:
                continue
            except OSError:
                return

    def _refuse(self, refused: Refused, ask: Ask) -> None:
        text = f"no: {ask.path} {ask.query} {ask.body} {ask.user}"  # vendors repeat the request
        if ask.path == "/":
            self._answer(refused.status, {"__type": refused.code, "message": text})
        elif ask.path.startswith("/v1"):
            error: dict[str, Any] = {"message": text, "type": "invalid_request_error"}
            error |= {"param": refused.param, "code": refused.code}
            self._answer(refused.status, {"error": error})
        else:
            code = int(refused.code or refused.status)
            self._answer(
                refused.status, {"code": code, "message": text, "status": refused.status}
            )

    def _answer(self, status: int, data: Any) -> None:
        self._write(status, json.dumps(data).encode(), "application/json")

    def _write(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(data)


class _Listener(ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, books: Books) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.books = books
        self.stopped = Event()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # the client is gone
            super().handle_error(request, client_address)


class VendorServer:
    """The fake vendors behind one port, in threads of this process."""

    def __init__(self) -> None:
        self.books = Books()

    def __enter__(self) -> Self:
        self._listener = _Listener(self.books)
        self.port: int = self._listener.server_address[1]
        self._thread = Thread(target=self._listener.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.stopped.set()
        self._listener.shutdown()
        self._listener.server_close()
        self._thread.join(10)

    @property
    def twilio(self) -> str:
        """Return the base_url for channel_config."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def openai(self) -> str:
        """Return the base_url for ai_config, or for OPENAI_BASE_URL."""
        return f"{self.twilio}/v1"


def send(sender: ReplySender, part: ReplyPart, secret: Secret, **how: Any) -> SentPart:
    """Connect and hand the part over, with nothing in between."""
    with sender.connect(part, secret, **how) as hand_over:
        return hand_over()
