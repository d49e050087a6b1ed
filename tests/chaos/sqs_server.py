"""An SQS server that records every send and delete, based on ministack.

Run as a program, it prints its address on standard output and serves until it is killed. Its
totals can be read at TOTALS, by SQS's own ids, so that they do not depend on the workers, and
in short at COUNTS.
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

TOTALS, COUNTS = "/totals", "/counts"


@dataclass(frozen=True, slots=True)
class ServerTotals:
    """The sends and deletes that the server saw."""

    sent: list[str]
    deleted: dict[str, int]  # how often each was deleted
    receives: int
    repeated: int  # deletes repeated with the same receipt, because the response was lost
    stale: int  # deletes with a stale receipt


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """The numbers of sent and deleted messages."""

    sent: int
    deleted: int

    @property
    def waiting(self) -> int:
        """Return the number of messages that are not deleted."""
        return self.sent - self.deleted


@dataclass(frozen=True, slots=True)
class SqsServer:
    """A running server."""

    endpoint: str

    def read_totals(self) -> ServerTotals:
        """Return all sends and deletes."""
        return ServerTotals(**self._request(TOTALS))

    def read_counts(self) -> ServerCounts:
        """Return the numbers of sends and deletes."""
        return ServerCounts(**self._request(COUNTS))

    def _request(self, path: str) -> Any:
        with urlopen(self.endpoint + path, timeout=60) as response:
            return json.load(response)


@contextmanager
def run_server() -> Iterator[SqsServer]:
    """Run the server in a process until the block ends."""
    command = [sys.executable, str(Path(__file__))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address, "the SQS server did not start; see stderr"
            yield SqsServer(address)
        finally:
            process.kill()


class RecordingApp:
    """An ASGI application that records what passes to and from ministack's."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._messages: dict[str, str] = {}  # by receipt
        self._sent: list[str] = []
        self._deleted: Counter[str] = Counter()
        self._used: set[str] = set()  # receipts that were used for a delete
        self._receives = self._repeated = self._stale = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"] == TOTALS:
            await _send_json(send, self._collect_totals())
        elif scope["path"] == COUNTS:
            await _send_json(send, {"sent": len(self._sent), "deleted": len(self._deleted)})
        else:
            await self._forward(scope, receive, send)

    async def _forward(self, scope: Any, receive: Any, send: Any) -> None:
        request, response = bytearray(), bytearray()

        async def read() -> Any:
            event = await receive()
            request.extend(event.get("body", b""))
            return event

        async def write(event: Any) -> None:
            response.extend(event.get("body", b""))
            if event["type"] == "http.response.body" and not event.get("more_body"):
                self._note(_get_action(scope), _parse_json(request), _parse_json(response))
            await send(event)

        await self._app(scope, read, write)

    def _note(
        self, action: str, arguments: Mapping[str, Any], response: Mapping[str, Any]
    ) -> None:
        match action:
            case "SendMessage" if "MessageId" in response:
                self._sent.append(response["MessageId"])
            case "SendMessageBatch":
                self._sent += [entry["MessageId"] for entry in response.get("Successful", ())]
            case "ReceiveMessage":
                self._receives += 1
                for message in response.get("Messages", ()):
                    self._messages[message["ReceiptHandle"]] = message["MessageId"]
            case "DeleteMessageBatch":
                self._note_deletes(arguments, response)
            case "DeleteMessage":
                raise AssertionError("acks are expected in batches")

    def _note_deletes(self, arguments: Mapping[str, Any], response: Mapping[str, Any]) -> None:
        receipts = {entry["Id"]: entry["ReceiptHandle"] for entry in arguments["Entries"]}
        for entry in response.get("Successful", ()):
            self._used.add(receipt := receipts[entry["Id"]])
            self._deleted[self._messages[receipt]] += 1
        for entry in response.get("Failed", ()):
            repeated = receipts[entry["Id"]] in self._used
            self._repeated += repeated
            self._stale += not repeated

    def _collect_totals(self) -> dict[str, Any]:
        return {
            "sent": self._sent,
            "deleted": self._deleted,
            "receives": self._receives,
            "repeated": self._repeated,
            "stale": self._stale,
        }


async def _send_json(send: Any, content: Mapping[str, Any]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps(content).encode()})


def _get_action(scope: Any) -> str:
    targets = (value for name, value in scope["headers"] if name == b"x-amz-target")
    return str(next(targets, b"").decode().rpartition(".")[2])


def _parse_json(body: bytearray) -> Mapping[str, Any]:
    try:
        parsed = json.loads(bytes(body))
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


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
    asyncio.run(serve(RecordingApp(app), config))  # type: ignore[arg-type]


if __name__ == "__main__":
    _serve()
