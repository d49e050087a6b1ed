"""Removing what is no longer needed: old completed tasks, leftovers of crashes, records of ids.

Any number of tasks may have been removed with `rm` or `find -delete`, and their ids must not
stay taken. The check for such records is linear: a few listings of the complete queue and one
readlink for each record.
"""

import os
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import groupby

from holdfast.queue.info import MessageState
from holdfast.queues.files import layout
from holdfast.queues.files.dedupe import (
    ID_LOCK_TIMEOUT_SECONDS,
    LISTING_PASSES,
    DedupeIndex,
    IdLockBusy,
)
from holdfast.queues.files.directory import QueueDirectory, is_folder
from holdfast.queues.files.task_notes import TaskNotes
from holdfast.queues.files.workers import ServerClock

# A file in tmp/ may belong to a push that is only slow. After an hour it is a leftover.
SWEEP_SECONDS = 3600.0
Records = Mapping[str, list[str]]  # see DedupeIndex.group_by_tail


class Housekeeping:
    """Purges completed tasks, sweeps leftovers of killed processes, and frees lost ids."""

    def __init__(
        self,
        directory: QueueDirectory,
        server_clock: ServerClock,
        notes: TaskNotes,
        dedupe: DedupeIndex,
    ) -> None:
        self._directory, self._server_clock = directory, server_clock
        self._notes, self._dedupe = notes, dedupe

    # -- completed tasks

    def purge(self, older_than_seconds: float) -> int:
        """Remove completed tasks older than that, with their history; return how many.

        Raises IdLockBusy if another process does not release the id of one of them.
        """
        cutoff_ms = self._server_clock.read_wall_ms() - int(older_than_seconds * 1000)
        records, saved = self._dedupe.group_by_tail(), self._notes.list_checkpointed()
        purged = 0
        completed = layout.list_tasks(self._directory, MessageState.COMPLETED)
        for hour, tasks in groupby(completed, key=lambda task: os.path.dirname(task[0])):
            removed = 0
            for path, match in tasks:
                if int(match["done_ms"]) <= cutoff_ms:
                    if match["key"] in saved:  # the ack was killed before it removed them
                        self._notes.forget_checkpoints(match["key"])
                    removed += self._remove_push(match["key"], path, records)
            if removed:  # now, because a later purge finds nothing in it and leaves it
                self._directory.remove_folder(hour)
            purged += removed
        return purged

    def _remove_push(
        self,
        key: str,
        path: str,
        records: Records,
        wait_seconds: float = ID_LOCK_TIMEOUT_SECONDS,
    ) -> bool:
        """Remove a completed task or an unpublished push, with its history and record.

        Returns False if it is gone. Raises IdLockBusy, and has removed nothing, if another
        process does not release its id.
        """
        for id_hash in records.get(key[10:], ()):
            if self._dedupe.read_key(id_hash) == key:
                with self._dedupe.lock_id(id_hash, wait_seconds):
                    self._notes.forget_attempts(key)
                    return self._dedupe.withdraw(id_hash, key, path)
        # Remove its history first: without the task it would never be found again.
        self._notes.forget_attempts(key)
        return self._directory.remove(path)

    # -- leftovers; what belongs to an id that is locked is left for a later sweep

    def sweep(self, older_than_seconds: float = SWEEP_SECONDS) -> int:
        """Remove all leftovers; return how many. It takes a few listings of all folders."""
        swept = self.sweep_leftovers(older_than_seconds) + self._free_lost_ids()
        return swept + self._sweep_marks(self._compute_cutoff(older_than_seconds))

    def sweep_leftovers(self, older_than_seconds: float = SWEEP_SECONDS) -> int:
        """Remove unfinished files, reasons without their task, and cards of absent workers.

        A worker is absent if it has not been seen for a day and holds no lease.
        """
        cutoff = self._compute_cutoff(older_than_seconds)
        swept = self._sweep_tmp(cutoff) + self._sweep_reasons(cutoff)
        return swept + self._sweep_cards(cutoff - 23 * SWEEP_SECONDS)

    def _compute_cutoff(self, older_than_seconds: float) -> float:
        return self._server_clock.measure_server_ms() / 1000 - older_than_seconds

    def _sweep_tmp(self, cutoff: float) -> int:
        listed = [(name, f"tmp/{name}") for name in self._directory.list("tmp")]
        old = [(name, path) for name, path in listed if self._is_old(path, cutoff)]
        has_push = any(layout.KEY.fullmatch(name) for name, _ in old)
        records = self._dedupe.group_by_tail() if has_push else {}
        swept = 0
        for name, path in old:
            with suppress(IdLockBusy):
                removed = self._remove_push(name, path, records, wait_seconds=0.0)
                swept += removed or self._sweep_segment(path)
        return swept

    def _sweep_segment(self, path: str) -> int:
        """Remove a segment in tmp/ whose producer died; return how many tasks it had.

        A producer that is only slow must not publish a half-swept segment. So the segment is
        first renamed in one step, which takes it away from its producer.
        """
        doomed = f"tmp/swept-{secrets.token_hex(8)}"
        if not is_folder(self._directory.stat(path)) or not self._directory.rename(
            path, doomed
        ):
            return 0
        tasks = self._directory.list_readable(doomed)
        swept = sum(self._directory.remove(f"{doomed}/{name}") for name in tasks)
        self._directory.remove_folder(doomed)
        return swept

    def _sweep_reasons(self, cutoff: float) -> int:
        listed = self._directory.list("failed")
        tasks = {name.removesuffix(".json") for name in filter(layout.FAILED.fullmatch, listed)}
        reasons = filter(layout.REASON.fullmatch, listed)
        orphans = [n for n in reasons if n.removesuffix(".reason.json") not in tasks]
        return self._remove_old("failed", orphans, cutoff)

    def _sweep_cards(self, cutoff: float) -> int:
        # This raises if leased/ is closed. Else its holders would lose their cards.
        leased = map(layout.LEASED.fullmatch, self._directory.list("leased"))
        holders = {f"{match['worker']}.json" for match in leased if match}
        return self._remove_old(
            "workers", set(self._directory.list("workers")) - holders, cutoff
        )

    def _remove_old(self, folder: str, names: Iterable[str], cutoff: float) -> int:
        paths = [f"{folder}/{name}" for name in names]
        return sum(self._directory.remove(path) for path in paths if self._is_old(path, cutoff))

    def _is_old(self, path: str, cutoff: float) -> bool:
        status = self._directory.stat(path)
        return status is not None and status.st_mtime < cutoff

    # -- ids that do not belong to a task

    def _free_lost_ids(self) -> int:
        """Free every id whose task is gone or dead; return how many."""
        try:
            suspects, dead = self._find_suspects()
        except PermissionError:  # a folder that cannot be listed may hold any of the tasks
            return 0
        freed = 0
        for id_hash, key in suspects.items():
            with suppress(IdLockBusy), self._dedupe.lock_id(id_hash, wait_seconds=0.0):
                freed += self._free(id_hash, key, dead.get(key))
        return freed

    def _find_suspects(self) -> tuple[dict[str, str], dict[str, str]]:
        """Find the ids whose keys no folder holds, and the dead letters among those keys.

        This runs without an id lock. A task may move meanwhile, so it must be missing in
        every pass. It was published before the last passes, because tmp/<key> was gone by
        then.
        """
        suspects = self._find_unseen(set(self._dedupe.list_live_keys()))
        dead: dict[str, str] = {}
        for _ in range(LISTING_PASSES - 1):
            if not suspects:
                break
            live = set(self._dedupe.list_live_keys())
            suspects = {h: key for h, key in suspects.items() if key not in live}
            dead |= self._dedupe.find_dead(set(suspects.values()))
        return suspects, dead

    def _find_unseen(self, live: set[str]) -> dict[str, str]:
        return {
            id_hash: key
            for id_hash in self._dedupe.list_hashes()
            if (key := self._dedupe.read_key(id_hash)) is not None
            and key not in live
            and not self._directory.exists(f"tmp/{key}")
        }

    def _free(self, id_hash: str, key: str, dead_path: str | None) -> bool:
        """With the id lock: free an id, unless it was pushed again or redriven meanwhile."""
        if self._dedupe.read_key(id_hash) != key:
            return False
        if dead_path is not None:
            return self._dedupe.free_dead_letter(id_hash, key, dead_path)
        return self._dedupe.free(id_hash, key)

    def _sweep_marks(self, cutoff: float) -> int:
        """Remove old marks of tasks that are not dead letters; return how many tasks.

        The ctime tells when a mark was made: earlier versions made it a hard link of its
        record, which has an old mtime.
        """
        old = {
            match["key"]
            for name in self._directory.list("ids")
            if (match := layout.MARK.fullmatch(name))
            and (status := self._directory.stat(f"ids/{name}"))
            and status.st_ctime < cutoff
        }
        swept = 0
        for key in old - self._dedupe.find_dead(old).keys():
            with suppress(IdLockBusy), self._dedupe.lock_id(key[10:], wait_seconds=0.0):
                swept += self._dedupe.remove_marks(key)
        return swept
