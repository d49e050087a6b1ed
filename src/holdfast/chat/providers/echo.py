"""A writer that needs no service, for trials without a network."""

from collections.abc import Mapping
from typing import Any

from holdfast.chat.outbox import WriterAnswer
from holdfast.chat.ports import ReplyRequest, Secret


class EchoWriter:
    """A writer that repeats the customer's text. It uses no threads."""

    secret_fields: tuple[str, ...] = ()

    def open_thread(self, config: Mapping[str, Any], secret: Secret) -> str:
        """Return no thread."""
        return ""

    def write(
        self,
        question: ReplyRequest,
        config: Mapping[str, Any],
        secret: Secret,
        *,
        timeout_seconds: float,
    ) -> WriterAnswer:
        """Return the customer's text; the reply is always the same for the same text."""
        return WriterAnswer(f"You said: {question.text}")
