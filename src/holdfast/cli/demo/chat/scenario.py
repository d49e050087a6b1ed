"""The course of the chat scenario.

three messages ─▶ window ─▶ worker 1: one batch ─▶ writer ─▶ reply prepared ─▶ killed
   a fourth, too late for it ─▶ worker 2: gets its trigger, the lock is held ──┘
the lock ends ─▶ worker 2 finds the reply and sends it ─▶ the fourth gets its own reply
the first message is delivered again ─▶ it has no effect ─▶ report
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.bootstrap.chat_providers import LOCAL_PROFILE
from holdfast.bootstrap.chats import build_chat, read_outbox
from holdfast.cli.demo.act import ALL, POLL_SECONDS, Act
from holdfast.cli.demo.chat.accounting import make_report
from holdfast.cli.demo.chat.customer import (
    EFFECTS_FILE,
    KEY,
    LATE,
    NAME,
    QUICK,
    CustomerMessage,
    make_environment,
)
from holdfast.cli.demo.chat.worker import HOLD
from holdfast.cli.demo.effect_log import EffectLog
from holdfast.cli.demo.processes import DemoProcess
from holdfast.cli.demo.screen import DemoReport, DemoScreen, render_processes
from holdfast.conversations.model import HistoryMessage, Status
from holdfast.conversations.outbox import Outbox, get_outbox_state
from holdfast.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from rich.console import RenderableType

_WORKER = "holdfast.cli.demo.chat.worker"
_POLLS_BETWEEN_MESSAGES = 3
_QUIET_POLLS = 2  # a trigger that is moved between two folders is counted in neither
_MIN_LINES = 6  # of the conversation, to keep the height constant
_STYLES = {"sent": "bold green", "answered": "green", "staged": "blue"}  # others are yellow


class ChatAct(Act):
    """One run of the scenario in one folder."""

    timeout_seconds = 90.0
    story: ClassVar = {
        "reply_written": "the reply is written and stored as prepared",
        "reply_sent": "the reply is sent",
        "turn_finished": "messages and reply are written to the history in one write",
        "nothing_staged": "its trigger finds no unanswered message",
        "batch_parked": "batch parked: {reason}",
        "dead_lettered": "dead lettered: {reason}",
        "batch_failed": "batch failed: {error}",
        "sent_not_recorded": "sent not recorded: {error}",
    }

    def __init__(self, folder: Path, screen: DemoScreen) -> None:
        env = make_environment(folder)
        super().__init__(folder, screen, env)
        self._effects = EffectLog(folder / EFFECTS_FILE)
        self._app = build_chat(env, fallback=LOCAL_PROFILE)
        self._store = self._app.store
        self._written: dict[CustomerMessage, float] = {}  # with the time of each
        self._taken_over = 0  # prepared replies that were taken over
        self._delivered_again = 0

    def run(self) -> DemoReport:
        """Run the scenario and return its report."""
        with self._app, self.screen:
            self.run_processes()
            return self._make_report()

    # -- the steps

    def run_steps(self) -> None:
        """Run the steps. Raises DemoStopped."""
        for number, line in enumerate(QUICK):
            self._pause(_POLLS_BETWEEN_MESSAGES if number else 0)
            self._write(line)
        # Started only now, so that the three are one batch however slow the machine is.
        first = self.start([HOLD], _WORKER)
        self.wait_until(lambda: self._read_effects("asked"))
        self._write(LATE, "too late for that batch, ")
        second = self.start([], _WORKER)
        # Now neither can continue, because the first waits for a sender that it never gets
        # and the second did not get the lock. So the following steps do not race.
        self.wait_until(lambda: self._read_effects("held") and second.counts["lock_busy"])
        self.kill(first, self._describe_reply)
        self._wait_until_quiet()
        # Otherwise the trigger of the message that is delivered again would also answer a
        # message whose trigger was lost, and hide the error.
        if self._store.staged(KEY.conversation_id):
            self.stop("a message is staged, but it has no trigger")
        self._app.stager.stage(QUICK[0].make_inbound())
        self._delivered_again += 1
        self.screen.report(f"the provider delivers {QUICK[0].sid} again: {QUICK[0].text}")
        self._wait_until_quiet()
        self.screen.report("no trigger is left; the worker drains")

    def _write(self, line: CustomerMessage, when: str = "") -> None:
        staging = self._app.stager.stage(line.make_inbound())
        self._written[line] = SYSTEM_CLOCK.time()
        window = "opens a window" if staging.opened else "joins the window"
        self.screen.report(f"{NAME}: {line.text} ({when}{window})")

    def _pause(self, polls: int) -> None:
        for _ in range(polls):
            self.screen.draw(self)
            SYSTEM_CLOCK.sleep(POLL_SECONDS)

    def _wait_until_quiet(self) -> None:
        """Wait until every trigger is settled."""
        polls = 0

        def is_quiet() -> bool:
            nonlocal polls
            stats = self._app.queues[KEY.channel].stats()
            polls = 0 if stats.ready or stats.delayed or stats.leased else polls + 1
            return polls >= _QUIET_POLLS

        self.wait_until(is_quiet)

    def describe_event(self, process: DemoProcess, event: dict[str, Any]) -> str | None:
        """Tell what a worker does with the lock and the batch."""
        match event:
            case {"event": "lock_taken_over", "outbox": state}:
                self._taken_over += state == "prepared"
                after = f"{self.seconds_since_kill:.1f} s after the kill"
                return f"has the lock, {after}; the reply is {state}"
            case {"event": "lock_busy", "own": True}:
                return "has the trigger, but the killed worker's lock has not ended yet"
            case {"event": "lock_busy"}:
                return "gets the late message's trigger while the lock is held, and acks it"
            case {"event": "batch_begun", "fragments": 1}:
                return "takes 1 message as a batch"
            case {"event": "batch_begun", "fragments": count}:
                return f"takes {count} messages as one batch"
        return super().describe_event(process, event)

    # -- the state

    def _read_effects(self, kind: str) -> list[str]:
        return [effect["text"] for effect in self._effects.read() if effect["kind"] == kind]

    def _read_history(self) -> list[HistoryMessage]:
        return self._store.history(KEY, limit=ALL)

    def _find_outbox(self) -> Outbox | None:
        conversation = self._store.get(KEY)
        return conversation.outbox if conversation else None

    def _describe_reply(self) -> str:
        outbox = self._find_outbox()
        return f"reply {get_outbox_state(outbox) if outbox else 'not started'}, not sent"

    def _list_lines(self) -> list[tuple[float, str, str, str]]:
        """Return (time, speaker, text, state) of each message and each reply."""
        outbox = self._find_outbox()
        answered = _collect_sids(self._read_history())

        def find_state(sid: str) -> str:
            if sid in answered:
                return "answered"
            return "being answered" if outbox and sid in outbox.sids else "staged"

        lines = [
            (at, NAME, line.text, find_state(line.sid)) for line, at in self._written.items()
        ]
        replies = read_outbox(self._app.settings.outbox_folder)
        return lines + [(reply.sent_at, "reply", reply.text, "sent") for reply in replies]

    def _list_facts(self) -> list[tuple[str, str]]:
        conversation, now = self._store.get(KEY), SYSTEM_CLOCK.time()
        window = self._store.window(KEY.conversation_id)
        lock = "free"
        if conversation is not None and conversation.status == Status.PROCESSING:
            left = conversation.lock_expires_at - now
            lock = f"held, {left:.1f} s left" if left > 0 else "expired"
        opened = "closed"
        if window is not None:
            opened = f"open for {max(0.0, now - window.opened_at):.1f} s"
        reply = "empty"
        if (outbox := self._find_outbox()) is not None:
            reply = f"{get_outbox_state(outbox)}, for {len(outbox.sids)}"
        return [("window", opened), ("lock", lock), ("outbox", reply)]

    # -- the view

    def format_line(self) -> str:
        """Return the counts and the facts as one line."""
        states = Counter(state for *_, state in self._list_lines())
        counts = f"{states['staged']} staged, {states['answered']} answered"
        return "; ".join([counts, *(f"{name} {state}" for name, state in self._list_facts())])

    def render(self) -> "Sequence[RenderableType]":
        """Return the conversation, the facts and a table of the workers."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, show_header=False)
        lines = sorted(self._list_lines())
        for _, speaker, body, state in lines:
            text = Text(" / ".join(body.splitlines()), no_wrap=True, overflow="ellipsis")
            style = _STYLES.get(state, "yellow")
            table.add_row(Text(speaker, "dim"), text, Text(state, style, no_wrap=True))
        for _ in range(_MIN_LINES - len(lines)):
            table.add_row("")
        legend = Text(no_wrap=True)
        for name, state in self._list_facts():
            legend.append(f"{name} ", style="cyan").append(f"{state}   ")
        return [table, "", legend, "", render_processes("worker", self.processes.started)]

    # -- the report

    def _make_report(self) -> DemoReport:
        history, conversation = self._read_history(), self._store.get(KEY)
        return make_report(
            [*QUICK, LATE],
            history=_collect_sids(history),
            sent=self._read_effects("sent"),
            replies=len(read_outbox(self._app.settings.outbox_folder)),
            recorded=sum(message.role == "assistant" for message in history),
            asked=len(self._read_effects("asked")),
            staged_left=len(self._store.staged(KEY.conversation_id)),
            locks_left=int(
                conversation is not None and conversation.status == Status.PROCESSING
            ),
            parked=len(list(self._store.parked())),
            workers_killed=sum(worker.killed for worker in self.processes.started),
            taken_over=self._taken_over,
            delivered_again=self._delivered_again,
        )


def _collect_sids(history: list[HistoryMessage]) -> list[str]:
    """Return the sids of all customer messages in the history, with repetitions."""
    batches = [message for message in history if message.role == "user"]
    return [sid for batch in batches for sid in batch.details.get("sids", ())]
