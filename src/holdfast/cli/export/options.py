"""What several export commands take: the target, the job store, how to download."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.errors import UsageError
from holdfast.jobs.errors import StoreUnavailable
from holdfast.jobs.file_names import OWN_FOLDER

if TYPE_CHECKING:
    from holdfast.config.settings import ExportSettings

STORE_VARIABLE = "HOLDFAST_JOBS"

To = Annotated[
    str,
    typer.Option(
        "--to", metavar="TARGET", help="Where files go: a folder, or s3://BUCKET/PREFIX."
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--jobs",
        metavar="STORE",
        help="Where jobs are kept: a file (jobs.db), or dynamodb:PREFIX for the tables "
        f"PREFIXExportJobs and PREFIXExportTasks. Also {STORE_VARIABLE}.",
    ),
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Worker processes (4, or WORKER_POOL_SIZE).")
]
Downloads = Annotated[
    int | None, typer.Option(min=1, help="Downloads at a time in each worker (4).")
]
PerHost = Annotated[
    int | None, typer.Option(min=1, help="Connections to one host, in all (16).")
]
AllowPrivate = Annotated[
    bool, typer.Option("--allow-private", help="Also from private and loopback addresses.")
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(metavar="HOST[:PORT]", help="From this one although its address is private."),
]
Attempts = Annotated[
    int | None, typer.Option(min=1, help="Tries of one download before it has failed (5).")
]
Durable = Annotated[
    bool, typer.Option("--durable", help="Files survive a power cut: each is synced.")
]

_MAX_BYTES = 1 << 63
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def size(text: str | int) -> int:
    """Bytes in a size. Raises typer.BadParameter with the forms there are."""
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text.strip())
    value = 0.0
    if match is not None:
        step = 1024 if match[3] else 1000
        value = float(match[1]) * step ** " kmgt".index(match[2].lower() or " ")
    if value < 1:
        raise typer.BadParameter(f"{text!r} is no size: write 500MB, 2GiB or plain bytes")
    if value > _MAX_BYTES:
        raise typer.BadParameter(f"{text!r} is more than the 8388608TiB that a file can have")
    return int(value)


MaxSize = Annotated[
    int | None, typer.Option(parser=size, metavar="SIZE", help="The largest file there may be.")
]


def settings_of(**given: Any) -> "ExportSettings":
    """The settings: what an option says wins over the environment. Raises ConfigError."""
    from holdfast.config.settings import export_settings

    # A flag that was not given is no "no": the environment may say yes.
    said = {name: value for name, value in given.items() if value}
    return export_settings(os.environ, said)


def checked_target(to: str) -> str:
    """Raises UsageError for what can never be one; that it can be written to, workers find out."""
    if to.startswith("s3://"):
        if not to.removeprefix("s3://").partition("/")[0]:
            raise UsageError(f"--to {to}: the bucket is missing, as in s3://BUCKET/PREFIX")
        return to
    scheme = to.partition("://")[0] if "://" in to else ""
    if scheme:
        raise UsageError(f"--to {to}: no target for {scheme}: URLs; use a folder, or s3://…")
    if not to:
        raise UsageError("--to is empty: name a folder, or s3://BUCKET/PREFIX")
    if os.path.lexists(to) and not os.path.isdir(to):
        raise UsageError(f"--to {to}: this is a file, and a folder is needed")
    return to


# -- job stores


def store_or_default(given: str | None) -> str:
    """For a service and for looking: what is given, the variable's, or the data folder's."""
    if url := given or os.environ.get(STORE_VARIABLE, ""):
        return in_folder(url)
    return str(Path(settings_of().data_dir, "exports", "jobs.db"))


def in_folder(url: str) -> str:
    """A target's folder stands for the store that `export run` keeps in it."""
    inside = Path(url, OWN_FOLDER, "jobs.db")
    return str(inside) if inside.is_file() else url


def file_of(url: str) -> Path | None:
    """The file of a store; None where it is no file."""
    scheme, colon, rest = url.partition(":")
    if colon and scheme == "dynamodb":
        return None
    return Path(rest if colon and scheme in ("sqlite", "file") else url)


def must_be_there(url: str) -> str:
    """Looking at a store that is not there makes none."""
    file = file_of(url)
    if file is not None and not file.exists():
        raise StoreUnavailable(
            f"there is no job store {str(file)!r}: name it with --jobs, as in "
            f"`--jobs FOLDER` for what `holdfast export run --to FOLDER` did"
        )
    return url
