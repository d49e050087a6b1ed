"""Run the scale study and write docs/scale.md: `make scale`.

python -m bench.scale            the whole study, some minutes of one core
python -m bench.scale --validate only the comparison with the real worker
python -m bench.scale --week     only the week
python -m bench.scale --page     only the page, from the stored results
"""

import json
import logging
import sys
from pathlib import Path
from time import process_time
from typing import Any

from bench.scale.page import PAGE, render
from bench.scale.runs import (
    find_multiples,
    run_quiet,
    run_retried_executions,
    run_short_interval,
    run_sweeper_variants,
    run_week,
)
from bench.scale.study import PARTS
from bench.scale.validating import OUTAGE, plan_arrivals, plan_outage, run_model, run_real

RESULTS = Path(__file__).with_name("results.json")
_LOADS = ((2_000, 60.0), (1_000, 120.0))  # messages, and how many of them a second


def run() -> dict[str, Any]:
    """Run all parts of the study and return their results."""
    began = process_time()
    results: dict[str, Any] = validate()
    results["quiet"] = run_quiet(load=1.0, hours=1.0)
    results["sweeper"] = run_sweeper_variants((60.0, 290.0))
    results["short_interval"] = run_short_interval()
    results["retried"] = run_retried_executions()
    _tell("ran the variants")
    results["multiples"] = find_multiples(hours=0.25, progress=_tell)
    results["week"] = run_week(processes=len(PARTS))
    _tell("the week is over")
    own = process_time() - began
    return results | {"cpu_seconds": round(own + results["week"]["cpu_seconds"])}


def validate() -> dict[str, Any]:
    """Compare the model with the real worker, and return the calls of both."""
    logging.disable(logging.ERROR)  # failures and retries are expected here
    runs = [_validate(*load) for load in _LOADS]
    outage = run_real(plan_outage(), OUTAGE)
    logging.disable(logging.NOTSET)
    _tell("validated")
    return {
        "validation": runs,
        "outage": {
            "real": outage.calls,
            "model": run_model(outage, OUTAGE),
            "handlers": len(outage.arrivals),
        },
    }


def _validate(messages: int, per_second: float) -> dict[str, Any]:
    real = run_real(plan_arrivals(messages, per_second))
    return {
        "messages": messages,
        "per_second": per_second,
        "real": real.calls,
        "model": run_model(real),
        "delay_ms": round(real.delay_seconds * 1000, 1),
    }


def _tell(text: str) -> None:
    print(f"{process_time():6.0f} s of CPU  {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Run the study, unless only the page is wanted."""
    match sys.argv[1:]:
        case ["--page"]:
            new = {}
        case ["--validate"]:
            new = validate()
        case ["--week"]:
            new = {"week": run_week(processes=len(PARTS))}
        case _:
            new = run()
    if new:
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        RESULTS.write_text(json.dumps(results | new, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(render(json.loads(RESULTS.read_text())))
    _tell(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
