"""Writers, senders and secrets as files: what they did outlives whoever asked for it."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from holdfast.conversations.errors import SendStatusUnknown, TransientError
from holdfast.conversations.outbox import SentPart, WriterAnswer
from holdfast.conversations.ports import (
    ReplyPart,
    ReplyRequest,
    ReplySender,
    ReplyWriter,
    SecretStore,
)
from holdfast.conversations.secret import Secret
from holdfast.core.clock import Clock
from holdfast.core.queue.message import new_id

Line = dict[str, Any]


class Ledger:
    """One line for each effect, appended in one write: there whole, or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, **line: Any) -> None:
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, (json.dumps(line) + "\n").encode())
        finally:
            os.close(fd)

    def lines(self) -> list[Line]:
        text = self._path.read_text() if self._path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]


class ThreadWriter:
    """Keeps threads, as the real one does: asked again, it looks before it answers."""

    secret_fields: tuple[str, ...] = ("api_key",)

    def __init__(self, ledger: Ledger, pages: int = 1) -> None:
        self._ledger, self._pages = ledger, pages

    def open_thread(self, config: Mapping[str, Any], secret: Secret) -> str:
        return f"thread-{new_id()[:8]}"

    def write(
        self,
        question: ReplyRequest,
        config: Mapping[str, Any],
        secret: Secret,
        *,
        timeout_seconds: float,
    ) -> WriterAnswer:
        answered = list(self._answered(question)) if question.again else []
        if not answered:
            mark = new_id()[:8]
            page = f"{mark} on: {question.text}"
            text = "\n\n".join([page.ljust(1_300 if self._pages > 1 else 0, ".")] * self._pages)
            self._ledger.add(
                thread=question.thread_id, mark=mark, asked=question.text, text=text
            )
            answered = [
                WriterAnswer(text, thread_mark=mark, prompt_tokens=1, completion_tokens=1)
            ]
        return answered[-1]

    def _answered(self, question: ReplyRequest) -> Iterator[WriterAnswer]:
        lines = [one for one in self._ledger.lines() if one["thread"] == question.thread_id]
        marks = [one["mark"] for one in lines]
        known = marks.index(question.thread_mark) + 1 if question.thread_mark in marks else 0
        for one in lines[known:]:
            if one["asked"] == question.text:
                yield WriterAnswer(
                    one["text"], one["mark"], prompt_tokens=1, completion_tokens=1
                )


class ForgetfulWriter(ThreadWriter):
    """Keeps no threads: each time it is asked it answers anew, and is paid."""

    def _answered(self, question: ReplyRequest) -> Iterator[WriterAnswer]:
        return iter(())


class LedgerSender:
    """Every send is a line: twice is twice. `finds`: it can be asked what it has, by
    address and text, as providers can; half the time, never, or always."""

    secret_fields: tuple[str, ...] = ("token",)
    repeatable = False

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        *,
        finds: Literal["always", "never", "by chance"],
        refusals: int = 0,
    ) -> None:
        self._ledger, self._clock = ledger, clock
        self._finds, self._refusals = finds, refusals

    @contextmanager
    def connect(
        self, part: ReplyPart, secret: Secret, *, timeout_seconds: float
    ) -> Iterator[Callable[[], SentPart]]:
        yield lambda: self.send(part)

    def send(self, part: ReplyPart) -> SentPart:
        if self._refusals and self._refused() < self._refusals:
            self._ledger.add(what="refused")
            raise TransientError("the sender is away")
        sid = f"out-{new_id()[:12]}"
        self._ledger.add(
            what="sent",
            sid=sid,
            to=part.key.primary_channel,
            text=part.text,
            index=part.index,
            at=self._clock.time(),
        )
        return SentPart(sid, "queued")

    def _refused(self) -> int:
        return sum(one["what"] == "refused" for one in self._ledger.lines())

    def find(
        self, part: ReplyPart, secret: Secret, *, since: float, known: Sequence[str]
    ) -> SentPart | None:
        if self._finds == "never" or (self._finds == "by chance" and os.urandom(1)[0] < 128):
            raise SendStatusUnknown("it keeps no list")
        for one in sent(self._ledger):
            if (
                (one["to"], one["text"]) == (part.key.primary_channel, part.text)
                and int(one["at"]) >= int(since)  # providers keep whole seconds
                and one["sid"] not in known
            ):
                return SentPart(one["sid"], "found")
        return None


def sent(ledger: Ledger) -> list[Line]:
    return [one for one in ledger.lines() if one["what"] == "sent"]


class OneSecret:
    """The same for everybody."""

    def get(self, reference: str) -> Secret:
        return Secret(reference, {"api_key": "key-canary", "token": "token-canary"})

    def forget(self, reference: str) -> None: ...


class Partners:
    """`Providers` of one writer and one sender."""

    def __init__(self, secrets: SecretStore, writer: ReplyWriter, sender: ReplySender) -> None:
        self.secrets = secrets
        self._writer, self._sender = writer, sender

    def writer(self, name: str) -> ReplyWriter:
        return self._writer

    def sender(self, name: str) -> ReplySender:
        return self._sender
