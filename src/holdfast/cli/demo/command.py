"""The `demo` command: runs the scenarios in a temporary folder and shows their reports."""

import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
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
    from holdfast.cli.demo.chat.accounting import ChatReport
    from holdfast.cli.demo.enrichment.accounting import EnrichmentReport
    from holdfast.cli.demo.export.accounting import ExportReport
    from holdfast.cli.demo.screen import DemoScreen

    Report = EnrichmentReport | ExportReport | ChatReport
    RunScenario = Callable[[Path, DemoScreen], Report]

_NEEDS = "needs pycurl: pip install 'holdfast[export]'"


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
    from holdfast.cli.demo.screen import open_screen

    scenarios = _choose_scenarios(act, tasks, workers, files)
    reports: dict[str, Report] = {}
    with _interrupt_on_termination(), _open_folder(keep, scenarios) as folder:
        for number, (name, (title, run_scenario)) in enumerate(scenarios.items(), 1):
            heading = f"holdfast demo, {number} of {len(scenarios)}: {title}"
            screen = open_screen(sys.stderr if as_json else sys.stdout, heading)
            reports[name] = run_scenario(folder, screen)
            if not as_json:
                screen.show_report(reports[name])
    if as_json:
        print_json(
            {
                name: {**asdict(report), "totals_match": report.totals_match}
                for name, report in reports.items()
            }
        )
    if not all(report.totals_match for report in reports.values()):
        raise typer.Exit(ExitCode.FAILED)


def _choose_scenarios(
    chosen: Scenario, tasks: int, workers: int, files: int
) -> dict[str, tuple[str, "RunScenario"]]:
    """Return the title and the function of each scenario to run.

    Raises ConfigError if the chosen scenario cannot run.
    """

    def enrich(folder: Path, screen: "DemoScreen") -> "EnrichmentReport":
        from holdfast.cli.demo.enrichment.scenario import (
            EnrichmentScenario,
            EnrichmentScenarioSettings,
        )

        return EnrichmentScenario(
            EnrichmentScenarioSettings(tasks, workers), folder, screen
        ).run()

    def export(folder: Path, screen: "DemoScreen") -> "ExportReport":
        from holdfast.cli.demo.export.scenario import ExportScenario, ExportScenarioSettings

        return ExportScenario(ExportScenarioSettings(files), folder, screen).run()

    def chat(folder: Path, screen: "DemoScreen") -> "ChatReport":
        from holdfast.cli.demo.chat.scenario import ChatScenario, ChatScenarioSettings

        return ChatScenario(ChatScenarioSettings(), folder, screen).run()

    scenarios: dict[str, tuple[str, RunScenario]] = {}
    if chosen in (Scenario.QUEUE, Scenario.ALL):
        scenarios["queue"] = (f"{tasks} tasks, a killed worker, a hung handler", enrich)
    if chosen in (Scenario.EXPORT, Scenario.ALL) and _can_download(
        needed=chosen is Scenario.EXPORT
    ):
        scenarios["export"] = (f"{files} files, a killed worker, a killed service", export)
    if chosen in (Scenario.CHAT, Scenario.ALL):
        scenarios["chat"] = ("quick messages, a worker killed before the send", chat)
    return scenarios


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
        if keep and "queue" in scenarios:
            info(
                f"to inspect it: holdfast status {folder}/demo/enrich (and list, explain, dead)"
            )
        if keep and "export" in scenarios:
            info(f"to inspect it: holdfast export list --jobs {folder}/jobs.db (and show)")
        if keep and "chat" in scenarios:
            info(
                f"to inspect it: HOLDFAST_DATA_DIR={folder} holdfast chat show demo "
                "(and outbox)"
            )


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
