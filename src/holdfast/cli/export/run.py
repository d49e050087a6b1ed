"""`holdfast export run`: fetch a list of files in the foreground.

No queue is involved. The job store records what is done, so after Ctrl-C, a crash or a power
cut the same command continues with the rest.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.arguments import AsJson
from holdfast.cli.export.options import (
    DownloadOptions,
    Store,
    To,
    check_target,
    find_store_in_folder,
)
from holdfast.jobs.file_names import OWN_FOLDER

if TYPE_CHECKING:
    from holdfast.config.export import ExportSettings


def run(
    list_: Annotated[
        str,
        typer.Argument(
            metavar="LIST",
            help="A file with one URL or JSON object per line, a job as JSON with its "
            "tasks, or - for standard input.",
        ),
    ],
    *,
    to: To,
    jobs: Store = None,
    downloads: DownloadOptions,
    as_json: AsJson = False,
) -> None:
    """Fetch the files of a list. The same command again continues where it stopped."""
    from holdfast.bootstrap.exports import open_jobs
    from holdfast.cli.export.export_run import ExportRun, print_export_run
    from holdfast.cli.export.file_list import read_list
    from holdfast.cli.export.plan import make_plan

    check_target(to)
    settings = downloads.resolve_settings()
    files = read_list(list_)
    store = _choose_store(jobs, to, settings)
    # Jobs are kept forever, because the command may be repeated after months and must know
    # what it did. The store survives a power cut only if the files do (--durable).
    with open_jobs(store, keep_seconds=None, durable=settings.durable) as repository:
        plan = make_plan(files, to, repository)
        export_run = ExportRun(plan, to, repository, store, settings)
        export_run.run()
        print_export_run(export_run, as_json)
    raise typer.Exit(export_run.exit_code)


def _choose_store(given: str | None, to: str, settings: "ExportSettings") -> str:
    if given:
        return find_store_in_folder(given)
    if to.startswith("s3://"):
        return str(Path(settings.data_dir, "exports", "jobs.db"))
    Path(to).mkdir(
        parents=True, exist_ok=True
    )  # with the umask's mode; the store's folder is private
    return str(Path(to, OWN_FOLDER, "jobs.db"))
