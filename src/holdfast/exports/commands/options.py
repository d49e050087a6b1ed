"""Options that several export commands share: target, job store, downloads."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.arguments import parse_size
from holdfast.cli.errors import UsageError
from holdfast.errors import ConfigError, StoreUnavailable
from holdfast.urls import TARGETS, parse_url

if TYPE_CHECKING:
    from holdfast.exports.settings import ExportSettings

STORE_VARIABLE = "HOLDFAST_JOBS"

To = Annotated[str, "TARGET", "Where files are stored: a folder, or s3://BUCKET/PREFIX."]
Store = Annotated[
    str | None,
    "STORE",
    "Where jobs are stored: a file (jobs.db), or dynamodb:PREFIX for the tables "
    f"PREFIXExportJobs and PREFIXExportTasks. Also {STORE_VARIABLE}.",
]


@dataclass(frozen=True, slots=True)
class DownloadOptions:
    """The options of commands that download, by the names of the settings.

    Each may also come from the environment.
    """

    worker_pool_size: Annotated[
        int | None, "--workers", "Worker processes (4, or WORKER_POOL_SIZE)."
    ] = None
    downloads: Annotated[int | None, "Simultaneous downloads in each worker (4)."] = None
    per_host: Annotated[int | None, "Connections to one host, in total (16)."] = None
    allow_private: Annotated[bool, "Allow downloads from private and loopback addresses."] = (
        False
    )
    allow_hosts: Annotated[
        list[str] | None,
        "--allow-host",
        "HOST[:PORT]",
        "Allow downloads from this host even if private.",
    ] = None
    max_bytes: Annotated[
        int | None,
        typer.Option(
            "--max-size", parser=parse_size, metavar="SIZE", help="Maximum size of a file."
        ),
    ] = None
    download_attempts: Annotated[
        int | None, "--attempts", "Attempts of one download before it fails (5)."
    ] = None
    durable: Annotated[bool, "Sync each file, so that it survives a power cut."] = False

    def resolve_settings(self) -> "ExportSettings":
        """Return the settings: options win over the environment. Raises ConfigError."""
        from holdfast.exports.settings import ExportSettings
        from holdfast.settings import read_settings

        # A flag that is not given does not mean "no", because the environment may turn it on.
        given = {name: value for name, value in asdict(self).items() if value}
        return read_settings(ExportSettings, os.environ, given=given)


def check_target(to: str) -> Path | None:
    """Return the target's folder, or None for S3. Raises UsageError if it can never be one.

    `require_usable_target` finds out whether it can be written to.
    """
    try:
        target = parse_url(to, TARGETS)
    except ConfigError as error:
        raise UsageError(f"--to {to}: {error}") from None
    if target.scheme == "s3":
        if not target.path.partition("/")[0]:
            raise UsageError(f"--to {to}: the bucket is missing; write s3://BUCKET/PREFIX")
        return None
    if not to:
        raise UsageError("--to is empty; name a folder, or s3://BUCKET/PREFIX")
    if os.path.lexists(to) and not os.path.isdir(to):
        raise UsageError(f"--to {to}: this is a file; a folder is needed")
    return Path(to)


def require_usable_target(to: str) -> None:
    """Try to write to the target, because each file would fail by itself after it was fetched.

    Raises StoreUnavailable with the reason, and ConfigError for a missing package or setting.
    """
    from holdfast.doctor.checks import CheckFailed
    from holdfast.exports.target_check import check_target as examine_target

    try:
        for _ in examine_target(to):
            pass
    except CheckFailed as error:
        raise StoreUnavailable(f"--to {error.result.found}: {error.result.remedy}") from error


# -- job stores


def resolve_store(given: str | None) -> str:
    """Return the given store, or else the variable's, or else the one in the data folder."""
    from holdfast.exports.settings import find_job_store

    return find_job_store(os.environ, given)
