"""The report of the demo's export act: any fault makes the totals differ."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.demo import export_act
from holdfast.demo.export_act import JOB, compute_checksums, find_incomplete, make_files
from holdfast.demo.file_server import DemoFile, FileRequest
from holdfast.demo.screen import DemoReport
from holdfast.exports.model import (
    ExportJob,
    ExportTask,
    JobError,
    JobState,
    JobStatus,
    TaskStatus,
)

FILES = make_files(30, "127.0.0.1:1")
MISSING = next(file for file in FILES if file.habit == "missing")
EARLY = [file.key for file in FILES[:15]]
OBSERVED: dict[str, Any] = {
    "counted": frozenset(EARLY),
    "requests_before": len(EARLY),
    "torn": frozenset(),
    "workers": 1,
    "services": 1,
    "acked": True,
}
TARGET = {file.key: file.checksum for file in FILES if file is not MISSING}
REQUESTS = [FileRequest(file.key, 0, 1) for file in FILES]


def make_row(file: DemoFile) -> ExportTask:
    task = ExportTask.create(JOB, file.url, file.key)
    if file is MISSING:
        return replace(task, status=TaskStatus.FAILED, error=JobError("Http404", "gone"))
    return replace(task, status=TaskStatus.COMPLETED)


ROWS = [make_row(file) for file in FILES]
ENDED = replace(
    ExportJob.create(JOB, "demo", "you", JobState(JobStatus.FAILED, 30, 29, 1)),
    error=JobError("JobCompletedWithFailures", "1 of 30 tasks failed"),
)


def make_report(
    target: dict[str, str] = TARGET,
    job: ExportJob | None = ENDED,
    rows: list[ExportTask] = ROWS,
    requests: list[FileRequest] = REQUESTS,
    **observed: Any,
) -> DemoReport:
    return export_act.make_report(FILES, target, job, rows, requests, **(OBSERVED | observed))


def make_job(total: int, completed: int, failed: int) -> ExportJob:
    return replace(ENDED, state=JobState(JobStatus.FAILED, total, completed, failed))


def test_the_totals_of_a_good_export_match() -> None:
    report = make_report()
    assert report.totals_match
    counts = report.to_json()
    assert (counts["asked"], counts["whole"]) == (30, 29)
    assert (counts["failed"], counts["lost"]) == (1, 0)
    assert counts["reasons"] == [f"{MISSING.key}: Http404"]
    assert not any(row.wrong for row in report.rows)


WRONG = {
    "lost": make_report({key: checksum for key, checksum in TARGET.items() if key != EARLY[0]}),
    "visible, incomplete": make_report({**TARGET, EARLY[0]: "0" * 64}),
    "miscounted": make_report(rows=ROWS[1:], job=make_job(30, 28, 1)),
    "fetched again": make_report(requests=[*REQUESTS, FileRequest(EARLY[0], 0, 2)]),
    "workers replaced": make_report(workers=0),
    "services replaced": make_report(services=0),
    "messages acked": make_report(acked=False),
}


@pytest.mark.parametrize("label", WRONG)
def test_a_wrong_count_makes_the_totals_differ_and_is_marked(label: str) -> None:
    report = WRONG[label]
    assert not report.totals_match
    assert label in {row.label for row in report.rows if row.wrong}


@pytest.mark.parametrize("counted", [(31, 29, 1), (30, 30, 1), (30, 29, 0), (0, 0, 0)])
def test_counters_that_differ_from_the_rows_are_miscounted(
    counted: tuple[int, int, int],
) -> None:
    """The demo compares the job's counters with its task rows."""
    report = make_report(job=make_job(*counted))
    assert report.to_json()["miscounted"] > 0
    assert not report.totals_match


@pytest.mark.parametrize(
    "report",
    [
        make_report(job=None, rows=[]),
        make_report(job=replace(ENDED, state=JobState(JobStatus.COMPLETED, 30, 29, 1))),
        make_report(job=replace(ENDED, error=None)),
        make_report({**TARGET, "stranger": "0" * 64}),
        make_report(torn=frozenset([EARLY[0]])),
        make_report(rows=[replace(row, status=TaskStatus.PENDING) for row in ROWS]),
        make_report(counted=frozenset()),
    ],
    ids=["no job", "completed", "no error", "stranger", "torn once", "open", "none counted"],
)
def test_other_faults_make_the_totals_differ(report: DemoReport) -> None:
    assert not report.totals_match


def test_a_file_that_failed_although_the_server_has_it_is_lost() -> None:
    key = EARLY[0]
    assert key != MISSING.key
    target = {name: checksum for name, checksum in TARGET.items() if name != key}
    rows = [replace(row, status=TaskStatus.FAILED) if row.key == key else row for row in ROWS]
    report = make_report(target, make_job(30, 28, 2), rows)
    counts = report.to_json()
    assert (counts["lost"], counts["miscounted"], counts["failed"]) == (1, 0, 1)
    assert not report.totals_match


def test_continued_downloads_are_counted() -> None:
    late = FILES[-1].key
    report = make_report(requests=[*REQUESTS, FileRequest(late, 4096, 2)])
    assert report.to_json()["continued"] == 1


def test_an_incomplete_file_under_its_name_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "whole").write_bytes(b"1234")
    (tmp_path / "half").write_bytes(b"12")
    (tmp_path / ".hidden").write_bytes(b"1")
    assert find_incomplete(tmp_path, {"whole": 4, "half": 4}) == {"half"}
    assert compute_checksums(tmp_path).keys() == {"whole", "half"}
    assert find_incomplete(tmp_path / "not there", {}) == set()


def test_every_number_of_files_includes_the_difficult_ones_early() -> None:
    for size in (30, 120):
        files = make_files(size, "127.0.0.1:1")
        assert len({file.checksum for file in files}) == size
        habits = [file.habit for file in files]
        assert set(habits[:9]) == {"good", "busy", "cut", "held", "missing"}
        assert set(habits[9:]) == {"good"}
