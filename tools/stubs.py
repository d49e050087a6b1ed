"""Write the stubs through which type checkers see the names that are imported on first use.

python tools/stubs.py     after a change of a `lazy_exports` table; a test compares them

A module that has only a `lazy_exports` table has a stub beside it. (`events.py` and
`queue/manager.py` have code of their own, and name what is lazy under TYPE_CHECKING.)
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "holdfast"
_HEADING = "# Written by tools/stubs.py from the table of names in the module itself.\n"


def find_tables() -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield each module that has nothing but a table, with its table."""
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        if "lazy_exports(" not in text:
            continue
        match ast.parse(text).body:
            case [ast.Expr(), ast.ImportFrom(), ast.Assign(value=ast.Call(args=[_, table]))]:
                yield path, ast.literal_eval(table)


def make_stub(table: dict[str, str]) -> str:
    """Return imports that export each name of a table."""
    lines = [
        f"from holdfast.{module} import {name} as {name}\n"
        for module, names in table.items()
        for name in names.split()
    ]
    return _HEADING + "".join(sorted(lines))


def main() -> int:
    """Write all stubs."""
    stubs = []
    for path, table in find_tables():
        stub = path.with_suffix(".pyi")
        stub.write_text(make_stub(table))
        stubs.append(str(stub))
    for command in (["check", "-q", "--fix"], ["format", "-q"]):
        subprocess.run([sys.executable, "-m", "ruff", *command, *stubs], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
