"""The witness: it forwards every call to the store, and checks the promises.

It checks I-MS-2, I-MS-3 and I-MS-6 after every call. The world checks what must hold at the
end.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.chat.model import (
    ConversationKey,
    HistoryMessage,
    LockAcquired,
    LockGrant,
    Status,
)
from holdfast.chat.outbox import Outbox, SendingReply, UnclearReply
from holdfast.chat.ports import ConversationStore, ReplyPart
from holdfast.testing import ManualClock
from support.chat.simulation.providers import Assistant

CHECKED = frozenset({"finish", "park", "release", "drop_staged"})


class Violation(AssertionError):
    """A promise is broken."""


@dataclass(frozen=True, slots=True)
class Owner:
    grant: LockGrant
    expires_at: float


class Witness:
    """An observer with records of its own.

    A violation is recorded and raised, because the running actor might catch it.
    """

    def __init__(
        self,
        store: ConversationStore,
        truth: ConversationStore,
        clock: ManualClock,
        *,
        resends: bool,
    ) -> None:
        self.store, self._truth = store, truth  # the same, unless a test uses a faulty store
        self._clock, self._resends = clock, resends
        self.assistant: Assistant  # set by the world
        self.violations: list[str] = []
        self.turns = 0
        self._owners: dict[ConversationKey, Owner] = {}
        self._fences: Counter[ConversationKey] = Counter()
        self._questions: dict[str, tuple[str, ...]] = {}  # by sid: the sids of its question
        self._sent: Counter[tuple[str, int]] = Counter()  # by sid and part
        self._unclear: Counter[tuple[str, int]] = Counter()

    def accuse(self, text: str) -> None:
        """Record a violation, and raise it."""
        self.violations.append(text)
        raise Violation(text)

    # -- the store

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        before = self._get_outbox(args[0]) if name == "note" else None
        result = getattr(self.store, name)(*args, **kwargs)
        if args and isinstance(args[0], LockGrant) and result is not False:
            self._check_owner(name, args[0], kwargs)
        match name:
            case "acquire":
                self._check_acquired(args[0], result, kwargs)
            case "note":
                self._check_note(before, args[1])
            case "finish":
                self.turns += 1
        if name in CHECKED:
            self.check_all()
        return result

    def _get_outbox(self, grant: LockGrant) -> Outbox | None:
        conversation = self._truth.get(grant.key)
        return conversation.outbox if conversation else None

    def _check_acquired(
        self, key: ConversationKey, result: object, how: dict[str, Any]
    ) -> None:
        if not isinstance(result, LockAcquired):
            return
        owner = self._owners.get(key)
        if owner is not None and owner.expires_at > self._clock.time():
            self.accuse("I-MS-3: a second owner while the first lock is held")
        if result.grant.fence <= self._fences[key]:
            self.accuse("I-MS-3: the fence does not rise")
        self._fences[key] = result.grant.fence
        self._owners[key] = Owner(result.grant, how["expires_at"])

    def _check_owner(self, name: str, grant: LockGrant, how: dict[str, Any]) -> None:
        owner = self._owners.get(grant.key)
        if owner is None or owner.grant != grant:
            self.accuse(f"I-MS-3: {name} was accepted from a caller that is not the owner")
        if name in ("finish", "release", "park"):
            del self._owners[grant.key]
        elif name == "renew":
            self._owners[grant.key] = Owner(grant, how["expires_at"])

    def _check_note(self, before: Outbox | None, after: Outbox) -> None:
        """Count a part that may have been sent and is sent again, as `at_least_once` allows."""
        if isinstance(after, SendingReply) and isinstance(before, SendingReply | UnclearReply):
            part = len(after.parts)
            if part == len(before.parts):
                self._unclear.update((sid, part) for sid in after.sids)

    # -- the providers

    def record_question(self, sids: tuple[str, ...]) -> None:
        for sid in sids:
            if self._questions.setdefault(sid, sids) != sids:
                self.accuse(f"MS-21: {sid} was asked about in two questions")

    def record_sent(self, part: ReplyPart) -> None:
        for sid in self.assistant.written_for(part.text):
            sent_part = sid, part.index
            self._sent[sent_part] += 1
            max_sent = 1 + (self._unclear[sent_part] if self._resends else 0)
            if self._sent[sent_part] > max_sent:
                self.accuse(f"I-MS-2: {sid} was answered {self._sent[sent_part]} times")

    # -- history, memory and outbox

    def check_all(self) -> None:
        occurrences: Counter[str] = Counter()
        for conversation in self._truth.conversations():
            key = conversation.key
            history = self._truth.history(key, limit=1_000)
            sids = self._check_history(key, history)
            occurrences.update(sids)
            outbox = conversation.outbox
            if outbox is not None and set(outbox.sids) & set(sids):
                self.accuse("I-MS-6: in the history, and in the outbox still")
            if conversation.status != Status.PROCESSING and key in self._owners:
                self.accuse("I-MS-3: the lock is free although its owner did not release it")
        for parked in self._truth.parked():
            if not parked.reason:
                self.accuse("I-MS-1: parked without a reason")
            occurrences.update(parked.sids)
        for sid, times in occurrences.items():
            if times > 1:
                self.accuse(f"I-MS-1: {sid} is in the history or parked {times} times")

    def _check_history(
        self, key: ConversationKey, history: Sequence[HistoryMessage]
    ) -> list[str]:
        if [message.seq for message in history] != list(range(1, len(history) + 1)):
            self.accuse("I-MS-6: the history is not numbered in order")
        sids: list[str] = []
        for user, assistant in zip(history[::2], history[1::2], strict=True):
            if (user.role, assistant.role) != ("user", "assistant"):
                self.accuse("I-MS-6: the history is not made of pairs")
            asked = tuple(user.details["sids"])
            if self.assistant.written_for(assistant.body) != asked:
                self.accuse("I-MS-6: this reply was written for other messages")
            if user.body != "\n".join(asked) or asked != tuple(sorted(asked)):
                self.accuse("I-MS-7: not merged in order")
            if not all(self._sent[sid, 0] for sid in asked):
                self.accuse("I-MS-2: in the history, and never sent")
            sids += asked
        if self._truth.processed(key, sids) != set(sids):
            self.accuse("I-MS-6: in the history, and not remembered as processed")
        return sids
