"""The targets of exports, and the one that is a folder.

A file is visible under its name only when it is complete. Partial files are inside of the
target folder, so that a rename within one file system publishes them. The path to the name is
walked folder by folder without following links, so a process that can write into the target
cannot make an export write outside of it.
"""

import contextlib
import os
from typing import Protocol

from holdfast.adapters.export.cancellation import RunningDownload
from holdfast.adapters.export.partial_files import PartialFile, PartialFiles
from holdfast.core.errors import ConfigError
from holdfast.core.urls import TARGETS, parse_url
from holdfast.jobs.file_names import OWN_FOLDER

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class ExportTarget(Protocol):
    """The place where files are published. It needs the `digests` of each file."""

    partial_files: PartialFiles
    digests: tuple[str, ...]
    bucket: str | None

    def publish(self, part: PartialFile, key: str, run: RunningDownload) -> None:
        """Publish the complete, verified part under its name, in one step or not at all."""

    def close(self) -> None:
        """Release the target's resources."""


def open_target(location: str, scratch: str, *, durable: bool) -> ExportTarget:
    """Open the target, a folder or s3://bucket/prefix. Raises ConfigError."""
    try:
        if parse_url(location, TARGETS).scheme == "s3":
            # Only here, because each worker would need a third of its start to import it.
            from holdfast.adapters.export.s3_target import S3Target

            return S3Target(location, scratch)
        return FolderTarget(location, durable=durable)
    except OSError as error:
        raise ConfigError(f"target {location}: {error.strerror or error}") from error


class FolderTarget:
    """An export target on disk. Safe for threads and processes.

    `durable`: published files survive a power cut.
    """

    digests: tuple[str, ...] = ()
    bucket: str | None = None

    def __init__(self, path: str, *, durable: bool) -> None:
        """Open the folder; make it if it is missing. Raises OSError."""
        os.makedirs(path, exist_ok=True)
        self._root = os.open(path, _FOLDER)
        self._durable = durable
        self.partial_files = PartialFiles(os.path.join(path, OWN_FOLDER))

    def publish(self, part: PartialFile, key: str, run: RunningDownload) -> None:
        """Give the part its name, and replace a file that has it. Raises OSError."""
        run.check()
        *folders, name = key.split("/")
        if self._durable:
            os.fsync(part.fd)
        folder = self._walk(folders) if folders else self._root
        try:
            os.rename(part.name, name, src_dir_fd=part.folder, dst_dir_fd=folder)
            if self._durable:
                os.fsync(folder)
        finally:
            if folder != self._root:
                os.close(folder)
        part.mark_published()

    def _walk(self, folders: list[str]) -> int:
        """Return a descriptor of the innermost folder; make the folders that are missing."""
        at = os.dup(self._root)
        for name in folders:
            try:
                below = self._enter(at, name)
            finally:
                os.close(at)
            at = below
        return at

    def _enter(self, at: int, name: str) -> int:
        try:
            return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=at)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=at)
                if self._durable:
                    os.fsync(at)
            return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=at)

    def close(self) -> None:
        """Close the folder and its partial files."""
        self.partial_files.close()
        os.close(self._root)
