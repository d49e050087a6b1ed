"""Windows: the delay that collects a customer's messages, and the trigger that ends it.

    first fragment ─▶ window opens ─▶ trigger, W later ─▶ processor closes it ─▶ batch
    other fragments join it, and send no trigger

Every staged row will be read by a processor, because one of three things is true. Its window
is open and a trigger is on its way. Or a processor closed the window and reads the staged
rows after that. Or a worker holds the lock, and checks for staged rows after it released the
lock.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from holdfast.conversations import events as cv
from holdfast.conversations.messages import Trigger
from holdfast.conversations.model import Channel, ConversationKey, Window, redact_id
from holdfast.conversations.policy import ConversationPolicy
from holdfast.conversations.ports import ConversationStore
from holdfast.core.clock import Clock
from holdfast.core.errors import StoreUnavailable
from holdfast.core.events import Events
from holdfast.core.queue.manager import QueueManager
from holdfast.core.queue.message import make_id

Queues = Mapping[Channel, QueueManager[Trigger]]


class WindowOpener:
    """The component that opens, prolongs and closes windows, and sends their triggers."""

    def __init__(
        self,
        store: ConversationStore,
        queues: Queues,
        policy: ConversationPolicy,
        clock: Clock,
        events: Events,
    ) -> None:
        self._store, self._queues = store, queues
        self._policy, self._clock, self._events = policy, clock, events

    def open(self, key: ConversationKey, *, owner_sid: str, delay_seconds: float) -> bool:
        """Open a window and send its trigger, or return False because one is open already."""
        now, policy = self._clock.time(), self._policy
        life_seconds = policy.max_wait_seconds + policy.lock_seconds + policy.grace_seconds
        window = Window(
            key.conversation_id,
            trigger_id=make_id(),
            owner_sid=owner_sid,
            opened_at=now,
            expires_at=now + life_seconds,
        )
        before = now - policy.grace_seconds
        if not self._store.open_window(window, now=now, untriggered_before=before):
            return False
        self._push(_make_trigger(key, id=window.trigger_id), delay_seconds)
        self._events.emit(cv.WindowOpened(redact_id(key.conversation_id), delay_seconds))
        # The trigger is in the queue. If the window cannot be marked, it is opened again
        # later, and the second trigger finds nothing to do.
        with suppress(StoreUnavailable):
            self._store.mark_triggered(window)
        return True

    def prolong(self, trigger: Trigger, delay_seconds: float) -> None:
        """Send another trigger for the same window, because the customer is still typing."""
        later = _make_trigger(
            trigger.key,
            window_id=trigger.window,
            waited_seconds=trigger.waited_seconds + delay_seconds,
        )
        self._push(later, delay_seconds)
        self._events.emit(cv.WindowProlonged(redact_id(trigger.conversation_id), delay_seconds))

    def push_trigger(self, key: ConversationKey) -> None:
        """Send a trigger for staged messages that have none."""
        self._push(_make_trigger(key), self._policy.quiet_seconds)

    def has_trigger(self, conversation_id: str) -> bool:
        """Check whether a window is open whose trigger will certainly arrive."""
        window = self._store.window(conversation_id)
        if window is None or not window.triggered:
            return False
        return window.expires_at > self._clock.time()

    def close(self, trigger: Trigger) -> None:
        """Close the trigger's window, so that the next message opens another one."""
        self._store.close_window(trigger.conversation_id, trigger.window)

    def _push(self, trigger: Trigger, delay_seconds: float) -> None:
        self._queues[trigger.key.channel].push(trigger, delay_seconds=delay_seconds)


def _make_trigger(key: ConversationKey, **more: Any) -> Trigger:
    return Trigger(
        conversation_id=key.conversation_id, primary_channel=key.primary_channel, **more
    )
