"""An SQS server, based on ministack, that records every send, receive and delete.

The entries have SQS's own ids, so that they do not depend on the workers.
"""

import asyncio
import json
import os
import socket
from collections.abc import Mapping
from typing import Any

from chaos.events import Entry, EventLog


def serve(listening: socket.socket, event_log: EventLog) -> None:
    """Serve in this process until it is killed."""
    port = listening.getsockname()[1]
    os.environ.update(GATEWAY_PORT=str(port), SERVICES="sqs", LOG_LEVEL="ERROR")
    from hypercorn.asyncio import serve as serve_app
    from hypercorn.config import Config
    from ministack.app import app

    config = Config()
    config.bind = [f"fd://{listening.fileno()}"]
    config.loglevel = "ERROR"
    asyncio.run(serve_app(RecordingApp(app, event_log), config))  # type: ignore[arg-type]


class RecordingApp:
    """An ASGI application that records what passes to and from ministack's."""

    def __init__(self, app: Any, event_log: EventLog) -> None:
        self._app, self._event_log = app, event_log
        self._messages: dict[str, str] = {}  # by receipt
        self._used: set[str] = set()  # receipts that were used for a delete

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
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
            case "SendMessageBatch":
                sent = response.get("Successful", ())
                self._event_log.add(*(Entry("sent", each["MessageId"]) for each in sent))
            case "ReceiveMessage":
                self._event_log.add(Entry("received"))
                for message in response.get("Messages", ()):
                    self._messages[message["ReceiptHandle"]] = message["MessageId"]
            case "DeleteMessageBatch":
                self._note_deletes(arguments, response)
            case "SendMessage" | "DeleteMessage":
                raise AssertionError("messages are expected in batches")

    def _note_deletes(self, arguments: Mapping[str, Any], response: Mapping[str, Any]) -> None:
        receipts = {entry["Id"]: entry["ReceiptHandle"] for entry in arguments["Entries"]}
        for entry in response.get("Successful", ()):
            self._used.add(receipt := receipts[entry["Id"]])
            self._event_log.add(Entry("deleted", self._messages[receipt]))
        for entry in response.get("Failed", ()):
            # Repeated with the same receipt, because the response was lost.
            is_repeated = receipts[entry["Id"]] in self._used
            self._event_log.add(Entry("repeated" if is_repeated else "stale"))


def _get_action(scope: Any) -> str:
    targets = (value for name, value in scope.get("headers", ()) if name == b"x-amz-target")
    return str(next(targets, b"").decode().rpartition(".")[2])


def _parse_json(body: bytearray) -> Mapping[str, Any]:
    try:
        parsed = json.loads(bytes(body))
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
