"""The chat act: a worker is killed between writing a reply and sending it.

three messages ─▶ window ─▶ worker 1: one batch ─▶ writer ─▶ reply prepared ─▶ killed
   a fourth, too late for it ─▶ worker 2: gets its trigger, the lock is held ──┘
the lock ends ─▶ worker 2 finds the reply and sends it ─▶ the fourth gets its own reply
the first message is delivered again ─▶ it has no effect ─▶ report
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.chat.building import (
    LOCAL_PROFILE,
    build_chat,
    open_conversations,
    read_outbox,
)
from holdfast.chat.messages import Inbound, Trigger
from holdfast.chat.model import ConversationKey, HistoryMessage, Status
from holdfast.chat.outbox import Outbox, get_outbox_state
from holdfast.demo.act import ALL, POLL_SECONDS, Act, QueueKind
from holdfast.demo.chat_worker import HOLD
from holdfast.demo.process import DemoProcess
from holdfast.demo.screen import DemoReport, ReportRow
from holdfast.lease.clock import SYSTEM_CLOCK

NAME = "ada"
KEY = ConversationKey(f"whatsapp:{NAME}", "demo")
LOCK_SECONDS = 3.0
_SETTINGS = {
    "HOLDFAST_LEASE_SECONDS": f"{LOCK_SECONDS}",
    "HOLDFAST_CHAT_LOCK_SECONDS": f"{LOCK_SECONDS}",
    "HOLDFAST_CHAT_WINDOW_SECONDS": "1.2",
    "HOLDFAST_CHAT_QUIET_SECONDS": "0.5",
}
_POLLS_BETWEEN_MESSAGES = 3
_QUIET_POLLS = 2  # a trigger that is moved between two folders is counted in neither
_MIN_LINES = 6  # of the conversation, to keep the height constant
_STYLES = {"sent": "bold green", "answered": "green", "staged": "blue"}  # others are yellow
_TERMS = (
    "A message is answered if a sent reply quotes it. Replies are counted in the outbox "
    "folder; the writer and the sender record their effects separately."
)


@dataclass(frozen=True, slots=True)
class CustomerMessage:
    """One message of the customer.

    No text is part of another, because the replies are searched for the texts.
    """

    sid: str
    text: str

    def make_inbound(self) -> Inbound:
        """Return a new inbound message, as the provider's webhook delivers it."""
        return Inbound(
            message_sid=self.sid,
            primary_channel=KEY.primary_channel,
            conversation_id=KEY.conversation_id,
            body=self.text,
        )


QUICK = (
    CustomerMessage("wa-1", "Hi there!"),
    CustomerMessage("wa-2", "I ordered the blue lamp."),
    CustomerMessage("wa-3", "When does it come?"),
)
LATE = CustomerMessage("wa-4", "And do you have it in red?")
MESSAGES = (*QUICK, LATE)
# The rows of the report: key, label, expected count and note.
_ROWS = (
    ("messages", "messages", 4, "three quick ones, and one too late for their batch"),
    ("in_history", "in the history", 4, "each exactly once"),
    ("replies", "replies", 2, "one to the three, one to the late message"),
    ("recorded", "recorded replies", 2, "in the history"),
    ("asked", "writer calls", 2, "none for a prepared reply"),
    ("answered_twice", "answered twice", 0, "quoted in two replies"),
    ("lost", "lost", 0, "in no reply"),
    ("staged_left", "left staged", 0, ""),
    ("locks_left", "left locked", 0, ""),
    ("parked", "parked", 0, "waiting for an operator"),
    ("workers_killed", "workers killed", 1, "with SIGKILL, before the send"),
    ("taken_over", "taken over", 1, "prepared replies that were sent"),
    ("delivered_again", "delivered again", 1, "an answered message, without effect"),
)


