"""Removing files that are no longer needed: old completed tasks and leftovers of crashes."""

import secrets
from collections.abc import Mapping
from functools import partial

from holdfast.queues.files import names
from holdfast.queues.files.checkpoints import Checkpoints
from holdfast.queues.files.dedupe import DedupeIndex, WaitBudget
from holdfast.queues.files.directory import QueueDirectory, is_folder
from holdfast.queues.files.history import AttemptHistory
from holdfast.queues.files.record_check import RecordCheck
from holdfast.queues.files.server_clock import ServerClock

# A file in tmp/ may belong to a push that is only slow. After an hour it is a leftover.
SWEEP_SECONDS = 3600.0


Records = Mapping[str, list[str]]  # see DedupeIndex.group_by_tail


class Housekeeping:
    """Purges completed tasks, and sweeps leftovers of killed processes."""

    def __init__(
        self,
        directory: QueueDirectory,
        server_clock: ServerClock,
        history: AttemptHistory,
        checkpoints: Checkpoints,
        dedupe: DedupeIndex,
        record_check: RecordCheck,
    ) -> None:
        self._directory, self._server_clock = directory, server_clock
        self._history, self._checkpoints = history, checkpoints
        self._dedupe, self._record_check = dedupe, record_check

    def purge(self, older_than_seconds: float, budget: WaitBudget) -> int:
        """Remove completed tasks older than that, with their history; return how many."""
        cutoff_ms = self._server_clock.read_wall_ms() - int(older_than_seconds * 1000)
        records, saved = self._dedupe.group_by_tail(), self._checkpoints.list_keys()
        purged = 0
        for hour in sorted(filter(names.HOUR.fullmatch, self._directory.list("completed"))):
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
        for match in filter(None, map(names.COMPLETED.fullmatch, listed)):
            if int(match["done_ms"]) <= cutoff_ms:
                if match["key"] in saved:  # the ack was killed before it removed them
                    self._checkpoints.forget(match["key"])
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
        self._history.forget(key)
        return self._directory.remove(path)

    def _withdraw(self, id_hash: str, key: str, path: str) -> int:
        self._history.forget(key)
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
        records = self._dedupe.group_by_tail() if any(map(names.KEY.fullmatch, old)) else {}
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
        tasks = {m[0].removesuffix(".json") for n in listed if (m := names.FAILED.fullmatch(n))}
        orphans = {
            name
            for name in listed
            if names.REASON.fullmatch(name) and name.removesuffix(".reason.json") not in tasks
        }
        return sum(self._remove_if_old(f"failed/{name}", cutoff) for name in orphans)

    def _sweep_cards(self, cutoff: float) -> int:
        holders = {
            f"{m['worker']}.json"
            for n in self._directory.list("leased")
            if (m := names.LEASED.fullmatch(n))
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
