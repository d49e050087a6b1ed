"""Removing what nobody needs any more: old completed work and what crashes left."""

import secrets

from holdfast.adapters.local.filesystem import names
from holdfast.adapters.local.filesystem.checkpoints import Checkpoints
from holdfast.adapters.local.filesystem.history import History
from holdfast.adapters.local.filesystem.timeline import Timeline
from holdfast.adapters.local.filesystem.tree import Tree, is_folder

# A file in tmp/ may belong to a push that is only slow. After an hour it does not.
SWEEP_SECONDS = 3600.0


class Housekeeping:
    def __init__(
        self, tree: Tree, timeline: Timeline, history: History, checkpoints: Checkpoints
    ) -> None:
        self._tree, self._timeline = tree, timeline
        self._history, self._checkpoints = history, checkpoints

    def purge(self, older_than_seconds: float) -> int:
        """Completed tasks older than that, with their history."""
        cutoff_ms = self._timeline.wall_ms() - int(older_than_seconds * 1000)
        saved = self._checkpoints.keys()
        purged = 0
        for hour in sorted(filter(names.HOUR.fullmatch, self._tree.list("completed"))):
            purged += self._purge_hour(f"completed/{hour}", cutoff_ms, saved)
        return purged

    def _purge_hour(self, folder: str, cutoff_ms: int, saved: set[str]) -> int:
        purged = 0
        found = self._tree.list_readable(folder)
        for match in filter(None, map(names.COMPLETED.fullmatch, found)):
            if int(match[5]) <= cutoff_ms:
                # Its history first: without the task nobody would ever look for it.
                self._history.forget(match[1])
                if match[1] in saved:  # the ack was killed before it could do that
                    self._checkpoints.forget(match[1])
                purged += self._tree.remove(f"{folder}/{match[0]}")
        if purged:
            self._tree.remove_folder(folder)
        return purged

    def sweep(self, older_than_seconds: float = SWEEP_SECONDS) -> int:
        """Leftovers of killed processes: files being written, reasons without their task,
        cards of workers that have not been seen for a day and hold nothing."""
        cutoff = self._timeline.server_ms() / 1000 - older_than_seconds
        swept = self._sweep_old("tmp", set(), cutoff) + self._sweep_segments(cutoff)
        swept += self._sweep_reasons(cutoff)
        return swept + self._sweep_cards(cutoff)

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
        status = self._tree.stat(path)
        return int(status is not None and status.st_mtime < cutoff and self._tree.remove(path))
