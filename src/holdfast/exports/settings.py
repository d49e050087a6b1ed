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

    worker_pool_size: int = Field(default=4, ge=1, le=64)
    downloads: int = Field(default=4, ge=1, le=64)  # at a time in each worker process
    per_host: int = Field(default=16, ge=1, le=1024)  # connections to one host, in total
    task_attempts: int = Field(default=3, ge=1, le=100)  # workers that may die of one task
    task_seconds: float = Field(default=6 * 3600.0, gt=0)
    download_attempts: int = Field(default=5, ge=1, le=100)
    quiet_seconds: float = Field(default=60.0, gt=0)  # without a byte before the next attempt
    max_bytes: int | None = Field(default=None, ge=1)  # of one file
    allow_private: bool = False
    allow_hosts: Annotated[tuple[str, ...], BeforeValidator(_split_list)] = ()
    durable: bool = False
    drain_seconds: float = Field(default=30.0, ge=0)
    data_dir: str = Field(default="data", min_length=1)
    jobs: str | None = Field(default=None, min_length=1)  # the URL of the job store

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
