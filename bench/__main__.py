"""The command line of the bench. Measuring processes import it too, so keep it light."""

import argparse
import shutil
import signal
import sys
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Any

# The benchmarks of each page, and the module of each: its function is `run_` and the name. A
# page is written if all of its benchmarks were measured in full size.
PAGES = {
    "benchmarks-sqs.md": {
        "sqs": "sqs", "sqs_long": "sqs", "sqs_renew": "leases", "cold_start": "cold_start",
    },
    "benchmarks-jobs.md": {
        "exports": "exports", "accounting": "accounting", "orchestrator": "orchestrator",
        "dynamodb": "dynamodb",
    },
    "benchmarks-chat.md": {"chat": "chat"},
    "benchmarks-observability.md": {"telemetry": "telemetry", "console": "console"},
    "benchmarks.md": {
        "cycle": "cycles", "backlog": "cycles", "contention": "contention", "power": "cycles",
        "keeper": "leases", "overhead": "workers", "recovery": "workers",
    },
    "benchmarks-sqlite.md": {
        "sqlite": "cycles", "sqlite_backlog": "cycles", "sqlite_contention": "contention",
        "sqlite_power": "cycles", "sqlite_renew": "leases",
    },
}  # fmt: skip
BENCHMARKS = {name: module for names in PAGES.values() for name, module in names.items()}
HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
RESULTS = HERE.parent / "build" / "bench.json"
MIN_FREE_GIB = 20  # a million files in each of three images, and more


def main() -> int:
    """Run the bench and return its exit code."""
    options = _parse_options()
    # Images are unmounted in a `finally`, so a termination must be an exception.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    from tools import orphans

    from bench.arena import open_arena

    orphans.guard()
    if not options.quick:
        _require_space(options.dir)
    arena = open_arena(options.dir)
    try:
        return _run_all(arena, options)
    finally:
        arena.close()


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", type=_parse_names, default=BENCHMARKS, metavar="NAME,NAME")
    parser.add_argument("--quick", action="store_true", help="small sizes, to try things out")
    parser.add_argument("--rounds", type=int, help="default: 5, with --quick 2")
    parser.add_argument("--dir", type=Path, default=HERE / "out", help="where to measure")
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 5)
    return options


def _parse_names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := set(names) - set(BENCHMARKS):
        raise argparse.ArgumentTypeError(
            f"unknown: {', '.join(sorted(unknown))}; use {', '.join(BENCHMARKS)}"
        )
    return tuple(name for name in BENCHMARKS if name in names)


def _require_space(folder: Path) -> None:
    """Exit if the disk is too full. Otherwise a mount would fail in the middle of the run."""
    folder.mkdir(parents=True, exist_ok=True)
    gib = shutil.disk_usage(folder).free / 1024**3
    if gib < MIN_FREE_GIB:
        needed = f"the bench needs {MIN_FREE_GIB} GiB at {folder}, and {gib:.1f} GiB are free"
        sys.exit(f"{needed}: delete something, or choose another folder with --dir")


def _run_all(arena: Any, options: argparse.Namespace) -> int:
    """Run the benchmarks, write the complete pages, and return 0 if every bar is met."""
    from rich.console import Console

    from bench import report
    from bench.session import Session

    console = Console(width=None if sys.stdout.isatty() else 130)
    machine = report.describe_machine(options.dir, arena.description)
    machine["Rounds"] = f"medians of {options.rounds} interleaved rounds"
    session = Session(arena, console, arena.scratch, options.rounds, options.quick)
    results: dict[str, report.Result] = {}
    RESULTS.parent.mkdir(exist_ok=True)
    for name in options.only:
        began = monotonic()
        run = getattr(import_module(f"bench.{BENCHMARKS[name]}"), f"run_{name}")
        results[name] = run(session)
        report.show(console, name, results[name])
        console.print(f"{name} took {monotonic() - began:,.0f} s")
        report.write_json(RESULTS, machine, results)
        for page, names in PAGES.items():  # at once, so that a later failure loses none
            if name in names and results.keys() >= names.keys() and not options.quick:
                report.write_page(DOCS / page, machine, [results[each] for each in names])
                console.print(f"written to {page}")
    bars = [bar for result in results.values() for bar in result.bars if not bar.aim]
    console.print(f"\n{sum(bar.met for bar in bars)} of {len(bars)} bars met")
    return 0 if all(bar.met for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
