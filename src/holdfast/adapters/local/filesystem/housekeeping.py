"""Removing what nobody needs any more: old completed work and what crashes left."""

import secrets
from collections.abc import Mapping
from functools import partial

from holdfast.adapters.local.filesystem import names
from holdfast.adapters.local.filesystem.checkpoints import Checkpoints
from holdfast.adapters.local.filesystem.dedupe import DedupeIndex, WaitBudget
from holdfast.adapters.local.filesystem.directory import QueueDirectory, is_folder
from holdfast.adapters.local.filesystem.history import AttemptHistory
from holdfast.adapters.local.filesystem.record_check import RecordCheck
from holdfast.adapters.local.filesystem.server_clock import ServerClock

# A file in tmp/ may belong to a push that is only slow. After an hour it does not.
SWEEP_SECONDS = 3600.0


Records = Mapping[str, list[str]]  # see DedupeIndex.by_tail


class Housekeeping:
    def __init__(
        self,
        tree: QueueDirectory,
        timeline: ServerClock,
        history: AttemptHistory,
        checkpoints: Checkpoints,
        ids: DedupeIndex,
        record_check: RecordCheck,
    ) -> None:
        self._tree, self._timeline = tree, timeline
        self._history, self._checkpoints = history, checkpoints
        self._ids, self._record_check = ids, record_check

    def purge(self, older_than_seconds: float, budget: WaitBudget) -> int:
        """Completed tasks older than that, with their history."""
        cutoff_ms = self._timeline.wall_ms() - int(older_than_seconds * 1000)
        records, saved = self._ids.by_tail(), self._checkpoints.keys()
        purged = 0
        for hour in sorted(filter(names.HOUR.fullmatch, self._tree.list("completed"))):
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
        found = self._tree.list_readable(folder)
        for match in filter(None, map(names.COMPLETED.fullmatch, found)):
            if int(match[5]) <= cutoff_ms:
                if match[1] in saved:  # the ack was killed before it could do that
                    self._checkpoints.forget(match[1])
                path = f"{folder}/{match[0]}"
                purged += self._remove_push(match[1], path, records, budget)
        if purged:
            self._tree.remove_folder(folder)
        return purged

    def _remove_push(self, key: str, path: str, records: Records, budget: WaitBudget) -> int:
        """Remove a task that is over, or a push that never was, with history and record.

        0 if the turn of its id is busy.
        """
        for id_hash in records.get(key[10:], ()):
            if self._ids.key_of(id_hash) == key:
                remove = partial(self._withdraw, id_hash, key, path)
                return self._ids.attempt(id_hash, budget, remove)
        # Its history first: without the task it would never be found and removed.
        self._history.forget(key)
        return self._tree.remove(path)

    def _withdraw(self, id_hash: str, key: str, path: str) -> int:
        self._history.forget(key)
        return self._ids.withdraw(id_hash, key, path)

    def sweep(self, older_than_seconds: float, budget: WaitBudget) -> int:
        """All that can be swept; takes a few listings of the whole queue."""
        cutoff = self._timeline.server_ms() / 1000 - older_than_seconds
        swept = self.sweep_leftovers(older_than_seconds, budget)
        swept += self._record_check.run(budget)
        return swept + self._record_check.sweep_marks(cutoff, budget)

    def sweep_leftovers(self, older_than_seconds: float, budget: WaitBudget) -> int:
        """Leftovers of killed processes: files being written, reasons without their task,
        cards of workers that have not been seen for a day and hold nothing."""
        cutoff = self._timeline.server_ms() / 1000 - older_than_seconds
        swept = self._sweep_pushes(cutoff, budget) + self._sweep_segments(cutoff)
        swept += self._sweep_reasons(cutoff)
        return swept + self._sweep_cards(cutoff)

    def _sweep_pushes(self, cutoff: float, budget: WaitBudget) -> int:
        old = [name for name in self._tree.list("tmp") if self._is_old(f"tmp/{name}", cutoff)]
        records = self._ids.by_tail() if any(map(names.KEY.fullmatch, old)) else {}
        return sum(self._remove_push(n, f"tmp/{n}", records, budget) for n in old)

    def _sweep_segments(self, cutoff: float) -> int:
        """Segments whose producer died while it wrote them aside.

        One that is only slow must not publish what is half swept: so each is first taken
        away from it, whole.
        """
        swept = 0
        for name in self._tree.list("tmp"):
            status = self._tree.stat(f"tmp/{name}")
            if status is None or not is_folder(status) or status.st_mtime >= cutoff:
                continue
            doomed = f"tmp/swept-{secrets.token_hex(8)}"
            if self._tree.rename(f"tmp/{name}", doomed):
                swept += sum(
                    self._tree.remove(f"{doomed}/{n}") for n in self._tree.list_readable(doomed)
                )
                self._tree.remove_folder(doomed)
        return swept

    def _sweep_reasons(self, cutoff: float) -> int:
        found = self._tree.list("failed")
        tasks = {m[0].removesuffix(".json") for n in found if (m := names.FAILED.fullmatch(n))}
        orphans = {
            name
            for name in found
            if names.REASON.fullmatch(name) and name.removesuffix(".reason.json") not in tasks
        }
        return sum(self._remove_if_old(f"failed/{name}", cutoff) for name in orphans)

    def _sweep_cards(self, cutoff: float) -> int:
        holders = {
            f"{m[4]}.json"
            for n in self._tree.list("leased")
            if (m := names.LEASED.fullmatch(n))
        }
        return self._sweep_old("workers", holders, cutoff - 23 * SWEEP_SECONDS)

    def _sweep_old(self, folder: str, keep: set[str], cutoff: float) -> int:
        return sum(
            self._remove_if_old(f"{folder}/{name}", cutoff)
            for name in self._tree.list(folder)
            if name not in keep
        )

    def _remove_if_old(self, path: str, cutoff: float) -> int:
        return int(self._is_old(path, cutoff) and self._tree.remove(path))

    def _is_old(self, path: str, cutoff: float) -> bool:
        status = self._tree.stat(path)
        return status is not None and status.st_mtime < cutoff
