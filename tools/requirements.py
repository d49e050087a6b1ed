"""Show how requirements of the five design documents are met, and which tests prove it.

    python tools/requirements.py R001-033 …  these requirements; without an id, all of them
    python tools/requirements.py --check     fail if a requirement has neither test nor reason

A test that proves a requirement carries `@pytest.mark.requirement("R001-033")`. The file
docs/requirements.toml says in one sentence how each requirement is met, or what replaced it and
why. A requirement is `met` if a test proves it, and `replaced` if the file says so.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DECISIONS = ROOT / "docs" / "requirements.toml"
FOLDERS = (ROOT / "tests", ROOT / "src" / "holdfast" / "testing" / "contracts")


def main() -> int:
    """Show requirements, or check all; return 1 if something is wrong."""
    decisions = tomllib.loads(DECISIONS.read_text())
    tests = proofs()
    problems = list(find_problems(decisions, tests))
    wanted = set(sys.argv[1:])
    if "--check" not in wanted:
        print("\n".join(describe(decisions, tests, wanted)))
    print(
        "\n".join(
            [*problems, f"requirements: {summarize(decisions)}, problems: {len(problems)}"]
        )
    )
    return min(1, len(problems))


def proofs() -> dict[str, list[str]]:
    """Return the names of the tests that carry each requirement's marker."""
    found: dict[str, set[str]] = {}
    for folder in FOLDERS:
        for path in sorted(folder.rglob("*.py")):
            for test, requirement in marked_tests(path):
                found.setdefault(requirement, set()).add(test)
    return {requirement: sorted(tests) for requirement, tests in found.items()}


def marked_tests(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each test of a file with each requirement that it proves."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith(
                    "mark.requirement"
                ):
                    yield from ((node.name, ast.literal_eval(id_)) for id_ in mark.args)


def find_problems(decisions: dict[str, dict], tests: dict[str, list[str]]) -> Iterator[str]:
    """Yield what is inconsistent between the file of decisions and the markers."""
    listed = [id_ for section in decisions.values() for id_ in section["rows"]]
    for id_ in sorted(set(tests) - set(listed)):
        yield f"{id_} is marked on {tests[id_][0]} but missing in docs/requirements.toml"
    for section in decisions.values():
        for id_ in section["rows"]:
            if id_ not in tests and id_ not in section.get("replaced", {}):
                yield f"{id_} has no test: mark one, or say under `replaced` what replaced it"
        for id_ in set(section.get("replaced", {})) - set(section["rows"]):
            yield f"{id_} is replaced but has no row"


def describe(
    decisions: dict[str, dict], tests: dict[str, list[str]], wanted: set[str]
) -> Iterator[str]:
    """Yield how each wanted requirement is met, with its tests. No id means all of them."""
    for section in decisions.values():
        for id_, how in section["rows"].items():
            if not wanted or id_ in wanted:
                reason = section.get("replaced", {}).get(id_)
                yield f"{id_} {'replaced' if reason else 'met'}: {how} {reason or ''}".rstrip()
                yield from (f"    {test}" for test in tests.get(id_, []))


def summarize(decisions: dict[str, dict]) -> str:
    """Return how many requirements there are of each label."""
    rows = sum(len(section["rows"]) for section in decisions.values())
    replaced = sum(len(section.get("replaced", {})) for section in decisions.values())
    return f"{rows - replaced} met, {replaced} replaced"


if __name__ == "__main__":
    sys.exit(main())
