"""Checks whether a folder is suitable for a queue, and of the queue in it.

The probes use real processes in a folder of their own, which is removed afterwards. Nothing
else is changed.
"""

import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from holdfast.core.checks import CheckResult, fail
from holdfast.doctor.filesystem import FILESYSTEM, FileQueue
from holdfast.doctor.probes import PROBES
from holdfast.doctor.queue_contents import CONTENTS, QueueContents
from holdfast.doctor.queue_folders import FOLDER_CHECKS
from holdfast.doctor.runner import run_checks


def examine_file_queue(queue: FileQueue) -> Iterator[CheckResult]:
    """Run all checks, and yield each result as soon as it is known."""
    exists = queue.exists
    yield from run_checks(queue, ("queue", _check_existence), *FILESYSTEM)
    if exists:
        yield from run_checks(queue.folder, *FOLDER_CHECKS)
    yield from run_checks(queue, ("probing", _probe))
    if exists:
        yield from run_checks(queue, ("contents", _check_contents))


def _check_existence(queue: FileQueue) -> Iterator[CheckResult]:
    if not queue.exists:
        yield fail(
            f"there is no queue at {str(queue.folder)!r}",
            "check the name, or make it by pushing: `holdfast push QUEUE '{}'`",
        )


def _probe(queue: FileQueue) -> Iterator[CheckResult]:
    where = queue.folder / "tmp" if queue.exists else queue.place
    with tempfile.TemporaryDirectory(
        prefix=".doctor-", dir=where, ignore_cleanup_errors=True
    ) as own:
        yield from run_checks(replace(queue, folder=Path(own)), *PROBES)


def _check_contents(queue: FileQueue) -> Iterator[CheckResult]:
    with closing(QueueContents(queue.folder, queue.clock, queue.fs)) as contents:
        yield from run_checks(contents, *CONTENTS)
