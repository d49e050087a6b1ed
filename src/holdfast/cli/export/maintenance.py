"""Keeping exports in order: `tables` and `doctor`."""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.arguments import AsJson
from holdfast.cli.console import info
from holdfast.cli.errors import UsageError, report_errors
from holdfast.cli.export.options import STORE_VARIABLE, Store, store_or_default
from holdfast.cli.maintenance import answer_findings

if TYPE_CHECKING:
    from holdfast.core.checks import CheckResult


def tables(
    jobs: Store = None,
    create: Annotated[
        bool, typer.Option("--create", help="Make the tables that are not there.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say whether the DynamoDB tables of a job store are right."""
    from holdfast.bootstrap.export_checks import create_job_tables, job_table_findings

    store = jobs or os.environ.get(STORE_VARIABLE, "")
    if not store.startswith("dynamodb:"):
        raise UsageError(
            "which tables? Name the store, as in `holdfast export tables --jobs dynamodb:`; "
            "a file needs none"
        )
    if create:
        for name in create_job_tables(store):
            info(f"made {name}")
    answer_findings(job_table_findings(store), as_json)


def doctor(
    jobs: Store = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="TARGET", help="The target to try.")
    ] = None,
    state_machine: Annotated[
        str | None,
        typer.Option(
            metavar="ARN|FILE.json", help="The state machine whose timeouts are checked."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look for what will hurt: settings, job store, target, state machine."""
    with report_errors():
        answer_findings(_findings(jobs, to, state_machine), as_json)


def _findings(
    jobs: str | None, to: str | None, state_machine: str | None
) -> "Iterable[CheckResult]":
    from holdfast.bootstrap.export_checks import export_findings

    return export_findings(
        os.environ, jobs=store_or_default(jobs), to=to, state_machine=state_machine
    )
