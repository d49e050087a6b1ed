"""A writer that needs nobody: for trying things out, offline."""

from collections.abc import Mapping
from typing import Any

from holdfast.conversations.outbox import Answer
from holdfast.conversations.ports import Question
from holdfast.conversations.secret import Secret


class EchoWriter:
    """Says again what was said; the same for the same text. Keeps no thread."""

    secret_fields: tuple[str, ...] = ()

    def open_thread(self, config: Mapping[str, Any], secret: Secret) -> str:
        return ""

    def write(
        self,
        question: Question,
        config: Mapping[str, Any],
        secret: Secret,
        *,
        timeout_seconds: float,
    ) -> Answer:
        return Answer(f"You said: {question.text}")
