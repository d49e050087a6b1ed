"""The `demo` command: runs the scenarios in a temporary folder and shows their reports."""

import shutil
import signal
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.arguments import AsJson
from holdfast.cli.console import info, print_json
from holdfast.cli.errors import ExitCode
from holdfast.core.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.cli.demo.act import Act
    from holdfast.cli.demo.screen import DemoScreen

_NEEDS = "needs pycurl: pip install 'holdfast[export]'"
_TITLES = {
    "queue": "{tasks} tasks, a killed worker, a hung handler",
    "export": "{files} files, a killed worker, a killed service",
    "chat": "quick messages, a worker killed before the send",
}
_INSPECT = {
    "queue": "holdfast status {folder}/demo/enrich (and list, explain, dead)",
    "export": "holdfast export list --jobs {folder}/jobs.db (and show)",
    "chat": "HOLDFAST_DATA_DIR={folder} holdfast chat show demo (and outbox)",
}


class Scenario(StrEnum):
    """The scenarios that can be chosen."""

    QUEUE = "queue"
    EXPORT = "export"
    CHAT = "chat"
    ALL = "all"


def demo(
    act: Annotated[Scenario, typer.Option(help="The scenario to run.")] = Scenario.ALL,
    tasks: Annotated[int, typer.Option(min=30, max=5000, help="Number of tasks.")] = 300,
    workers: Annotated[
        int, typer.Option(min=2, max=16, help="Number of worker processes.")
    ] = 4,
    files: Annotated[int, typer.Option(min=30, max=500, help="Number of files.")] = 120,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary folder.")] = False,
    as_json: AsJson = False,
) -> None:
    """Kill workers, let a handler hang, and show that the totals still match."""
    from holdfast.cli.demo.screen import DemoReport, DemoScreen

    scenarios = _choose_scenarios(act)
    reports: dict[str, DemoReport] = {}
    with _interrupt_on_termination(), _open_folder(keep, scenarios) as folder:
        for number, name in enumerate(scenarios, 1):
            title = _TITLES[name].format(tasks=tasks, files=files)
            heading = f"holdfast demo, {number} of {len(scenarios)}: {title}"
            screen = DemoScreen(sys.stderr if as_json else sys.stdout, heading)
            reports[name] = _make_act(name, folder, screen, tasks, workers, files).run()
            if not as_json:
                screen.show_report(reports[name])
    if as_json:
        print_json({name: report.to_json() for name, report in reports.items()})
    if not all(report.totals_match for report in reports.values()):
        raise typer.Exit(ExitCode.FAILED)


def _choose_scenarios(chosen: Scenario) -> list[str]:
    """Return the scenarios to run. Raises ConfigError if the chosen one cannot run."""
    names = list(_TITLES) if chosen is Scenario.ALL else [chosen.value]
    if "export" in names and not _can_download(needed=chosen is Scenario.EXPORT):
        names.remove("export")
    return names


def _make_act(
    name: str, folder: Path, screen: "DemoScreen", tasks: int, workers: int, files: int
) -> "Act":
    match name:
        case "queue":
            from holdfast.cli.demo.enrichment.scenario import EnrichmentAct

            return EnrichmentAct(folder, screen, tasks, workers)
        case "export":
            from holdfast.cli.demo.export.scenario import ExportAct

            return ExportAct(folder, screen, files)
        case _:
            from holdfast.cli.demo.chat.scenario import ChatAct

            return ChatAct(folder, screen)


def _can_download(*, needed: bool) -> bool:
    try:
        import_module("pycurl")
    except ImportError:
        if needed:
            raise ConfigError(f"the export scenario {_NEEDS}") from None
        info(f"skipping the export scenario, which {_NEEDS}")
        return False
    return True


@contextmanager
def _open_folder(keep: bool, scenarios: Collection[str]) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        for name in scenarios if keep else ():
            info(f"to inspect it: {_INSPECT[name].format(folder=folder)}")


@contextmanager
def _interrupt_on_termination() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end the demo cleanly, as Ctrl-C does."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signals = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
