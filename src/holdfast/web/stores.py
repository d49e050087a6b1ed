"""A store that a console opens when it is first read."""

from collections.abc import Callable
from threading import Lock
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """Something that is closed at the end."""

    def close(self) -> None:
        """Close all connections."""


T = TypeVar("T", bound=Closable)


class LazyStore(Generic[T]):
    """A store that is opened with the first read, and again until that succeeds.

    So a store may be created after the console was started. Safe for threads.
    """

    def __init__(self, open_store: Callable[[], T]) -> None:
        self._open, self._lock = open_store, Lock()
        self._store: T | None = None

    def get(self) -> T:
        """Return the open store. Raises HoldfastError if it cannot be opened."""
        with self._lock:
            if self._store is None:
                self._store = self._open()
            return self._store

    def close(self) -> None:
        """Close the store. Reads that come later open it again."""
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            store.close()
