"""The books of an export: the server's files against the target, the store and the queue."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.cli.demo.export.files import DemoFile
from holdfast.cli.demo.export.server import Ask
from holdfast.cli.demo.stage import Row
from holdfast.jobs.model import ExportJob, ExportTask, TaskStatus

_DEFINITION = (
    "Whole: the demo compared the SHA-256 of each file itself. Fetched again: the second "
    "service asked for a file that the first had counted."
)


@dataclass(frozen=True, slots=True)
class ExportInterventions:
    """What the demo did on the way, and what came of it."""

    counted: frozenset[str]  # files, when the service was killed
    asks_before: int  # the server's, until then
    torn: frozenset[str]  # seen under their names, and not whole
    workers_replaced: int
    services_replaced: int
    acked: bool


@dataclass(frozen=True, slots=True)
class ExportBooks:
    asked: int
    whole: int
    failed: int  # for good, and rightly so
    lost: int  # neither
    torn: int
    miscounted: int  # by how much counters and rows differ
    counted_before: int
    fetched_again: int
    continued: int
    workers_replaced: int
    services_replaced: int
    acked: bool
    status: str
    error: str
    reasons: tuple[str, ...]  # of what failed

    @property
    def balance(self) -> bool:
        settled = self.whole + self.failed == self.asked
        wrong = self.lost or self.torn or self.miscounted or self.fetched_again
        happened = self.workers_replaced and self.services_replaced and self.counted_before
        return settled and not wrong and bool(happened) and self.acked and self._rightly_ended

    @property
    def _rightly_ended(self) -> bool:
        if self.failed:
            return (self.status, self.error) == ("FAILED", "JobCompletedWithFailures")
        return self.status == "COMPLETED"

    def rows(self) -> list[Row]:
        return [
            Row("files asked for", self.asked),
            Row("there and whole", self.whole),
            Row("failed", self.failed, f"{'; '.join(self.reasons)}, on purpose"),
            _zero("lost", self.lost, "neither there nor failed"),
            _zero("half-done in sight", self.torn, "under their names, at any time"),
            _zero("miscounted", self.miscounted, "the job's counters against its task rows"),
            _zero(
                "fetched again",
                self.fetched_again,
                f"of {self.counted_before} counted before the service was killed",
            ),
            Row("continued", self.continued, "downloads, behind the bytes they had"),
            _some("workers replaced", self.workers_replaced, "killed with SIGKILL"),
            _some("services replaced", self.services_replaced, "killed with SIGKILL"),
            _some("messages acked", int(self.acked), f"the job is {self.status}: {self.error}"),
        ]

    def definition(self) -> str:
        return _DEFINITION


def _zero(what: str, count: int, why: str) -> Row:
    return Row(what, count, why, wrong=count > 0)


def _some(what: str, count: int, why: str) -> Row:
    return Row(what, count, why, wrong=count == 0)


def balance(
    files: Sequence[DemoFile],
    found: Mapping[str, str],
    job: ExportJob | None,
    rows: Sequence[ExportTask],
    asks: Sequence[Ask],
    deeds: ExportInterventions,
) -> ExportBooks:
    """`found`: what is in the target, and its SHA-256."""
    whole = {file.key for file in files if found.get(file.key) == file.checksum}
    failed = {row.key: row for row in rows if row.status is TaskStatus.FAILED}
    rightly = {file.key for file in files if file.habit == "missing"} & failed.keys() - whole
    again = {ask.key for ask in asks[deeds.asks_before :]} & deeds.counted
    return ExportBooks(
        asked=len(files),
        whole=len(whole),
        failed=len(rightly),
        lost=len(files) - len(whole | rightly),
        torn=len(deeds.torn | (found.keys() - whole)),
        miscounted=_miscounted(job, rows),
        counted_before=len(deeds.counted),
        fetched_again=len(again),
        continued=sum(ask.start > 0 for ask in asks),
        workers_replaced=deeds.workers_replaced,
        services_replaced=deeds.services_replaced,
        acked=deeds.acked,
        status=job.status.value if job else "NOT THERE",
        error=job.error.code if job and job.error else "",
        reasons=tuple(_reason(failed[key]) for key in sorted(rightly)),
    )


def _reason(row: ExportTask) -> str:
    return f"{row.key}: {row.error.code if row.error else 'no reason'}"


def _miscounted(job: ExportJob | None, rows: Sequence[ExportTask]) -> int:
    if job is None:
        return len(rows)
    state, statuses = job.state, [row.status for row in rows]
    return (
        abs(state.total_tasks - len(rows))
        + abs(state.completed_tasks - statuses.count(TaskStatus.COMPLETED))
        + abs(state.failed_tasks - statuses.count(TaskStatus.FAILED))
    )


# -- the target


def visible(folder: Path) -> Iterator[Path]:
    """The files that somebody who looks into the target sees."""
    if folder.is_dir():
        yield from (path for path in folder.iterdir() if not path.name.startswith("."))


def torn(folder: Path, sizes: Mapping[str, int]) -> set[str]:
    """Those that have a name already and not yet their size."""
    return {
        path.name for path in visible(folder) if path.stat().st_size != sizes.get(path.name)
    }


def checksums(folder: Path) -> dict[str, str]:
    return {path.name: _sha256(path) for path in visible(folder)}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
