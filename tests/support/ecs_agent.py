"""A stub of the agent of ECS: it records requests and answers as the agent does."""

import json
from dataclasses import dataclass, field
from typing import Any, Self

from support.http_server import Ask, LoopbackServer, Wire, status

PATH = "/api/task-1/task-protection/v1/state"


@dataclass
class EcsAgent(LoopbackServer):
    """The agent on a free port. `refusal` is sent instead of a confirmation if it is set."""

    requests: list[dict[str, Any]] = field(default_factory=list)
    refusal: Any = None
    is_protected: bool = False

    def __enter__(self) -> Self:
        super().__enter__()
        self.on(PATH, self.respond)
        return self

    @property
    def uri(self) -> str:
        """The value of ECS_AGENT_URI."""
        return self.url("/api/task-1")

    def respond(self, ask: Ask, wire: Wire) -> None:
        """Record a request and answer it."""
        self.requests.append(json.loads(ask.body))
        answer = self.refusal
        if answer is None:
            self.is_protected = self.requests[-1]["ProtectionEnabled"]
            answer = {
                "protection": {
                    "ProtectionEnabled": self.is_protected,
                    "ExpirationDate": "2026-11-17T10:00:00Z" if self.is_protected else None,
                    "TaskArn": "arn:aws:ecs:eu-west-1:123456789012:task/shop-work/1",
                }
            }
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        status("200 OK", body=data)(ask, wire)
