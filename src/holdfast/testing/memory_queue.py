"""The queue contract in memory: a fake that keeps every promise except durability."""

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from threading import Event
from typing import Any, cast

from holdfast.core.backoff import Backoff
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import LeaseLost, MalformedMessage, MessageTooLarge, NewerSchema
from holdfast.core.events import DeadLettered, Events, SchemaTooNew, TakenOver
from holdfast.core.lease.lease import RENEWED, Lease, Refused, Renewal
from holdfast.core.queue.info import CANCELLED
from holdfast.core.queue.manager import (
    ANY_FIELDS,
    MessageInfo,
    MessageState,
    Progress,
    QueueManager,
    QueueStats,
    ignore_progress,
)
from holdfast.core.queue.message import (
    MAX_BYTES,
    AnyMessage,
    Headers,
    M,
    MessageCodec,
    attach_headers,
    attach_lease,
    get_headers,
    get_lease,
)
from holdfast.core.queue.search import select_messages
from holdfast.testing.clock import SkippingClock
from holdfast.testing.memory_tasks import (
    DeadState,
    FinishedState,
    LeasedState,
    MemoryTask,
    TaskTable,
    WaitingState,
    compute_stats,
    make_message_info,
    parse_body,
)

# Long enough that older workers do not spin on a newer message, short enough that it does
# not wait for a newer worker that has started.
NEWER_SCHEMA_SECONDS = 1.0
_NEW_CLAIM_CHECK_SECONDS = 0.001
TAKEN_AWAY = "it was taken over or cancelled"


