"""Print how the public names of Holdfast are doing: shared class names, missing docstrings.

python tools/names.py           the figures
python tools/names.py --list    the public functions without a docstring, too
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def main() -> int:
    """Print the figures."""
    shared = shared_class_names()
    functions = list(public_functions())
    bare = [where for where, function in functions if not ast.get_docstring(function)]
    if "--list" in sys.argv[1:]:
        print("\n".join(bare))
    documented = 1 - len(bare) / len(functions)
    print(f"public classes with a shared name: {len(shared)} {', '.join(shared)}".rstrip())
    print(f"public functions: {len(functions)}, with a docstring: {documented:.1%}")
    return 0


def shared_class_names() -> list[str]:
    """Return the names that more than one public class has."""
    names = Counter(
        node.name
        for _, tree in modules()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and is_public(node.name)
    )
    return sorted(name for name, times in names.items() if times > 1)


def public_functions() -> Iterator[tuple[str, Function]]:
    """Yield the public functions and methods with their place.

    The tests of the contract suites are left out, because their names are sentences, and so
    are properties' setters and overloads, which have no documentation of their own.
    """
    for path, tree in modules():
        yield from functions_in(tree.body, str(path.relative_to(SOURCE)))


def functions_in(body: list[ast.stmt], place: str) -> Iterator[tuple[str, Function]]:
    """Yield the public functions of a module or of a public class."""
    for node in body:
        if isinstance(node, ast.ClassDef) and is_public(node.name):
            yield from functions_in(node.body, f"{place}:{node.name}")
        elif isinstance(node, Function) and is_documentable(node):
            yield f"{place}:{node.name}", node


@cache
def modules() -> Sequence[tuple[Path, ast.Module]]:
    """Return all modules with their syntax trees."""
    return [(path, ast.parse(path.read_text())) for path in sorted(SOURCE.rglob("*.py"))]


def is_public(name: str) -> bool:
    """Return whether other modules may use this name."""
    return not name.startswith("_")


def is_documentable(function: Function) -> bool:
    """Return whether a function is public and is not a test, an overload or a setter."""
    marks = [ast.unparse(mark) for mark in function.decorator_list]
    is_extra = any(mark == "overload" or mark.endswith(".setter") for mark in marks)
    return is_public(function.name) and not function.name.startswith("test_") and not is_extra


if __name__ == "__main__":
    sys.exit(main())
