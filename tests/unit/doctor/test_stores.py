"""doctor on a store: it opens only what exists and can be used, and creates nothing."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from holdfast.doctor.checks import CheckLevel, CheckResult, fail, ok, warn
from holdfast.doctor.runner import run_checks
from holdfast.doctor.stores import check_store
from holdfast.errors import StoreUnavailable
from holdfast.exports.sqlite_jobs import JOBS, SQLiteJobs


class Opener:
    """Opens a store and counts how often."""

    def __init__(self, error: Exception | None = None) -> None:
        self.opened: list[str] = []
        self._error = error

    def __call__(self, url: str) -> AbstractContextManager[str]:
        self.opened.append(url)
        if self._error is not None:
            raise self._error
        return nullcontext(url)


def examine(url: str, opener: Opener, table: CheckResult | None = None) -> list[CheckResult]:
    def check_tables(url: str) -> Iterator[CheckResult]:
        yield table or ok("there")

    def examine_opened(store: str) -> Iterator[CheckResult]:
        yield ok(f"{store} can be used")

    def check(url: str) -> Iterator[CheckResult]:
        return check_store(
            url,
            opener,
            check_tables,
            examine_opened,
            schema=JOBS,
            content="job",
            setting="--jobs",
        )

    return list(run_checks(url, ("store", check)))


def test_a_file_that_does_not_exist_is_not_opened_and_not_created(tmp_path: Path) -> None:
    opener = Opener()
    [result] = examine(f"sqlite:{tmp_path}/new.db", opener)
    assert (result.check, result.level) == ("store", CheckLevel.OK)
    assert result.found == f"{tmp_path}/new.db does not exist yet; the first job creates it"
    assert (opener.opened, list(tmp_path.iterdir())) == ([], [])


def test_a_store_is_not_opened_if_a_table_is_missing() -> None:
    opener = Opener()
    results = examine("dynamodb:acme-", opener, fail("gone", "create it"))
    assert [(result.check, result.level) for result in results] == [("table", CheckLevel.FAIL)]
    assert opener.opened == []


def test_a_store_with_tables_that_work_is_opened() -> None:
    opener = Opener()
    results = examine("dynamodb:acme-", opener, warn("slow", "wait"))
    assert [result.check for result in results] == ["table", "store"]
    assert opener.opened == ["dynamodb:acme-"]


def test_a_store_that_cannot_be_used_is_a_failure(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    file.touch()
    [result] = examine(str(file), Opener(StoreUnavailable("locked")))
    assert (result.level, result.found) == (CheckLevel.FAIL, f"{file}: locked")
    assert result.remedy == "check --jobs and the permissions"


def test_a_file_with_a_problem_is_reported_like_that_of_a_queue(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    SQLiteJobs(file).close()
    opener = Opener()
    before = examine(str(file), opener)  # with a warning if the folder is in memory
    file.chmod(0o644)
    results = examine(str(file), opener)
    assert {result.check for result in results} == {"store"}
    [access] = [result for result in results if result not in before]
    assert access.found.startswith("access: every user of this machine can read")
    with file.open("r+b") as damaged:
        damaged.seek(100)
        damaged.write(b"\xa5" * 300)
    results = examine(str(file), opener)
    assert results[-1].level is CheckLevel.FAIL
    assert len(opener.opened) == 2  # the damaged one is not opened


@pytest.mark.parametrize("url", ["redis:x", "a\nb"])
def test_a_url_that_no_store_can_have_is_a_failure(url: str) -> None:
    [result] = examine(url, Opener())
    assert (result.check, result.level) == ("store", CheckLevel.FAIL)
    assert "\n" not in result.found
