"""doctor on a store: it opens only what exists and can be used, and creates nothing."""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import boto3
import pytest
from moto import mock_aws

from holdfast.doctor.checks import CheckLevel, CheckResult, ok, run_checks
from holdfast.doctor.stores import StoreKind, StoreTables, check_store
from holdfast.doctor.targets import examine_target
from holdfast.errors import StoreUnavailable
from holdfast.exports.sqlite_jobs import JOBS, SQLiteJobs
from holdfast.store.dynamodb.tables import define_table

TABLE = define_table("acme-jobs", "id")


class Stores:
    """A kind of store that counts how often a store is opened."""

    def __init__(self, error: Exception | None = None) -> None:
        self.opened: list[str] = []
        self._error = error

    def open(self, url: str) -> AbstractContextManager[str]:
        self.opened.append(url)
        if self._error is not None:
            raise self._error
        return nullcontext(url)

    def examine(self, url: str) -> list[CheckResult]:
        kind = StoreKind(
            schema=JOBS,
            define_tables=lambda prefix: StoreTables([TABLE], {}, "show tables"),
            create_tables=lambda url: [],
            open=self.open,
            examine=lambda store, env: [ok("none", check="jobs")],
            content="job",
            setting="--jobs",
        )
        return list(run_checks(url, ("store", partial(check_store, kind, env={}))))


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")


def test_a_file_that_does_not_exist_is_not_opened_and_not_created(tmp_path: Path) -> None:
    stores = Stores()
    [result] = stores.examine(f"sqlite:{tmp_path}/new.db")
    assert (result.check, result.level) == ("store", CheckLevel.OK)
    assert result.found == f"{tmp_path}/new.db does not exist yet; the first job creates it"
    assert (stores.opened, list(tmp_path.iterdir())) == ([], [])


@mock_aws
def test_a_store_is_opened_unless_a_table_is_missing() -> None:
    stores = Stores()
    [missing] = stores.examine("dynamodb:acme-")
    assert (missing.check, missing.level) == ("table", CheckLevel.FAIL)
    assert "`show tables --create`" in missing.remedy
    assert stores.opened == []
    boto3.client("dynamodb").create_table(**TABLE)
    names = [result.check for result in stores.examine("dynamodb:acme-")]
    assert (names, stores.opened) == (["table", "store", "jobs"], ["dynamodb:acme-"])


def test_a_store_that_cannot_be_used_is_a_failure(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    file.touch()
    [result] = Stores(StoreUnavailable("locked")).examine(str(file))
    assert (result.level, result.found) == (CheckLevel.FAIL, f"{file}: locked")
    assert result.remedy == "check --jobs and the permissions"


def test_a_file_with_a_problem_is_reported_like_that_of_a_queue(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    SQLiteJobs(file).close()
    stores = Stores()
    before = stores.examine(str(file))  # with a warning if the folder is in memory
    file.chmod(0o644)
    [access] = [result for result in stores.examine(str(file)) if result not in before]
    assert access.check == "store"
    assert access.found.startswith("access: every user of this machine can read")
    with file.open("r+b") as damaged:
        damaged.seek(100)
        damaged.write(b"\xa5" * 300)
    assert stores.examine(str(file))[-1].level is CheckLevel.FAIL
    assert len(stores.opened) == 2  # the damaged one is not opened


@pytest.mark.parametrize("url", ["redis:x", "a\nb"])
def test_a_url_that_no_store_can_have_is_a_failure(url: str) -> None:
    [result] = Stores().examine(url)
    assert (result.check, result.level) == ("store", CheckLevel.FAIL)
    assert "\n" not in result.found


@mock_aws
def test_a_prefix_is_checked_for_the_product_that_has_tables_there() -> None:
    missing = list(examine_target("dynamodb:acme-", {}))
    assert len(missing) == 7  # the tables of both products
    assert {result.level for result in missing} == {CheckLevel.FAIL}
    from holdfast.exports.dynamodb import create_tables

    create_tables(
        boto3.client("dynamodb"), jobs_table="acme-ExportJobs", tasks_table="acme-ExportTasks"
    )
    results = list(examine_target("dynamodb:acme-", {}))
    assert {result.level for result in results} == {CheckLevel.OK}
    assert [result.check for result in results][-2:] == ["store", "jobs"]
