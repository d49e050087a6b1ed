"""Settings of exports, from the environment or the caller."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from holdfast.exports.file_names import find_store_in_folder
from holdfast.settings import Settings, read_settings


def _split_list(value: object) -> object:
    """Split a variable that holds several values with commas between them."""
    return tuple(part for part in value.split(",") if part) if isinstance(value, str) else value


class ExportSettings(Settings):
    """The settings of a process that exports files. Each is also HOLDFAST_<NAME>, except
    WORKER_POOL_SIZE, whose name comes from the seed."""

    variables: ClassVar = {"worker_pool_size": "WORKER_POOL_SIZE"}

    #: the most worker processes; as many as there are CPU cores start at once, more when no
    #: slot becomes free for a second; recommended: as many as there are CPU cores, typically 4
    #: to 8
    worker_pool_size: int = Field(default=4, ge=1, le=64)
    #: downloads at a time in each worker
    downloads: int = Field(default=4, ge=1, le=64)
    #: connections to one host, in all workers together
    per_host: int = Field(default=16, ge=1, le=1024)
    #: workers that one file may kill before it fails
    task_attempts: int = Field(default=3, ge=1, le=100)
    #: maximum seconds for one file
    task_seconds: float = Field(default=6 * 3600.0, gt=0)
    #: attempts of one download before it fails
    download_attempts: int = Field(default=5, ge=1, le=100)
    #: seconds without a byte after which a download is retried
    quiet_seconds: float = Field(default=60.0, gt=0)
    #: maximum size of a file in bytes
    max_bytes: int | None = Field(default=None, ge=1)
    #: also fetch from private and loopback addresses
    allow_private: bool = False
    #: hosts that may be fetched from although their address is private, separated by commas
    allow_hosts: Annotated[tuple[str, ...], BeforeValidator(_split_list)] = ()
    #: sync each file, so that it survives a power cut
    durable: bool = False
    #: seconds that running downloads may take to finish when the process is stopped
    drain_seconds: float = Field(default=30.0, ge=0)
    #: the folder of the job store and of partial files for S3
    data_dir: str = Field(default="data", min_length=1)
    #: the job store: a file, or `dynamodb:PREFIX`; without it `exports/jobs.db` below
    #: `data_dir`
    jobs: str | None = Field(default=None, min_length=1)

    @property
    def default_store(self) -> str:
        """Return the job store in the data folder."""
        return str(Path(self.data_dir, "exports", "jobs.db"))


def read_export_settings(env: Mapping[str, str], given: Mapping[str, Any]) -> ExportSettings:
    """Return the settings of exports: `given` wins over the environment.

    Raises ConfigError with every problem.
    """
    return read_settings(ExportSettings, env, given=given)


def find_job_store(env: Mapping[str, str], given: str | None = None) -> str:
    """Return the given store, or else the variable's, or else the one in the data folder."""
    if url := given or env.get(ExportSettings.to_variable("jobs"), ""):
        return find_store_in_folder(url)
    return read_export_settings(env, {}).default_store
