"""A queue of your own: a Python list, with leases, attempts and dead letters.

`tests/contracts/test_own_queue.py` runs the contract suite on it. A real one would keep its
tasks in a database; the rest stays the same.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from holdfast import (
    Delivery,
    Lease,
    LeaseLost,
    MessageInfo,
    MessageState,
    QueueManager,
    QueueMessage,
    QueueOperator,
    QueueStats,
    Refused,
    Renewed,
)


@dataclass(eq=False)
class Task:
    """One message in the list."""

    id: str
    body: bytes
    due_at: float
    attempts: int = 0
    fence: int = 0  # counts claims and never falls
    leased_until: float | None = None
    reason: str | None = None  # why it is a dead letter


class Tasks(list[Task]):
    """What several workers share: the list, its lock and its clock."""

    def __init__(self, clock: Any) -> None:
        self.lock, self._clock = Lock(), clock

    def now(self) -> float:
        """Return the time that decides whether a lease has expired."""
        return float(self._clock.monotonic())

    def next_claimable(self) -> Task | None:
        """Return the task to claim next: first those whose lease has expired."""
        now = self.now()
        live = [task for task in self if task.reason is None]
        expired = [task for task in live if task.leased_until and task.leased_until <= now]
        due = [task for task in live if task.leased_until is None and task.due_at <= now]
        return next(iter(expired + due), None)


class ListQueue(QueueManager[Any]):
    """A queue in a list. It refuses stale holders, and has few other capabilities."""

    capabilities = frozenset({"fence", "refund", "drop", "redrive_by_id"})

    def __init__(self, tasks: Tasks, model: type[QueueMessage], **settings: Any) -> None:
        super().__init__("list", model, **settings)
        self._tasks = tasks
        self.operator = ListOperator(tasks, self.name, self.capabilities)

    def push_many(self, messages: Iterable[Any], *, delay_seconds: float = 0.0) -> list[str]:
        self._check_delay(delay_seconds)
        # All are encoded first, so that nothing is pushed if one of them cannot be.
        bodies = [(message.id, self._codec.encode(message)) for message in messages]
        with self._tasks.lock:
            due_at = self._tasks.now() + max(0.0, delay_seconds)
            self._tasks.extend(Task(id_, body, due_at) for id_, body in bodies)
        return [id_ for id_, _ in bodies]

    def _claim(self, limit: int) -> list[Delivery]:
        claimed_at = self.clock.monotonic()  # before the claim: trust counts from here
        deliveries: list[Delivery] = []
        with self._tasks.lock:
            while len(deliveries) < limit and (task := self._tasks.next_claimable()):
                earlier = "another worker" if task.leased_until else None
                task.attempts, task.fence = task.attempts + 1, task.fence + 1
                task.leased_until = self._tasks.now() + self.lease_seconds
                deliveries.append(
                    Delivery(
                        task, task.id, task.body, task.attempts, task.fence, claimed_at, earlier
                    )
                )
        return deliveries

    def renew(self, leases: Sequence[Lease], seconds: float) -> list[Renewed | Refused]:
        def renew(task: Task) -> None:
            task.leased_until = self._tasks.now() + seconds

        lost = [self._change(lease, renew) for lease in leases]
        return [Renewed() if each is None else Refused(str(each)) for each in lost]

    def _ack(self, leases: Sequence[Lease]) -> list[LeaseLost | None]:
        distinct = {id(lease): lease for lease in leases}  # a caller may repeat a message
        results = {
            key: self._change(each, self._tasks.remove) for key, each in distinct.items()
        }
        return [results[id(lease)] for lease in leases]

    def _nack(
        self, lease: Lease, delay_seconds: float, reason: str, detail: str | None
    ) -> LeaseLost | None:
        def put_back(task: Task) -> None:
            task.leased_until, task.due_at = None, self._tasks.now() + delay_seconds

        return self._change(lease, put_back)

    def _release(self, lease: Lease, delay_seconds: float = 0.0) -> LeaseLost | None:
        def put_back(task: Task) -> None:
            task.leased_until, task.due_at = None, self._tasks.now() + delay_seconds
            task.attempts -= 1  # this claim is not charged

        return self._change(lease, put_back)

    def _dead_letter(self, lease: Lease, reason: str, detail: str | None) -> LeaseLost | None:
        def keep(task: Task) -> None:
            task.leased_until, task.reason, task.attempts = None, reason, lease.attempt

        return self._change(lease, keep)

    def _change(self, lease: Lease, change: Callable[[Task], None]) -> LeaseLost | None:
        """Change the task, unless the lease no longer holds it."""
        task: Task = lease.handle
        with self._tasks.lock:
            is_held = task.fence == lease.fence and task.leased_until is not None
            if not is_held or task not in self._tasks:
                return LeaseLost(f"lease of {lease.message_id!r} is lost: it was taken over")
            change(task)
        return None

    def stats(self) -> QueueStats:
        with self._tasks.lock:
            now = self._tasks.now()
            live = [task for task in self._tasks if task.reason is None]
            deadlines = [task.leased_until for task in live if task.leased_until is not None]
            delayed = sum(task.leased_until is None and task.due_at > now for task in live)
            return QueueStats(
                ready=len(live) - len(deadlines) - delayed,
                delayed=delayed,
                leased=len(deadlines),
                expired=sum(deadline <= now for deadline in deadlines),
                failed=len(self._tasks) - len(live),
            )


class ListOperator(QueueOperator):
    """What operators see and do: dead letters only."""

    def __init__(self, tasks: Tasks, name: str, capabilities: frozenset[str]) -> None:
        super().__init__(name, capabilities)
        self._tasks = tasks

    def peek(self, state: MessageState, limit: int = 100) -> Iterator[MessageInfo]:
        if state is not MessageState.FAILED:
            raise self.make_unsupported(f"list messages that are {state.value}")
        with self._tasks.lock:
            dead = self._list_dead(None)[:limit]
        for task in dead:
            yield MessageInfo(
                id=task.id,
                key=str(id(task)),
                state=state,
                attempts=task.attempts,
                fence=task.fence,
                where=self.name,
                reason=task.reason,
            )

    def redrive(
        self, message_id: str | None = None, *, on_progress: Any = lambda count: None
    ) -> int:
        with self._tasks.lock:
            dead = self._list_dead(message_id)
            for task in dead:
                task.reason, task.attempts, task.due_at = None, 0, self._tasks.now()
        on_progress(len(dead))
        return len(dead)

    def drop(self, message_id: str) -> int:
        with self._tasks.lock:
            dead = self._list_dead(message_id)
            for task in dead:
                self._tasks.remove(task)
        return len(dead)

    def _list_dead(self, message_id: str | None) -> list[Task]:
        return [
            task
            for task in self._tasks
            if task.reason is not None and message_id in (None, task.id)
        ]
