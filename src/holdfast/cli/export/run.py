"""`holdfast export run`: a list of files, fetched in the foreground.

No queue is involved. The job store remembers what is done, so the same command goes on
after Ctrl-C, a crash or a power cut, with what is left.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.arguments import AsJson
from holdfast.cli.export.options import (
    AllowHost,
    AllowPrivate,
    Attempts,
    Downloads,
    Durable,
    MaxSize,
    PerHost,
    Store,
    To,
    Workers,
    checked_target,
    in_folder,
    settings_of,
)
from holdfast.jobs.file_names import OWN_FOLDER

if TYPE_CHECKING:
    from holdfast.config.settings import ExportSettings


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
    workers: Workers = None,
    downloads: Downloads = None,
    per_host: PerHost = None,
    allow_private: AllowPrivate = False,
    allow_host: AllowHost = None,
    max_size: MaxSize = None,
    attempts: Attempts = None,
    durable: Durable = False,
    as_json: AsJson = False,
) -> None:
    """Fetch the files of a list. The same command again goes on where it ended."""
    from holdfast.bootstrap.exports import open_jobs
    from holdfast.cli.export.export_run import ExportRun, print_export_run
    from holdfast.cli.export.listing import read_list
    from holdfast.cli.export.plan import planned

    checked_target(to)
    settings = settings_of(
        worker_pool_size=workers,
        downloads=downloads,
        per_host=per_host,
        allow_private=allow_private,
        allow_hosts=allow_host,
        max_bytes=max_size,
        download_attempts=attempts,
        durable=durable,
    )
    wanted = read_list(list_)
    store = _store(jobs, to, settings)
    # For ever: the command may be given again after months, and must know what it did. Its
    # books survive what the files survive: a power cut only when that was asked for.
    with open_jobs(store, keep_seconds=None, durable=settings.durable) as repository:
        plan = planned(wanted, to, repository)
        outing = ExportRun(plan, to, repository, store, settings)
        outing.go()
        print_export_run(outing, as_json)
    raise typer.Exit(outing.code)


def _store(given: str | None, to: str, settings: "ExportSettings") -> str:
    if given:
        return in_folder(given)
    if to.startswith("s3://"):
        return str(Path(settings.data_dir, "exports", "jobs.db"))
    Path(to).mkdir(parents=True, exist_ok=True)  # by the umask; the store's are private
    return str(Path(to, OWN_FOLDER, "jobs.db"))
