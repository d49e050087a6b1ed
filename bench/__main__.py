"""The command line of the bench. Measuring processes import it too, so keep it light."""

import argparse
import signal
import sys
from pathlib import Path

# The benchmarks of each page. A page is written if all of them were measured in full size.
PAGES = {
    "benchmarks-sqs.md": ("sqs", "sqs_long", "sqs_renew", "cold_start"),
    "benchmarks-jobs.md": ("exports", "accounting", "orchestrator", "dynamodb"),
    "benchmarks-chat.md": ("chat",),
    "benchmarks-observability.md": ("telemetry", "console"),
    "benchmarks.md": (
        "cycle",
        "backlog",
        "contention",
        "power",
        "keeper",
        "overhead",
        "recovery",
    ),
    "benchmarks-sqlite.md": (
        "sqlite",
        "sqlite_backlog",
        "sqlite_contention",
        "sqlite_power",
        "sqlite_renew",
    ),
}
BENCHMARKS = tuple(name for names in PAGES.values() for name in names)
HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"


def main() -> int:
    """Run the bench and return its exit code."""
    options = _parse_options()
    # Images are unmounted in a `finally`, so a termination must be an exception.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    from tools import orphans

    from bench.runner import run_all

    orphans.guard()

    pages = {} if options.quick else {DOCS / page: names for page, names in PAGES.items()}
    return run_all(options.only, options.dir, options.rounds, options.quick, pages)


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


if __name__ == "__main__":
    sys.exit(main())
