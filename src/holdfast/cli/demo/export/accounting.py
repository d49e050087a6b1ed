"""Compare the server's files with the target, the job store and the queue."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from holdfast.cli.demo.export.files import DemoFile
from holdfast.cli.demo.export.server import FileRequest
from holdfast.cli.demo.screen import DemoReport, ReportRow
from holdfast.jobs.model import ExportJob, ExportTask, TaskStatus


@dataclass(frozen=True, slots=True)
class ExportReport(DemoReport):
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

    def list_rows(self) -> list[ReportRow]:
        """Return the lines of the report."""
        expected = ("FAILED", "JobCompletedWithFailures") if self.failed else ("COMPLETED", "")
        is_right = self.acked and (self.status, self.error) == expected
        killed, against = "killed with SIGKILL", "the job's counters against its task rows"
        again = self.fetched_again or not self.counted_before
        ended = f"the job is {self.status}: {self.error}"
        before = f"of {self.counted_before} counted before the service was killed"
        rows = [
            ("files requested", self.asked, False, ""),
            ("complete", self.whole, False, ""),
            ("failed", self.failed, False, f"{'; '.join(self.reasons)}, on purpose"),
            ("lost", self.lost, self.lost, "neither complete nor failed"),
            ("visible, incomplete", self.torn, self.torn, "under their names, at any time"),
            ("miscounted", self.miscounted, self.miscounted, against),
            ("fetched again", self.fetched_again, again, before),
            ("continued", self.continued, False, "downloads, after the bytes they had"),
            ("workers replaced", self.workers_replaced, not self.workers_replaced, killed),
            ("services replaced", self.services_replaced, not self.services_replaced, killed),
            ("messages acked", int(self.acked), not is_right, ended),
        ]
        return [ReportRow(label, n, note, bool(wrong)) for label, n, wrong, note in rows]


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
