"""Fakes of a writer, a sender and a secret store, which tests control and inspect.

What they did is in a ledger: in memory, or in a file that outlives the process. `fault` is
called by the name of each point at which a service may fail, and may raise.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.chat.errors import PermanentError, SendStatusUnknown
from holdfast.chat.outbox import SentPart, WriterAnswer
from holdfast.chat.ports import ReplyPart, ReplyRequest, Secret
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.queue.message import make_id

Line = dict[str, Any]
Fault = Callable[[str], None]


class Ledger:
    """One line for each effect. A file gets each in one write, and gives out unique ids."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lines: list[Line] = []
        self._ids: Counter[str] = Counter()

    def add(self, **line: Any) -> None:
        """Append a line."""
        if self._path is None:
            self._lines.append(line)
            return
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, (json.dumps(line) + "\n").encode())
        finally:
            os.close(fd)

    def lines(self) -> list[Line]:
        """Return all lines."""
        if self._path is None:
            return self._lines
        text = self._path.read_text() if self._path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def new_id(self, kind: str) -> str:
        """Return an id that no process got before."""
        self._ids[kind] += 1
        return f"{kind}{make_id()[:12] if self._path else self._ids[kind]}"


@dataclass
class FakeWriter:
    """A writer that returns `reply(text)`, after it raised each of `troubles` once.

    If it keeps threads, it returns an earlier answer when it is asked again. The points of a
    fault are `ask` and `answer`.
    """

    reply: Callable[[str], str] = lambda text: f"You said: {text}"
    troubles: list[Exception] = field(default_factory=list)
    asked: list[ReplyRequest] = field(default_factory=list)
    threads: int = 0
    secret_fields: tuple[str, ...] = ("api_key",)
    ledger: Ledger = field(default_factory=Ledger)
    keeps_threads: bool = True
    fault: Fault = lambda point: None

    def open_thread(self, config: Mapping[str, Any], secret: Secret) -> str:
        """Return a new thread id."""
        self.threads += 1
        return self.ledger.new_id("thread-")

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
        self.fault("ask")
        line = self._find_earlier(question) or self._write_new(question)
        self.fault("answer")
        return WriterAnswer(line["text"], line["mark"], prompt_tokens=7, completion_tokens=3)

    def _find_earlier(self, question: ReplyRequest) -> Line | None:
        if not (question.again and self.keeps_threads):
            return None
        lines = [line for line in self.ledger.lines() if line["thread"] == question.thread_id]
        marks = [line["mark"] for line in lines]
        known = marks.index(question.thread_mark) + 1 if question.thread_mark in marks else 0
        answers = [line for line in lines[known:] if line["asked"] == question.text]
        return answers[-1] if answers else None

    def _write_new(self, question: ReplyRequest) -> Line:
        text, mark = self.reply(question.text), self.ledger.new_id("item-")
        line = {"thread": question.thread_id, "mark": mark, "asked": question.text}
        self.ledger.add(**line, text=text)
        return {**line, "text": text}


@dataclass
class FakeSender:
    """A sender that keeps the parts it sent.

    An error in `no_connection` is raised instead of connecting, one in `troubles` instead of
    sending, and one in `after_sending` once the part was sent. These are also points of a
    fault: `connect`, `send` and `sent`, and `find`. A part is found by its address and text,
    like at real providers, `lag_seconds()` after it was sent.
    """

    no_connection: list[Exception] = field(default_factory=list)
    troubles: list[Exception] = field(default_factory=list)
    after_sending: list[Exception] = field(default_factory=list)
    can_tell: bool = True
    repeatable: bool = False
    known: list[str] = field(default_factory=list)  # the `known` of the last call to `find`
    connected: int = 0
    secret_fields: tuple[str, ...] = ("auth_token",)
    ledger: Ledger = field(default_factory=Ledger)
    clock: Clock = SYSTEM_CLOCK
    lag_seconds: Callable[[], float] = lambda: 0.0
    fault: Fault = lambda point: None

    @property
    def sent(self) -> list[Line]:
        """Return the parts that were sent."""
        return [line for line in self.ledger.lines() if line["what"] == "sent"]

    @property
    def texts(self) -> list[str]:
        """Return the texts that were sent."""
        return [line["text"] for line in self.sent]

    @contextmanager
    def connect(
        self, part: ReplyPart, secret: Secret, *, timeout_seconds: float
    ) -> Iterator[Callable[[], SentPart]]:
        """Count the open connections, and provide the call that sends."""
        self._fail("connect", self.no_connection)
        self.connected += 1
        try:
            yield lambda: self.send(part)
        finally:
            self.connected -= 1

    def send(self, part: ReplyPart) -> SentPart:
        """Keep the part, and return its sid."""
        self._fail("send", self.troubles)
        sid, now = self.ledger.new_id("SM"), self.clock.time()
        self.ledger.add(
            what="sent",
            sid=sid,
            to=part.key.primary_channel,
            text=part.text,
            index=part.index,
            at=now,
            listed_at=now + self.lag_seconds(),
        )
        self._fail("sent", self.after_sending)
        return SentPart(sid, "queued")

    def find(
        self, part: ReplyPart, secret: Secret, *, since: float, known: Sequence[str]
    ) -> SentPart | None:
        """Return the part if it is listed, or raise SendStatusUnknown."""
        self.known = list(known)
        if not self.can_tell:
            raise SendStatusUnknown("this sender keeps no list")
        self.fault("find")
        wanted = part.key.primary_channel, part.text
        for line in self.sent:
            fits = (line["to"], line["text"]) == wanted and line["sid"] not in known
            listed = line["listed_at"] <= self.clock.time()
            if fits and listed and int(line["at"]) >= int(since):  # they keep full seconds
                return SentPart(line["sid"], "found")
        return None

    def _fail(self, point: str, errors: list[Exception]) -> None:
        self.fault(point)
        if errors:
            raise errors.pop(0)


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

    the_writer: Any = field(default_factory=FakeWriter)
    the_sender: Any = field(default_factory=FakeSender)
    secrets: Any = field(default_factory=FakeSecrets)

    def writer(self, name: str) -> Any:
        """Return the one writer."""
        return self.the_writer

    def sender(self, name: str) -> Any:
        """Return the one sender."""
        return self.the_sender
