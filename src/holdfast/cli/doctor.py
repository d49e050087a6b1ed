"""`holdfast doctor`, and how every check is printed."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.arguments import AsJson
from holdfast.cli.console import (
    ExitCode,
    UsageError,
    info,
    print_json,
    print_result,
    silence_log,
)
from holdfast.doctor.targets import examine_target, examine_worker, find_targets
from holdfast.products import find_products
from holdfast.urls import find_store_file
from holdfast.variables import QUEUE_VARIABLE, find_misspelt, warn_of_misspelt

if TYPE_CHECKING:
    from holdfast.doctor.checks import CheckResult
    from holdfast.doctor.stores import StoreKind

CreateTables = Annotated[bool, "--create", "Create the missing tables."]
_TARGETS = ", ".join(
    ["a queue", "a store (jobs.db, dynamodb:PREFIX)", *(each.group for each in find_products())]
)
_SIGNS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}


def doctor(
    targets: Annotated[
        list[str] | None,
        "<TARGET>",
        f"What to check: {_TARGETS}. Without it, all that the environment configures.",
    ] = None,
    metrics_port: Annotated[
        int | None,
        "1-65535",
        "Check only that the worker on this machine with this --metrics-port answers.",
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check queues, stores, products or a worker for problems."""
    if targets and metrics_port is not None:
        raise UsageError(
            f"give TARGET or --metrics-port; got {targets[0]!r} and {metrics_port}"
        )
    if metrics_port is not None:
        print_check_results(examine_worker(metrics_port), as_json)
        return
    targets = targets or find_targets(os.environ)
    if not targets:
        hints = [f"name what to check ({_TARGETS}), or set {QUEUE_VARIABLE}"]
        raise UsageError("no queue is given: " + "; ".join(hints + find_misspelt(os.environ)))
    warn_of_misspelt(os.environ)  # here, because the log is silent while doctor checks
    with silence_log():
        print_check_results(_examine_each(targets, as_json), as_json)


def _examine_each(targets: Sequence[str], as_json: bool) -> "Iterator[CheckResult]":
    """Yield the results of all targets, each below its name or with it."""
    examined = [(target, examine_target(target, os.environ)) for target in targets]
    if len(examined) == 1:
        yield from examined[0][1]
        return
    for target, results in examined:
        if not as_json:
            print_result(target)
        for result in results:
            yield replace(result, check=f"{target}: {result.check}") if as_json else result


def show_tables(kind: "StoreKind", store: str, create: bool, as_json: bool) -> None:
    """Check the DynamoDB tables of a store, after creating the missing ones with `create`."""
    from holdfast.doctor.stores import check_tables

    if find_store_file(store) is not None:
        raise UsageError(
            f"{kind.setting} must be dynamodb:PREFIX; got {store!r}, and a file needs no tables"
        )
    for name in kind.create_tables(store) if create else ():
        info(f"created {name}")
    print_check_results(check_tables(kind, store), as_json)


def print_check_results(results: "Iterable[CheckResult]", as_json: bool) -> None:
    """Print check results as lines or as JSON. Exits with 1 if one is a failure."""
    printed = list(results) if as_json else list(_print_each(results))
    if as_json:
        print_json(printed)
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
