"""Compare the server's files with the target, the job store and the queue."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

from holdfast.cli.demo.export.files import DemoFile
from holdfast.cli.demo.export.server import FileRequest
from holdfast.cli.demo.screen import DemoReport, ReportRow
from holdfast.jobs.model import ExportJob, ExportTask, TaskStatus

_TERMS = (
    "Complete means that the SHA-256 of the file is right. Fetched again means that the "
    "second service requested a file that the first had counted."
)


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
    workers: int,
    services: int,
) -> DemoReport:
    """Return the report. `target` holds the SHA-256 of each file in the target.

    `counted` are the files that were counted when the service was killed, after
    `requests_before` requests, and `torn` those seen under their names while incomplete.
    So many `workers` and `services` were replaced after a kill.
    """
    whole = {file.key for file in files if target.get(file.key) == file.checksum}
    failed = {row.key: row for row in rows if row.status is TaskStatus.FAILED}
    expected = {file.key for file in files if file.habit == "missing"} & failed.keys() - whole
    continued = sum(request.start > 0 for request in requests)
    again = counted & {request.key for request in requests[requests_before:]}
    lost, miscounted = len(files) - len(whole | expected), _count_differences(job, rows)
    visible = torn | (target.keys() - whole)
    reasons = [_format_reason(failed[key]) for key in sorted(expected)]
    status = job.status.value if job else "NOT FOUND"
    error = job.error.code if job and job.error else ""
    right = ("FAILED", "JobCompletedWithFailures") if expected else ("COMPLETED", "")
    ended = acked and (status, error) == right
    at_any_time = "under their names, at any time"
    killed, against = "killed with SIGKILL", "the job's counters against its task rows"
    before = f"of {len(counted)} counted before the service was killed"
    lines: list[tuple[str, str, int, object, str]] = [
        ("asked", "files requested", len(files), False, ""),
        ("whole", "complete", len(whole), False, ""),
        ("failed", "failed", len(expected), False, f"{'; '.join(reasons)}, on purpose"),
        ("lost", "lost", lost, lost, "neither complete nor failed"),
        ("torn", "visible, incomplete", len(visible), visible, at_any_time),
        ("miscounted", "miscounted", miscounted, miscounted, against),
        ("fetched_again", "fetched again", len(again), again or not counted, before),
        ("continued", "continued", continued, False, "downloads, after the bytes they had"),
        ("workers_replaced", "workers replaced", workers, not workers, killed),
        ("services_replaced", "services replaced", services, not services, killed),
        ("acked", "messages acked", int(acked), not ended, f"the job is {status}: {error}"),
    ]
    return DemoReport(
        [ReportRow(key, label, n, note, bool(wrong)) for key, label, n, wrong, note in lines],
        _TERMS,
        {
            "counted_before": len(counted),
            "acked": acked,
            "status": status,
            "error": error,
            "reasons": reasons,
        },
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