class ChatAct(Act):
    """One customer, and two workers."""

    title = "quick messages, a worker killed before the send"
    inspect = "HOLDFAST_DATA_DIR={folder} holdfast chat show demo (and outbox)"
    web_options = ("--chat=chat.db",)
    queue_name = "chat/whatsapp"
    message = Trigger
    command = "holdfast.demo.chat_worker"
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

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.env |= _SETTINGS | {
            "HOLDFAST_DATA_DIR": str(self.folder),
            "HOLDFAST_CHAT_WHATSAPP_QUEUE": self.url,
        }
        self._app = self.resources.enter_context(build_chat(self.env, fallback=LOCAL_PROFILE))
        self._store = self._app.store
        self._written: dict[CustomerMessage, float] = {}  # with the time of each
        self._taken_over = 0  # prepared replies that were taken over
        self._delivered_again = 0

    @classmethod
    def create(cls, folder: Path, kind: QueueKind) -> None:
        """Create the queue and the store of conversations."""
        super().create(folder, kind)
        open_conversations(folder / "chat.db").close()

    def run_steps(self) -> None:
        """Run the steps. Raises DemoStopped."""
        for number, line in enumerate(QUICK):
            self._pause(_POLLS_BETWEEN_MESSAGES if number else 0)
            self._write(line)
        # Started only now, so that the three are one batch however slow the machine is.
        first = self.start(HOLD)
        self.wait_until(lambda: self._read_effects("asked"))
        self._write(LATE, "too late for that batch, ")
        second = self.start()
        # Now neither can continue, because the first waits before the send until it is killed
        # and the second did not get the lock. So the following steps do not race.
        self.wait_until(lambda: first.counts["reply_written"] and second.counts["lock_busy"])
        self.kill(first, self._describe_reply)
        self.wait_until(self._is_quiet, polls=_QUIET_POLLS)
        # Otherwise the trigger of the message that is delivered again would also answer a
        # message whose trigger was lost, and hide the error.
        if self._store.staged(KEY.conversation_id):
            self.stop("a message is staged, but it has no trigger")
        self._app.stager.stage(QUICK[0].make_inbound())
        self._delivered_again += 1
        self.screen.report(f"the provider delivers {QUICK[0].sid} again: {QUICK[0].text}")
        self.wait_until(self._is_quiet, polls=_QUIET_POLLS)
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

    def _is_quiet(self) -> bool:
        stats = self.queue.stats()
        return not (stats.ready or stats.delayed or stats.leased)

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
        return [effect["text"] for effect in self.effects.read() if effect["kind"] == kind]

    def _find_outbox(self) -> Outbox | None:
        conversation = self._store.get(KEY)
        return conversation.outbox if conversation else None

    def _describe_reply(self) -> str:
        outbox = self._find_outbox()
        return f"reply {get_outbox_state(outbox) if outbox else 'not started'}, not sent"

    def _list_lines(self) -> list[tuple[float, str, str, str]]:
        """Return (time, speaker, text, state) of each message and each reply."""
        outbox = self._find_outbox()
        answered = _collect_sids(self._store.history(KEY, limit=ALL))

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
        lock, opened, reply = "free", "closed", "empty"
        if conversation is not None and conversation.status == Status.PROCESSING:
            left = conversation.lock_expires_at - now
            lock = f"held, {left:.1f} s left" if left > 0 else "expired"
        if window is not None:
            opened = f"open for {max(0.0, now - window.opened_at):.1f} s"
        if conversation is not None and (outbox := conversation.outbox) is not None:
            reply = f"{get_outbox_state(outbox)}, for {len(outbox.sids)}"
        return [("window", opened), ("lock", lock), ("outbox", reply)]

    def format_line(self) -> str:
        """Return the counts and the facts as one line."""
        states = Counter(state for *_, state in self._list_lines())
        counts = f"{states['staged']} staged, {states['answered']} answered"
        return "; ".join([counts, *(f"{name} {state}" for name, state in self._list_facts())])

    def render(self) -> Sequence[RenderableType]:
        """Return the conversation and the facts."""
        table = Table(box=None, pad_edge=False, show_header=False)
        lines = sorted(self._list_lines())
        for _, speaker, body, state in lines:
            text = Text(" / ".join(body.splitlines()), overflow="fold")
            style = _STYLES.get(state, "yellow")
            table.add_row(Text(speaker, "dim"), text, Text(state, style, no_wrap=True))
        for _ in range(_MIN_LINES - len(lines)):
            table.add_row("")
        legend = Text(no_wrap=True)
        for name, state in self._list_facts():
            legend.append(f"{name} ", style="cyan").append(f"{state}   ")
        return [table, "", legend]

    def make_report(self) -> DemoReport:
        """Compare the messages with the history, the replies and the effect log."""
        history, conversation = self._store.history(KEY, limit=ALL), self._store.get(KEY)
        return make_report(
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
            workers_killed=sum(worker.killed for worker in self.started),
            taken_over=self._taken_over,
            delivered_again=self._delivered_again,
        )


def _collect_sids(history: list[HistoryMessage]) -> list[str]:
    """Return the sids of all customer messages in the history, with repetitions."""
    batches = [message for message in history if message.role == "user"]
    return [sid for batch in batches for sid in batch.details.get("sids", ())]


def make_report(history: Sequence[str], sent: Sequence[str], **read: int) -> DemoReport:
    """Return the report.

    `history` holds the sids of all batches, with repetitions, and `sent` the text of every
    reply that the sender got. The other counts are taken as they were read.
    """
    batches = Counter(history)
    quotes = {line.sid: sum(line.text in text for text in sent) for line in MESSAGES}
    twice = {sid for sid, count in [*quotes.items(), *batches.items()] if count > 1}
    counts = {
        "messages": len(MESSAGES),
        "in_history": sum(batches[line.sid] == 1 for line in MESSAGES),
        "answered_twice": len(twice),
        "lost": sum(not count for count in quotes.values()),
        **read,
    }
    rows = [
        ReportRow(key, label, counts[key], note, counts[key] != expected)
        for key, label, expected, note in _ROWS
    ]
    return DemoReport(rows, _TERMS)
