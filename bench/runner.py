"""Run the chosen benchmarks and report the results."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from time import monotonic

from rich.console import Console

from bench import report
from bench.arena import GIB, Arena, open_arena
from bench.floor import compile_floor
from bench.machine import describe
from bench.session import Session
from bench.verdict import Result

MIN_FREE_GIB = 20  # a million files in each of three images, and more


def run_all(
    names: Sequence[str],
    folder: Path,
    rounds: int,
    quick: bool,
    pages: Mapping[Path, Sequence[str]],
) -> int:
    """Run the benchmarks, write the complete pages, and return 0 if every bar is met."""
    console = Console(width=None if sys.stdout.isatty() else 130)
    if not quick:
        _require_space(folder)
    arena = open_arena(folder)
    try:
        machine = describe(folder, arena.description)
        machine["Rounds"] = f"{rounds}, unless a note says otherwise; figures are medians"
        for name, value in machine.items():
            console.print(f"[dim]{name:12}[/] {value}", highlight=False)
        session = _session(arena, console, rounds, quick)
        results: list[Result] = []
        for name in names:
            results.append(_run(name, session))
            _write_pages(pages, machine, results, console)
    finally:
        arena.close()
    return _exit_code(console, results)


def _require_space(folder: Path) -> None:
    """Exit if the disk is too full. Otherwise a mount would fail in the middle of the run."""
    folder.mkdir(parents=True, exist_ok=True)
    gib = shutil.disk_usage(folder).free / GIB
    if gib < MIN_FREE_GIB:
        needed = f"the bench needs {MIN_FREE_GIB} GiB at {folder}, and {gib:.1f} GiB are free"
        sys.exit(f"{needed}: delete something, or choose another folder with --dir")


def _session(arena: Arena, console: Console, rounds: int, quick: bool) -> Session:
    floor = compile_floor(arena.scratch)
    return Session(arena, console, floor, arena.scratch, rounds, quick)


def _run(name: str, session: Session) -> Result:
    began = monotonic()
    result: Result = import_module(f"bench.{name}").run(session)
    report.show(session.console, result)
    session.console.print(f"{name} took {monotonic() - began:,.0f} s")
    return result


def _write_pages(
    pages: Mapping[Path, Sequence[str]],
    machine: Mapping[str, str],
    results: Sequence[Result],
    console: Console,
) -> None:
    """Write the pages that the last result completes, so that a later failure loses none."""
    measured = {result.name for result in results}
    for page, needed in pages.items():
        if results[-1].name in needed and measured.issuperset(needed):
            report.write(page, machine, [result for result in results if result.name in needed])
            console.print(f"written to {page.name}")


def _exit_code(console: Console, results: Sequence[Result]) -> int:
    missed = [bar for result in results for bar in result.bars if bar.fails]
    bars = sum(not bar.aim for result in results for bar in result.bars)
    console.print(f"\n{bars - len(missed)} of {bars} bars met")
    for bar in missed:
        console.print(f"[bold red]MISSED[/] {bar.shown}: {bar.explained}")
    return 1 if missed else 0
