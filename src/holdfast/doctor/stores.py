"""Checks of a store of jobs or conversations: a SQLite file, or DynamoDB tables."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

from holdfast.core.checks import CheckLevel, CheckResult, ok
from holdfast.core.errors import HoldfastError
from holdfast.core.urls import find_store_file
from holdfast.doctor.runner import CheckFailed, run_checks

T = TypeVar("T")


def check_store(
    url: str,
    open_store: Callable[[str], AbstractContextManager[T]],
    check_tables: Callable[[str], Iterator[CheckResult]],
    examine: Callable[[T], Iterator[CheckResult]],
    *,
    content: str,
    setting: str,
) -> Iterator[CheckResult]:
    """Check the store with that URL. Nothing is created.

    `check_tables` checks the tables of a dynamodb: URL. `examine` writes to the opened store
    without an effect, and checks its contents. For people, `content` is what creates the file
    of a store, and `setting` is where the URL comes from.
    """
    file = find_store_file(url)
    if file is None:
        tables = list(run_checks(url, ("table", check_tables)))
        yield from tables
        if any(result.level is CheckLevel.FAIL for result in tables):
            return  # opening the store would only report the same problems
    elif not file.exists():
        yield ok(f"{file} does not exist yet; the first {content} creates it")
        return
    try:
        with open_store(url) as store:
            yield from examine(store)
    except HoldfastError as error:
        raise CheckFailed(f"{url}: {error}", f"check {setting} and the permissions") from error
