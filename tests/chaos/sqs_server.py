"""An SQS server that keeps books: ministack, with an eye on every send and delete.

Run as a program it says its address on standard output and serves until it is killed.
What it saw is told at BOOKS by SQS's own ids, so that no worker's word is needed, and in
short at COUNTS.
"""

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

BOOKS, COUNTS = "/books", "/counts"


@dataclass(frozen=True, slots=True)
class ServerBooks:
    sent: list[str]
    deleted: dict[str, int]  # how often each was deleted
    receives: int
    repeated: int  # deletes of what was deleted by the same receipt: its answer got lost
    stale: int  # deletes with a receipt that was good no more


@dataclass(frozen=True, slots=True)
class Counts:
    sent: int
    deleted: int

    @property
    def waiting(self) -> int:
        return self.sent - self.deleted


@dataclass(frozen=True, slots=True)
class Server:
    endpoint: str

    def books(self) -> ServerBooks:
        return ServerBooks(**self._ask(BOOKS))

    def counts(self) -> Counts:
        return Counts(**self._ask(COUNTS))

    def _ask(self, path: str) -> Any:
        with urlopen(self.endpoint + path, timeout=60) as answer:
            return json.load(answer)


@contextmanager
def serving() -> Iterator[Server]:
    command = [sys.executable, str(Path(__file__))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address, "the SQS server did not start; see stderr"
            yield Server(address)
        finally:
            process.kill()


class BookKeeping:
    """An ASGI application around ministack's."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._messages: dict[str, str] = {}  # by receipt
        self._sent: list[str] = []
        self._deleted: Counter[str] = Counter()
        self._used: set[str] = set()  # receipts that deleted
        self._receives = self._repeated = self._stale = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"] == BOOKS:
            await _tell(send, self._books())
        elif scope["path"] == COUNTS:
            await _tell(send, {"sent": len(self._sent), "deleted": len(self._deleted)})
        else:
            await self._watch(scope, receive, send)

    async def _watch(self, scope: Any, receive: Any, send: Any) -> None:
        request, answer = bytearray(), bytearray()

        async def read() -> Any:
            event = await receive()
            request.extend(event.get("body", b""))
            return event

        async def write(event: Any) -> None:
            answer.extend(event.get("body", b""))
            if event["type"] == "http.response.body" and not event.get("more_body"):
                self._note(_action(scope), _json(request), _json(answer))
            await send(event)

        await self._app(scope, read, write)

    def _note(self, action: str, asked: Mapping[str, Any], told: Mapping[str, Any]) -> None:
        match action:
            case "SendMessage" if "MessageId" in told:
                self._sent.append(told["MessageId"])
            case "SendMessageBatch":
                self._sent += [entry["MessageId"] for entry in told.get("Successful", ())]
            case "ReceiveMessage":
                self._receives += 1
                for message in told.get("Messages", ()):
                    self._messages[message["ReceiptHandle"]] = message["MessageId"]
            case "DeleteMessageBatch":
                self._note_deletes(asked, told)
            case "DeleteMessage":
                raise AssertionError("acks are expected in batches")

    def _note_deletes(self, asked: Mapping[str, Any], told: Mapping[str, Any]) -> None:
        receipts = {entry["Id"]: entry["ReceiptHandle"] for entry in asked["Entries"]}
        for entry in told.get("Successful", ()):
            self._used.add(receipt := receipts[entry["Id"]])
            self._deleted[self._messages[receipt]] += 1
        for entry in told.get("Failed", ()):
            repeated = receipts[entry["Id"]] in self._used
            self._repeated += repeated
            self._stale += not repeated

    def _books(self) -> dict[str, Any]:
        return {
            "sent": self._sent,
            "deleted": self._deleted,
            "receives": self._receives,
            "repeated": self._repeated,
            "stale": self._stale,
        }


async def _tell(send: Any, what: Mapping[str, Any]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps(what).encode()})


def _action(scope: Any) -> str:
    named = (value for name, value in scope["headers"] if name == b"x-amz-target")
    return str(next(named, b"").decode().rpartition(".")[2])


def _json(body: bytearray) -> Mapping[str, Any]:
    try:
        found = json.loads(bytes(body))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _serve() -> None:
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    port = listening.getsockname()[1]
    os.environ.update(GATEWAY_PORT=str(port), SERVICES="sqs", LOG_LEVEL="ERROR")
    import asyncio

    from hypercorn.asyncio import serve
    from hypercorn.config import Config
    from ministack.app import app

    config = Config()
    config.bind = [f"fd://{listening.fileno()}"]
    config.loglevel = "ERROR"
    print(f"http://127.0.0.1:{port}", flush=True)
    asyncio.run(serve(BookKeeping(app), config))  # type: ignore[arg-type]


if __name__ == "__main__":
    _serve()
