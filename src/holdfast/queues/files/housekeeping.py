"""Removing what is no longer needed: old completed tasks, leftovers of crashes, records of ids.

Any number of tasks may have been removed with `rm` or `find -delete`, and their ids must not
stay taken. The check for such records is linear: a few listings of the complete queue and one
readlink for each record.
"""

import secrets
from collections.abc import Mapping
from functools import partial

from holdfast.lease.clock import Clock
from holdfast.queues.files import layout
from holdfast.queues.files.dedupe import LISTING_PASSES, DedupeIndex, WaitBudget
from holdfast.queues.files.directory import QueueDirectory, is_folder
from holdfast.queues.files.server_clock import ServerClock
from holdfast.queues.files.task_notes import TaskNotes

# A file in tmp/ may belong to a push that is only slow. After an hour it is a leftover.
SWEEP_SECONDS = 3600.0


Records = Mapping[str, list[str]]  # see DedupeIndex.group_by_tail
MIN_INTERVAL_SECONDS = 30.0
COST_FACTOR = 20  # a check takes at most a twentieth of a producer's time


class RecordCheck:
    """Frees ids that do not belong to a task. One for each process."""

    def __init__(self, directory: QueueDirectory, dedupe: DedupeIndex, clock: Clock) -> None:
        self._directory, self._dedupe, self._clock = directory, dedupe, clock
        self._due_at = 0.0

    def run_if_due(self) -> int:
        """Run the check before a push is refused: the first time, then at intervals.

        Returns how many ids were freed.
        """
        started_at = self._clock.monotonic()
        if started_at < self._due_at:
            return 0
        self._due_at = float("inf")  # so that other threads do not run it too
        try:
            return self.run(WaitBudget(0.0))
        finally:
            now = self._clock.monotonic()
            self._due_at = now + max(MIN_INTERVAL_SECONDS, COST_FACTOR * (now - started_at))

    def run(self, budget: WaitBudget) -> int:
        """Free every id whose task is gone or dead; return how many."""
        try:
            suspects, dead = self._find_suspects()
        except PermissionError:  # a folder that cannot be listed may hold any of the tasks
            return 0
        return sum(
            self._dedupe.run_locked(
                id_hash, budget, partial(self._free, id_hash, key, dead.get(key))
            )
            for id_hash, key in suspects.items()
        )

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
            live.update([key[10:] for key in live])  # for records that do not name a key
            suspects = {h: key for h, key in suspects.items() if (key or h[:8]) not in live}
            dead |= self._dead(set(suspects.values()))
        return suspects, dead

    def _find_unseen(self, live: set[str]) -> dict[str, str]:
        return {
            id_hash: key
            for id_hash in self._dedupe.list_hashes()
            if (key := self._dedupe.read_key(id_hash)) is not None
            and key not in live
            and not (key and self._directory.exists(f"tmp/{key}"))
        }

    def _dead(self, keys: set[str]) -> dict[str, str]:
        return {
            name[:18]: f"failed/{name}"
            for name in self._directory.list("failed")
            if name[:18] in keys and layout.FAILED.fullmatch(name)
        }

    def _free(self, id_hash: str, key: str, dead_path: str | None) -> int:
        """With the id lock: free an id, unless it was pushed again or redriven meanwhile."""
        if self._dedupe.read_key(id_hash) != key:
            return 0
        if dead_path is not None:
            return int(self._dedupe.free_dead_letter(id_hash, key, dead_path))
        return int(self._dedupe.free(id_hash, key))

    def sweep_marks(self, cutoff: float, budget: WaitBudget) -> int:
        """Remove old marks of tasks that are not dead letters; return how many."""
        marks = filter(None, map(layout.MARK.fullmatch, self._directory.list("ids")))
        old = {match["key"] for match in marks if self._is_old(f"ids/{match[0]}", cutoff)}
        stale = old - self._dead(old).keys()
        return sum(
            self._dedupe.run_locked(key[10:], budget, partial(self._unmark, key))
            for key in stale
        )

    def _is_old(self, path: str, cutoff: float) -> bool:
        """Return whether a mark was made before that time.

        Its ctime is used, because a hard link of an old record has an old mtime.
        """
        status = self._directory.stat(path)
        return status is not None and status.st_ctime < cutoff

    def _unmark(self, key: str) -> int:
        self._dedupe.remove_marks(key)
        return 1


