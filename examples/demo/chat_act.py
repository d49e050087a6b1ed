"""The chat act: a worker is killed between writing a reply and sending it.

three messages ─▶ window ─▶ worker 1: one batch ─▶ writer ─▶ reply prepared ─▶ killed
   a fourth, too late for it ─▶ worker 2: gets its trigger, the lock is held ──┘
the lock ends ─▶ worker 2 finds the reply and sends it ─▶ the fourth gets its own reply
the first message is delivered again ─▶ it has no effect ─▶ totals
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from chat_worker import HOLD
from harness import ALL, Act, Process, Stage, Total

from holdfast.chat import ConversationKey, ConversationProfile, Inbound, Trigger, build_chat

NAME = "ada"
KEY = ConversationKey(f"whatsapp:{NAME}", "demo")
# No text is part of another, because the replies are searched for the texts.
QUICK = {
    "wa-1": "Hi there!",
    "wa-2": "I ordered the blue lamp.",
    "wa-3": "When does it come?",
}
LATE = {"wa-4": "And do you have it in red?"}
MESSAGES = QUICK | LATE
PROFILE = ConversationProfile(
    channel_config={"provider": "outbox"}, ai_config={"provider": "echo"}
)
SETTINGS = {
    "HOLDFAST_LEASE_SECONDS": "3",
    "HOLDFAST_CHAT_LOCK_SECONDS": "3",
    "HOLDFAST_CHAT_WINDOW_SECONDS": "1.2",
    "HOLDFAST_CHAT_QUIET_SECONDS": "0.5",
}
POLLS_BETWEEN_MESSAGES = 3
QUIET_POLLS = 2  # a trigger that is moved between two folders is counted in neither
# The totals: key, label, expected count and note.
TOTALS = (
    ("messages", "messages", 4, "three quick ones, and one too late for their batch"),
    ("in_history", "in the history", 4, "each exactly once"),
    ("replies", "replies", 2, "one to the three, one to the late message"),
    ("recorded", "recorded replies", 2, "in the history"),
    ("asked", "writer calls", 2, "none for a prepared reply"),
    ("sent", "sender calls", 2, "one for each reply"),
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
    command = ("chat_worker",)
    done = "turn_finished"
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
    terms = (
        "A message is answered if a sent reply quotes it. Replies are counted in the outbox "
        "folder, and the calls of the writer and the sender in the workers' events."
    )

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.env |= SETTINGS | {
            "HOLDFAST_DATA_DIR": str(self.folder),
            "HOLDFAST_CHAT_WHATSAPP_QUEUE": self.url,
        }
        app = build_chat(self.env, fallback=PROFILE)
        self.app = stage.resources.enter_context(app)
        self.store = app.store
        self.written = self.taken_over = 0

    def run_steps(self) -> None:
        """Kill the first worker before it sends, and wait for the second."""
        for sid in QUICK:
            self._write(sid)
            self.wait(POLLS_BETWEEN_MESSAGES)
        # Started only now, so that the three are one batch however slow the machine is.
        first = self.start(HOLD)
        self.wait_until(lambda: first.counts["batch_begun"])
        self._write("wa-4", "too late for that batch, ")
        second = self.start()
        # Now neither can continue, because the first waits before the send until it is killed
        # and the second did not get the lock. So the following steps do not race.
        self.wait_until(lambda: first.counts["reply_written"] and second.counts["lock_busy"])
        self.kill(first, self._describe_reply)
        self.wait_until(self._is_quiet, QUIET_POLLS)
        # Otherwise the trigger of the message that is delivered again would also answer a
        # message whose trigger was lost, and hide the error.
        if self.store.staged(KEY.conversation_id):
            self.stop("a message is staged, but it has no trigger")
        self._write("wa-1", "delivered again, ")
        self.wait_until(self._is_quiet, QUIET_POLLS)
        self.screen.report("no trigger is left; the worker drains")

    def _write(self, sid: str, when: str = "") -> None:
        staging = self.app.stager.stage(make_inbound(sid))
        self.written += 1
        window = "opens a window" if staging.opened else "joins the window"
        self.screen.report(f"{NAME}: {MESSAGES[sid]} ({when}{window})")

    def _is_quiet(self) -> bool:
        stats = self.queue.stats()
        return not (stats.ready or stats.delayed or stats.leased)

    def _describe_reply(self) -> str:
        """Return the state of the reply in the conversation's row."""
        conversation = self.store.get(KEY)
        state = type(conversation.outbox).__name__ if conversation else "no"
        return f"reply {state.removesuffix('Reply').lower()}, not sent"

    def describe(self, process: Process, event: dict[str, Any]) -> str | None:
        """Tell what a worker does with the lock and the batch."""
        match event:
            case {"event": "lock_taken_over", "outbox": state}:
                self.taken_over += state == "prepared"
                return f"has the lock, {self.describe_takeover()}; the reply is {state}"
            case {"event": "lock_busy", "own": True}:
                return "has the trigger, but the killed worker's lock has not ended yet"
            case {"event": "lock_busy"}:
                return "gets the late message's trigger while the lock is held, and acks it"
            case {"event": "batch_begun", "fragments": 1}:
                return "takes 1 message as a batch"
            case {"event": "batch_begun", "fragments": count}:
                return f"takes {count} messages as one batch"
        return super().describe(process, event)

    def list_shares(self) -> Sequence[tuple[str, int, str]]:
        """Return how many messages wait, are being answered, and are answered."""
        conversation, answered = self.store.get(KEY), len(self._read_sids())
        batch = (conversation and conversation.outbox and len(conversation.outbox.sids)) or 0
        return [
            ("answered", answered, "green"),
            ("being answered", batch, "yellow"),
            ("staged", self.written - answered - batch, "blue"),
        ]

    def _read_sids(self) -> list[str]:
        """Return the sids of all customer messages in the history, with repetitions."""
        history = self.store.history(KEY, limit=ALL)
        batches = [message.details for message in history if message.role == "user"]
        return [sid for batch in batches for sid in batch.get("sids", ())]

    def list_totals(self) -> Sequence[Total]:
        """Compare the messages with the history, the replies and the workers' events."""
        history, conversation = self.store.history(KEY, limit=ALL), self.store.get(KEY)
        outbox = self.app.settings.outbox_folder.glob("*.json")
        events = sum((worker.counts for worker in self.started), Counter[str]())
        return list_totals(
            self._read_sids(),
            [json.loads(path.read_text())["text"] for path in outbox],
            recorded=sum(message.role == "assistant" for message in history),
            asked=events["reply_written"],
            sent=events["reply_sent"],
            staged_left=len(self.store.staged(KEY.conversation_id)),
            locks_left=int(not conversation or conversation.status == "processing_reply"),
            parked=len(list(self.store.parked())),
            workers_killed=sum("killed" in worker.outcome for worker in self.started),
            taken_over=self.taken_over,
            delivered_again=self.written - len(MESSAGES),
        )


def make_inbound(sid: str) -> Inbound:
    """Return a message as the provider's webhook delivers it."""
    return Inbound(
        message_sid=sid,
        primary_channel=KEY.primary_channel,
        conversation_id=KEY.conversation_id,
        body=MESSAGES[sid],
    )


def list_totals(history: Iterable[str], replies: Sequence[str], **read: int) -> list[Total]:
    """Return the totals.

    `history` holds the sids of all batches, with repetitions, and `replies` the text of every
    reply that was sent. The other counts are taken as they were read.
    """
    batches = Counter(history)
    quotes = {sid: sum(body in text for text in replies) for sid, body in MESSAGES.items()}
    twice = {sid for sid, count in [*quotes.items(), *batches.items()] if count > 1}
    counts = {
        "messages": len(MESSAGES),
        "in_history": sum(batches[sid] == 1 for sid in MESSAGES),
        "replies": len(replies),
        "answered_twice": len(twice),
        "lost": sum(not count for count in quotes.values()),
        **read,
    }
    return [Total(key, label, counts[key], right, note) for key, label, right, note in TOTALS]
