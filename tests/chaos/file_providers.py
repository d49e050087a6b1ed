"""Writers, senders and secrets as files, whose effects outlive the calling process."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from holdfast.chat.errors import SendStatusUnknown, SendUnclear, TransientError
from holdfast.chat.outbox import SentPart, WriterAnswer
from holdfast.chat.ports import (
    ReplyPart,
    ReplyRequest,
    ReplySender,
    ReplyWriter,
    Secret,
    SecretStore,
)
from holdfast.lease.clock import Clock
from holdfast.queue.message import make_id

Line = dict[str, Any]


class Ledger:
    """A file with one line for each effect, which is appended in one write."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, **line: Any) -> None:
        """Append a line."""
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, (json.dumps(line) + "\n").encode())
        finally:
            os.close(fd)

    def lines(self) -> list[Line]:
        """Return all lines."""
        text = self._path.read_text() if self._path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]


class ThreadWriter:
    """A writer with threads, which looks for an earlier answer when it is asked again."""

    secret_fields: tuple[str, ...] = ("api_key",)

    def __init__(self, ledger: Ledger, pages: int = 1) -> None:
        self._ledger, self._pages = ledger, pages

    def open_thread(self, config: Mapping[str, Any], secret: Secret) -> str:
        return f"thread-{make_id()[:8]}"

    def write(
        self,
        question: ReplyRequest,
        config: Mapping[str, Any],
        secret: Secret,
        *,
        timeout_seconds: float,
    ) -> WriterAnswer:
        answers = list(self._find_answers(question)) if question.again else []
        if not answers:
            mark = make_id()[:8]
            page = f"{mark} on: {question.text}"
            text = "\n\n".join([page.ljust(1_300 if self._pages > 1 else 0, ".")] * self._pages)
            self._ledger.add(
                thread=question.thread_id, mark=mark, asked=question.text, text=text
            )
            answers = [
                WriterAnswer(text, thread_mark=mark, prompt_tokens=1, completion_tokens=1)
            ]
        return answers[-1]

    def _find_answers(self, question: ReplyRequest) -> Iterator[WriterAnswer]:
        lines = [line for line in self._ledger.lines() if line["thread"] == question.thread_id]
        marks = [line["mark"] for line in lines]
        known = marks.index(question.thread_mark) + 1 if question.thread_mark in marks else 0
        for line in lines[known:]:
            if line["asked"] == question.text:
                yield WriterAnswer(
                    line["text"], line["mark"], prompt_tokens=1, completion_tokens=1
                )


class ForgetfulWriter(ThreadWriter):
    """A writer without threads, which writes a new reply for each question."""

    def _find_answers(self, question: ReplyRequest) -> Iterator[WriterAnswer]:
        return iter(())


class LedgerSender:
    """A sender that records each send as a line, so that sending twice is visible.

    `finds` says whether `find` works: always, never, or in half of the calls. It compares
    address and text, like real providers. With `unclear` the answer to the first send is lost,
    after the part was sent or instead of that.
    """

    secret_fields: tuple[str, ...] = ("token",)
    repeatable = False

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        *,
        finds: Literal["always", "never", "by chance"],
        refusals: int = 0,
        unclear: Literal["", "sent", "not sent"] = "",
    ) -> None:
        self._ledger, self._clock = ledger, clock
        self._finds, self._refusals, self._unclear = finds, refusals, unclear

    @contextmanager
    def connect(
        self, part: ReplyPart, secret: Secret, *, timeout_seconds: float
    ) -> Iterator[Callable[[], SentPart]]:
        yield lambda: self.send(part)

    def send(self, part: ReplyPart) -> SentPart:
        if self._refusals and self._count("refused") < self._refusals:
            self._ledger.add(what="refused")
            raise TransientError("the sender is unavailable")
        if self._unclear and not self._count("unclear"):
            self._ledger.add(what="unclear")
            if self._unclear == "sent":
                self._accept(part)
            raise SendUnclear("the answer was lost")
        return self._accept(part)

    def _accept(self, part: ReplyPart) -> SentPart:
        sid = f"out-{make_id()[:12]}"
        self._ledger.add(
            what="sent",
            sid=sid,
            to=part.key.primary_channel,
            text=part.text,
            index=part.index,
            at=self._clock.time(),
        )
        return SentPart(sid, "queued")

    def _count(self, what: str) -> int:
        return sum(line["what"] == what for line in self._ledger.lines())

    def find(
        self, part: ReplyPart, secret: Secret, *, since: float, known: Sequence[str]
    ) -> SentPart | None:
        if self._finds == "never" or (self._finds == "by chance" and os.urandom(1)[0] < 128):
            raise SendStatusUnknown("it keeps no list")
        for line in sent(self._ledger):
            if (
                (line["to"], line["text"]) == (part.key.primary_channel, part.text)
                and int(line["at"]) >= int(since)  # providers keep full seconds
                and line["sid"] not in known
            ):
                return SentPart(line["sid"], "found")
        return None


def sent(ledger: Ledger) -> list[Line]:
    """Return the lines of sent messages."""
    return [line for line in ledger.lines() if line["what"] == "sent"]


class OneSecret:
    """A secret store with the same secret for every reference."""

    def get(self, reference: str) -> Secret:
        return Secret(reference, {"api_key": "key-canary", "token": "token-canary"})

    def forget(self, reference: str) -> None: ...


class Partners:
    """A ProviderSource with one writer and one sender."""

    def __init__(self, secrets: SecretStore, writer: ReplyWriter, sender: ReplySender) -> None:
        self.secrets = secrets
        self._writer, self._sender = writer, sender

    def writer(self, name: str) -> ReplyWriter:
        return self._writer

    def sender(self, name: str) -> ReplySender:
        return self._sender