class Housekeeping:
    """Purges completed tasks, and sweeps leftovers of killed processes."""

    def __init__(
        self,
        directory: QueueDirectory,
        server_clock: ServerClock,
        notes: TaskNotes,
        dedupe: DedupeIndex,
        record_check: RecordCheck,
    ) -> None:
        self._directory, self._server_clock = directory, server_clock
        self._notes = notes
        self._dedupe, self._record_check = dedupe, record_check

    def purge(self, older_than_seconds: float, budget: WaitBudget) -> int:
        """Remove completed tasks older than that, with their history; return how many."""
        cutoff_ms = self._server_clock.read_wall_ms() - int(older_than_seconds * 1000)
        records, saved = self._dedupe.group_by_tail(), self._notes.list_checkpointed()
        purged = 0
        for hour in sorted(filter(layout.HOUR.fullmatch, self._directory.list("completed"))):
            purged += self._purge_hour(f"completed/{hour}", cutoff_ms, records, saved, budget)
        return purged

    def _purge_hour(
        self,
        folder: str,
        cutoff_ms: int,
        records: Records,
        saved: set[str],
        budget: WaitBudget,
    ) -> int:
        purged = 0
        listed = self._directory.list_readable(folder)
        for match in filter(None, map(layout.COMPLETED.fullmatch, listed)):
            if int(match["done_ms"]) <= cutoff_ms:
                if match["key"] in saved:  # the ack was killed before it removed them
                    self._notes.forget_checkpoints(match["key"])
                path = f"{folder}/{match[0]}"
                purged += self._remove_push(match["key"], path, records, budget)
        if purged:
            self._directory.remove_folder(folder)
        return purged

    def _remove_push(self, key: str, path: str, records: Records, budget: WaitBudget) -> int:
        """Remove a completed task or an unpublished push, with its history and record.

        Returns 0 if its id lock is busy.
        """
        for id_hash in records.get(key[10:], ()):
            if self._dedupe.read_key(id_hash) == key:
                remove = partial(self._withdraw, id_hash, key, path)
                return self._dedupe.run_locked(id_hash, budget, remove)
        # Remove its history first: without the task it would never be found again.
        self._notes.forget_attempts(key)
        return self._directory.remove(path)

    def _withdraw(self, id_hash: str, key: str, path: str) -> int:
        self._notes.forget_attempts(key)
        return self._dedupe.withdraw(id_hash, key, path)

    def sweep(self, older_than_seconds: float, budget: WaitBudget) -> int:
        """Remove all leftovers; return how many. It takes a few listings of all folders."""
        cutoff = self._server_clock.measure_server_ms() / 1000 - older_than_seconds
        swept = self.sweep_leftovers(older_than_seconds, budget)
        swept += self._record_check.run(budget)
        return swept + self._record_check.sweep_marks(cutoff, budget)

    def sweep_leftovers(self, older_than_seconds: float, budget: WaitBudget) -> int:
        """Remove leftovers of killed processes; return how many.

        These are unfinished files, reasons without their task, and cards of workers that
        have not been seen for a day and hold no lease.
        """
        cutoff = self._server_clock.measure_server_ms() / 1000 - older_than_seconds
        swept = self._sweep_pushes(cutoff, budget) + self._sweep_segments(cutoff)
        swept += self._sweep_reasons(cutoff)
        return swept + self._sweep_cards(cutoff)

    def _sweep_pushes(self, cutoff: float, budget: WaitBudget) -> int:
        old = [
            name for name in self._directory.list("tmp") if self._is_old(f"tmp/{name}", cutoff)
        ]
        records = self._dedupe.group_by_tail() if any(map(layout.KEY.fullmatch, old)) else {}
        return sum(self._remove_push(n, f"tmp/{n}", records, budget) for n in old)

    def _sweep_segments(self, cutoff: float) -> int:
        """Remove segments whose producer died while it wrote them in tmp/.

        A producer that is only slow must not publish a half-swept segment. So each segment
        is first renamed in one step, which takes it away from its producer.
        """
        swept = 0
        for name in self._directory.list("tmp"):
            status = self._directory.stat(f"tmp/{name}")
            if status is None or not is_folder(status) or status.st_mtime >= cutoff:
                continue
            doomed = f"tmp/swept-{secrets.token_hex(8)}"
            if self._directory.rename(f"tmp/{name}", doomed):
                swept += sum(
                    self._directory.remove(f"{doomed}/{n}")
                    for n in self._directory.list_readable(doomed)
                )
                self._directory.remove_folder(doomed)
        return swept

    def _sweep_reasons(self, cutoff: float) -> int:
        listed = self._directory.list("failed")
        tasks = {
            m[0].removesuffix(".json") for n in listed if (m := layout.FAILED.fullmatch(n))
        }
        orphans = {
            name
            for name in listed
            if layout.REASON.fullmatch(name) and name.removesuffix(".reason.json") not in tasks
        }
        return sum(self._remove_if_old(f"failed/{name}", cutoff) for name in orphans)

    def _sweep_cards(self, cutoff: float) -> int:
        holders = {
            f"{m['worker']}.json"
            for n in self._directory.list("leased")
            if (m := layout.LEASED.fullmatch(n))
        }
        return sum(
            self._remove_if_old(f"workers/{name}", cutoff - 23 * SWEEP_SECONDS)
            for name in self._directory.list("workers")
            if name not in holders
        )

    def _remove_if_old(self, path: str, cutoff: float) -> int:
        return int(self._is_old(path, cutoff) and self._directory.remove(path))

    def _is_old(self, path: str, cutoff: float) -> bool:
        status = self._directory.stat(path)
        return status is not None and status.st_mtime < cutoff
