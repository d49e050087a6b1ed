"""Compare the server's files with the target, the job store and the queue."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.cli.demo.export.files import DemoFile
from holdfast.cli.demo.export.server import FileRequest
from holdfast.cli.demo.screen import ReportRow
from holdfast.jobs.model import ExportJob, ExportTask, TaskStatus

_TERMS = (
    "Complete means that the SHA-256 of the file is right. Fetched again means that the "
    "second service requested a file that the first had counted."
)


@dataclass(frozen=True, slots=True)
class ExportInterventions:
    """What the demo did, and what it observed meanwhile."""

    counted: frozenset[str]  # files that were counted when the service was killed
    requests_before: int  # requests to the server until then
    torn: frozenset[str]  # files seen under their names while incomplete
    workers_replaced: int
    services_replaced: int
    acked: bool


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The accounting report of the export scenario."""

    asked: int
    whole: int
    failed: int  # permanently, as they should
    lost: int  # neither complete nor failed
    torn: int
    miscounted: int  # the difference between counters and task rows
    counted_before: int
    fetched_again: int
    continued: int
    workers_replaced: int
    services_replaced: int
    acked: bool
    status: str
    error: str
    reasons: tuple[str, ...]  # of the failed files

    @property
    def totals_match(self) -> bool:
        """Return whether every file is complete or failed, and nothing else went wrong."""
        settled = self.whole + self.failed == self.asked
        wrong = self.lost or self.torn or self.miscounted or self.fetched_again
        happened = self.workers_replaced and self.services_replaced and self.counted_before
        return (
            settled and not wrong and bool(happened) and self.acked and self._has_right_status
        )

    @property
    def _has_right_status(self) -> bool:
        if self.failed:
            return (self.status, self.error) == ("FAILED", "JobCompletedWithFailures")
        return self.status == "COMPLETED"

    def list_rows(self) -> list[ReportRow]:
        """Return the lines of the report."""
        return [
            ReportRow("files requested", self.asked),
            ReportRow("complete", self.whole),
            ReportRow("failed", self.failed, f"{'; '.join(self.reasons)}, on purpose"),
            _expect_zero("lost", self.lost, "neither complete nor failed"),
            _expect_zero("visible, incomplete", self.torn, "under their names, at any time"),
            _expect_zero(
                "miscounted", self.miscounted, "the job's counters against its task rows"
            ),
            _expect_zero(
                "fetched again",
                self.fetched_again,
                f"of {self.counted_before} counted before the service was killed",
            ),
            ReportRow("continued", self.continued, "downloads, after the bytes they had"),
            _expect_some("workers replaced", self.workers_replaced, "killed with SIGKILL"),
            _expect_some("services replaced", self.services_replaced, "killed with SIGKILL"),
            _expect_some(
                "messages acked", int(self.acked), f"the job is {self.status}: {self.error}"
            ),
        ]

    def explain_terms(self) -> str:
        """Return what the labels mean."""
        return _TERMS


def _expect_zero(label: str, count: int, note: str) -> ReportRow:
    return ReportRow(label, count, note, wrong=count > 0)


def _expect_some(label: str, count: int, note: str) -> ReportRow:
    return ReportRow(label, count, note, wrong=count == 0)


def make_report(
    files: Sequence[DemoFile],
    target: Mapping[str, str],
    job: ExportJob | None,
    rows: Sequence[ExportTask],
    requests: Sequence[FileRequest],
    interventions: ExportInterventions,
) -> ExportReport:
    """Return the report. `target` holds the SHA-256 of each file in the target."""
    whole = {file.key for file in files if target.get(file.key) == file.checksum}
    failed = {row.key: row for row in rows if row.status is TaskStatus.FAILED}
    expected = {file.key for file in files if file.habit == "missing"} & failed.keys() - whole
    again = {
        request.key for request in requests[interventions.requests_before :]
    } & interventions.counted
    return ExportReport(
        asked=len(files),
        whole=len(whole),
        failed=len(expected),
        lost=len(files) - len(whole | expected),
        torn=len(interventions.torn | (target.keys() - whole)),
        miscounted=_count_differences(job, rows),
        counted_before=len(interventions.counted),
        fetched_again=len(again),
        continued=sum(request.start > 0 for request in requests),
        workers_replaced=interventions.workers_replaced,
        services_replaced=interventions.services_replaced,
        acked=interventions.acked,
        status=job.status.value if job else "NOT FOUND",
        error=job.error.code if job and job.error else "",
        reasons=tuple(_format_reason(failed[key]) for key in sorted(expected)),
    )


def _format_reason(row: ExportTask) -> str:
    return f"{row.key}: {row.error.code if row.error else 'no reason'}"


def _count_differences(job: ExportJob | None, rows: Sequence[ExportTask]) -> int:
    if job is None:
        return len(rows)
    state, statuses = job.state, [row.status for row in rows]
    return (
        abs(state.total_tasks - len(rows))
        + abs(state.completed_tasks - statuses.count(TaskStatus.COMPLETED))
        + abs(state.failed_tasks - statuses.count(TaskStatus.FAILED))
    )


# -- the target


def list_visible(folder: Path) -> Iterator[Path]:
    """Yield the files of the target that are not hidden."""
    if folder.is_dir():
        yield from (path for path in folder.iterdir() if not path.name.startswith("."))


def find_incomplete(folder: Path, sizes: Mapping[str, int]) -> set[str]:
    """Return the names of visible files that do not have their full size."""
    return {
        path.name
        for path in list_visible(folder)
        if path.stat().st_size != sizes.get(path.name)
    }


def compute_checksums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each visible file."""
    return {path.name: _compute_sha256(path) for path in list_visible(folder)}


def _compute_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
