"""Checks of a store of jobs or conversations: a SQLite file, or DynamoDB tables.

Of a table, these compare keys, index and row expiry with its definition.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from holdfast.doctor.checks import (
    CheckFailed,
    CheckLevel,
    CheckResult,
    fail,
    ok,
    run_checks,
    warn,
)
from holdfast.doctor.sqlite_file import SQLITE_FILE, SqliteFile, check_filesystem
from holdfast.errors import HoldfastError
from holdfast.store.sqlite.connection import Schema
from holdfast.urls import STORES, find_store_file, parse_url

_RECREATE = "a key cannot be changed: use other names (dynamodb:PREFIX) or recreate the table"


class StoreTables(NamedTuple):
    """The tables of a store: the arguments of CreateTable for each of them.

    `expiring` maps the tables whose rows expire to the attribute that holds the time, and
    `command` is the one that shows the tables.
    """

    definitions: list[dict[str, Any]]
    expiring: Mapping[str, str]
    command: str


@dataclass(frozen=True, slots=True)
class StoreKind:
    """A product's kind of store.

    A file must have `schema`; `define_tables` takes the prefix of tables. `examine` writes to
    the opened store without an effect, and checks its contents. For people, `content` is what
    creates the file of a store, and `setting` is where its URL comes from.
    """

    schema: Schema
    define_tables: Callable[[str], StoreTables]
    create_tables: Callable[[str], list[str]]
    open: Callable[[str], AbstractContextManager[Any]]
    examine: Callable[[Any, Mapping[str, str]], Iterable[CheckResult]]
    content: str
    setting: str


def check_store(kind: StoreKind, url: str, env: Mapping[str, str]) -> Iterator[CheckResult]:
    """Check the store with that URL. Nothing is created. Of a file, only problems are shown."""
    file = find_store_file(url)
    if file is not None and not file.exists():
        yield ok(f"{file} does not exist yet; the first {kind.content} creates it")
        return
    results = list(
        check_tables(kind, url)
        if file is None
        else _find_problems(SqliteFile(file, kind.schema))
    )
    yield from results
    if any(result.level is CheckLevel.FAIL for result in results):
        return  # opening the store would only report the same problems
    try:
        with kind.open(url) as store:
            results = list(kind.examine(store, env))
    except HoldfastError as error:
        remedy = f"check {kind.setting} and the permissions"
        raise CheckFailed(f"{url}: {error}", remedy) from error
    yield ok(f"{url} can be read and written")
    yield from results


def _find_problems(file: SqliteFile) -> Iterator[CheckResult]:
    for result in run_checks(file, *STORE_FILE) if file.exists else ():
        if result.level is not CheckLevel.OK:
            yield replace(result, check="", found=f"{result.check}: {result.found}")
        if result.level is CheckLevel.FAIL:
            return


# -- what AWS answers


@contextmanager
def explain_aws_errors(problem: str, *, denied: str, otherwise: str) -> Iterator[None]:
    """Turn an error of an AWS call inside into CheckFailed, with the error's code.

    `denied` is the remedy if the call is not allowed, and `otherwise` that of other errors.
    """
    from holdfast.aws.errors import DENIED, describe_cause, get_client_errors, get_error_code

    try:
        yield
    except get_client_errors() as error:
        remedy = denied if get_error_code(error) in DENIED else otherwise
        raise CheckFailed(f"{problem} ({describe_cause(error)})", remedy) from error


# -- tables


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its definition, and what DynamoDB says about it.

    `expires_by` is the attribute that holds a row's expiry, or None if rows do not expire.
    """

    name: str
    definition: Mapping[str, Any]
    description: Mapping[str, Any]
    expiry: Mapping[str, Any]
    expires_by: str | None


def check_tables(kind: StoreKind, url: str, client: Any = None) -> Iterator[CheckResult]:
    """Compare each table of a store with its definition.

    Raises ConfigError if no client is given and none can be made.
    """
    if client is None:
        from holdfast.aws.clients import make_retrying_client

        client = make_retrying_client("dynamodb")
    tables = kind.define_tables(parse_url(url, STORES).path)

    def examine(definition: Mapping[str, Any]) -> Iterator[CheckResult]:
        name = definition["TableName"]
        description, expiry = _describe(client, name, tables.command)
        table = Table(name, definition, description, expiry, tables.expiring.get(name))
        return run_checks(table, *TABLE)

    for definition in tables.definitions:
        yield from run_checks(definition, ("table", examine))


