"""The `demo` command: a folder for the play, its acts, and what is left of it."""

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
    from holdfast.cli.demo.chat.books import ChatBooks
    from holdfast.cli.demo.enrichment.books import Books
    from holdfast.cli.demo.export.books import ExportBooks
    from holdfast.cli.demo.stage import DemoScreen

    AnyBooks = Books | ExportBooks | ChatBooks
    Perform = Callable[[Path, DemoScreen], AnyBooks]

_NEEDS = "needs pycurl: pip install 'holdfast[export]'"


class Act(StrEnum):
    QUEUE = "queue"
    EXPORT = "export"
    CHAT = "chat"
    ALL = "all"


def demo(
    act: Annotated[Act, typer.Option(help="What to play.")] = Act.ALL,
    tasks: Annotated[int, typer.Option(min=30, max=5000, help="How many tasks.")] = 300,
    workers: Annotated[int, typer.Option(min=2, max=16, help="How many processes.")] = 4,
    files: Annotated[int, typer.Option(min=30, max=500, help="How many files.")] = 120,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the folder to look at.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch it: workers are killed, one handler hangs, and the books still balance."""
    from holdfast.cli.demo.stage import stage

    acts = _programme(act, tasks, workers, files)
    books: dict[str, AnyBooks] = {}
    with _terminable(), _folder(keep, acts) as folder:
        for number, (name, (title, perform)) in enumerate(acts.items(), 1):
            heading = f"holdfast demo, {number} of {len(acts)}: {title}"
            screen = stage(sys.stderr if as_json else sys.stdout, heading)
            books[name] = perform(folder, screen)
            if not as_json:
                screen.close(books[name])
    if as_json:
        print_json({name: {**asdict(b), "balance": b.balance} for name, b in books.items()})
    if not all(of_act.balance for of_act in books.values()):
        raise typer.Exit(ExitCode.NO)


def _programme(
    act: Act, tasks: int, workers: int, files: int
) -> dict[str, tuple[str, "Perform"]]:
    """What is played: title and play. Raises ConfigError when the wish cannot be met."""

    def enrich(folder: Path, screen: "DemoScreen") -> "Books":
        from holdfast.cli.demo.enrichment.play import Play, Script

        return Play(Script(tasks, workers), folder, screen).run()

    def export(folder: Path, screen: "DemoScreen") -> "ExportBooks":
        from holdfast.cli.demo.export.play import ExportPlay, ExportScript

        return ExportPlay(ExportScript(files), folder, screen).run()

    def chat(folder: Path, screen: "DemoScreen") -> "ChatBooks":
        from holdfast.cli.demo.chat.play import ChatPlay, ChatScript

        return ChatPlay(ChatScript(), folder, screen).run()

    acts: dict[str, tuple[str, Perform]] = {}
    if act in (Act.QUEUE, Act.ALL):
        acts["queue"] = (f"{tasks} tasks, a killed worker, a hung handler", enrich)
    if act in (Act.EXPORT, Act.ALL) and _can_download(needed=act is Act.EXPORT):
        acts["export"] = (f"{files} files, a killed worker, a killed service", export)
    if act in (Act.CHAT, Act.ALL):
        acts["chat"] = ("quick messages, a worker killed before the send", chat)
    return acts


def _can_download(*, needed: bool) -> bool:
    try:
        import_module("pycurl")
    except ImportError:
        if needed:
            raise ConfigError(f"the export {_NEEDS}") from None
        info(f"the second act, an export, is left out: it {_NEEDS}")
        return False
    return True


@contextmanager
def _folder(keep: bool, acts: Collection[str]) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        if keep and "queue" in acts:
            info(f"look around: holdfast status {folder}/demo/enrich (and list, explain, dead)")
        if keep and "export" in acts:
            info(f"look around: holdfast export list --jobs {folder}/jobs.db (and show)")
        if keep and "chat" in acts:
            info(
                f"look around: HOLDFAST_DATA_DIR={folder} holdfast chat show demo (and outbox)"
            )


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM and a closed terminal end the demo as Ctrl-C does: cleanly."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    endings = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in endings}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
