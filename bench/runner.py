"""Run the chosen benchmarks and report the results."""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

from rich.console import Console

from bench import report
from bench.arena import Arena, open_arena
from bench.floor import compile_floor
from bench.machine import describe
from bench.session import Session
from bench.verdict import Result


def run_all(
    names: Sequence[str],
    folder: Path,
    rounds: int,
    quick: bool,
    pages: Mapping[Path, Sequence[str]],
) -> int:
    """Run the benchmarks, write the complete pages, and return 0 if every bar is met."""
    console = Console(width=None if sys.stdout.isatty() else 130)
    arena = open_arena(folder)
    try:
        machine = describe(folder, arena.description)
        for name, value in machine.items():
            console.print(f"[dim]{name:12}[/] {value}", highlight=False)
        results = _run(names, _session(arena, console, rounds, quick))
    finally:
        arena.close()
    for page, needed in pages.items():
        if set(needed) <= set(names):
            report.write(page, machine, [result for result in results if result.name in needed])
            console.print(f"written to {page.name}")
    return _exit_code(console, results)


def _session(arena: Arena, console: Console, rounds: int, quick: bool) -> Session:
    floor = compile_floor(arena.scratch)
    return Session(arena, console, floor, arena.scratch, rounds, quick)


def _run(names: Sequence[str], session: Session) -> list[Result]:
    results = []
    for name in names:
        result: Result = import_module(f"bench.{name}").run(session)
        report.show(session.console, result)
        results.append(result)
    return results


def _exit_code(console: Console, results: Sequence[Result]) -> int:
    missed = [bar for result in results for bar in result.bars if bar.fails]
    bars = sum(not bar.aim for result in results for bar in result.bars)
    console.print(f"\n{bars - len(missed)} of {bars} bars met")
    for bar in missed:
        console.print(f"[bold red]MISSED[/] {bar.shown}: {bar.explained}")
    return 1 if missed else 0
