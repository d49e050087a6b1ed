"""WindowOpener: the wait that gathers a customer's messages, and the trigger that ends it.

    first fragment ─▶ window opens ─▶ trigger, W later ─▶ processor closes it ─▶ batch
    other fragments join it, and send no trigger

A staged row is never alone. Either its window is open and a trigger is on its way; or the
window was closed by a processor which reads the stage after that; or somebody holds the
lock, and looks again once the lock is free.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from holdfast.conversations import events as cv
from holdfast.conversations.messages import Trigger
from holdfast.conversations.model import Channel, ConversationKey, Window, redacted_id
from holdfast.conversations.policy import ConversationPolicy
from holdfast.conversations.ports import ConversationStore
from holdfast.core.clock import Clock
from holdfast.core.errors import StoreUnavailable
from holdfast.core.events import Events
from holdfast.core.queue.manager import QueueManager
from holdfast.core.queue.message import new_id

Queues = Mapping[Channel, QueueManager[Trigger]]


class WindowOpener:
    """Opens and prolongs windows, and sends their triggers."""

    def __init__(
        self,
        store: ConversationStore,
        queues: Queues,
        terms: ConversationPolicy,
        clock: Clock,
        events: Events,
    ) -> None:
        self._store, self._queues = store, queues
        self._terms, self._clock, self._events = terms, clock, events

    def open(self, key: ConversationKey, *, owner_sid: str, delay_seconds: float) -> bool:
        """Open a window and send its trigger, unless one is open. True: this one did."""
        now, terms = self._clock.time(), self._terms
        life_seconds = terms.max_wait_seconds + terms.lock_seconds + terms.grace_seconds
        window = Window(
            key.conversation_id,
            trigger_id=new_id(),
            owner_sid=owner_sid,
            opened_at=now,
            expires_at=now + life_seconds,
        )
        before = now - terms.grace_seconds
        if not self._store.open_window(window, now=now, untriggered_before=before):
            return False
        self._push(_trigger(key, id=window.trigger_id), delay_seconds)
        self._events.emit(cv.WindowOpened(redacted_id(key.conversation_id), delay_seconds))
        # The trigger is out. Unmarked, the window is opened again in a while, and the
        # second trigger finds nothing to do.
        with suppress(StoreUnavailable):
            self._store.mark_triggered(window)
        return True

    def prolong(self, trigger: Trigger, delay_seconds: float) -> None:
        """Another trigger for the same window: the customer is still typing."""
        later = _trigger(
            trigger.key,
            window_id=trigger.window,
            waited_seconds=trigger.waited_seconds + delay_seconds,
        )
        self._push(later, delay_seconds)
        self._events.emit(
            cv.WindowProlonged(redacted_id(trigger.conversation_id), delay_seconds)
        )

    def follow(self, key: ConversationKey) -> None:
        """A trigger for what is staged and has none."""
        self._push(_trigger(key), self._terms.quiet_seconds)

    def ahead(self, conversation_id: str) -> bool:
        """Is a window open whose trigger will surely come?"""
        window = self._store.window(conversation_id)
        return window is not None and window.triggered and window.expires_at > self._now()

    def close(self, trigger: Trigger) -> None:
        """Whoever comes from now on opens a window of his own."""
        self._store.close_window(trigger.conversation_id, trigger.window)

    def _push(self, trigger: Trigger, delay_seconds: float) -> None:
        self._queues[trigger.key.channel].push(trigger, delay_seconds=delay_seconds)

    def _now(self) -> float:
        return self._clock.time()


def _trigger(key: ConversationKey, **more: Any) -> Trigger:
    return Trigger(
        conversation_id=key.conversation_id, primary_channel=key.primary_channel, **more
    )
