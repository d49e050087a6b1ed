"""A pool of a few threads that run callables in the order in which they were submitted."""

import logging
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread, current_thread

from holdfast.lease.clock import Clock

_log = logging.getLogger("holdfast")

Work = Callable[[], None]


class ThreadPool:
    """Up to `size` threads, started when there is work for them.

    If a callable raises, the error is logged and nothing else ends.
    """

    def __init__(self, name: str, size: int = 1) -> None:
        self._name = name
        self._size = size
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._load = 0  # submitted and not finished
        self._closed = False
        self._idle = Event()
        self._idle.set()
        self._lock = Lock()

    def submit(self, work: Work) -> bool:
        """Queue a callable. Returns False if the pool is closed or no thread can start."""
        with self._lock:
            if self._closed:
                return False
            if len(self._threads) < min(self._load + 1, self._size):
                self._start_thread()
            if not self._threads:
                return False
            self._load += 1
            self._idle.clear()
            self._queue.put(work)
        return True

    @property
    def load(self) -> int:
        """The number of callables that are submitted and not finished."""
        return self._load

    def close(self) -> None:
        """Drop the callables that have not begun; those that run finish by themselves."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._drop_waiting()
            for _ in self._threads:
                self._queue.put(None)

    def wait(self, clock: Clock, seconds: float) -> bool:
        """Wait after `close` until the threads have ended; return whether they did.

        Returns False at once in a thread of this pool, because that would wait for itself.
        """
        if current_thread() in self._threads or not clock.wait(self._idle, seconds):
            return False
        for thread in self._threads:
            thread.join()
        return True

    def _start_thread(self) -> None:
        thread = Thread(
            target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # no thread can be started; the existing ones do the work
            _log.warning("%s has no more than %d threads", self._name, len(self._threads))
            return
        self._threads.append(thread)

    def _drop_waiting(self) -> None:
        try:
            while True:
                self._queue.get_nowait()
                self._reduce_load()
        except Empty:
            pass

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except Exception:  # a bug in one callable must not end the thread for the others
                _log.exception("work of %s failed", self._name)
            finally:
                with self._lock:
                    self._reduce_load()

    def _reduce_load(self) -> None:
        self._load -= 1
        if self._load == 0:
            self._idle.set()


def close_all(pools: Iterable[ThreadPool], clock: Clock, seconds: float) -> bool:
    """Close the pools and wait so long for all together; return whether all have ended."""
    pools = list(pools)
    for pool in pools:
        pool.close()
    until = clock.monotonic() + seconds
    ended = [pool.wait(clock, max(0.0, until - clock.monotonic())) for pool in pools]
    return all(ended)
