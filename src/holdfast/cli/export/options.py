"""Options that several export commands share: target, job store, downloads."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.errors import UsageError
from holdfast.core.errors import ConfigError
from holdfast.core.urls import TARGETS, find_store_file, parse_url
from holdfast.jobs.errors import StoreUnavailable
from holdfast.jobs.file_names import OWN_FOLDER

if TYPE_CHECKING:
    from holdfast.config.export import ExportSettings

STORE_VARIABLE = "HOLDFAST_JOBS"

To = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="TARGET",
        help="Where files are stored: a folder, or s3://BUCKET/PREFIX.",
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--jobs",
        metavar="STORE",
        help="Where jobs are stored: a file (jobs.db), or dynamodb:PREFIX for the tables "
        f"PREFIXExportJobs and PREFIXExportTasks. Also {STORE_VARIABLE}.",
    ),
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Worker processes (4, or WORKER_POOL_SIZE).")
]
Downloads = Annotated[
    int | None, typer.Option(min=1, help="Simultaneous downloads in each worker (4).")
]
PerHost = Annotated[
    int | None, typer.Option(min=1, help="Connections to one host, in total (16).")
]
AllowPrivate = Annotated[
    bool,
    typer.Option(
        "--allow-private", help="Allow downloads from private and loopback addresses."
    ),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(metavar="HOST[:PORT]", help="Allow downloads from this host even if private."),
]
Attempts = Annotated[
    int | None, typer.Option(min=1, help="Attempts of one download before it fails (5).")
]
Durable = Annotated[
    bool, typer.Option("--durable", help="Sync each file, so that it survives a power cut.")
]

_MAX_BYTES = 1 << 63
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse_size(text: str | int) -> int:
    """Return the bytes in a size. Raises typer.BadParameter with the valid forms."""
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text.strip())
    value = 0.0
    if match is not None:
        step = 1024 if match[3] else 1000
        value = float(match[1]) * step ** " kmgt".index(match[2].lower() or " ")
    if value < 1:
        raise typer.BadParameter(f"{text!r} is not a size; write 500MB, 2GiB or plain bytes")
    if value > _MAX_BYTES:
        raise typer.BadParameter(f"{text!r} is more than 8388608TiB, the maximum of a file")
    return int(value)


MaxSize = Annotated[
    int | None, typer.Option(parser=parse_size, metavar="SIZE", help="Maximum size of a file.")
]


def resolve_settings(**given: Any) -> "ExportSettings":
    """Return the settings: options win over the environment. Raises ConfigError."""
    from holdfast.config.export import read_export_settings

    # A flag that is not given does not mean "no", because the environment may turn it on.
    options = {name: value for name, value in given.items() if value}
    return read_export_settings(os.environ, options)


def check_target(to: str) -> str:
    """Return the target. Raises UsageError if it can never be one.

    The workers find out whether it can be written to.
    """
    try:
        target = parse_url(to, TARGETS)
    except ConfigError as error:
        raise UsageError(f"--to {to}: {error}") from None
    if target.scheme == "s3":
        if not target.path.partition("/")[0]:
            raise UsageError(f"--to {to}: the bucket is missing; write s3://BUCKET/PREFIX")
        return to
    if not to:
        raise UsageError("--to is empty; name a folder, or s3://BUCKET/PREFIX")
    if os.path.lexists(to) and not os.path.isdir(to):
        raise UsageError(f"--to {to}: this is a file; a folder is needed")
    return to


# -- job stores


def resolve_store(given: str | None) -> str:
    """Return the given store, or else the variable's, or else the one in the data folder."""
    if url := given or os.environ.get(STORE_VARIABLE, ""):
        return find_store_in_folder(url)
    return str(Path(resolve_settings().data_dir, "exports", "jobs.db"))


def find_store_in_folder(url: str) -> str:
    """Return the store that `export run` keeps in a target's folder, or else the URL."""
    path = Path(url, OWN_FOLDER, "jobs.db")
    return str(path) if path.is_file() else url


def require_store(url: str) -> str:
    """Return the URL. Raises StoreUnavailable if its file does not exist.

    Read-only commands never create the store.
    """
    file = find_store_file(url)
    if file is not None and not file.exists():
        raise StoreUnavailable(
            f"there is no job store {str(file)!r}: name it with --jobs; for "
            "`holdfast export run --to FOLDER` that is `--jobs FOLDER`"
        )
    return url
