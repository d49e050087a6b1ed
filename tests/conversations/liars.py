"""Stores that lie to their callers: each lacks one element of the protocol."""

from collections.abc import Collection
from dataclasses import replace
from math import inf
from typing import Any

from holdfast.conversations.model import (
    ConversationKey,
    ConversationNotFound,
    LockAcquired,
    LockGrant,
    LockHeld,
    Window,
)


class Lying:
    """The store, but for what a subclass says otherwise."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._last: dict[ConversationKey, LockGrant] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def acquire(
        self, key: ConversationKey, **how: Any
    ) -> LockAcquired | LockHeld | ConversationNotFound:
        answer: LockAcquired | LockHeld | ConversationNotFound = self._store.acquire(key, **how)
        if isinstance(answer, LockAcquired):
            self._last[key] = answer.grant
        return answer


class Forgetful(Lying):
    """Nothing was ever processed."""

    def processed(self, key: ConversationKey, sids: Collection[str]) -> set[str]:
        return set()


class NoOutbox(Lying):
    """Nobody learns how far the last owner came."""

    def acquire(
        self, key: ConversationKey, **how: Any
    ) -> LockAcquired | LockHeld | ConversationNotFound:
        answer = super().acquire(key, **how)
        if isinstance(answer, LockAcquired):
            return replace(answer, conversation=replace(answer.conversation, outbox=None))
        return answer


class AnybodyFinishes(Lying):
    """As the seed has it: the status is looked at, not whose it is."""

    def finish(self, grant: LockGrant, *args: Any, **how: Any) -> None:
        self._store.finish(self._last[grant.key], *args, **how)


class AnybodyReleases(Lying):
    def release(self, grant: LockGrant, status: str) -> None:
        self._store.release(self._last[grant.key], status)


class LocksForEver(Lying):
    def acquire(
        self, key: ConversationKey, **how: Any
    ) -> LockAcquired | LockHeld | ConversationNotFound:
        return super().acquire(key, **(how | {"expires_at": how["now"] + 1e9}))

    def renew(self, grant: LockGrant, *, now: float, expires_at: float) -> bool:
        renewed: bool = self._store.renew(grant, now=now, expires_at=now + 1e9)
        return renewed


class ByPresence(Lying):
    """A window's row is in the way as long as it is there, expired or not."""

    def open_window(self, window: Window, *, now: float, untriggered_before: float) -> bool:
        opened: bool = self._store.open_window(
            window, now=-inf, untriggered_before=untriggered_before
        )
        return opened


class NoRepair(Lying):
    """A window that never got its trigger is in the way of everybody."""

    def open_window(self, window: Window, *, now: float, untriggered_before: float) -> bool:
        nobody = replace(window, owner_sid=window.trigger_id)
        opened: bool = self._store.open_window(nobody, now=now, untriggered_before=-inf)
        return opened


class NeverCloses(Lying):
    def close_window(self, conversation_id: str, trigger_id: str) -> None:
        pass
