"""A fake writer, sender and secret store that tests control and inspect."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from holdfast.chat.errors import PermanentError, SendStatusUnknown
from holdfast.chat.outbox import SentPart, WriterAnswer
from holdfast.chat.ports import ReplyPart, ReplyRequest, Secret


@dataclass
class FakeWriter:
    """A writer that returns `reply(text)`, after it raised each of `troubles` once."""

    reply: Callable[[str], str] = lambda text: f"You said: {text}"
    troubles: list[Exception] = field(default_factory=list)
    asked: list[ReplyRequest] = field(default_factory=list)
    threads: int = 0
    secret_fields: tuple[str, ...] = ("api_key",)

    def open_thread(self, config: Mapping[str, Any], secret: Secret) -> str:
        """Return a new thread id."""
        self.threads += 1
        return f"thread-{self.threads}"

    def write(
        self,
        question: ReplyRequest,
        config: Mapping[str, Any],
        secret: Secret,
        *,
        timeout_seconds: float,
    ) -> WriterAnswer:
        """Return the reply, and remember the question."""
        self.asked.append(question)
        if self.troubles:
            raise self.troubles.pop(0)
        mark = f"item-{len(self.asked)}"
        return WriterAnswer(
            self.reply(question.text), mark, prompt_tokens=7, completion_tokens=3
        )


@dataclass
class FakeSender:
    """A sender that keeps the parts it sent.

    An error in `no_connection` is raised instead of connecting, one in `troubles` instead of
    sending, and one in `after_sending` once the part was sent.
    """

    no_connection: list[Exception] = field(default_factory=list)
    troubles: list[Exception] = field(default_factory=list)
    after_sending: list[Exception] = field(default_factory=list)
    can_tell: bool = True
    repeatable: bool = False
    sent: list[ReplyPart] = field(default_factory=list)
    known: list[str] = field(default_factory=list)  # the `known` of the last call to `find`
    connected: int = 0
    secret_fields: tuple[str, ...] = ("auth_token",)

    @property
    def texts(self) -> list[str]:
        """Return the texts that were sent."""
        return [part.text for part in self.sent]

    @contextmanager
    def connect(
        self, part: ReplyPart, secret: Secret, *, timeout_seconds: float
    ) -> Iterator[Callable[[], SentPart]]:
        """Count the open connections, and provide the call that sends."""
        if self.no_connection:
            raise self.no_connection.pop(0)
        self.connected += 1
        try:
            yield lambda: self.send(part)
        finally:
            self.connected -= 1

    def send(self, part: ReplyPart) -> SentPart:
        """Keep the part, and return its sid."""
        if self.troubles:
            raise self.troubles.pop(0)
        self.sent.append(part)
        if self.after_sending:
            raise self.after_sending.pop(0)
        return SentPart(f"SM{len(self.sent)}", "queued")

    def find(
        self, part: ReplyPart, secret: Secret, *, since: float, known: Sequence[str]
    ) -> SentPart | None:
        """Return the part by its reference, or raise SendStatusUnknown."""
        self.known = list(known)
        if not self.can_tell:
            raise SendStatusUnknown("this sender keeps no list")
        for number, sent in enumerate(self.sent, 1):
            if sent.reference == part.reference:
                return SentPart(f"SM{number}", "sent")
        return None


@dataclass
class FakeSecrets:
    """Secrets with all fields for any reference that is not `missing`.

    First `get` raises `troubles`, one with each call.
    """

    missing: set[str] = field(default_factory=set)
    troubles: list[Exception] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)

    def get(self, reference: str) -> Secret:
        """Return a secret with all fields."""
        if self.troubles:
            raise self.troubles.pop(0)
        if reference in self.missing:
            raise PermanentError(f"there is no secret {reference!r}")
        fields = ("api_key", "account_sid", "auth_token", "username", "password")
        return Secret(reference, {name: f"canary-{name}" for name in fields})

    def forget(self, reference: str) -> None:
        """Remember which secret was dropped."""
        self.forgotten.append(reference)


@dataclass
class FakeProviders:
    """Providers with the same writer and the same sender for all names."""

    the_writer: FakeWriter = field(default_factory=FakeWriter)
    the_sender: FakeSender = field(default_factory=FakeSender)
    secrets: FakeSecrets = field(default_factory=FakeSecrets)

    def writer(self, name: str) -> FakeWriter:
        """Return the one writer."""
        return self.the_writer

    def sender(self, name: str) -> FakeSender:
        """Return the one sender."""
        return self.the_sender
