"""`make scale`: run the scale study, write docs/scale.md and all results as build/scale.json.

python -m bench.scale            the whole study, some minutes of one core
python -m bench.scale --page     only the page, from the results of the last run
"""

import json
import sys
from time import monotonic

from bench.scale.page import PAGE, render
from bench.scale.study import run_all

RESULTS = PAGE.parents[1] / "build" / "scale.json"


def _tell(text: str) -> None:
    print(f"{monotonic() - _BEGAN:6.0f} s  {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Run the study, unless only the page is wanted."""
    if sys.argv[1:] != ["--page"]:
        results = run_all(_tell)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(render(json.loads(RESULTS.read_text())))
    _tell(f"wrote {PAGE.name}")


if __name__ == "__main__":
    _BEGAN = monotonic()
    main()
