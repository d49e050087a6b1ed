"""The check for records in ids/ whose task is gone, removed by hand or by a crash.

Any number of tasks may have been removed with `rm` or `find -delete`, and their ids must not
stay taken. The cost is linear: a few listings of the complete queue and one readlink for
each record.
"""

from functools import partial

from holdfast.lease.clock import Clock
from holdfast.queues.files import names
from holdfast.queues.files.dedupe import LISTING_PASSES, DedupeIndex, WaitBudget
from holdfast.queues.files.directory import QueueDirectory

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
            if name[:18] in keys and names.FAILED.fullmatch(name)
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
        marks = filter(None, map(names.MARK.fullmatch, self._directory.list("ids")))
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
