"""The `demo` command, which runs the program of examples/demo."""

import sys
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

import holdfast
from holdfast.cli.arguments import AsJson
from holdfast.cli.console import ExitCode
from holdfast.errors import ConfigError

_PACKAGE = Path(holdfast.__file__).parent
_FOLDERS = (_PACKAGE / "demo", _PACKAGE.parents[1] / "examples" / "demo")  # wheel, clone


Scenario = StrEnum("Scenario", ["QUEUE", "EXPORT", "CHAT", "ALL"])
QueueKind = StrEnum("QueueKind", ["FILE", "SQLITE"])


def demo(
    act: Annotated[Scenario, "The scenario to run."] = Scenario.ALL,
    queue: Annotated[QueueKind, "The kind of queue to run on."] = QueueKind.FILE,
    tasks: Annotated[int, "30-5000", "Number of tasks."] = 300,
    workers: Annotated[int, "2-16", "Number of worker processes."] = 4,
    files: Annotated[int, "30-500", "Number of files."] = 120,
    keep: Annotated[bool, "Keep the temporary folder."] = False,
    as_json: AsJson = False,
) -> None:
    """Kill workers, let a handler hang, and show that the totals still match."""
    if (folder := next(filter(Path.is_dir, _FOLDERS), None)) is None:
        raise ConfigError("this copy of Holdfast has no demo; install a wheel, or clone it")
    sys.path.insert(0, str(folder))
    sizes = {"tasks": tasks, "workers": workers, "files": files}
    run = import_module("program").run
    if not run(act.value, queue.value, sizes, keep=keep, as_json=as_json):
        raise typer.Exit(ExitCode.FAILED)
