"""The simulated providers: an assistant that writes, and a carrier that sends.

Each body is its message's sid, so every reply shows which messages it was written for.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from holdfast.chat.errors import (
    PermanentError,
    SendStatusUnknown,
    SendUnclear,
    TransientError,
)
from holdfast.chat.outbox import SentPart, WriterAnswer
from holdfast.chat.ports import ReplyPart, ReplyRequest, Secret
from holdfast.testing import ManualClock
from support.chat.simulation.fault_rates import Fate

Finder = Literal["finds", "cannot tell"]
MAX_LAG_SECONDS = 29.0


class Assistant:
    """A writer with threads, whose replies are all different."""

    secret_fields = ()

    def __init__(self, fate: Fate, on_question: Callable[[tuple[str, ...]], None]) -> None:
        self._fate, self._on_question = fate, on_question
        self._threads: dict[str, list[tuple[str, WriterAnswer]]] = defaultdict(list)
        self._written_for: dict[str, tuple[str, ...]] = {}  # by the reply's first word
        self.words = 2  # of a reply

    def written_for(self, text: str) -> tuple[str, ...]:
        """Return the sids that this reply, or this part of one, answers."""
        return self._written_for[text.split(" ", 1)[0]]

    def open_thread(self, config: Mapping[str, Any], secret: Secret) -> str:
        return f"thread {len(self._threads) + 1}"

    def write(
        self, question: ReplyRequest, config: Mapping[str, Any], secret: Secret, **_: object
    ) -> WriterAnswer:
        if self._fate.strikes(self._fate.weather.writer_fails):
            raise self._fate.random.choice(
                (TransientError("busy"), TransientError("unavailable"), ValueError())
            )
        if self._fate.strikes(self._fate.weather.writer_fails / 10):
            raise PermanentError("the assistant refuses")
        earlier = self._find_earlier(question) if question.again else None
        answer = earlier or self._write_new(question)
        if self._fate.strikes(self._fate.weather.writer_fails / 2):
            raise TransientError("the answer was lost on its way")
        return answer

    def _find_earlier(self, question: ReplyRequest) -> WriterAnswer | None:
        thread = self._threads[question.thread_id]
        answers = [answer for text, answer in thread if text == question.text]
        return answers[-1] if answers else None

    def _write_new(self, question: ReplyRequest) -> WriterAnswer:
        number = len(self._written_for) + 1
        words = 500 if number % 6 == 0 else self.words  # 500 need two messages
        text = " ".join([f"#{number}"] * words)
        sids = tuple(question.text.split("\n"))
        self._written_for[f"#{number}"] = sids
        self._on_question(sids)
        answer = WriterAnswer(text, f"mark {number}", 7, 3)
        self._threads[question.thread_id].append((question.text, answer))
        return answer


@dataclass
class Carrier:
    """A sender; `sent` is what customers received, in order.

    A message is listed some seconds after it was accepted.
    """

    fate: Fate
    finder: Finder
    clock: ManualClock
    on_sent: Callable[[ReplyPart], None]
    sent: list[tuple[ReplyPart, SentPart]] = field(default_factory=list)
    listed_at: dict[str, float] = field(default_factory=dict)  # by sid
    unclear: list[bool] = field(default_factory=list)  # the next answers are lost; True: sent
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
        if self.unclear:
            self._lose_answer(part, is_sent=self.unclear.pop())
        if self.fate.strikes(self.fate.weather.sender_fails):
            self._fail(part)
        return self._accept(part)

    def _lose_answer(self, part: ReplyPart, *, is_sent: bool) -> None:
        if is_sent:
            self._accept(part)
        raise SendUnclear("no response")

    def _fail(self, part: ReplyPart) -> None:
        match self.fate.random.randrange(8):
            case 0 | 1 | 2:
                raise TransientError("throttled")
            case 3:
                raise PermanentError("no such number")
            case number:
                self._lose_answer(part, is_sent=number > 5)

    def _accept(self, part: ReplyPart) -> SentPart:
        accepted = SentPart(f"SM{len(self.sent) + 1}", "queued")
        self.sent.append((part, accepted))
        lag_seconds = self.fate.random.choice((0.0, 5.0, MAX_LAG_SECONDS))
        self.listed_at[accepted.message_sid] = self.clock.monotonic() + lag_seconds
        self.on_sent(part)
        return accepted

    def find(
        self, part: ReplyPart, secret: Secret, *, since: float, known: Sequence[str]
    ) -> SentPart | None:
        if self.finder == "cannot tell":
            raise SendStatusUnknown
        if self.fate.strikes(self.fate.weather.sender_fails / 2):
            raise TransientError("unavailable")
        matching = [sent for other, sent in self.sent if other.reference == part.reference]
        listed = [sent for sent in matching if self._is_listed(sent.message_sid)]
        return next((sent for sent in listed if sent.message_sid not in known), None)

    def _is_listed(self, sid: str) -> bool:
        return self.listed_at[sid] <= self.clock.monotonic()


@dataclass
class Providers:
    """One writer and one sender without secrets, which processes call through ports."""

    assistant: Any
    carrier: Any

    @property
    def secrets(self) -> Any:
        raise AssertionError("no secret is needed here")

    def writer(self, name: str) -> Any:
        return self.assistant

    def sender(self, name: str) -> Any:
        return self.carrier
