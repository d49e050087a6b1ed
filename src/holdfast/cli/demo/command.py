"""The `demo` command: a folder for the play, the play, and what is left of it."""

import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.arguments import AsJson
from holdfast.cli.console import answer_json, say
from holdfast.cli.failures import ExitCode


def demo(
    tasks: Annotated[int, typer.Option(min=30, max=5000, help="How many tasks.")] = 300,
    workers: Annotated[int, typer.Option(min=2, max=16, help="How many processes.")] = 4,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the folder to look at.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch it: one worker is killed, one handler hangs, and the books still balance."""
    from holdfast.cli.demo.play import Play, Script
    from holdfast.cli.demo.stage import stage

    screen = stage(sys.stderr if as_json else sys.stdout)
    with _terminable(), _folder(keep) as folder:
        books = Play(Script(tasks, workers), folder, screen).run()
        if as_json:
            answer_json({**asdict(books), "balance": books.balance})
        else:
            screen.close(books)
    if not books.balance:
        raise typer.Exit(ExitCode.NO)


@contextmanager
def _folder(keep: bool) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        yield folder
    finally:
        if keep:
            say(f"look around: holdfast status {folder}/demo/enrich (and list, explain, dead)")
        else:
            shutil.rmtree(folder, ignore_errors=True)


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
