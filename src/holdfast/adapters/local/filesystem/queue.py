"""FilesystemQueue: every transition of a task is one rename, which only one can win.

    push     tmp/…            ─▶ pending/<segment>/k~0~due
    claim    pending/…/k~n~…  ─▶ leased/k~n+1~me~claimed+0+lease
    steal    leased/k~n~…     ─▶ leased/k~n+1~me~claimed+0+lease    once its time is over
    renew    leased/k~n~me~…  ─▶ leased/k~n~me~claimed+renewed_after+lease
    ack      leased/k~n~me~…  ─▶ completed/<hour>/k~n~me~done
    nack     leased/k~n~me~…  ─▶ pending/<segment>/k~n~due
    release  leased/k~n~me~…  ─▶ pending/<segment>/k~n-1~due      one refund: not charged
    dead     leased/k~n~me~…  ─▶ failed/k~n
    redrive  failed/k~n       ─▶ pending/<segment>/k~n-n~due

The old name is the compare-and-swap. A renewal changes the name too, so a thief who
judged the old deadline finds nothing to take, and a zombie whose work was taken finds
nothing to settle. No lock, no agreed clock and no deletion is needed for that.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from math import ceil
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from holdfast.adapters.local.filesystem import layout, names
from holdfast.adapters.local.filesystem.checkpoints import Checkpoints
from holdfast.adapters.local.filesystem.claims import Claim, Claimer
from holdfast.adapters.local.filesystem.dead_letters import DeadLetterFolder
from holdfast.adapters.local.filesystem.dedupe import DedupeIndex, WaitBudget
from holdfast.adapters.local.filesystem.directory import explained, unavailable
from holdfast.adapters.local.filesystem.fsops import FsOps
from holdfast.adapters.local.filesystem.history import AttemptHistory
from holdfast.adapters.local.filesystem.housekeeping import SWEEP_SECONDS, Housekeeping
from holdfast.adapters.local.filesystem.inspector import Inspector
from holdfast.adapters.local.filesystem.names import TaskName
from holdfast.adapters.local.filesystem.producer import Producer
from holdfast.adapters.local.filesystem.record_check import RecordCheck
from holdfast.adapters.local.filesystem.server_clock import ServerClock
from holdfast.adapters.local.filesystem.settlement import Settlement, lease_lost
from holdfast.adapters.local.filesystem.workers import WorkerRegistry
from holdfast.adapters.modes import MODES, Access
from holdfast.core import events as ev
from holdfast.core.backoff import Backoff
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import (
    ConfigError,
    HoldfastError,
    LeaseLost,
    MalformedMessage,
    NewerSchema,
)
from holdfast.core.events import Events
from holdfast.core.lease.lease import RENEWED, Lease, Refused, Renewal, Unanswered
from holdfast.core.process import after_fork
from holdfast.core.queue.manager import (
    MessageInfo,
    MessageState,
    Progress,
    QueueManager,
    QueueStats,
    no_progress,
)
from holdfast.core.queue.message import AnyMessage, M, MessageCodec, attach_lease, lease_of

NEWER_SCHEMA_DELAY_SECONDS = 30.0
BATCH = 500  # messages published together by push_many,
BATCH_BYTES = 8 << 20  # if they are not larger than this

Durability = Literal["process", "power"]


class FilesystemQueue(QueueManager[M]):
    """A broker-less queue for many processes and hosts on one POSIX filesystem.

    `durability="process"` survives kill -9 of anything; `"power"` also a power cut: then
    what push, ack, nack and dead_letter did is on the disk when they return.
    `dedupe=True`: an id that is pending, leased or completed is not pushed twice.
    `access="group"`: a queue that is made now is shared with the group of its folder; an
    existing one is private or shared as the mode of its folder says.
    """

    renew_batch = 100

    def __init__(
        self,
        root: str | os.PathLike[str],
        model: type[M] = AnyMessage,  # type: ignore[assignment]  # what M is by default
        *,
        campaign: str = "default",
        queue: str = "default",
        lease_seconds: float = 60.0,
        max_attempts: int = 5,
        backoff: Backoff = Backoff(),  # noqa: B008  # frozen
        durability: Durability = "process",
        dedupe: bool = False,
        access: Access = "private",
        create: bool = True,
        clock: Clock = SYSTEM_CLOCK,
        events: Events | None = None,
        fs: FsOps | None = None,
    ) -> None:
        super().__init__(
            f"{campaign}/{queue}",
            lease_seconds=lease_seconds,
            max_attempts=max_attempts,
            backoff=backoff,
            clock=clock,
            events=events,
        )
        if durability not in ("process", "power"):
            raise ConfigError(f"durability is 'process' or 'power', not {durability!r}")
        if access not in MODES:
            raise ConfigError(f"access is 'private' or 'group', not {access!r}")
        self.folder = layout.queue_folder(Path(root), campaign, queue)
        self.durability, self.dedupe = durability, dedupe
        self._durable = durability == "power"
        self._codec: MessageCodec[M] = MessageCodec(model)
        self._tree = layout.open_tree(
            self.folder, fs or FsOps(), create=create, durable=self._durable, access=access
        )
        self._timeline = ServerClock(self._tree, clock)
        self._workers = WorkerRegistry(self._tree, self._timeline)
        self._history = AttemptHistory(self._tree)
        self._checkpoints = Checkpoints(self._tree)
        self._ids = DedupeIndex(self._tree)
        self._become()
        after_fork.run_after_fork(self, FilesystemQueue._become)

    def _become(self) -> None:
        """Take on the identity of this process: a fork must not share its parent's."""
        record_check = RecordCheck(self._tree, self._ids, self.clock)
        self._producer = Producer(self._tree, self._timeline, self._ids, record_check)
        self._claims: Claimer | None = None
        self._claiming = Lock()
        self._dead = DeadLetterFolder(
            self._tree,
            self._producer,
            self._history,
            self._checkpoints,
            self._ids,
            self._timeline,
        )
        self._ends = Settlement(
            self._tree,
            self._timeline,
            self._workers,
            self._producer,
            self._dead,
            self._history,
            self._checkpoints,
        )
        self._inspector = Inspector(
            self._tree, self._timeline, self._workers, self._history, self._checkpoints
        )
        self._housekeeping = Housekeeping(
            self._tree,
            self._timeline,
            self._history,
            self._checkpoints,
            self._ids,
            record_check,
        )

    # -- producing

    def push(self, message: M, *, delay_seconds: float = 0.0) -> str:
        body = self._codec.encode(message)
        if delay_seconds:
            self._check_delay(delay_seconds)
        push = self._producer.push_once if self.dedupe else self._producer.push
        try:
            push(names.id_hash(message.id), body, delay_seconds)
        except OSError as error:
            raise unavailable(self.folder, error) from error
        return message.id

    def push_many(self, messages: Iterable[M], *, delay_seconds: float = 0.0) -> list[str]:
        """In batches: when one message or the disk refuses, none of its batch is pushed."""
        self._check_delay(delay_seconds)
        pushed: list[str] = []
        batch: list[tuple[str, bytes]] = []
        size = 0
        for message in messages:
            body = self._codec.encode(message)
            if len(batch) >= BATCH or size + len(body) > BATCH_BYTES:
                self._push_batch(batch, delay_seconds)
                batch, size = [], 0
            batch.append((names.id_hash(message.id), body))
            size += len(body)
            pushed.append(message.id)
        self._push_batch(batch, delay_seconds)
        return pushed

    def _push_batch(self, batch: Sequence[tuple[str, bytes]], delay_seconds: float) -> None:
        with self._explaining():
            if self.dedupe:
                for id_hash, body in batch:
                    self._producer.push_once(id_hash, body, delay_seconds)
            elif batch:
                self._producer.push_batch(batch, delay_seconds)

    # -- consuming

    def _claim(self, limit: int) -> list[M]:
        claimed: list[M] = []
        try:
            with self._claiming:
                claims = self._claims or self._enrol()
                while len(claimed) < limit:
                    asked_at = self.clock.monotonic()
                    if (hold := claims.next(asked_at)) is None:
                        break
                    if (message := self._receive(hold, asked_at)) is not None:
                        claimed.append(message)
        except (OSError, HoldfastError) as error:
            if not claimed:  # what was claimed must not be forgotten for a later error
                raise explained(self.folder, error) from error
        return claimed

    def _enrol(self) -> Claimer:
        self._housekeeping.sweep_leftovers(SWEEP_SECONDS, WaitBudget(0.0))
        self._claims = claims = Claimer(
            self._tree, self._timeline, self._workers, self._random, self.lease_seconds
        )
        return claims

    def _receive(self, hold: Claim, asked_at: float) -> M | None:
        """The message behind a claim; None when it must not be delivered."""
        try:
            message = self._codec.decode(self._tree.read(hold.path, 2 * self._codec.max_bytes))
        except FileNotFoundError:
            return None
        except NewerSchema as error:
            self._wait_for_newer_code(hold, error)
            return None
        except (MalformedMessage, ValueError) as error:
            message_id = getattr(error, "message_id", None) or hold.task.key
            self._bury(hold, message_id, f"malformed: {error}", log_reason="malformed")
            return None
        except PermissionError:
            reason = "it cannot be read: mend its mode, then redrive"
            self._bury(hold, hold.task.key, reason, log_reason=reason)
            return None
        if not hold.task.is_possible:
            reason = names.why_impossible(hold.task)
            self._bury(hold, message.id, reason, log_reason=reason)
            return None
        if hold.stolen_from is not None:
            self._note_theft(hold, message.id, hold.stolen_from)
        if hold.task.attempts > self.max_attempts:
            self._bury_exhausted(hold, message.id)
            return None
        lease = Lease(
            self,
            hold,
            message_id=message.id,
            attempt=hold.task.attempts,
            fence=hold.task.fence,
            claimed_at=asked_at,
            seconds=self.lease_seconds,
        )
        attach_lease(message, lease)
        return message

    def _note_theft(self, hold: Claim, message_id: str, token: str) -> None:
        loser = self._workers.worker_id(token)
        earlier = TaskName(hold.task.key, hold.task.fence - 1, hold.task.refunds)
        self._ends.note(earlier, "lost", token, "its lease ran out: the worker died or froze")
        if self.events.listening:
            self.events.emit(
                ev.TakenOver(self.name, message_id, hold.task.attempts, from_worker=loser)
            )

    def _wait_for_newer_code(self, hold: Claim, error: NewerSchema) -> None:
        self._ends.put_back(hold, NEWER_SCHEMA_DELAY_SECONDS, refund=True)
        message_id = error.message_id or hold.task.key
        self.events.emit(
            ev.SchemaTooNew(self.name, message_id, hold.task.attempts, error.version)
        )

    def _bury_exhausted(self, hold: Claim, message_id: str) -> None:
        """This claim was one too many: it only serves to bury, so it is not charged."""
        reason = self._dead.why_exhausted(hold.task)
        hold.task = hold.task.refunded()
        log_reason = f"gave up after {hold.task.attempts} attempts"
        self._bury(hold, message_id, reason, log_reason=log_reason)

    def _bury(self, hold: Claim, message_id: str, reason: str, *, log_reason: str) -> None:
        if self._ends.bury(hold, message_id, reason, None) is None:
            self._count_dead_letter()
            self.events.emit(
                ev.DeadLettered(self.name, message_id, hold.task.attempts, reason=log_reason)
            )

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        return [self._renew(lease.handle, seconds) for lease in leases]

    def _renew(self, hold: Claim, seconds: float) -> Renewal:
        with hold.lock:
            if hold.closed:
                return RENEWED  # settled while the keeper was on its way here
            asked_ms = self._timeline.stamp_ms(self.clock.monotonic())
            path = names.leased_path(
                hold.task.stem,
                hold.worker,
                hold.claimed_ms,
                asked_ms - hold.claimed_ms,
                ceil(seconds * 1000),
            )
            try:
                if not self._tree.rename(hold.path, path):
                    return Refused("another worker took it over")
            except OSError as error:
                return Unanswered(str(unavailable(self.folder, error)))
            hold.path = path
        return RENEWED

    # -- settling

    def _ack(self, leases: Sequence[Lease]) -> Sequence[LeaseLost | None]:
        try:
            return self._ends.complete([lease.handle for lease in leases])
        except OSError as error:
            raise unavailable(self.folder, error) from error

    def _nack(
        self, lease: Lease, delay_seconds: float, reason: str, detail: str | None
    ) -> LeaseLost | None:
        hold: Claim = lease.handle
        with self._explaining():
            lost = self._ends.put_back(hold, delay_seconds, refund=False)
        if lost is None:
            self._ends.note(hold.task, "retried", hold.worker, reason, detail)
        return lost

    def _release(self, lease: Lease) -> LeaseLost | None:
        with self._explaining():
            return self._ends.put_back(lease.handle, 0.0, refund=True)

    def _dead_letter(self, lease: Lease, reason: str, detail: str | None) -> LeaseLost | None:
        with self._explaining():
            return self._ends.bury(lease.handle, lease.message_id, reason, detail)

    # -- checkpoints

    def _save_checkpoint(self, lease: Lease, checkpoint: Any) -> None:
        hold: Claim = lease.handle
        with self._explaining():
            with hold.lock:
                if not self._tree.exists(hold.path):
                    lease.lose("another worker took it over")
                    raise lease_lost()
                hold.saved = True
            self._checkpoints.save(hold.task, checkpoint)

    def load_checkpoint(self, message: M) -> Any:
        with self._explaining():
            return self._checkpoints.newest_before(lease_of(message).handle.task)

    # -- for people

    def stats(self) -> QueueStats:
        with self._explaining():
            return self._inspector.stats()

    def peek(self, state: MessageState, limit: int = 100) -> Iterator[MessageInfo]:
        with self._explaining():
            yield from islice(self._inspector.views(state), limit)

    def find(self, message_id: str) -> list[MessageInfo]:
        with self._explaining():
            return self._inspector.find(message_id)

    def redrive(
        self, message_id: str | None = None, *, on_progress: Progress = no_progress
    ) -> int:
        with self._explaining():
            tasks = self._dead.all() if message_id is None else self._dead.of(message_id)
            return self._dead.redrive(tasks, on_progress)

    def drop(self, message_id: str) -> int:
        with self._explaining():
            tasks = self._dead.of(message_id)
            return sum(self._dead.drop(task, message_id) for task in tasks)

    def purge(self, older_than_seconds: float) -> int:
        budget = WaitBudget()
        with self._explaining():
            purged = self._housekeeping.purge(older_than_seconds, budget)
            self._housekeeping.sweep(SWEEP_SECONDS, budget)
        budget.check(f"purged {purged:,}")
        return purged

    def sweep(self, older_than_seconds: float = SWEEP_SECONDS) -> int:
        """Remove what crashes left behind and nobody can need; how many files."""
        budget = WaitBudget()
        with self._explaining():
            swept = self._housekeeping.sweep(older_than_seconds, budget)
        budget.check(f"swept {swept:,}")
        return swept

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Errors of the filesystem as one clear line."""
        try:
            yield
        except OSError as error:
            raise unavailable(self.folder, error) from error

    def close(self) -> None:
        self._tree.close()
