"""Print how much of each package the unit tests run. Run by `make test`."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = "src/holdfast"
MAX_DEPTH = 2  # as in queues/sqlite


def main() -> int:
    """Print one line for each package, and the total."""
    report = json.loads(
        subprocess.check_output(
            [sys.executable, "-m", "coverage", "json", "--quiet", "-o", "-"], cwd=ROOT
        )
    )
    statements, covered = Counter[str](), Counter[str]()
    for path, file in report["files"].items():
        for name in (name_package(path), "total"):
            statements[name] += file["summary"]["num_statements"]
            covered[name] += file["summary"]["covered_lines"]
    print("coverage of the unit tests, in statements:")
    for name in sorted(statements, key=lambda name: (name == "total", name)):
        share = 100 * covered[name] / max(1, statements[name])
        print(f"{name:24}{share:5.0f} % of {statements[name]:6}")
    return 0


def name_package(path: str) -> str:
    """Return the package that a file is counted in, at most two levels below holdfast."""
    parts = Path(path).relative_to(SOURCE).parts[:-1]
    return "/".join(parts[:MAX_DEPTH]) or "holdfast"


if __name__ == "__main__":
    sys.exit(main())
