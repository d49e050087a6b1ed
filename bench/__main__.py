"""The command line of the bench. Measuring processes import this file too: keep it light."""

import argparse
import signal
import sys
from pathlib import Path

BENCHMARKS = (
    "cycle",
    "backlog",
    "contention",
    "power",
    "keeper",
    "overhead",
    "recovery",
    "sqs",
    "sqs_long",
    "sqs_renew",
)
HERE = Path(__file__).parent
DOCS = HERE.parent / "docs" / "benchmarks.md"


def main() -> int:
    options = _options()
    # Images are unmounted in a `finally`: a termination must come as an exception.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    from bench.runner import run_all

    return run_all(options.only, options.dir, options.rounds, options.quick, options.docs)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", type=_names, default=BENCHMARKS, metavar="NAME,NAME")
    parser.add_argument("--quick", action="store_true", help="small sizes, to try things out")
    parser.add_argument("--rounds", type=int, help="default: 5, with --quick 2")
    parser.add_argument("--dir", type=Path, default=HERE / "out", help="where to measure")
    parser.add_argument(
        "--docs", type=Path, help=f"where to write; default: a whole run to {DOCS.name}"
    )
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 5)
    whole = options.only == BENCHMARKS and not options.quick
    options.docs = options.docs or (DOCS if whole else None)
    return options


def _names(text: str) -> tuple[str, ...]:
    wanted = tuple(text.split(","))
    if unknown := set(wanted) - set(BENCHMARKS):
        raise argparse.ArgumentTypeError(
            f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}"
        )
    return tuple(name for name in BENCHMARKS if name in wanted)


if __name__ == "__main__":
    sys.exit(main())
