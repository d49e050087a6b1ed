"""The chat act: a worker is killed between writing a reply and sending it.

three messages ─▶ window ─▶ worker 1: one batch ─▶ writer ─▶ reply prepared ─▶ killed
   a fourth, too late for it ─▶ worker 2: gets its trigger, the lock is held ──┘
the lock ends ─▶ worker 2 finds the reply and sends it ─▶ the fourth gets its own reply
the first message is delivered again ─▶ it has no effect ─▶ totals
"""

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from threading import Event
from typing import Any, ClassVar

from harness import ALL, Act, ActStopped, Stage, Total

from holdfast import Events, Worker, chat
from holdfast.events import EventLog

NAME = "ada"
KEY = chat.ConversationKey(f"whatsapp:{NAME}", "demo")
# No text is part of another, because the replies are searched for the texts.
QUICK = {"wa-1": "Hi there!", "wa-2": "I ordered the lamp.", "wa-3": "When does it come?"}
LATE = {"wa-4": "And do you have it in red?"}
MESSAGES = QUICK | LATE
PROFILE = chat.ConversationProfile(
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
HOLD = "--hold"  # the worker never sends the reply, but waits until it is killed


class ChatAct(Act):
    """One customer, and two workers."""

    title = "quick messages, a worker killed before the send"
    inspect = "HOLDFAST_DATA_DIR={folder} holdfast chat show demo (and outbox)"
    web_options = ("--chat=chat.db",)
    queue_name = "chat/whatsapp"
    message = chat.Trigger
    command = ("chat_act",)
    done = "turn_finished"
    story: ClassVar = {
        "lock_taken_over": "has the lock, {takeover}; the reply is {outbox}",
        "lock_busy": "gets a trigger while the lock is held",
        "batch_begun": "takes {fragments} of the messages as one batch",
        "reply_written": "the reply is written and stored as prepared",
        "reply_sent": "the reply is sent",
        "turn_finished": "messages and reply are written to the history in one write",
        "nothing_staged": "its trigger finds no unanswered message",
        "batch_parked": "batch parked: {reason}",
        "batch_failed": "batch failed: {error}",
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
        app = chat.build_chat(self.env, fallback=PROFILE)
        self.app = stage.resources.enter_context(app)
        self.store = app.store
        self.written = 0

    def run_steps(self) -> None:
        """Kill the first worker before it sends, and wait for the second."""
        for sid in QUICK:
            self._write(sid)
            self.wait(POLLS_BETWEEN_MESSAGES)
        # Started only now, so that the three are one batch however slow the machine is.
        first = self.start(HOLD)
        self.wait_until(lambda: first.events["batch_begun"])
        self._write("wa-4", "too late for that batch, ")
        second = self.start()
        # Now neither can continue, because the first waits before the send until it is killed
        # and the second did not get the lock. So the following steps do not race.
        self.wait_until(lambda: first.events["reply_written"] and second.events["lock_busy"])
        self.kill(first, self._describe_reply)
        self.wait_until(self._is_quiet, QUIET_POLLS)
        # Otherwise the trigger of the message that is delivered again would also answer a
        # message whose trigger was lost, and hide the error.
        if self.store.staged(KEY.conversation_id):
            raise ActStopped("a message is staged, but it has no trigger")
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

    def list_shares(self) -> Sequence[tuple[str, int, str]]:
        """Return how many messages wait, are being answered, and are answered."""
        conversation, answered = self.store.get(KEY), len(self._read_sids())
        batch = (conversation and conversation.outbox and len(conversation.outbox.sids)) or 0
        return [
            ("answered", answered, "green"),
            ("being answered", batch, "yellow"),
            ("staged", len(self.store.staged(KEY.conversation_id)) - batch, "blue"),
        ]

    def _read_sids(self) -> list[str]:
        """Return the sids of all customer messages in the history, with repetitions."""
        history = self.store.history(KEY, limit=ALL)
        batches = [message.details for message in history if message.role == "user"]
        return [sid for batch in batches for sid in batch.get("sids", ())]

    def list_totals(self) -> Sequence[Total]:
        """Compare the messages with the history, the replies and the workers' events."""
        history, row = self.store.history(KEY, limit=ALL), self.store.get(KEY)
        recorded = sum(message.role == "assistant" for message in history)
        paths = self.app.settings.outbox_folder.glob("*.json")
        replies = [json.loads(path.read_text())["text"] for path in paths]
        batches = Counter(self._read_sids())
        kept = sum(batches[sid] == 1 for sid in MESSAGES)
        quotes = {sid: sum(body in text for text in replies) for sid, body in MESSAGES.items()}
        twice = {sid for sid, count in [*quotes.items(), *batches.items()] if count > 1}
        lost = sum(not count for count in quotes.values())
        asked, sent = self.count("reply_written"), self.count("reply_sent")
        staged = len(self.store.staged(KEY.conversation_id))
        locked = int(row is None or row.status == "processing_reply")
        killed = sum("killed" in worker.outcome for worker in self.started)
        again = self.written - len(MESSAGES)
        quick = "three quick ones, and one too late for their batch"
        each = "one to the three, one to the late message"
        return [
            Total("messages", "messages", len(MESSAGES), 4, quick),
            Total("in_history", "in the history", kept, 4, "each exactly once"),
            Total("replies", "replies", len(replies), 2, each),
            Total("recorded", "recorded replies", recorded, 2, "in the history"),
            Total("asked", "writer calls", asked, 2, "none for a prepared reply"),
            Total("sent", "sender calls", sent, 2, "one for each reply"),
            Total("answered_twice", "answered twice", len(twice), 0, "quoted in two replies"),
            Total("lost", "lost", lost, 0, "in no reply"),
            Total("staged_left", "left staged", staged, 0),
            Total("locks_left", "left locked", locked, 0),
            Total("parked", "parked", len(list(self.store.parked())), 0),
            Total("workers_killed", "workers killed", killed, 1, "with SIGKILL, unsent"),
            Total("taken_over", "taken over", self.count("lock_taken_over"), 1, "and sent"),
            Total("delivered_again", "delivered again", again, 1, "without effect"),
        ]


def make_inbound(sid: str) -> chat.Inbound:
    """Return a message as the provider's webhook delivers it."""
    return chat.Inbound(
        message_sid=sid,
        primary_channel=KEY.primary_channel,
        conversation_id=KEY.conversation_id,
        body=MESSAGES[sid],
    )


def work() -> None:
    """Answer messages until a signal stops the process: `python -m chat_act [--hold]`."""
    stopping = Event()

    def log(level: int, name: str, fields: Any, error: BaseException | None) -> None:
        print(json.dumps({"event": name, **fields}), file=sys.stderr, flush=True)
        if name == "worker_stopping":
            stopping.set()
        if name == "reply_written" and HOLD in sys.argv:  # stored, and not sent
            stopping.wait()

    events = Events(EventLog(log))
    with chat.build_chat(os.environ, events=events) as app:
        queue, keeper = app.queues[chat.Channel.WHATSAPP], app.keeper
        worker = Worker(queue, app.processor, drain_seconds=5.0, keeper=keeper, events=events)
        signal.signal(signal.SIGTERM, lambda *_: worker.stop())
        app.keeper.start()
        worker.run()


if __name__ == "__main__":
    work()
