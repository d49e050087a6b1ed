"""A queue of your own: a Python list, with leases, attempts and dead letters.

`tests/contracts/test_own_queue.py` runs the contract suite on it. A real one would keep its
tasks in a database; the rest stays the same.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from holdfast import (
    Lease,
    LeaseLost,
    MalformedMessage,
    MessageCodec,
    MessageInfo,
    MessageState,
    NewerSchema,
    QueueManager,
    QueueMessage,
    QueueStats,
    Refused,
    Renewed,
    attach_lease,
)
from holdfast.events import DeadLettered, SchemaTooNew, TakenOver

NEWER_SCHEMA_SECONDS = 30.0  # how long a message waits for newer code


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
    """A queue in a list. It refuses stale holders, and has no other capability."""

    capabilities = frozenset({"fence", "drop", "redrive_by_id"})

    def __init__(self, tasks: Tasks, model: type[QueueMessage], **settings: Any) -> None:
        super().__init__("list", **settings)
        self._tasks, self.model, self._codec = tasks, model, MessageCodec(model)

    def push_many(self, messages: Iterable[Any], *, delay_seconds: float = 0.0) -> list[str]:
        self._check_delay(delay_seconds)
        # All are encoded first, so that nothing is pushed if one of them cannot be.
        bodies = [(message.id, self._codec.encode(message)) for message in messages]
        with self._tasks.lock:
            due_at = self._tasks.now() + max(0.0, delay_seconds)
            self._tasks.extend(Task(id_, body, due_at) for id_, body in bodies)
        return [id_ for id_, _ in bodies]

    # -- claiming

    def _claim(self, limit: int) -> list[Any]:
        claimed: list[Any] = []
        while len(claimed) < limit and (lease := self._claim_next()) is not None:
            if (message := self._open(lease)) is not None:
                claimed.append(message)
        return claimed

    def _claim_next(self) -> Lease | None:
        while True:
            claimed_at = self.clock.monotonic()  # before the claim: trust counts from here
            with self._tasks.lock:
                if (task := self._tasks.next_claimable()) is None:
                    return None
                was_leased = task.leased_until is not None
                is_exhausted = task.attempts >= self.max_attempts
                if is_exhausted:
                    task.reason = f"gave up after {task.attempts} attempts"
                    task.reason += "; the last worker lost its lease" if was_leased else ""
                    task.leased_until = None
                else:
                    task.attempts, task.fence = task.attempts + 1, task.fence + 1
                    task.leased_until = self._tasks.now() + self.lease_seconds
            if is_exhausted:
                self._report_dead_letter(task, f"gave up after {task.attempts} attempts")
                continue
            if was_leased:
                self.events.emit(TakenOver(self.name, task.id, task.attempts, "another worker"))
            return self._lease(task, claimed_at)

    def _lease(self, task: Task, claimed_at: float) -> Lease:
        return Lease(
            self,
            task,
            message_id=task.id,
            attempt=task.attempts,
            fence=task.fence,
            claimed_at=claimed_at,
            seconds=self.lease_seconds,
        )

    def _open(self, lease: Lease) -> Any:
        try:
            message = self._codec.decode(lease.handle.body)
        except NewerSchema as newer:
            self._nack(lease, NEWER_SCHEMA_SECONDS, "newer than this code", None)
            lease.handle.attempts -= 1  # waiting for newer code is not an attempt
            event = SchemaTooNew(self.name, lease.message_id, lease.attempt, newer.version)
            self.events.emit(event)
            return None
        except MalformedMessage as error:
            self._dead_letter(lease, str(error), None)
            # The error may quote the message, so it stays out of the event.
            self._report_dead_letter(lease.handle, "malformed")
            return None
        attach_lease(message, lease)
        return message

    def _report_dead_letter(self, task: Task, reason: str) -> None:
        self.dead_lettered_by_poll += 1
        self.events.emit(DeadLettered(self.name, task.id, task.attempts, reason))

    # -- renewing and settling

    def _held(self, lease: Lease) -> Task | None:
        """Return the task if this lease still holds it. Call it under the lock."""
        task: Task = lease.handle
        is_held = task.fence == lease.fence and task.leased_until is not None
        return task if is_held and task in self._tasks else None

    def renew(self, leases: Sequence[Lease], seconds: float) -> list[Renewed | Refused]:
        with self._tasks.lock:
            return [self._renew(lease, seconds) for lease in leases]

    def _renew(self, lease: Lease, seconds: float) -> Renewed | Refused:
        if (task := self._held(lease)) is None:
            return Refused("another worker took it over")
        task.leased_until = self._tasks.now() + seconds
        return Renewed()

    def _ack(self, leases: Sequence[Lease]) -> list[LeaseLost | None]:
        distinct = {id(lease): lease for lease in leases}  # a caller may repeat a message
        results = {
            key: self._settle(each, self._tasks.remove) for key, each in distinct.items()
        }
        return [results[id(lease)] for lease in leases]

    def _nack(
        self, lease: Lease, delay_seconds: float, reason: str, detail: str | None
    ) -> LeaseLost | None:
        def put_back(task: Task) -> None:
            task.leased_until, task.due_at = None, self._tasks.now() + delay_seconds

        return self._settle(lease, put_back)

    def _dead_letter(self, lease: Lease, reason: str, detail: str | None) -> LeaseLost | None:
        def keep(task: Task) -> None:
            task.leased_until, task.reason = None, reason

        return self._settle(lease, keep)

    def _settle(self, lease: Lease, change: Any) -> LeaseLost | None:
        with self._tasks.lock:
            if (task := self._held(lease)) is None:
                return LeaseLost(f"lease of {lease.message_id!r} is lost: it was taken over")
            change(task)
        return None

    # -- for operators

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

    def peek(self, state: MessageState, limit: int = 100) -> Iterator[MessageInfo]:
        if state is not MessageState.FAILED:
            raise self._unsupported(f"list messages that are {state.value}")
        with self._tasks.lock:
            dead = [task for task in self._tasks if task.reason is not None][:limit]
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
            dead = self._dead(message_id)
            for task in dead:
                task.reason, task.attempts, task.due_at = None, 0, self._tasks.now()
        on_progress(len(dead))
        return len(dead)

    def drop(self, message_id: str) -> int:
        with self._tasks.lock:
            dead = self._dead(message_id)
            for task in dead:
                self._tasks.remove(task)
        return len(dead)

    def _dead(self, message_id: str | None) -> list[Task]:
        is_meant = [message_id in (None, task.id) for task in self._tasks]
        return [
            task
            for task, meant in zip(self._tasks, is_meant, strict=True)
            if meant and task.reason is not None
        ]
