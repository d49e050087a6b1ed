"""A stub of the agent of ECS: it records requests and answers as the agent does."""

import json
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Self

PATH = "/api/task-1/task-protection/v1/state"


@dataclass
class EcsAgent:
    """The agent on a free port. `refusal` is sent instead of a confirmation if it is set."""

    requests: list[dict[str, Any]] = field(default_factory=list)
    refusal: Any = None
    is_protected: bool = False

    def __enter__(self) -> Self:
        agent = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, answer = agent.answer(self.path, json.loads(body))
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()

    @property
    def uri(self) -> str:
        """The value of ECS_AGENT_URI."""
        return f"http://127.0.0.1:{self._server.server_port}/api/task-1"

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Return the status and the answer to a request."""
        if path != PATH:
            return 404, b"404 page not found"
        self.requests.append(body)
        if self.refusal is not None:
            return 200, self.refusal
        self.is_protected = body["ProtectionEnabled"]
        return 200, {
            "protection": {
                "ProtectionEnabled": self.is_protected,
                "ExpirationDate": "2026-11-17T10:00:00Z" if self.is_protected else None,
                "TaskArn": "arn:aws:ecs:eu-west-1:123456789012:task/shop-work/1",
            }
        }
