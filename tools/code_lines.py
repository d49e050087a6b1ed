"""Count the code lines of `src`, without blank lines, comments and docstrings.

python tools/code_lines.py          the total, with and without the contract suites
python tools/code_lines.py 2        also the packages, two levels deep
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "holdfast"
CONTRACTS = SOURCE / "testing" / "contracts"
NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def main() -> int:
    """Print the counts."""
    lines = {path: count_code_lines(path.read_text()) for path in SOURCE.rglob("*.py")}
    if len(sys.argv) > 1:
        packages: Counter[str] = Counter()
        for path, count in lines.items():
            parts = path.relative_to(SOURCE).parts[:-1][: int(sys.argv[1])]
            packages["/".join(parts) or "."] += count
        for package, count in sorted(packages.items()):
            print(f"{count:6,} {package}")
    suites = sum(count for path, count in lines.items() if CONTRACTS in path.parents)
    total = sum(lines.values())
    print(f"code lines of src: {total:,}; without testing/contracts: {total - suites:,}")
    return 0


def count_code_lines(text: str) -> int:
    """Return the number of lines that hold a token other than a comment or a docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NOT_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Documented) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            lines -= set(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return len(lines)


if __name__ == "__main__":
    sys.exit(main())
