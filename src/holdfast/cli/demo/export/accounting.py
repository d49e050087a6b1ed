"""Compare the server's files with the target, the job store and the queue."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from holdfast.cli.demo.export.files import DemoFile
from holdfast.cli.demo.export.server import FileRequest
from holdfast.cli.demo.screen import ReportRow
from holdfast.jobs.model import ExportJob, ExportTask, TaskStatus


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The accounting report of the export scenario."""

    terms: ClassVar[str] = (
        "Complete means that the SHA-256 of the file is right. Fetched again means that the "
        "second service requested a file that the first had counted."
    )
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
        neither, torn = "neither complete nor failed", "under their names, at any time"
        against = "the job's counters against its task rows"
        before = f"of {self.counted_before} counted before the service was killed"
        zeros = [
            ("lost", self.lost, neither),
            ("visible, incomplete", self.torn, torn),
            ("miscounted", self.miscounted, against),
            ("fetched again", self.fetched_again, before),
        ]
        some = [
            ("workers replaced", self.workers_replaced, "killed with SIGKILL"),
            ("services replaced", self.services_replaced, "killed with SIGKILL"),
            ("messages acked", int(self.acked), f"the job is {self.status}: {self.error}"),
        ]
        return [
            ReportRow("files requested", self.asked),
            ReportRow("complete", self.whole),
            ReportRow("failed", self.failed, f"{'; '.join(self.reasons)}, on purpose"),
            *(ReportRow(label, n, note, wrong=n > 0) for label, n, note in zeros),
            ReportRow("continued", self.continued, "downloads, after the bytes they had"),
            *(ReportRow(label, n, note, wrong=n == 0) for label, n, note in some),
        ]


def make_report(
    files: Sequence[DemoFile],
    target: Mapping[str, str],
    job: ExportJob | None,
    rows: Sequence[ExportTask],
    requests: Sequence[FileRequest],
    *,
    counted: Set[str],
    requests_before: int,
    torn: Set[str],
    acked: bool,
    **observed: int,
) -> ExportReport:
    """Return the report. `target` holds the SHA-256 of each file in the target.

    `counted` are the files that were counted when the service was killed, after
    `requests_before` requests, and `torn` those seen under their names while incomplete. The
    other counts are taken as they were observed.
    """
    whole = {file.key for file in files if target.get(file.key) == file.checksum}
    failed = {row.key: row for row in rows if row.status is TaskStatus.FAILED}
    expected = {file.key for file in files if file.habit == "missing"} & failed.keys() - whole
    again = counted & {request.key for request in requests[requests_before:]}
    return ExportReport(
        asked=len(files),
        whole=len(whole),
        failed=len(expected),
        lost=len(files) - len(whole | expected),
        torn=len(torn | (target.keys() - whole)),
        miscounted=_count_differences(job, rows),
        counted_before=len(counted),
        fetched_again=len(again),
        continued=sum(request.start > 0 for request in requests),
        acked=acked,
        status=job.status.value if job else "NOT FOUND",
        error=job.error.code if job and job.error else "",
        reasons=tuple(_format_reason(failed[key]) for key in sorted(expected)),
        **observed,
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
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in list_visible(folder)
    }
