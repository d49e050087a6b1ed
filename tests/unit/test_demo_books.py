"""The books of the demo's export: whatever is wrong unbalances them."""

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.cli.demo.export import books as export_books
from holdfast.cli.demo.export.books import ExportBooks, ExportInterventions
from holdfast.cli.demo.export.files import JOB, DemoFile, shelf
from holdfast.cli.demo.export.server import Ask
from holdfast.jobs.model import (
    ExportJob,
    ExportTask,
    JobError,
    JobState,
    JobStatus,
    TaskStatus,
)

FILES = shelf(30, "127.0.0.1:1")
MISSING = next(file for file in FILES if file.habit == "missing")
EARLY = [file.key for file in FILES[:15]]
DEEDS = ExportInterventions(
    counted=frozenset(EARLY),
    asks_before=len(EARLY),
    torn=frozenset(),
    workers_replaced=1,
    services_replaced=1,
    acked=True,
)
FOUND = {file.key: file.checksum for file in FILES if file is not MISSING}
ASKS = [Ask(file.key, 0, 1) for file in FILES]


def row(file: DemoFile) -> ExportTask:
    task = ExportTask.of(JOB, f"http://127.0.0.1:1/{file.key}", file.key)
    if file is MISSING:
        return replace(task, status=TaskStatus.FAILED, error=JobError("Http404", "gone"))
    return replace(task, status=TaskStatus.COMPLETED)


ROWS = [row(file) for file in FILES]
ENDED = replace(
    ExportJob.create(JOB, "demo", "you", JobState(JobStatus.FAILED, 30, 29, 1)),
    error=JobError("JobCompletedWithFailures", "1 of 30 tasks failed"),
)


def exported(
    found: dict[str, str] = FOUND,
    job: ExportJob | None = ENDED,
    rows: list[ExportTask] = ROWS,
    asks: list[Ask] = ASKS,
    deeds: ExportInterventions = DEEDS,
) -> ExportBooks:
    return export_books.balance(FILES, found, job, rows, asks, deeds)


def counters(total: int, completed: int, failed: int) -> ExportJob:
    return replace(ENDED, state=JobState(JobStatus.FAILED, total, completed, failed))


def test_an_export_that_went_right_balances() -> None:
    books = exported()
    assert books.balance
    assert (books.asked, books.whole, books.failed, books.lost) == (30, 29, 1, 0)
    assert books.reasons == (f"{MISSING.key}: Http404",)
    assert not any(row.wrong for row in books.rows())


WRONG = {
    "lost": exported({key: found for key, found in FOUND.items() if key != EARLY[0]}),
    "half-done in sight": exported({**FOUND, EARLY[0]: "0" * 64}),
    "miscounted": exported(rows=ROWS[1:], job=counters(30, 28, 1)),
    "fetched again": exported(asks=[*ASKS, Ask(EARLY[0], 0, 2)]),
    "workers replaced": exported(deeds=replace(DEEDS, workers_replaced=0)),
    "services replaced": exported(deeds=replace(DEEDS, services_replaced=0)),
    "messages acked": exported(deeds=replace(DEEDS, acked=False)),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_unbalances_the_books_and_is_marked(what: str) -> None:
    books = WRONG[what]
    assert not books.balance
    assert what in {row.what for row in books.rows() if row.wrong}


@pytest.mark.parametrize("counted", [(31, 29, 1), (30, 30, 1), (30, 29, 0), (0, 0, 0)])
def test_counters_that_are_not_the_rows_are_miscounted(counted: tuple[int, int, int]) -> None:
    """I-JB-1, as the demo looks at it."""
    books = exported(job=counters(*counted))
    assert books.miscounted > 0
    assert not books.balance


@pytest.mark.parametrize(
    "books",
    [
        exported(job=None, rows=[]),
        exported(job=replace(ENDED, state=JobState(JobStatus.COMPLETED, 30, 29, 1))),
        exported(job=replace(ENDED, error=None)),
        exported({**FOUND, "stranger": "0" * 64}),
        exported(deeds=replace(DEEDS, torn=frozenset([EARLY[0]]))),
        exported(rows=[replace(one, status=TaskStatus.PENDING) for one in ROWS]),
        exported(deeds=replace(DEEDS, counted=frozenset())),
    ],
    ids=["no job", "completed", "no error", "stranger", "torn once", "open", "none counted"],
)
def test_other_ways_to_be_wrong(books: ExportBooks) -> None:
    assert not books.balance


def test_a_file_that_failed_although_the_server_has_it_is_lost() -> None:
    key = EARLY[0]
    assert key != MISSING.key
    found = {name: checksum for name, checksum in FOUND.items() if name != key}
    rows = [replace(one, status=TaskStatus.FAILED) if one.key == key else one for one in ROWS]
    books = exported(found, counters(30, 28, 2), rows)
    assert (books.lost, books.miscounted, books.failed) == (1, 0, 1)
    assert not books.balance


def test_downloads_that_go_on_behind_what_was_there_are_counted() -> None:
    late = FILES[-1].key
    assert exported(asks=[*ASKS, Ask(late, 4096, 2)]).continued == 1


def test_half_a_file_under_its_name_is_seen(tmp_path: Path) -> None:
    (tmp_path / "whole").write_bytes(b"1234")
    (tmp_path / "half").write_bytes(b"12")
    (tmp_path / ".hidden").write_bytes(b"1")
    assert export_books.torn(tmp_path, {"whole": 4, "half": 4}) == {"half"}
    assert export_books.checksums(tmp_path).keys() == {"whole", "half"}
    assert export_books.torn(tmp_path / "not there", {}) == set()


def test_the_shelf_has_its_troublemakers_early_whatever_its_size() -> None:
    for size in (30, 120):
        files = shelf(size, "127.0.0.1:1")
        assert len({file.checksum for file in files}) == size
        habits = [file.habit for file in files]
        assert set(habits[:9]) == {"good", "busy", "cut", "held", "missing"}
        assert set(habits[9:]) == {"good"}
