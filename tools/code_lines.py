"""Count code lines, without blank lines, comments and docstrings, and the words of the docs.

python tools/code_lines.py          src, testing, tests, all Python; README, docs and ADRs
python tools/code_lines.py 2        also the packages of src, two levels deep
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "holdfast"
TESTING = SOURCE / "testing"
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
    paths = [path for path in ROOT.rglob("*.py") if ".venv" not in path.parts]
    lines = {path: count_code_lines(path.read_text()) for path in paths}
    source = {path: count for path, count in lines.items() if SOURCE in path.parents}
    if len(sys.argv) > 1:
        packages: Counter[str] = Counter()
        for path, count in source.items():
            parts = path.relative_to(SOURCE).parts[:-1][: int(sys.argv[1])]
            packages["/".join(parts) or "."] += count
        for package, count in sorted(packages.items()):
            print(f"{count:7,} {package}")
    testing = sum(count for path, count in source.items() if TESTING in path.parents)
    tests = sum(count for path, count in lines.items() if ROOT / "tests" in path.parents)
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    words = sum(len(page.read_text().split()) for page in pages)
    print(f"{sum(source.values()) - testing:7,} code lines of src without testing")
    print(f"{testing:7,} code lines of testing")
    print(f"{tests:7,} code lines of tests")
    print(f"{sum(lines.values()):7,} code lines of all Python")
    print(f"{len(source):7,} files of src")
    print(f"{words:7,} words in {len(pages)} pages")
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
