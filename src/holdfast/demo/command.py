"""The `demo` command: runs the acts in a temporary folder and shows their reports."""

import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.arguments import AsJson
from holdfast.cli.console import info, print_json
from holdfast.cli.errors import ExitCode
from holdfast.cli.foreground import handle_signals
from holdfast.demo.act import END_SIGNALS, Act, DemoSizes, QueueKind
from holdfast.demo.screen import DemoReport, DemoScreen
from holdfast.demo.web_console import show_in_browser
from holdfast.errors import ConfigError
from holdfast.version import format_install_command

_NEEDS = f"needs pycurl: {format_install_command('export')}"


class Scenario(StrEnum):
    """The scenarios that can be chosen."""

    QUEUE = "queue"
    EXPORT = "export"
    CHAT = "chat"
    ALL = "all"


def demo(
    act: Annotated[Scenario, typer.Option(help="The scenario to run.")] = Scenario.ALL,
    queue: Annotated[
        QueueKind, typer.Option(help="The kind of queue to run on.")
    ] = QueueKind.FILE,
    *,
    sizes: DemoSizes,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary folder.")] = False,
    as_json: AsJson = False,
) -> None:
    """Kill workers, let a handler hang, and show that the totals still match."""
    acts = _choose_acts(act)
    reports: dict[str, DemoReport] = {}
    with (
        handle_signals(_interrupt, *END_SIGNALS),
        _open_folder(keep, acts, queue) as folder,
        show_in_browser(_create_queues(acts, folder, queue), folder),
    ):
        for number, (name, kind) in enumerate(acts.items(), 1):
            title = kind.title.format_map(asdict(sizes))
            heading = f"holdfast demo, {number} of {len(acts)}: {title} ({queue} queue)"
            screen = DemoScreen(sys.stderr if as_json else sys.stdout, heading)
            reports[name] = kind(folder, screen, sizes, queue).run()
            if not as_json:
                screen.show_report(reports[name])
    if as_json:
        print_json({name: report.to_json() for name, report in reports.items()})
    if not all(report.totals_match for report in reports.values()):
        raise typer.Exit(ExitCode.FAILED)


def _create_queues(acts: Mapping[str, type[Act]], folder: Path, queue: QueueKind) -> list[str]:
    """Create the queues and stores, and return the arguments of a console that shows them."""
    for act in acts.values():
        act.create(folder, queue)
    urls = [act.make_queue_url(folder, queue) for act in acts.values()]
    return urls + [option for act in acts.values() for option in act.web_options]


def _choose_acts(chosen: Scenario) -> Mapping[str, type[Act]]:
    """Return the acts to run. Raises ConfigError if the chosen one cannot run."""
    from holdfast.demo.chat_act import ChatAct
    from holdfast.demo.export_act import ExportAct
    from holdfast.demo.queue_act import QueueAct

    acts: dict[str, type[Act]] = {"queue": QueueAct, "export": ExportAct, "chat": ChatAct}
    if chosen is not Scenario.ALL:
        acts = {chosen.value: acts[chosen.value]}
    if "export" in acts and not _can_download(needed=chosen is Scenario.EXPORT):
        del acts["export"]
    return acts


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
def _open_folder(keep: bool, acts: Mapping[str, type[Act]], queue: QueueKind) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        for act in acts.values() if keep else ():
            url = act.make_queue_url(folder, queue)
            command = act.inspect.format(folder=folder, url=url)
            info(f"to inspect it: {command}")


def _interrupt(number: int, frame: object) -> None:
    """End the demo. Further signals are ignored until its processes and itself have ended."""
    for ignored in END_SIGNALS:
        signal.signal(ignored, signal.SIG_IGN)
    raise KeyboardInterrupt
