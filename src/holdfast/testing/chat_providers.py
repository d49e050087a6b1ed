"""A writer, a sender and secrets that do as the test says and remember what was asked."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from holdfast.conversations.errors import PermanentError, SendStatusUnknown
from holdfast.conversations.outbox import SentPart, WriterAnswer
from holdfast.conversations.ports import ReplyPart, ReplyRequest
from holdfast.conversations.secret import Secret


@dataclass
class FakeWriter:
    """Answers with `reply(text)`. `troubles` are raised first, one with each question."""

    reply: Callable[[str], str] = lambda text: f"You said: {text}"
    troubles: list[Exception] = field(default_factory=list)
    asked: list[ReplyRequest] = field(default_factory=list)
    threads: int = 0
    secret_fields: tuple[str, ...] = ("api_key",)

    def open_thread(self, config: Mapping[str, Any], secret: Secret) -> str:
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
        self.asked.append(question)
        if self.troubles:
            raise self.troubles.pop(0)
        mark = f"item-{len(self.asked)}"
        return WriterAnswer(
            self.reply(question.text), mark, prompt_tokens=7, completion_tokens=3
        )


@dataclass
class FakeSender:
    """Keeps what it sent. A trouble in `no_connection` is raised instead of connecting, one
    in `troubles` instead of sending, one in `after_sending` once it was sent."""

    no_connection: list[Exception] = field(default_factory=list)
    troubles: list[Exception] = field(default_factory=list)
    after_sending: list[Exception] = field(default_factory=list)
    can_tell: bool = True
    repeatable: bool = False
    sent: list[ReplyPart] = field(default_factory=list)
    known: list[str] = field(default_factory=list)  # what it was last told not to find
    connected: int = 0
    secret_fields: tuple[str, ...] = ("auth_token",)

    @property
    def texts(self) -> list[str]:
        return [part.text for part in self.sent]

    @contextmanager
    def connect(
        self, part: ReplyPart, secret: Secret, *, timeout_seconds: float
    ) -> Iterator[Callable[[], SentPart]]:
        if self.no_connection:
            raise self.no_connection.pop(0)
        self.connected += 1
        try:
            yield lambda: self.send(part)
        finally:
            self.connected -= 1

    def send(self, part: ReplyPart) -> SentPart:
        if self.troubles:
            raise self.troubles.pop(0)
        self.sent.append(part)
        if self.after_sending:
            raise self.after_sending.pop(0)
        return SentPart(f"SM{len(self.sent)}", "queued")

    def find(
        self, part: ReplyPart, secret: Secret, *, since: float, known: Sequence[str]
    ) -> SentPart | None:
        self.known = list(known)
        if not self.can_tell:
            raise SendStatusUnknown("this sender keeps no list")
        for number, sent in enumerate(self.sent, 1):
            if sent.reference == part.reference:
                return SentPart(f"SM{number}", "sent")
        return None


@dataclass
class FakeSecrets:
    """Any reference has all fields, unless it is `missing`; `troubles` are raised first."""

    missing: set[str] = field(default_factory=set)
    troubles: list[Exception] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)

    def get(self, reference: str) -> Secret:
        if self.troubles:
            raise self.troubles.pop(0)
        if reference in self.missing:
            raise PermanentError(f"there is no secret {reference!r}")
        fields = ("api_key", "account_sid", "auth_token", "username", "password")
        return Secret(reference, {name: f"canary-{name}" for name in fields})

    def forget(self, reference: str) -> None:
        self.forgotten.append(reference)


@dataclass
class FakeProviders:
    """All names lead to the same writer and the same sender."""

    the_writer: FakeWriter = field(default_factory=FakeWriter)
    the_sender: FakeSender = field(default_factory=FakeSender)
    secrets: FakeSecrets = field(default_factory=FakeSecrets)

    def writer(self, name: str) -> FakeWriter:
        return self.the_writer

    def sender(self, name: str) -> FakeSender:
        return self.the_sender
