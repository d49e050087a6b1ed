"""A writer that needs nobody: for trying things out, offline."""

from collections.abc import Mapping
from typing import Any

from holdfast.conversations.outbox import WriterAnswer
from holdfast.conversations.ports import ReplyRequest
from holdfast.conversations.secret import Secret


class EchoWriter:
    """Says again what was said; the same for the same text. Keeps no thread."""

    secret_fields: tuple[str, ...] = ()

    def open_thread(self, config: Mapping[str, Any], secret: Secret) -> str:
        return ""

    def write(
        self,
        question: ReplyRequest,
        config: Mapping[str, Any],
        secret: Secret,
        *,
        timeout_seconds: float,
    ) -> WriterAnswer:
        return WriterAnswer(f"You said: {question.text}")
