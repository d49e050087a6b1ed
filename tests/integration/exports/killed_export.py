"""Export work whose process is killed directly after it published a file."""

import os
import signal
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from holdfast.exports.downloads.work import ExportWork, WorkSettings


def make_killed_work(settings: WorkSettings) -> "partial[KilledExport]":
    """Return a function that a worker process calls to build its work."""
    return partial(KilledExport, settings)


class KilledExport(ExportWork):
    """The work of an export. The first attempt at each task publishes, and reports nothing."""

    def process(
        self, task: Mapping[str, Any], report: Callable[[int], None]
    ) -> Mapping[str, Any]:
        result = super().process(task, report)
        if task["attempt"] == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