def has_tables(kind: StoreKind, url: str, client: Any) -> bool:
    """Return whether the first table of a store exists, or may exist."""
    from holdfast.aws.errors import get_client_errors, get_error_code
    from holdfast.store.dynamodb.errors import NO_TABLE

    first, *_ = kind.define_tables(parse_url(url, STORES).path).definitions
    try:
        client.describe_table(TableName=first["TableName"])
    except get_client_errors() as error:
        return get_error_code(error) not in NO_TABLE
    return True


def _describe(client: Any, name: str, command: str) -> tuple[Any, Any]:
    from holdfast.aws.errors import DENIED, get_client_errors, get_error_code
    from holdfast.store.dynamodb import errors

    try:
        table = client.describe_table(TableName=name)["Table"]
        return table, client.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
    except get_client_errors() as error:
        code = get_error_code(error)
        if code in errors.NO_TABLE:
            text, remedy = f"{name} does not exist", f"create it with `{command} --create`"
        else:
            operation = getattr(error, "operation_name", "DescribeTable")
            reason = str(errors.explain_error(operation, error, command))
            text, remedy = f"{name}: {reason}", "check that this machine can reach DynamoDB"
            if code in DENIED:
                remedy = f"allow this user dynamodb:{operation}"
        raise CheckFailed(text, remedy) from error


def _check_table(table: Table) -> Iterator[CheckResult]:
    actual, expected = _format_key(table.description), _format_key(table.definition)
    status = table.description.get("TableStatus")
    if actual != expected:
        yield fail(f"{table.name} has the key {actual}, expected {expected}", _RECREATE)
    elif status != "ACTIVE":
        yield warn(f"{table.name} is {str(status).lower()}", "check again in a minute")
    else:
        yield ok(f"{table.name}: {actual}")


def _check_index(table: Table) -> Iterator[CheckResult]:
    present = table.description.get("GlobalSecondaryIndexes") or ()
    indexes = {index["IndexName"]: index for index in present}
    for definition in table.definition.get("GlobalSecondaryIndexes", ()):
        yield _compare_index(table.name, indexes.get(definition["IndexName"]), definition)


def _compare_index(
    name: str, index: Mapping[str, Any] | None, definition: Mapping[str, Any]
) -> CheckResult:
    index_name, expected = definition["IndexName"], _format_key(definition)
    if index is None:
        return fail(
            f"{name} has no {index_name}, so active jobs are not found and get no heartbeats",
            f"add it: {expected}, keys only",
        )
    actual = _format_key(index)
    if actual.split(", ")[0] != expected.split(", ")[0]:
        return fail(f"{index_name} has the key {actual}, expected {expected}", "recreate it")
    if actual != expected or index.get("Projection", {}).get("ProjectionType") != "KEYS_ONLY":
        return warn(
            f"{index_name} has the key {actual} and holds more than keys: each counted "
            "result may be written twice, and all active jobs share one partition",
            f"recreate it: {expected}, keys only",
        )
    return ok(f"{index_name}: {actual}, keys only")


def _check_expiry(table: Table) -> Iterator[CheckResult]:
    if (attribute := table.expires_by) is None:
        return
    is_on = table.expiry.get("TimeToLiveStatus") in ("ENABLED", "ENABLING")
    if is_on and table.expiry.get("AttributeName") == attribute:
        yield ok(f"{table.name}: finished rows expire by {attribute}")
    else:
        yield warn(
            f"{table.name} keeps finished rows forever",
            f"enable time to live on the attribute {attribute}; `--create` does it",
        )


def _format_key(schema: Mapping[str, Any]) -> str:
    order = {"HASH": 0, "RANGE": 1}
    parts = sorted(schema.get("KeySchema") or (), key=lambda part: order[part["KeyType"]])
    return ", ".join(part["AttributeName"] for part in parts)


STORE_FILE = (check_filesystem, *SQLITE_FILE)
TABLE = (_check_table, _check_index, _check_expiry)
