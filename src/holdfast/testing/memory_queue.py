"""The queue contract in memory: a fake that keeps every promise but survival."""

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

from holdfast.core.backoff import Backoff
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import LeaseLost, MalformedMessage, MessageTooLarge, NewerSchema
from holdfast.core.events import DeadLettered, Events, SchemaTooNew, TakenOver
from holdfast.core.lease.lease import RENEWED, Lease, Refused, Renewal
from holdfast.core.queue.manager import (
    MessageInfo,
    MessageState,
    Progress,
    QueueManager,
    QueueStats,
    no_progress,
)
from holdfast.core.queue.message import (
    MAX_BYTES,
    AnyMessage,
    M,
    MessageCodec,
    attach_lease,
    lease_of,
)
from holdfast.testing.memory_tasks import (
    DeadState,
    FinishedState,
    LeasedState,
    MemoryTask,
    TaskTable,
    WaitingState,
    plain,
)
from holdfast.testing.memory_views import stats_of, view_of

# Long enough that older workers do not spin on a newer message, short enough that it does
# not wait for a newer worker that has started.
NEWER_SCHEMA_SECONDS = 1.0


class MemoryQueue(QueueManager[M]):
    """A queue in this process, gone with it.

    Messages are kept as the bytes a real queue would store: what JSON cannot carry fails
    here too. With `beside` it is another worker's view of that queue's messages. Their
    expiry is judged by the first queue's clock, this worker's own deadlines by its own:
    so a test can freeze one worker while time passes for the others.
    """

    def __init__(
        self,
        model: type[M] = cast(type[M], AnyMessage),  # noqa: B008  # a default for M
        *,
        name: str = "memory",
        lease_seconds: float = 60.0,
        max_attempts: int = 5,
        backoff: Backoff = Backoff(),  # noqa: B008  # frozen
        dedupe: bool = False,
        clock: Clock = SYSTEM_CLOCK,
        events: Events | None = None,
        beside: "MemoryQueue[Any] | None" = None,
    ) -> None:
        super().__init__(
            name,
            lease_seconds=lease_seconds,
            max_attempts=max_attempts,
            backoff=backoff,
            clock=clock,
            events=events,
        )
        self.dedupe = dedupe
        self._codec = MessageCodec(model)
        self._shelf: TaskTable = TaskTable(clock) if beside is None else beside._shelf
        with self._shelf.lock:
            self._shelf.workers += 1
            self.worker_id = f"{name}-{self._shelf.workers}"

    # -- producing

    def push_many(self, messages: Iterable[M], *, delay_seconds: float = 0.0) -> list[str]:
        self._check_delay(delay_seconds)
        # All are encoded before any is stored: one that cannot be leaves nothing behind.
        pushed = [(message.id, self._codec.encode(message)) for message in messages]
        for message_id, body in pushed:
            self._store(message_id, body, max(0.0, delay_seconds))
        return [message_id for message_id, _ in pushed]

    def inject(self, body: bytes) -> None:
        """Put raw bytes in the queue, as a foreign or newer program might have."""
        message_id = (plain(body) or {}).get("id")
        self._store(message_id if isinstance(message_id, str) else "", body, 0.0)

    def _store(self, message_id: str, body: bytes, delay_seconds: float) -> None:
        with self._shelf.lock:
            if self.dedupe and self._shelf.is_known(message_id):
                return
            key = secrets.token_hex(8)
            due = WaitingState(self._now() + delay_seconds)
            number = self._shelf.next_number()
            self._shelf.put(MemoryTask(key, number, message_id or key, body, due))

    def _now(self) -> float:
        return self._shelf.clock.monotonic()

    # -- claiming

    def _claim(self, limit: int) -> list[M]:
        claimed: list[M] = []
        while len(claimed) < limit:
            claimed_at = self.clock.monotonic()
            if (task := self._take()) is None:
                break
            lease = self._lease(task, claimed_at)
            if (message := self._open(task, lease)) is not None:
                attach_lease(message, lease)
                claimed.append(message)
        return claimed

    def _take(self) -> MemoryTask | None:
        """Claim the next task; those out of attempts go to the dead letters on the way."""
        while True:
            with self._shelf.lock:
                now = self._now()
                before = self._shelf.pop_claimable(now)
                if before is None:
                    return None
                after = self._taken(before, now)
                self._shelf.put(after)
            # Outside the lock: a subscriber may well call the queue.
            self._tell(before, after)
            if isinstance(after.state, LeasedState):
                return after

    def _taken(self, task: MemoryTask, now: float) -> MemoryTask:
        if isinstance(task.state, LeasedState):
            silent = f"worker {task.state.worker_id} neither settled nor renewed it in time"
            task = task.noting("lost", self._shelf.wall(now), silent)
        # Claims are counted, not failures: a task that kills its worker is never nacked.
        if task.attempts >= self.max_attempts:
            return task.dead(_out_of_attempts(task, self.max_attempts))
        return task.claimed(LeasedState(self.worker_id, now, now + self.lease_seconds))

    def _tell(self, before: MemoryTask, after: MemoryTask) -> None:
        match before.state, after.state:
            case _, DeadState():
                self._count_dead_letter()
                told = f"gave up after {after.attempts} attempts"
                self.events.emit(DeadLettered(self.name, after.id, after.attempts, told))
            case LeasedState(worker_id=from_worker), _:
                self.events.emit(TakenOver(self.name, after.id, after.attempts, from_worker))

    def _lease(self, task: MemoryTask, claimed_at: float) -> Lease:
        return Lease(
            self,
            task.key,
            message_id=task.id,
            attempt=task.attempts,
            fence=task.fence,
            claimed_at=claimed_at,
            seconds=self.lease_seconds,
        )

    def _open(self, task: MemoryTask, lease: Lease) -> M | None:
        """The message in a task just claimed; None when it is not for this code."""
        try:
            return self._codec.decode(task.body)
        except NewerSchema as error:
            self._hand_back(task, lease, error.version)
        except MalformedMessage as error:
            if self._dead_letter(lease, str(error), None) is None:
                self._count_dead_letter()
                self.events.emit(DeadLettered(self.name, task.id, task.attempts, "malformed"))
        return None

    def _hand_back(self, task: MemoryTask, lease: Lease, version: int) -> None:
        # No note is made: older workers may hand it back for days.
        self._change(
            lease, lambda task, now: task.put_back(now + NEWER_SCHEMA_SECONDS, charged=False)
        )
        self.events.emit(SchemaTooNew(self.name, task.id, task.attempts, version))

    # -- holding and settling: one look and one put under the lock

    def _change(
        self, lease: Lease, change: Callable[[MemoryTask, float], MemoryTask]
    ) -> LeaseLost | None:
        """Change the task this lease is the right to. The fence is the compare-and-swap."""
        with self._shelf.lock:
            task = self._shelf.get(lease.handle)
            if (
                task is None
                or task.fence != lease.fence
                or not isinstance(task.state, LeasedState)
            ):
                return LeaseLost(f"lease of {lease.message_id!r} is lost: it was taken over")
            self._shelf.put(change(task, self._now()))
            return None

    def _ack(self, leases: Sequence[Lease]) -> Sequence[LeaseLost | None]:
        return [self._ack_one(lease) for lease in leases]

    def _ack_one(self, lease: Lease) -> LeaseLost | None:
        lost = self._change(lease, MemoryTask.completed)
        # FinishedState under this very fence: the same ack came before, in this batch.
        return None if lost and self._finished_by(lease) else lost

    def _finished_by(self, lease: Lease) -> bool:
        with self._shelf.lock:
            task = self._shelf.get(lease.handle)
        if task is None or task.fence != lease.fence:
            return False
        return isinstance(task.state, FinishedState)

    def _nack(
        self, lease: Lease, delay_seconds: float, reason: str, detail: str | None
    ) -> LeaseLost | None:
        def retried(task: MemoryTask, now: float) -> MemoryTask:
            noted = task.noting("retried", self._shelf.wall(now), reason, detail)
            return noted.put_back(now + delay_seconds, charged=True)

        return self._change(lease, retried)

    def _release(self, lease: Lease) -> LeaseLost | None:
        def given_back(task: MemoryTask, now: float) -> MemoryTask:
            noted = task.noting("given back", self._shelf.wall(now), "given back unfinished")
            return noted.put_back(now, charged=False)

        return self._change(lease, given_back)

    def _dead_letter(self, lease: Lease, reason: str, detail: str | None) -> LeaseLost | None:
        def dead(task: MemoryTask, now: float) -> MemoryTask:
            noted = task.noting("dead-lettered", self._shelf.wall(now), reason, detail)
            return noted.dead(reason)

        return self._change(lease, dead)

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        def renewed(task: MemoryTask, now: float) -> MemoryTask:
            assert isinstance(task.state, LeasedState)
            return replace(task, state=replace(task.state, until=now + seconds))

        lost = [self._change(lease, renewed) for lease in leases]
        return [RENEWED if gone is None else Refused("it was taken over") for gone in lost]

    def _save_checkpoint(self, lease: Lease, checkpoint: Any) -> None:
        try:
            kept = json.dumps(checkpoint, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise MalformedMessage(
                f"checkpoint of {lease.message_id!r} cannot be written as JSON: {error}"
            ) from None
        if len(kept) > MAX_BYTES:
            raise MessageTooLarge(
                f"checkpoint of {lease.message_id!r} is {len(kept):,} bytes, the limit is "
                f"{MAX_BYTES:,}: store it elsewhere and save its address"
            )
        lost = self._change(lease, lambda task, _: replace(task, saved=kept))
        if lost is not None:
            lease.lose(str(lost))
            raise lost

    def load_checkpoint(self, message: M) -> Any:
        lease = lease_of(message)
        with self._shelf.lock:
            task = self._shelf.get(lease.handle)
        return json.loads(task.inherited) if task and task.inherited else None

    # -- for people

    def stats(self) -> QueueStats:
        with self._shelf.lock:
            return stats_of(self._shelf.all(), self._now())

    def peek(self, state: MessageState, limit: int = 100) -> Iterator[MessageInfo]:
        with self._shelf.lock:
            tasks = [task for task in self._shelf.all() if task.task_state is state]
        for task in tasks[:limit]:
            yield view_of(task, self.name, self._shelf)

    def find(self, message_id: str) -> list[MessageInfo]:
        with self._shelf.lock:
            tasks = self._shelf.of(message_id)
        return [view_of(task, self.name, self._shelf) for task in tasks]

    def redrive(
        self, message_id: str | None = None, *, on_progress: Progress = no_progress
    ) -> int:
        with self._shelf.lock:
            now = self._now()
            dead = self._dead(message_id)
            for task in dead:
                noted = task.noting("redriven", self._shelf.wall(now), "put back by hand")
                self._shelf.put(noted.redriven(now))
        on_progress(len(dead))
        return len(dead)

    def drop(self, message_id: str) -> int:
        with self._shelf.lock:
            dead = self._dead(message_id)
            for task in dead:
                self._shelf.remove(task)
        return len(dead)

    def _dead(self, message_id: str | None) -> list[MemoryTask]:
        tasks = self._shelf.all() if message_id is None else self._shelf.of(message_id)
        return [task for task in tasks if isinstance(task.state, DeadState)]

    def purge(self, older_than_seconds: float) -> int:
        with self._shelf.lock:
            before = self._now() - older_than_seconds
            old = [
                task
                for task in self._shelf.all()
                if isinstance(task.state, FinishedState) and task.state.at < before
            ]
            for task in old:
                self._shelf.remove(task)
        return len(old)


def _out_of_attempts(task: MemoryTask, limit: int) -> str:
    """What a person reads first: how often it was tried, and how it ended last."""
    charged = [past.reason for past in task.past if past.outcome in ("lost", "retried")]
    last = f"; the last: {charged[-1]}" if charged else ""
    return f"{task.attempts} of {limit} attempts failed{last}"
