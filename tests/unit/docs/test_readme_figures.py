"""The README's table of CPU per message is that of the benchmark page."""

from pathlib import Path

from support.paths import ROOT

SHOWN = ("", "CPU per message", "API calls per message")


def test_the_readme_shows_the_measured_cpu_per_message() -> None:
    readme = _find_table(ROOT / "README.md", SHOWN[1])
    measured = _find_table(ROOT / "docs/benchmarks-sqs.md", SHOWN[1])
    assert tuple(readme[0]) == SHOWN
    places = [measured[0].index(name) for name in SHOWN]
    assert readme[1:] == [[row[place] for place in places] for row in measured[1:]]


def _find_table(page: Path, column: str) -> list[list[str]]:
    """Return the cells of the first table with that column, without the rule below its head."""
    lines = page.read_text().splitlines()
    start = next(n for n, line in enumerate(lines) if f"| {column} |" in line)
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return [rows[0], *rows[2:]]
