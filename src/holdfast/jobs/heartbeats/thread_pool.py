"""A crew: a few threads that do what they are given, in order."""

import logging
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread, current_thread

from holdfast.core.clock import Clock

_log = logging.getLogger("holdfast")

Work = Callable[[], None]


class ThreadPool:
    """Up to `size` threads, started when there is work for them.

    Work that raises is logged and ends nothing else.
    """

    def __init__(self, name: str, size: int = 1) -> None:
        self._name = name
        self._size = size
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._load = 0  # given and not done
        self._closed = False
        self._idle = Event()
        self._idle.set()
        self._lock = Lock()

    def give(self, work: Work) -> bool:
        """False, and nothing is done: the crew is closed, or no thread can be had."""
        with self._lock:
            if self._closed:
                return False
            if len(self._threads) < min(self._load + 1, self._size):
                self._start_one()
            if not self._threads:
                return False
            self._load += 1
            self._idle.clear()
            self._queue.put(work)
        return True

    @property
    def load(self) -> int:
        return self._load

    def close(self) -> None:
        """What nobody has begun is dropped; what is under way ends by itself."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._drop_waiting()
            for _ in self._threads:
                self._queue.put(None)

    def wait(self, clock: Clock, seconds: float) -> bool:
        """After `close`: until its threads have ended; False when that takes longer, or
        would take for ever, because one of them asks."""
        if current_thread() in self._threads or not clock.wait(self._idle, seconds):
            return False
        for thread in self._threads:
            thread.join()
        return True

    def _start_one(self) -> None:
        thread = Thread(
            target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # no more to be had: those there are do the work
            _log.warning("%s has no more than %d threads", self._name, len(self._threads))
            return
        self._threads.append(thread)

    def _drop_waiting(self) -> None:
        try:
            while True:
                self._queue.get_nowait()
                self._less()
        except Empty:
            pass

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except Exception:  # one work's bug must not cost the others their thread
                _log.exception("work of %s failed", self._name)
            finally:
                with self._lock:
                    self._less()

    def _less(self) -> None:
        self._load -= 1
        if self._load == 0:
            self._idle.set()


def close_all(crews: Iterable[ThreadPool], clock: Clock, seconds: float) -> bool:
    """Close them, then wait so long for all together. True when all have ended."""
    crews = list(crews)
    for crew in crews:
        crew.close()
    until = clock.monotonic() + seconds
    ended = [crew.wait(clock, max(0.0, until - clock.monotonic())) for crew in crews]
    return all(ended)
