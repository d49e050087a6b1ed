"""The `demo` command, which runs the program of examples/demo."""

import sys
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

import holdfast
from holdfast.cli.arguments import AsJson
from holdfast.cli.errors import ExitCode
from holdfast.errors import ConfigError

_PACKAGE = Path(holdfast.__file__).parent
_FOLDERS = (_PACKAGE / "demo", _PACKAGE.parents[1] / "examples" / "demo")  # wheel, clone


class Scenario(StrEnum):
    """The scenarios that can be chosen."""

    QUEUE = "queue"
    EXPORT = "export"
    CHAT = "chat"
    ALL = "all"


class QueueKind(StrEnum):
    """The kinds of queue that the scenarios can run on."""

    FILE = "file"
    SQLITE = "sqlite"


def demo(
    act: Annotated[Scenario, typer.Option(help="The scenario to run.")] = Scenario.ALL,
    queue: Annotated[
        QueueKind, typer.Option(help="The kind of queue to run on.")
    ] = QueueKind.FILE,
    tasks: Annotated[int, typer.Option(min=30, max=5000, help="Number of tasks.")] = 300,
    workers: Annotated[
        int, typer.Option(min=2, max=16, help="Number of worker processes.")
    ] = 4,
    files: Annotated[int, typer.Option(min=30, max=500, help="Number of files.")] = 120,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary folder.")] = False,
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
