"""The maintenance commands `purge` and `doctor`."""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.arguments import (
    AsJson,
    Queue,
    make_duration_option,
    open_manager,
    resolve_queue,
)
from holdfast.cli.console import info, print_json, print_result
from holdfast.cli.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from holdfast.core.checks import CheckResult

CreateTables = Annotated[bool, typer.Option("--create", help="Create the missing tables.")]
_SIGNS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}


def purge(
    queue: Queue = None,
    *,
    older_than: Annotated[
        float,
        make_duration_option("Remove messages completed longer ago than this."),
    ],
    as_json: AsJson = False,
) -> None:
    """Remove completed messages, and files that killed processes left behind."""
    with open_manager(queue) as manager:
        purged = manager.purge(older_than)
    print_json({"purged": purged}) if as_json else print_result(f"purged {purged:,}")


def doctor(queue: Queue = None, as_json: AsJson = False) -> None:
    """Check a queue's folder, or an SQS queue's settings, for problems."""
    from holdfast.bootstrap import examine_queue

    print_check_results(examine_queue(resolve_queue(queue)), as_json)


def check_tables(
    store: str,
    setting: str,
    create: "Callable[[str], Iterable[str]] | None",
    check: "Callable[[str], Iterable[CheckResult]]",
    as_json: bool,
) -> None:
    """Check the DynamoDB tables of a store, after creating the missing ones with `create`."""
    if not store.startswith("dynamodb:"):
        raise UsageError(
            f"{setting} must be dynamodb:PREFIX; got {store!r}, and a file needs no tables"
        )
    for name in create(store) if create else ():
        info(f"created {name}")
    print_check_results(check(store), as_json)


def print_check_results(results: "Iterable[CheckResult]", as_json: bool) -> None:
    """Print check results as lines or as JSON. Exits with 1 if one is a failure."""
    printed = list(results) if as_json else list(_print_each(results))
    if as_json:
        print_json([{**asdict(result), "level": result.level.value} for result in printed])
    if any(result.level.value == "fail" for result in printed):
        raise typer.Exit(ExitCode.FAILED)


def _print_each(results: "Iterable[CheckResult]") -> "Iterable[CheckResult]":
    """Print and yield each result as soon as it is known, because some checks are slow."""
    for result in results:
        sign, colour = _SIGNS[result.level.value]
        typer.secho(f"{sign} {result.level.value:<5}", fg=colour, nl=False)
        print_result(f"{result.check:<14} {result.found}")
        if result.remedy:
            print_result(f"{'':<22} → {result.remedy}")
        yield result
