"""The maintenance commands `holdfast export tables` and `doctor`."""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.arguments import AsJson
from holdfast.cli.console import info
from holdfast.cli.errors import UsageError, silence_log
from holdfast.cli.export.options import STORE_VARIABLE, Store, resolve_store
from holdfast.cli.maintenance import print_check_results

if TYPE_CHECKING:
    from holdfast.core.checks import CheckResult


def tables(
    jobs: Store = None,
    create: Annotated[
        bool, typer.Option("--create", help="Create the missing tables.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check the DynamoDB tables of a job store."""
    from holdfast.bootstrap.exports import create_job_tables
    from holdfast.doctor.tables import check_job_tables

    store = jobs or os.environ.get(STORE_VARIABLE, "")
    if not store.startswith("dynamodb:"):
        raise UsageError(
            f"--jobs must be dynamodb:PREFIX; got {store!r}, and a file needs no tables"
        )
    if create:
        for name in create_job_tables(store):
            info(f"created {name}")
    print_check_results(check_job_tables(store), as_json)


def doctor(
    jobs: Store = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="TARGET", help="Check this target too.")
    ] = None,
    state_machine: Annotated[
        str | None,
        typer.Option(
            metavar="ARN|FILE.json", help="Check the timeouts of this state machine too."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check settings, job store, target and state machine for problems."""
    with silence_log():
        print_check_results(_run_checks(jobs, to, state_machine), as_json)


def _run_checks(
    jobs: str | None, to: str | None, state_machine: str | None
) -> "Iterable[CheckResult]":
    from holdfast.bootstrap.exports import open_jobs
    from holdfast.doctor.exports import Exports, examine_exports

    store = resolve_store(jobs)
    return examine_exports(Exports(os.environ, store, open_jobs, to, state_machine))
