"""The other side: an assistant that writes, and a carrier that sends, with good memories.

Each body is its message's sid, so every reply tells which messages it was written for.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from conversations.weather import Fate
from holdfast.conversations.errors import (
    PermanentError,
    SendStatusUnknown,
    SendUnclear,
    TransientError,
)
from holdfast.conversations.outbox import SentPart, WriterAnswer
from holdfast.conversations.ports import ReplyPart, ReplyRequest
from holdfast.conversations.secret import Secret

Finder = Literal["finds", "cannot tell"]


class Assistant:
    """Writes replies in threads, each different from all before."""

    secret_fields = ()

    def __init__(self, fate: Fate, told: Callable[[tuple[str, ...]], None]) -> None:
        self._fate, self._told = fate, told
        self._threads: dict[str, list[tuple[str, WriterAnswer]]] = defaultdict(list)
        self._written_for: dict[str, tuple[str, ...]] = {}  # by the reply's first word

    def written_for(self, text: str) -> tuple[str, ...]:
        """The messages that this reply, or this part of one, is the answer to."""
        return self._written_for[text.split(" ", 1)[0]]

    def open_thread(self, config: Mapping[str, Any], secret: Secret) -> str:
        return f"thread {len(self._threads) + 1}"

    def write(
        self, question: ReplyRequest, config: Mapping[str, Any], secret: Secret, **_: object
    ) -> WriterAnswer:
        if self._fate.strikes(self._fate.weather.writer_fails):
            raise self._fate.random.choice(
                (TransientError("busy"), TransientError("away"), ValueError())
            )
        if self._fate.strikes(self._fate.weather.writer_fails / 10):
            raise PermanentError("the assistant refuses")
        earlier = self._earlier(question) if question.again else None
        answer = earlier or self._new(question)
        if self._fate.strikes(self._fate.weather.writer_fails / 2):
            raise TransientError("the answer was lost on its way")
        return answer

    def _earlier(self, question: ReplyRequest) -> WriterAnswer | None:
        thread = self._threads[question.thread_id]
        found = [answer for text, answer in thread if text == question.text]
        return found[-1] if found else None

    def _new(self, question: ReplyRequest) -> WriterAnswer:
        number = len(self._written_for) + 1
        words = 500 if number % 6 == 0 else 2  # some need two messages
        text = " ".join([f"#{number}"] * words)
        sids = tuple(question.text.split("\n"))
        self._written_for[f"#{number}"] = sids
        self._told(sids)
        answer = WriterAnswer(text, f"mark {number}", 7, 3)
        self._threads[question.thread_id].append((question.text, answer))
        return answer


@dataclass
class Carrier:
    """Sends. `sent` is what customers got, in order."""

    fate: Fate
    finder: Finder
    told: Callable[[ReplyPart], None]  # a message is out
    sent: list[tuple[ReplyPart, SentPart]] = field(default_factory=list)
    secret_fields = ()
    repeatable = False

    @contextmanager
    def connect(
        self, part: ReplyPart, secret: Secret, **_: object
    ) -> Iterator[Callable[[], SentPart]]:
        if self.fate.strikes(self.fate.weather.sender_fails / 2):
            raise TransientError("no connection")
        yield lambda: self.send(part)

    def send(self, part: ReplyPart) -> SentPart:
        if self.fate.strikes(self.fate.weather.sender_fails):
            self._fail(part)
        return self._take(part)

    def _fail(self, part: ReplyPart) -> None:
        match self.fate.random.randrange(8):
            case 0 | 1 | 2:
                raise TransientError("throttled")
            case 3:
                raise PermanentError("no such number")
            case 4 | 5:
                raise SendUnclear("no answer; it was not sent")
            case _:
                self._take(part)
                raise SendUnclear("no answer; it was sent")

    def _take(self, part: ReplyPart) -> SentPart:
        taken = SentPart(f"SM{len(self.sent) + 1}", "queued")
        self.sent.append((part, taken))
        self.told(part)
        return taken

    def find(
        self, part: ReplyPart, secret: Secret, *, since: float, known: Sequence[str]
    ) -> SentPart | None:
        if self.finder == "cannot tell":
            raise SendStatusUnknown
        if self.fate.strikes(self.fate.weather.sender_fails / 2):
            raise TransientError("away")
        found = [taken for one, taken in self.sent if one.reference == part.reference]
        return next((one for one in found if one.message_sid not in known), None)


@dataclass
class Providers:
    """One of each, and no secrets. Reached through ports by the processes."""

    assistant: Any
    carrier: Any

    @property
    def secrets(self) -> Any:
        raise AssertionError("nobody needs a secret here")

    def writer(self, name: str) -> Any:
        return self.assistant

    def sender(self, name: str) -> Any:
        return self.carrier
