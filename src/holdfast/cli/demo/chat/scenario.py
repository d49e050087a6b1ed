"""The course of the chat scenario.

three messages ─▶ window ─▶ worker 1: one batch ─▶ writer ─▶ reply prepared ─▶ killed
   a fourth, too late for it ─▶ worker 2: gets its trigger, the lock is held ──┘
the lock ends ─▶ worker 2 finds the reply and sends it ─▶ the fourth gets its own reply
the first message is delivered again ─▶ it has no effect ─▶ report
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast.bootstrap.chat_providers import LOCAL_PROFILE
from holdfast.bootstrap.chats import build_chat, read_outbox
from holdfast.cli.demo.chat.accounting import (
    ChatInterventions,
    ChatObservations,
    ChatReport,
    make_report,
)
from holdfast.cli.demo.chat.customer import (
    KEY,
    LATE,
    NAME,
    QUICK,
    CustomerMessage,
    make_environment,
)
from holdfast.cli.demo.chat.effect_log import EffectLog
from holdfast.cli.demo.chat.event_feed import ChatEventFeed
from holdfast.cli.demo.chat.view import ChatLine, ChatView
from holdfast.cli.demo.chat.worker import HOLD
from holdfast.cli.demo.processes import DemoProcess, DemoProcesses
from holdfast.cli.demo.screen import DemoScreen
from holdfast.conversations.model import Conversation, HistoryMessage, Status
from holdfast.conversations.outbox import get_outbox_state
from holdfast.core.clock import SYSTEM_CLOCK

_WORKER = "holdfast.cli.demo.chat.worker"
_POLL_SECONDS = 0.1
_POLLS_BETWEEN_MESSAGES = 3
_QUIET_POLLS = 2  # a trigger that is moved between two folders is counted in neither
_ALL = 10**9


@dataclass(frozen=True, slots=True)
class ChatScenarioSettings:
    """The timeout of the scenario."""

    timeout_seconds: float = 90.0


class ChatDemoStopped(Exception):
    """The scenario cannot continue. The report shows what is missing."""


class ChatScenario:
    """One run of the scenario in one folder."""

    def __init__(
        self, settings: ChatScenarioSettings, folder: Path, screen: DemoScreen
    ) -> None:
        self._screen, self._effects = screen, EffectLog(folder)
        env = make_environment(folder)
        self._app = build_chat(env, fallback=LOCAL_PROFILE)
        self._store = self._app.store
        self._feed = ChatEventFeed(screen.report)
        self._processes = DemoProcesses(folder, env, self._feed)
        self._deadline = SYSTEM_CLOCK.monotonic() + settings.timeout_seconds
        self._lines: dict[CustomerMessage, float] = {}  # with the time of each
        self._delivered_again = 0

    def run(self) -> ChatReport:
        """Run the scenario and return its report."""
        with self._app, self._screen:
            with self._processes, suppress(ChatDemoStopped):
                self._run_steps()
            self._draw()
            return self._make_report()

    # -- the steps

    def _run_steps(self) -> None:
        """Run the steps. Raises ChatDemoStopped."""
        first_message, *others = QUICK
        self._write(first_message)
        for line in others:
            self._pause()
            self._write(line)
        # Started only now, so that the three are one batch however slow the machine is.
        first = self._start_worker(HOLD)
        self._wait_until(lambda: self._effects.read_texts("asked"))
        self._write(LATE, "too late for that batch, ")
        second = self._start_worker()
        # Now neither can continue, because the first waits for a sender that it never gets
        # and the second did not get the lock. So the following steps do not race.
        self._wait_until(
            lambda: self._effects.read_texts("held") and second.counts["lock_busy"]
        )
        self._kill(first)
        self._wait_until_quiet()
        self._require_answers()
        self._deliver_again(QUICK[0])
        self._wait_until_quiet()
        self._screen.report("no trigger is left; the worker drains")

    def _write(self, line: CustomerMessage, when: str = "") -> None:
        staging = self._app.stager.stage(line.make_inbound())
        self._lines[line] = SYSTEM_CLOCK.time()
        window = "opens a window" if staging.opened else "joins the window"
        self._screen.report(f"{NAME}: {line.text} ({when}{window})")

    def _require_answers(self) -> None:
        """Check that every message is answered, before one is delivered again.

        The trigger of that one would also answer a message whose trigger was lost, and hide
        the error. Raises ChatDemoStopped.
        """
        if self._store.staged(KEY.conversation_id):
            self._screen.report("a message is staged, but it has no trigger")
            raise ChatDemoStopped

    def _deliver_again(self, line: CustomerMessage) -> None:
        self._app.stager.stage(line.make_inbound())
        self._delivered_again += 1
        self._screen.report(f"the provider delivers {line.sid} again: {line.text}")

    def _start_worker(self, *arguments: str) -> DemoProcess:
        worker = self._processes.start(arguments, _WORKER)
        self._screen.report(f"starting worker {worker.number} (pid {worker.pid})")
        return worker

    def _kill(self, worker: DemoProcess) -> None:
        """Kill the worker and report the state of its reply."""
        worker.kill()
        self._feed.killed_at = SYSTEM_CLOCK.monotonic()
        conversation = self._store.get(KEY)
        outbox = conversation.outbox if conversation else None
        state = get_outbox_state(outbox) if outbox else "not started"
        worker.outcome = f"killed with SIGKILL, reply {state}, not sent"
        self._screen.report(f"worker {worker.number} (pid {worker.pid}) is {worker.outcome}")

    # -- waiting

    def _pause(self) -> None:
        for _ in range(_POLLS_BETWEEN_MESSAGES):
            self._draw()
            SYSTEM_CLOCK.sleep(_POLL_SECONDS)

    def _wait_until_quiet(self) -> None:
        """Wait until every trigger is settled."""
        polls = 0

        def is_quiet() -> bool:
            nonlocal polls
            stats = self._app.queues[KEY.channel].stats()
            polls = 0 if stats.ready or stats.delayed or stats.leased else polls + 1
            return polls >= _QUIET_POLLS

        self._wait_until(is_quiet)

    def _wait_until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition. Raises ChatDemoStopped if it can no longer be met in time."""
        while not condition():
            self._draw()
            if not any(worker.is_alive for worker in self._processes.processes):
                self._screen.report(f"no worker is left: {self._processes.last_output}")
                raise ChatDemoStopped
            if SYSTEM_CLOCK.monotonic() > self._deadline:
                self._screen.report("timeout; stopping the demo")
                raise ChatDemoStopped
            SYSTEM_CLOCK.sleep(_POLL_SECONDS)

    # -- the state

    def _draw(self) -> None:
        conversation = self._store.get(KEY)
        window = self._store.window(KEY.conversation_id)
        lines = self._list_messages(conversation) + self._list_replies()
        now = SYSTEM_CLOCK.time()
        self._screen.draw(ChatView(lines, conversation, window, self._processes.processes, now))

    def _list_messages(self, conversation: Conversation | None) -> list[ChatLine]:
        outbox = conversation.outbox if conversation else None
        batch = outbox.sids if outbox else ()
        answered = _collect_sids(self._read_history())

        def find_state(line: CustomerMessage) -> str:
            if line.sid in answered:
                return "answered"
            return "being answered" if line.sid in batch else "staged"

        return [
            ChatLine(NAME, line.text, at, find_state(line)) for line, at in self._lines.items()
        ]

    def _list_replies(self) -> list[ChatLine]:
        replies = read_outbox(self._app.settings.outbox_folder)
        return [ChatLine("reply", reply.text, reply.sent_at, "sent") for reply in replies]

    def _read_history(self) -> list[HistoryMessage]:
        return self._store.history(KEY, limit=_ALL)

    # -- the report

    def _make_report(self) -> ChatReport:
        workers = self._processes.processes
        interventions = ChatInterventions(
            workers_killed=sum(worker.killed for worker in workers),
            taken_over=self._feed.taken_over,
            delivered_again=self._delivered_again,
        )
        return make_report([*QUICK, LATE], self._observe(), interventions)

    def _observe(self) -> ChatObservations:
        history = self._read_history()
        conversation = self._store.get(KEY)
        return ChatObservations(
            history=_collect_sids(history),
            recorded=sum(message.role == "assistant" for message in history),
            replies=len(self._list_replies()),
            sent=self._effects.read_texts("sent"),
            asked=len(self._effects.read_texts("asked")),
            staged=len(self._store.staged(KEY.conversation_id)),
            locks=int(conversation is not None and conversation.status == Status.PROCESSING),
            parked=len(list(self._store.parked())),
        )


def _collect_sids(history: list[HistoryMessage]) -> list[str]:
    """Return the sids of all customer messages in the history, with repetitions."""
    batches = [message for message in history if message.role == "user"]
    return [sid for batch in batches for sid in batch.details.get("sids", ())]
