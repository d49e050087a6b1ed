"""Records in ids/ whose task is gone, removed by a person or by a crash in between.

Any number of tasks may have been removed with `rm` or `find -delete`; their ids must not
stay taken. The cost is linear: a few listings of the whole queue and one readlink for each
record.
"""

from functools import partial

from holdfast.adapters.local.filesystem import names
from holdfast.adapters.local.filesystem.dedupe import PASSES, DedupeIndex, WaitBudget
from holdfast.adapters.local.filesystem.directory import QueueDirectory
from holdfast.core.clock import Clock

EVERY_SECONDS = 30.0
COST_FACTOR = 20  # a check takes at most a twentieth of a producer's time


class RecordCheck:
    """Frees ids that belong to no task. One for each process."""

    def __init__(self, tree: QueueDirectory, ids: DedupeIndex, clock: Clock) -> None:
        self._tree, self._ids, self._clock = tree, ids, clock
        self._due_at = 0.0

    def run_if_due(self) -> int:
        """Run before a push is refused: always for the first, then now and then.

        Returns how many ids were freed.
        """
        started_at = self._clock.monotonic()
        if started_at < self._due_at:
            return 0
        self._due_at = float("inf")  # for the other threads
        try:
            return self.run(WaitBudget(0.0))
        finally:
            now = self._clock.monotonic()
            self._due_at = now + max(EVERY_SECONDS, COST_FACTOR * (now - started_at))

    def run(self, budget: WaitBudget) -> int:
        """Free every id whose task is gone or dead; returns how many."""
        try:
            suspects, dead = self._suspects()
        except PermissionError:  # what cannot be listed may hold any of them
            return 0
        return sum(
            self._ids.attempt(id_hash, budget, partial(self._free, id_hash, key, dead.get(key)))
            for id_hash, key in suspects.items()
        )

    def _suspects(self) -> tuple[dict[str, str], dict[str, str]]:
        """DedupeIndex whose keys are nowhere, and the dead letters among those keys.

        Without any turn: a task may move meanwhile, so it has to be missed in each pass.
        It was published before the last passes, as tmp/<key> was gone by then.
        """
        suspects = self._unseen(set(self._ids.live_keys()))
        dead: dict[str, str] = {}
        for _ in range(PASSES - 1):
            if not suspects:
                break
            live = set(self._ids.live_keys())
            live.update([key[10:] for key in live])  # for records that name no key
            suspects = {h: key for h, key in suspects.items() if (key or h[:8]) not in live}
            dead |= self._dead(set(suspects.values()))
        return suspects, dead

    def _unseen(self, live: set[str]) -> dict[str, str]:
        return {
            id_hash: key
            for id_hash in self._ids.hashes()
            if (key := self._ids.key_of(id_hash)) is not None
            and key not in live
            and not (key and self._tree.exists(f"tmp/{key}"))
        }

    def _dead(self, keys: set[str]) -> dict[str, str]:
        return {
            name[:18]: f"failed/{name}"
            for name in self._tree.list("failed")
            if name[:18] in keys and names.FAILED.fullmatch(name)
        }

    def _free(self, id_hash: str, key: str, dead_path: str | None) -> int:
        """Within the turn: unless the id was pushed again, or the dead letter redriven."""
        if self._ids.key_of(id_hash) != key:
            return 0
        if dead_path is not None:
            return int(self._ids.free_dead(id_hash, key, dead_path))
        return int(self._ids.free(id_hash, key))

    def sweep_marks(self, cutoff: float, budget: WaitBudget) -> int:
        """Remove old marks of tasks that are no dead letters; returns how many."""
        marks = filter(None, map(names.MARK.fullmatch, self._tree.list("ids")))
        old = {match[1] for match in marks if self._is_old(f"ids/{match[0]}", cutoff)}
        stale = old - self._dead(old).keys()
        return sum(
            self._ids.attempt(key[10:], budget, partial(self._unmark, key)) for key in stale
        )

    def _is_old(self, path: str, cutoff: float) -> bool:
        """Was it made before that? A link of an old record has an old mtime."""
        status = self._tree.stat(path)
        return status is not None and status.st_ctime < cutoff

    def _unmark(self, key: str) -> int:
        self._ids.unmark(key)
        return 1
