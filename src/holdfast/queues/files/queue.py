"""FilesystemQueue: every transition of a task is one rename, which only one process can win.

    push         tmp/…            ─▶ pending/<segment>/k~0~due
    claim        pending/…/k~n~…  ─▶ leased/k~n+1~me~claimed+0+lease
    take over    leased/k~n~…     ─▶ leased/k~n+1~me~claimed+0+lease    after the lease ended
    renew        leased/k~n~me~…  ─▶ leased/k~n~me~claimed+renewed_after+lease
    ack          leased/k~n~me~…  ─▶ completed/<hour>/k~n~me~done
    nack         leased/k~n~me~…  ─▶ pending/<segment>/k~n~due
    release      leased/k~n~me~…  ─▶ pending/<segment>/k~n-1~due      one refund: not charged
    dead-letter  leased/k~n~me~…  ─▶ failed/k~n
    cancel       pending/…/k~n~…  ─▶ failed/k~n+2-2                   two refunds, see layout.py
                 leased/k~n~…     ─▶ failed/k~n+2-2
    redrive      failed/k~n       ─▶ pending/<segment>/k~n-n~due

The old name is the compare-and-swap. A renewal changes the name too. So a worker that tries
to take over a task because of its old deadline finds no such name, and a stale holder whose
task was taken over finds no name to settle. This works without a lock, without an agreed
clock and without deletion.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import ceil
from pathlib import Path
from threading import Lock
from typing import Any, Literal, Unpack

from holdfast.errors import ConfigError, LeaseLost
from holdfast.lease import after_fork
from holdfast.lease.clock import to_utc
from holdfast.lease.lease import RENEWED, Lease, Refused, Renewal, Unanswered
from holdfast.queue.admission import Delivery
from holdfast.queue.info import QueueStats
from holdfast.queue.manager import QueueKeywords, QueueManager, encode_checkpoint
from holdfast.queue.message import AnyMessage, M, get_lease, pack_headers, unpack_headers
from holdfast.queues.files import layout
from holdfast.queues.files.claims import TAKEN_AWAY, Claim, Claimer, make_lease_lost
from holdfast.queues.files.dead_letters import Cause, DeadLetterFolder
from holdfast.queues.files.dedupe import DedupeIndex
from holdfast.queues.files.directory import FsOps, to_queue_unavailable
from holdfast.queues.files.housekeeping import Housekeeping
from holdfast.queues.files.layout import MAX_FENCE, TaskName
from holdfast.queues.files.operator import FilesOperator, count_stats
from holdfast.queues.files.producer import OutgoingTask, Producer
from holdfast.queues.files.task_notes import TaskNotes
from holdfast.queues.files.workers import ServerClock, WorkerRegistry
from holdfast.store.file_modes import MODES, Access

# push_many publishes this many messages together, if they are not larger than this.
MAX_BATCH_MESSAGES = 500
MAX_BATCH_BYTES = 8 << 20

Durability = Literal["process", "power"]


class FilesystemQueue(QueueManager[M]):
    """A broker-less queue for many processes and hosts on one POSIX filesystem.

    `durability="process"` survives kill -9 of any process. `"power"` also survives a power
    cut, because the effect of push, ack, nack and dead_letter is on the disk when they
    return.
    `dedupe=True`: an id that is pending, leased or completed is not pushed twice.
    `access="group"`: a queue that is made now is shared with the group of its folder. An
    existing queue is private or shared according to the mode of its folder.

    It keeps no results, because a completed task's file is renamed and never rewritten.
    """

    renew_batch = 100
    capabilities = QueueManager.capabilities - {"results"}

    def __init__(
        self,
        root: str | os.PathLike[str],
        model: type[M] = AnyMessage,  # type: ignore[assignment]  # the default of M
        *,
        campaign: str = "default",
        queue: str = "default",
        durability: Durability = "process",
        dedupe: bool = False,
        access: Access = "private",
        create: bool = True,
        fs: FsOps | None = None,
        **settings: Unpack[QueueKeywords],
    ) -> None:
        super().__init__(f"{campaign}/{queue}", model, **settings)
        if durability not in ("process", "power"):
            raise ConfigError(f"durability must be 'process' or 'power', not {durability!r}")
        if access not in MODES:
            raise ConfigError(f"access must be 'private' or 'group', not {access!r}")
        self.folder = layout.get_queue_folder(Path(root), campaign, queue)
        self.durability, self.dedupe = durability, dedupe
        self._durable = durability == "power"
        self._directory = layout.open_directory(
            self.folder, fs or FsOps(), create=create, durable=self._durable, access=access
        )
        self._server_clock = ServerClock(self._directory, self.clock)
        self._workers = WorkerRegistry(self._directory, self._server_clock)
        self._notes = TaskNotes(self._directory, self._server_clock)
        self._dedupe = DedupeIndex(self._directory)
        self._housekeeping = Housekeeping(
            self._directory, self._server_clock, self._notes, self._dedupe
        )
        self._build_process_state()
        after_fork.run_after_fork(self, FilesystemQueue._build_process_state)

    def _build_process_state(self) -> None:
        """Build the parts that hold this process's identity, which a fork must not share."""
        self._producer = Producer(self._directory, self._server_clock, self._dedupe)
        self._claimer: Claimer | None = None
        self._claim_lock = Lock()
        self._completed = (-1, "")  # the second of the last check, and the hour's folder
        self._dead_letters = DeadLetterFolder(
            self._directory, self._producer, self._notes, self._dedupe, self._server_clock
        )
        self.operator: FilesOperator = FilesOperator(
            self.name,
            self.capabilities,
            self._directory,
            self._server_clock,
            self._workers,
            self._notes,
            self._dead_letters,
            self._housekeeping,
        )

    # -- producing

    def _push(self, message: M, delay_seconds: float) -> str:
        body = self._codec.encode(message)
        if delay_seconds:
            self._check_delay(delay_seconds)
        push = self._producer.push_once if self.dedupe else self._producer.push
        try:
            headers = None if self.tracing is None else pack_headers(message)
            push(layout.hash_id(message.id), body, delay_seconds, headers)
        except OSError as error:
            raise to_queue_unavailable(self.folder, error) from error
        return message.id

    def push_many(self, messages: Iterable[M], *, delay_seconds: float = 0.0) -> list[str]:
        """Push messages in batches. If a message or the disk fails, its batch is not pushed."""
        self._check_delay(delay_seconds)
        pushed: list[str] = []
        batch: list[OutgoingTask] = []
        size = 0
        for message in messages:
            body = self._codec.encode(message)
            if len(batch) >= MAX_BATCH_MESSAGES or size + len(body) > MAX_BATCH_BYTES:
                self._push_batch(batch, delay_seconds)
                batch, size = [], 0
            headers = None if self.tracing is None else pack_headers(message)
            batch.append((layout.hash_id(message.id), body, headers))
            size += len(body)
            pushed.append(message.id)
        self._push_batch(batch, delay_seconds)
        return pushed

    def _push_batch(self, batch: Sequence[OutgoingTask], delay_seconds: float) -> None:
        with self._directory.translate_errors():
            if self.dedupe:
                for id_hash, body, headers in batch:
                    self._producer.push_once(id_hash, body, delay_seconds, headers)
            elif batch:
                self._producer.push_batch(batch, delay_seconds)

    # -- consuming

    def _claim(self, limit: int) -> Sequence[Delivery]:
        deliveries: list[Delivery] = []
        try:
            with self._claim_lock:
                claimer = self._claimer or self._register()
                claimer.reader.may_list = True
                while len(deliveries) < limit:
                    asked_at = self.clock.monotonic()
                    if (claim := claimer.claim_next(asked_at)) is None:
                        break
                    if (delivery := self._read(claim, asked_at)) is not None:
                        deliveries.append(delivery)
        except OSError as error:
            if not deliveries:  # messages claimed before the error must still be returned
                raise to_queue_unavailable(self.folder, error) from error
        return deliveries

    def _register(self) -> Claimer:
        self._housekeeping.sweep_leftovers()
        self._claimer = claimer = Claimer(
            self._directory, self._server_clock, self._workers, self._random, self.lease_seconds
        )
        return claimer

    def _read(self, claim: Claim, asked_at: float) -> Delivery | None:
        """Read a claimed task. Returns None if it is gone."""
        task = key, fence, refunds = claim.task
        body, problem, headers, earlier_worker = b"", None, None, None
        try:
            body = self._directory.read(claim.path, 2 * self._codec.max_bytes)
        except FileNotFoundError:
            return None
        except PermissionError:
            problem = "it cannot be read: correct its mode, then redrive it"
        except ValueError as error:
            problem = f"malformed: {error}"
        if fence <= refunds or fence > MAX_FENCE:
            problem = layout.explain_impossible(task)
        if claim.taken_over_from is not None:
            earlier_worker = self._workers.get_worker_id(claim.taken_over_from)
            earlier = TaskName(key, fence - 1, refunds)
            reason = "its lease ran out: the worker died or froze"
            self._notes.add_attempt(earlier, "lost", earlier_worker, reason)
        if self.tracing is not None:
            headers = unpack_headers(self._directory.read_headers(claim.path))
        return Delivery(
            claim,
            key,
            body,
            fence - refunds,
            fence,
            asked_at,
            earlier_worker,
            headers,
            problem,
        )

    def _explain_exhausted(self, delivery: Delivery) -> str:
        with self._directory.translate_errors():
            past = self._notes.read_attempts(delivery.handle.task.key)
        return f"; the last: {past[-1].reason}" if past else ""

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        # A worker polls only when a slot is free, and shows here that it is running.
        if (claimer := self._claimer) is not None:
            with suppress(OSError):
                self._workers.mark_seen(claimer.me, self.clock.monotonic())
        return [self._renew(lease, seconds) for lease in leases]

    def _renew(self, lease: Lease, seconds: float) -> Renewal:
        claim: Claim = lease.handle
        asked_ms = self._server_clock.to_stamp_ms(self.clock.monotonic())
        try:
            if not claim.renew(self._directory, asked_ms, ceil(seconds * 1000)):
                return Refused(TAKEN_AWAY)
        except OSError as error:
            return Unanswered(str(to_queue_unavailable(self.folder, error)))
        if lease.has_beaten:
            beat_ms = self._server_clock.to_stamp_ms(lease.last_beat_at)
            beat = layout.format_beat(lease.fence, beat_ms, lease.progress)
            self._directory.note_beat(claim.path, beat)
        return RENEWED

    # -- settling: each is one rename of the claim's own name in leased/

    def _ack(self, leases: Sequence[Lease]) -> Sequence[LeaseLost | None]:
        now_ms = self._server_clock.read_wall_ms()
        results: list[LeaseLost | None] = []
        try:
            if self._completed[0] != now_ms // 1000:
                self._check_completed_folder(now_ms // 1000)
            folder = self._completed[1]
            for lease in leases:
                claim: Claim = lease.handle
                lost = claim.settle(self._directory, f"{folder}/{claim.name}~{now_ms}.json")
                if lost is None and (claim.saved or lease.fence > 1):
                    with suppress(OSError):  # it is completed; a purge removes what is left
                        self._notes.forget_checkpoints(claim.task.key)
                results.append(lost)
            if self._durable:
                parents = {os.path.dirname(lease.handle.path) for lease in leases}
                self._directory.sync(*parents | {"leased"})
        except OSError as error:
            raise to_queue_unavailable(self.folder, error) from error
        return results

    def _check_completed_folder(self, second: int) -> None:
        """Make the hour's folder in completed/; once a second, as it may become a link."""
        folder = f"completed/{to_utc(second):%Y-%m-%dT%H}"
        self._directory.refuse_links("completed", folder)
        if folder != self._completed[1]:
            self._directory.make_folder(folder)
        self._completed = (second, folder)

    def _put_back(self, claim: Claim, task: TaskName, delay_seconds: float) -> LeaseLost | None:
        """Move a claimed task back to pending/, under the name of `task`."""
        target = self._producer.choose_path(task.stem, delay_seconds)
        lost = claim.settle(self._directory, target)
        if lost is None:
            self._producer.sync_parent(claim.path)
        return lost

    def _nack(
        self, lease: Lease, delay_seconds: float, reason: str, detail: str | None
    ) -> LeaseLost | None:
        claim: Claim = lease.handle
        with self._directory.translate_errors():
            lost = self._put_back(claim, claim.task, delay_seconds)
        if lost is None:
            self._notes.add_attempt(claim.task, "retried", claim.worker_id, reason, detail)
        return lost

    def _release(self, lease: Lease, delay_seconds: float = 0.0) -> LeaseLost | None:
        with self._directory.translate_errors():
            return self._put_back(lease.handle, lease.handle.task.refunded(), delay_seconds)

    def _dead_letter(self, lease: Lease, reason: str, detail: str | None) -> LeaseLost | None:
        claim: Claim = lease.handle
        if lease.attempt < claim.task.attempts:  # this claim is not charged
            claim.task = claim.task.refunded()
        cause = Cause(lease.message_id, claim.worker_id, reason, detail)
        with self._directory.translate_errors():
            is_dead = self._dead_letters.add(
                claim.task, cause, lambda path: claim.settle(self._directory, path) is None
            )
        return None if is_dead else make_lease_lost()

    # -- checkpoints

    def _save_checkpoint(self, lease: Lease, checkpoint: Any) -> None:
        claim: Claim = lease.handle
        body = encode_checkpoint(checkpoint)
        with self._directory.translate_errors():
            with claim.lock:
                if not self._directory.exists(claim.path):
                    lease.lose(TAKEN_AWAY)
                    raise make_lease_lost()
                claim.saved = True
            self._notes.save_checkpoint(claim.task, body)

    def load_checkpoint(self, message: M) -> Any:
        with self._directory.translate_errors():
            return self._notes.load_checkpoint_before(get_lease(message).handle.task)

    # -- for operators

    def stats(self) -> QueueStats:
        with self._directory.translate_errors():
            return count_stats(self._directory, self._server_clock, self._workers)

    def close(self) -> None:
        self._directory.close()
