"""What happens in the third act, in order, and how it ends.

three messages ─▶ window ─▶ worker 1: one batch ─▶ writer ─▶ reply prepared ─▶ killed
   a fourth, too late for it ─▶ worker 2: its trigger comes, the lock is held ─┘
the lock runs out ─▶ worker 2 finds the reply and sends it ─▶ the fourth gets its own
the first message is delivered again ─▶ nothing happens ─▶ books
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast.bootstrap.chat_providers import LOCAL
from holdfast.bootstrap.chats import build_chat, sent_to
from holdfast.cli.demo.chat.books import ChatBooks, ChatFindings, ChatInterventions, balance
from holdfast.cli.demo.chat.customer import KEY, LATE, NAME, QUICK, CustomerLine, environment
from holdfast.cli.demo.chat.ledger import EffectLog
from holdfast.cli.demo.chat.news import ChatEventFeed
from holdfast.cli.demo.chat.scene import ChatScene, Said
from holdfast.cli.demo.chat.worker import HOLD
from holdfast.cli.demo.crew import WorkerHandle, WorkerProcesses
from holdfast.cli.demo.stage import DemoScreen
from holdfast.conversations.model import Conversation, HistoryMessage, Status
from holdfast.conversations.outbox import state_of
from holdfast.core.clock import SYSTEM_CLOCK

_WORKER = "holdfast.cli.demo.chat.worker"
_LOOK_SECONDS = 0.1
_LOOKS_BETWEEN_MESSAGES = 3
_LOOKS_UNTIL_QUIET = 2  # a trigger on its way between two folders is counted in neither
_ALL = 10**9


@dataclass(frozen=True, slots=True)
class ChatScript:
    give_up_seconds: float = 90.0


class ChatDemoStopped(Exception):
    """The play cannot go on; the books will say what is missing."""


class ChatPlay:
    """One performance in one folder."""

    def __init__(self, script: ChatScript, folder: Path, stage: DemoScreen) -> None:
        self._stage, self._ledger = stage, EffectLog(folder)
        env = environment(folder)
        self._app = build_chat(env, fallback=LOCAL)
        self._store = self._app.store
        self._news = ChatEventFeed(stage.tell)
        self._crew = WorkerProcesses(folder, env, self._news)
        self._give_up_at = SYSTEM_CLOCK.monotonic() + script.give_up_seconds
        self._lines: dict[CustomerLine, float] = {}  # and when it was written
        self._delivered_again = 0

    def run(self) -> ChatBooks:
        with self._app, self._stage:
            with self._crew, suppress(ChatDemoStopped):
                self._course()
            self._look()
            return self._balance()

    # -- the course of events

    def _course(self) -> None:
        """Raises ChatDemoStopped."""
        quick, *quicker = QUICK
        self._write(quick)
        for line in quicker:
            self._pause()
            self._write(line)
        # Hired only now: the three are one batch, however slow the machine is.
        first = self._hire(HOLD)
        self._until(lambda: self._ledger.texts("asked"))
        self._write(LATE, "too late for that batch, ")
        second = self._hire()
        # Both stand where they can go no further: the first waits for a sender that never
        # comes, the second was refused the lock. So nothing here is a race.
        self._until(lambda: self._ledger.texts("held") and second.counts["lock_busy"])
        self._kill(first)
        self._until_quiet()
        self._require_answers()
        self._deliver_again(QUICK[0])
        self._until_quiet()
        self._stage.tell("no trigger is left: the worker is told to drain")

    def _write(self, line: CustomerLine, when: str = "") -> None:
        staging = self._app.stager.stage(line.inbound())
        self._lines[line] = SYSTEM_CLOCK.time()
        window = "opens a window" if staging.opened else "joins the window"
        self._stage.tell(f"{NAME}: {line.text} ({when}{window})")

    def _require_answers(self) -> None:
        """Before anything is delivered again: its trigger would answer a stranded message,
        too, and nobody would notice. Raises ChatDemoStopped."""
        if self._store.staged(KEY.conversation_id):
            self._stage.tell("a message is staged, and no trigger will ever come for it")
            raise ChatDemoStopped

    def _deliver_again(self, line: CustomerLine) -> None:
        self._app.stager.stage(line.inbound())
        self._delivered_again += 1
        self._stage.tell(f"the provider delivers {line.sid} again: {line.text}")

    def _hire(self, *arguments: str) -> WorkerHandle:
        hand = self._crew.hire(arguments, _WORKER)
        self._stage.tell(f"starting worker {hand.number} (pid {hand.pid})")
        return hand

    def _kill(self, hand: WorkerHandle) -> None:
        """And say how far the reply was."""
        hand.kill()
        self._news.killed_at = SYSTEM_CLOCK.monotonic()
        conversation = self._store.get(KEY)
        outbox = conversation.outbox if conversation else None
        state = state_of(outbox) if outbox else "not begun"
        hand.fate = f"killed with SIGKILL, reply {state}, not sent"
        self._stage.tell(f"worker {hand.number} (pid {hand.pid}) is {hand.fate}")

    # -- waiting

    def _pause(self) -> None:
        for _ in range(_LOOKS_BETWEEN_MESSAGES):
            self._look()
            SYSTEM_CLOCK.sleep(_LOOK_SECONDS)

    def _until_quiet(self) -> None:
        """Nothing will happen any more by itself: every trigger is settled."""
        looks = 0

        def quiet() -> bool:
            nonlocal looks
            stats = self._app.queues[KEY.channel].stats()
            looks = 0 if stats.ready or stats.delayed or stats.leased else looks + 1
            return looks >= _LOOKS_UNTIL_QUIET

        self._until(quiet)

    def _until(self, met: Callable[[], object]) -> None:
        """Watch until it is. Raises ChatDemoStopped when it cannot be, or takes too long."""
        while not met():
            self._look()
            if not any(hand.alive for hand in self._crew.hands):
                self._stage.tell(f"no worker is left: {self._crew.last_words}")
                raise ChatDemoStopped
            if SYSTEM_CLOCK.monotonic() > self._give_up_at:
                self._stage.tell("this takes too long: giving up")
                raise ChatDemoStopped
            SYSTEM_CLOCK.sleep(_LOOK_SECONDS)

    # -- how things stand

    def _look(self) -> None:
        conversation = self._store.get(KEY)
        window = self._store.window(KEY.conversation_id)
        said = self._messages(conversation) + self._replies()
        now = SYSTEM_CLOCK.time()
        self._stage.draw(ChatScene(said, conversation, window, self._crew.hands, now))

    def _messages(self, conversation: Conversation | None) -> list[Said]:
        outbox = conversation.outbox if conversation else None
        batch = outbox.sids if outbox else ()
        answered = _sids(self._history())

        def state(line: CustomerLine) -> str:
            if line.sid in answered:
                return "answered"
            return "being answered" if line.sid in batch else "staged"

        return [Said(NAME, line.text, at, state(line)) for line, at in self._lines.items()]

    def _replies(self) -> list[Said]:
        letters = sent_to(self._app.settings.outbox_folder)
        return [Said("reply", letter.text, letter.sent_at, "sent") for letter in letters]

    def _history(self) -> list[HistoryMessage]:
        return self._store.history(KEY, limit=_ALL)

    # -- the end

    def _balance(self) -> ChatBooks:
        hands = self._crew.hands
        deeds = ChatInterventions(
            workers_killed=sum(hand.killed for hand in hands),
            taken_over=self._news.taken_over,
            delivered_again=self._delivered_again,
        )
        return balance([*QUICK, LATE], self._found(), deeds)

    def _found(self) -> ChatFindings:
        history = self._history()
        conversation = self._store.get(KEY)
        return ChatFindings(
            history=_sids(history),
            recorded=sum(message.role == "assistant" for message in history),
            replies=len(self._replies()),
            sent=self._ledger.texts("sent"),
            asked=len(self._ledger.texts("asked")),
            staged=len(self._store.staged(KEY.conversation_id)),
            locks=int(conversation is not None and conversation.status == Status.PROCESSING),
            parked=len(list(self._store.parked())),
        )


def _sids(history: list[HistoryMessage]) -> list[str]:
    """Of every message in it, as often as it is there."""
    batches = [message for message in history if message.role == "user"]
    return [sid for batch in batches for sid in batch.details.get("sids", ())]
