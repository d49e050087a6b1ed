"""Stores that return wrong results: each lacks one element of the protocol."""

from collections.abc import Collection
from dataclasses import replace
from math import inf
from typing import Any

from holdfast.chat.model import (
    ConversationKey,
    ConversationNotFound,
    LockAcquired,
    LockGrant,
    LockHeld,
    Window,
)


class FaultyStore:
    """The real store, except for what a subclass overrides."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._last: dict[ConversationKey, LockGrant] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def acquire(
        self, key: ConversationKey, **how: Any
    ) -> LockAcquired | LockHeld | ConversationNotFound:
        result: LockAcquired | LockHeld | ConversationNotFound = self._store.acquire(key, **how)
        if isinstance(result, LockAcquired):
            self._last[key] = result.grant
        return result


class Forgetful(FaultyStore):
    """A store that remembers no processed messages."""

    def processed(self, key: ConversationKey, sids: Collection[str]) -> set[str]:
        return set()


class NoOutbox(FaultyStore):
    """A store that hides the outbox of the previous owner."""

    def acquire(
        self, key: ConversationKey, **how: Any
    ) -> LockAcquired | LockHeld | ConversationNotFound:
        result = super().acquire(key, **how)
        if isinstance(result, LockAcquired):
            return replace(result, conversation=replace(result.conversation, outbox=None))
        return result


class UnfencedFinish(FaultyStore):
    """A store that checks the status of the lock, but not its owner."""

    def finish(self, grant: LockGrant, *args: Any, **how: Any) -> None:
        self._store.finish(self._last[grant.key], *args, **how)


class UnfencedRelease(FaultyStore):
    """A store that accepts a release from any grant."""

    def release(self, grant: LockGrant, status: str) -> None:
        self._store.release(self._last[grant.key], status)


class LocksForEver(FaultyStore):
    """A store whose locks never expire."""

    def acquire(
        self, key: ConversationKey, **how: Any
    ) -> LockAcquired | LockHeld | ConversationNotFound:
        return super().acquire(key, **(how | {"expires_at": how["now"] + 1e9}))

    def renew(self, grant: LockGrant, *, now: float, expires_at: float) -> bool:
        renewed: bool = self._store.renew(grant, now=now, expires_at=now + 1e9)
        return renewed


class ByPresence(FaultyStore):
    """A store where a window's row blocks others even after it expired."""

    def open_window(self, window: Window, *, now: float, untriggered_before: float) -> bool:
        opened: bool = self._store.open_window(
            window, now=-inf, untriggered_before=untriggered_before
        )
        return opened


class NoRepair(FaultyStore):
    """A store where a window without a trigger blocks all others."""

    def open_window(self, window: Window, *, now: float, untriggered_before: float) -> bool:
        unowned = replace(window, owner_sid=window.trigger_id)
        opened: bool = self._store.open_window(unowned, now=now, untriggered_before=-inf)
        return opened


class NeverCloses(FaultyStore):
    """A store that does not close windows."""

    def close_window(self, conversation_id: str, trigger_id: str) -> None:
        pass