class MemoryQueue(QueueManager[M]):
    """A queue in this process, which disappears with it.

    Messages are stored as the bytes that a real queue would store, so values that JSON cannot
    represent fail here too. With `shared_with` it is another worker's view of that queue's
    messages. Leases expire by the first queue's clock, but each worker counts its own
    deadlines by its own clock, so a test can freeze one worker while time passes for others.

    With a SkippingClock, a poll that may wait does not wait for a message that is due later:
    the clock skips to that time. A message that was polled but neither settled nor held by a
    keeper comes back when its lease ends, as after a crash.
    """

    # All workers are in this process, and it needs no history of completions.
    capabilities = QueueManager.capabilities - {"completions", "workers"}

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
        shared_with: "MemoryQueue[Any] | None" = None,
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
        self.model = model
        self._codec = MessageCodec(model)
        self._table: TaskTable = TaskTable(clock) if shared_with is None else shared_with._table
        with self._table.lock:
            self._table.workers += 1
            self.worker_id = f"{name}-{self._table.workers}"

    # -- producing

    def push_many(self, messages: Iterable[M], *, delay_seconds: float = 0.0) -> list[str]:
        """Store all messages, or none if one cannot be encoded."""
        self._check_delay(delay_seconds)
        # All are encoded before any is stored, so that nothing is stored if one cannot be.
        bodies = [
            (message.id, self._codec.encode(message), get_headers(message))
            for message in messages
        ]
        for message_id, body, headers in bodies:
            self._store(message_id, body, max(0.0, delay_seconds), headers)
        return [message_id for message_id, _, _ in bodies]

    def inject(self, body: bytes) -> None:
        """Put raw bytes into the queue, as another or a newer program might do."""
        message_id = (parse_body(body) or {}).get("id")
        self._store(message_id if isinstance(message_id, str) else "", body, 0.0)

    def _store(
        self,
        message_id: str,
        body: bytes,
        delay_seconds: float,
        headers: Headers | None = None,
    ) -> None:
        with self._table.lock:
            if self.dedupe and self._table.is_known(message_id):
                return
            key = secrets.token_hex(8)
            due = WaitingState(self._now() + delay_seconds)
            number = self._table.next_number()
            task = MemoryTask(key, number, message_id or key, body, due, headers=headers)
            self._table.put(task)

    def _now(self) -> float:
        return self._table.clock.monotonic()

    # -- claiming

    def _claim(self, limit: int) -> list[M]:
        claimed: list[M] = []
        while len(claimed) < limit:
            if (claim := self._claim_next()) is None:
                break
            task, claimed_at = claim
            lease = self._make_lease(task, claimed_at)
            if (message := self._decode(task, lease)) is not None:
                attach_lease(message, lease)
                if task.headers is not None:
                    attach_headers(message, task.headers)
                claimed.append(message)
        return claimed

    def _wait_for_message(self, stop: Event, seconds: float) -> bool:
        clock = self._table.clock
        if isinstance(clock, SkippingClock):
            while (skipped := self._try_skip(clock)) is None:
                if clock.wait(stop, _NEW_CLAIM_CHECK_SECONDS):
                    return True
            if skipped:
                return stop.is_set()
        return super()._wait_for_message(stop, seconds)

    def _try_skip(self, clock: SkippingClock) -> bool | None:
        """Skip to the next claim if there is one, or return None if it is too early for that.

        After a claim it is too early, or the message could be taken from its worker.
        """
        with self._table.lock:  # so that no message is claimed before the clock has skipped
            if self._table.has_new_claim():
                return None
            if (claim_at := self._table.find_next_claim()) is None:
                return False
            clock.skip_to(claim_at)
            return True

    def _claim_next(self) -> tuple[MemoryTask, float] | None:
        """Claim the next task, and return it with this worker's time before the claim.

        Tasks that have no attempts left are dead-lettered.
        """
        while True:
            with self._table.lock:
                claimed_at, now = self.clock.monotonic(), self._now()
                before = self._table.pop_claimable(now)
                if before is None:
                    return None
                after = self._claim_task(before, now)
                self._table.put(after)
            # Outside the lock, because a subscriber may call the queue.
            self._emit_claim_event(before, after)
            if isinstance(after.state, LeasedState):
                return after, claimed_at

    def _claim_task(self, task: MemoryTask, now: float) -> MemoryTask:
        if isinstance(task.state, LeasedState):
            reason = f"worker {task.state.worker_id} neither settled nor renewed it in time"
            task = task.with_note("lost", self._table.to_wall_time(now), reason)
        # Claims are counted instead of failures, because a task that kills its worker is
        # never nacked.
        if task.attempts >= self.max_attempts:
            return task.dead_lettered(_explain_exhaustion(task, self.max_attempts))
        return task.claimed(LeasedState(self.worker_id, now, now + self.lease_seconds))

    def _emit_claim_event(self, before: MemoryTask, after: MemoryTask) -> None:
        match before.state, after.state:
            case _, DeadState():
                self._count_dead_letter()
                reason = f"gave up after {after.attempts} attempts"
                self.events.emit(DeadLettered(self.name, after.id, after.attempts, reason))
            case LeasedState(worker_id=from_worker), _:
                self.events.emit(TakenOver(self.name, after.id, after.attempts, from_worker))

    def _make_lease(self, task: MemoryTask, claimed_at: float) -> Lease:
        lease = Lease(
            self,
            task.key,
            message_id=task.id,
            attempt=task.attempts,
            fence=task.fence,
            claimed_at=claimed_at,
            seconds=self.lease_seconds,
        )
        with self._table.lock:
            self._table.leases.add(lease)
        return lease

    def _decode(self, task: MemoryTask, lease: Lease) -> M | None:
        """Return the message of a claimed task, or None if this code cannot read it."""
        try:
            return self._codec.decode(task.body)
        except NewerSchema as error:
            self._postpone(task, lease, error.version)
        except MalformedMessage as error:
            if self._dead_letter(lease, str(error), None) is None:
                self._count_dead_letter()
                self.events.emit(DeadLettered(self.name, task.id, task.attempts, "malformed"))
        return None

    def _postpone(self, task: MemoryTask, lease: Lease, version: int) -> None:
        # No note is added, because older workers may give it back for days.
        self._change(
            lease, lambda task, now: task.returned(now + NEWER_SCHEMA_SECONDS, charged=False)
        )
        self.events.emit(SchemaTooNew(self.name, task.id, task.attempts, version))

    # -- renewing and settling: each reads and writes once under the lock

    def _change(
        self, lease: Lease, change: Callable[[MemoryTask, float], MemoryTask]
    ) -> LeaseLost | None:
        """Change the leased task, or return LeaseLost if its fence is another."""
        with self._table.lock:
            task = self._table.get(lease.handle)
            if (
                task is None
                or task.fence != lease.fence
                or not isinstance(task.state, LeasedState)
            ):
                return LeaseLost(f"lease of {lease.message_id!r} is lost: {TAKEN_AWAY}")
            self._table.put(change(task, self._now()))
            return None

    def _ack(self, leases: Sequence[Lease]) -> Sequence[LeaseLost | None]:
        return [self._ack_one(lease) for lease in leases]

    def _ack_one(self, lease: Lease) -> LeaseLost | None:
        lost = self._change(lease, MemoryTask.completed)
        # If it is finished under this fence, the same ack came earlier in this batch.
        return None if lost and self._is_finished_by(lease) else lost

    def _is_finished_by(self, lease: Lease) -> bool:
        with self._table.lock:
            task = self._table.get(lease.handle)
        if task is None or task.fence != lease.fence:
            return False
        return isinstance(task.state, FinishedState)

    def _nack(
        self, lease: Lease, delay_seconds: float, reason: str, detail: str | None
    ) -> LeaseLost | None:
        def retry(task: MemoryTask, now: float) -> MemoryTask:
            updated = task.with_note("retried", self._table.to_wall_time(now), reason, detail)
            return updated.returned(now + delay_seconds, charged=True)

        return self._change(lease, retry)

    def _release(self, lease: Lease) -> LeaseLost | None:
        def give_back(task: MemoryTask, now: float) -> MemoryTask:
            updated = task.with_note(
                "given back", self._table.to_wall_time(now), "given back unfinished"
            )
            return updated.returned(now, charged=False)

        return self._change(lease, give_back)

    def _dead_letter(self, lease: Lease, reason: str, detail: str | None) -> LeaseLost | None:
        def dead_letter(task: MemoryTask, now: float) -> MemoryTask:
            updated = task.with_note(
                "dead-lettered", self._table.to_wall_time(now), reason, detail
            )
            return updated.dead_lettered(reason)

        return self._change(lease, dead_letter)

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        """Extend the leases whose fence is still current."""

        def extend(lease: Lease, task: MemoryTask, now: float) -> MemoryTask:
            assert isinstance(task.state, LeasedState)
            state = replace(task.state, until=now + seconds)
            if lease.has_beaten:
                beat_at = now - (self.clock.monotonic() - lease.last_beat_at)
                state = replace(state, beat_at=beat_at, progress=lease.progress)
            return replace(task, state=state)

        losses = [self._change(lease, partial(extend, lease)) for lease in leases]
        return [RENEWED if lost is None else Refused(TAKEN_AWAY) for lost in losses]

    def _save_checkpoint(self, lease: Lease, checkpoint: Any) -> None:
        try:
            encoded = json.dumps(checkpoint, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise MalformedMessage(
                f"checkpoint of {lease.message_id!r} cannot be written as JSON: {error}"
            ) from None
        if len(encoded) > MAX_BYTES:
            raise MessageTooLarge(
                f"checkpoint of {lease.message_id!r} is {len(encoded):,} bytes, the limit is "
                f"{MAX_BYTES:,}: store it elsewhere and save its address"
            )
        self._change_or_raise(lease, lambda task, _: replace(task, saved=encoded))

    def _change_or_raise(
        self, lease: Lease, change: Callable[[MemoryTask, float], MemoryTask]
    ) -> None:
        lost = self._change(lease, change)
        if lost is not None:
            lease.lose(str(lost))
            raise lost

    def load_checkpoint(self, message: M) -> Any:
        """Return the newest checkpoint of the attempts before this one."""
        lease = get_lease(message)
        with self._table.lock:
            task = self._table.get(lease.handle)
        return json.loads(task.inherited) if task and task.inherited else None

    def _save_result(self, lease: Lease, result: bytes) -> None:
        self._change_or_raise(lease, lambda task, _: replace(task, result=result))

    def load_result(self, message_id: str) -> Any:
        """Return the newest result of a finished message with this id, or None."""
        with self._table.lock:
            tasks = self._table.find_tasks(message_id)
        finished = [task for task in tasks if isinstance(task.state, FinishedState)]
        results = [task.result for task in finished if task.result is not None]
        return json.loads(results[-1]) if results else None

    # -- for operators

    def stats(self) -> QueueStats:
        """Count the messages by state."""
        with self._table.lock:
            return compute_stats(self._table.list_tasks(), self._now())

    def peek(self, state: MessageState, limit: int = 100) -> Iterator[MessageInfo]:
        """Yield up to `limit` messages in this state."""
        with self._table.lock:
            tasks = [task for task in self._table.list_tasks() if task.task_state is state]
        for task in tasks[:limit]:
            yield make_message_info(task, self.name, self._table)

    def find(self, message_id: str) -> list[MessageInfo]:
        """Return all messages with this id."""
        with self._table.lock:
            tasks = self._table.find_tasks(message_id)
        return [make_message_info(task, self.name, self._table) for task in tasks]

    def find_push(self, key: str) -> MessageInfo | None:
        """Return the message with this key."""
        with self._table.lock:
            tasks = self._table.list_tasks()
        infos = (make_message_info(task, self.name, self._table) for task in tasks)
        return next((info for info in infos if info.key == key), None)

    def search(
        self,
        state: MessageState | None = None,
        *,
        where: Mapping[str, str] = ANY_FIELDS,
        error: str | None = None,
        limit: int = 100,
        on_progress: Progress = ignore_progress,
    ) -> Iterator[MessageInfo]:
        """Yield up to `limit` messages that have these fields and this error."""
        with self._table.lock:
            tasks = self._table.list_tasks()
        infos = (
            make_message_info(task, self.name, self._table)
            for task in tasks
            if state in (None, task.task_state)
        )
        return islice(select_messages(infos, where, error, on_progress), limit)

    def cancel(self, message_id: str) -> int:
        """Dead-letter the waiting and leased messages with this id."""
        with self._table.lock:
            at = self._table.to_wall_time(self._now())
            tasks = self._table.find_tasks(message_id)
            live = [
                task for task in tasks if isinstance(task.state, WaitingState | LeasedState)
            ]
            for task in live:
                noted = task.with_note("cancelled", at, CANCELLED)
                self._table.put(noted.cancelled(CANCELLED))
        return len(live)

    def redrive(
        self, message_id: str | None = None, *, on_progress: Progress = ignore_progress
    ) -> int:
        """Make dead letters with this id, or all, ready again."""
        with self._table.lock:
            now = self._now()
            dead = self._list_dead(message_id)
            for task in dead:
                updated = task.with_note(
                    "redriven", self._table.to_wall_time(now), "redriven by an operator"
                )
                self._table.put(updated.redriven(now))
        on_progress(len(dead))
        return len(dead)

    def drop(self, message_id: str) -> int:
        """Delete the dead letters with this id."""
        with self._table.lock:
            dead = self._list_dead(message_id)
            for task in dead:
                self._table.remove(task)
        return len(dead)

    def _list_dead(self, message_id: str | None) -> list[MemoryTask]:
        tasks = (
            self._table.list_tasks()
            if message_id is None
            else self._table.find_tasks(message_id)
        )
        return [task for task in tasks if isinstance(task.state, DeadState)]

    def purge(self, older_than_seconds: float) -> int:
        """Delete messages that were completed longer ago than this."""
        with self._table.lock:
            before = self._now() - older_than_seconds
            old = [
                task
                for task in self._table.list_tasks()
                if isinstance(task.state, FinishedState) and task.state.at < before
            ]
            for task in old:
                self._table.remove(task)
        return len(old)


def _explain_exhaustion(task: MemoryTask, limit: int) -> str:
    """Return how often the task was tried, and how the last attempt ended."""
    charged = [past.reason for past in task.past if past.outcome in ("lost", "retried")]
    last = f"; the last: {charged[-1]}" if charged else ""
    return f"{task.attempts} of {limit} attempts failed{last}"


class MemoryQueueFactory:
    """Makes empty queues in memory. The pytest fixture `memory_queue` is one.

    Their clock is the factory's, unless a queue is given its own.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def __call__(
        self,
        model: type[M] = AnyMessage,  # type: ignore[assignment]  # the default of M
        *,
        name: str = "memory",
        lease_seconds: float = 60.0,
        max_attempts: int = 5,
        backoff: Backoff = Backoff(),  # noqa: B008  # frozen
        dedupe: bool = False,
        clock: Clock | None = None,
        events: Events | None = None,
    ) -> MemoryQueue[M]:
        """Return an empty queue for messages of this type."""
        return MemoryQueue(
            model,
            name=name,
            lease_seconds=lease_seconds,
            max_attempts=max_attempts,
            backoff=backoff,
            dedupe=dedupe,
            clock=clock or self.clock,
            events=events,
        )
