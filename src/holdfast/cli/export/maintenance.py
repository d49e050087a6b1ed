"""The maintenance commands `holdfast export tables` and `doctor`."""

import os
from typing import Annotated

import typer

from holdfast.cli.arguments import AsJson
from holdfast.cli.errors import silence_log
from holdfast.cli.export.options import STORE_VARIABLE, Store, resolve_store
from holdfast.cli.maintenance import CreateTables, check_tables, print_check_results


def tables(
    jobs: Store = None,
    create: CreateTables = False,
    as_json: AsJson = False,
) -> None:
    """Check the DynamoDB tables of a job store."""
    from holdfast.bootstrap.exports import create_job_tables
    from holdfast.doctor.stores import check_job_tables

    store = jobs or os.environ.get(STORE_VARIABLE, "")
    make = create_job_tables if create else None
    check_tables(store, "--jobs", make, check_job_tables, as_json)


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
    from holdfast.bootstrap.exports import open_jobs
    from holdfast.doctor.exports import Exports, examine_exports

    with silence_log():
        store = resolve_store(jobs)
        subject = Exports(os.environ, store, open_jobs, to, state_machine)
        print_check_results(examine_exports(subject), as_json)
