"""Break what requirements claim, and report those whose tests do not notice.

    python tools/mutate_requirements.py [ROW ...]    all mutants, or those of these rows
    python tools/mutate_requirements.py --check      only check that each mutant applies

`tools/requirement_mutants.toml` has the mutants: a file, a text that occurs in it exactly once,
what replaces it, and the rows whose claim that breaks. The text is replaced in a copy of the
tree, and the tests that carry the rows' markers run there. A row is killed if one of its own
tests fails, and has survived if all of them pass. If the tests do not end in time, the row is
counted as `did not end`: the mutant made them hang, or the machine was too busy to tell.
Results are kept in build/mutants.jsonl, and a second call runs only mutants without a result
and those that were not killed; delete the file to begin again.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from queue import SimpleQueue

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
from tools import requirements

ROOT = requirements.ROOT
TABLE = ROOT / "tools" / "requirement_mutants.toml"
RESULTS = ROOT / "build" / "mutants.jsonl"
COPIES = 2
TIMEOUT_SECONDS = 100.0
DID_NOT_END = "did not end"
Test = tuple[str, str]  # the path of its file, and its name
_passing: set[Test] = set()  # known to pass without a mutant
# Python trusts a compiled file if the source has the time and the size that it was made from.
_times = count(1_000_000_000, 10)


@dataclass(frozen=True)
class Mutant:
    """A change of one file that breaks what the rows claim. Without a file, nothing changes."""

    rows: tuple[str, ...]
    file: str = ""
    old: str = ""
    new: str = ""

    def apply(self, text: str) -> str:
        """Return the file's text with the change; ValueError if it does not apply once."""
        if (found := text.count(self.old)) != 1:
            raise ValueError(f"{self.file} has {found} times, not once: {self.old!r}")
        return text.replace(self.old, self.new)


def main() -> int:
    """Run the mutants; return 1 if one does not apply or a row survived."""
    mutants, unmutated = load_table()
    if problems := [*find_problems(mutants, unmutated)]:
        print("\n".join(problems))
        return 1
    if "--check" in sys.argv[1:]:
        return 0
    wanted = set(sys.argv[1:])
    chosen = [mutant for mutant in mutants if not wanted or wanted & set(mutant.rows)]
    outcomes = run_mutants(chosen)
    report(chosen, outcomes, {} if wanted else unmutated)
    return int(any(outcome not in ("killed", DID_NOT_END) for outcome in outcomes.values()))


def load_table() -> tuple[list[Mutant], dict[str, str]]:
    """Return the mutants, and why each of the other rows has none."""
    table = tomllib.loads(TABLE.read_text())
    reasons = table.pop("not_mutated", {})
    mutants = [
        Mutant(tuple(rows.split()), file, old, new)
        for file, entries in table.items()
        for rows, (old, new) in entries.items()
    ]
    reasons = {row: reason for reason, rows in reasons.items() for row in rows.split()}
    return mutants, reasons


def find_problems(mutants: list[Mutant], unmutated: dict[str, str]) -> Iterator[str]:
    """Yield mutants that do not apply, and rows that are missing or unknown."""
    for mutant in mutants:
        try:
            mutant.apply((ROOT / mutant.file).read_text())
        except (OSError, ValueError) as error:
            yield f"{' '.join(mutant.rows)}: {error}"
    sections = tomllib.loads(requirements.DECISIONS.read_text()).values()
    known = {row for section in sections for row in section["rows"]}
    mutated = {row for mutant in mutants for row in mutant.rows}
    for row in sorted(known ^ (mutated | set(unmutated))):
        yield f"{row} needs a row in requirements.toml, and a mutant or a reason for none"
    for row in sorted(mutated & set(unmutated)):
        yield f"{row} has both a mutant and a reason for none"


# -- running


def run_mutants(mutants: list[Mutant]) -> dict[tuple[Mutant, str], str]:
    """Return the outcome of each mutant for each of its rows."""
    RESULTS.parent.mkdir(exist_ok=True)
    copies: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for number in range(COPIES):
            copies.put(copy_tree(Path(folder) / str(number)))
        with ThreadPoolExecutor(COPIES) as threads:
            results = threads.map(lambda mutant: run_once(mutant, copies), mutants)
            return {
                (mutant, row): outcome
                for mutant, outcomes in zip(mutants, results, strict=True)
                for row, outcome in outcomes.items()
            }


def run_once(mutant: Mutant, copies: SimpleQueue[Path]) -> dict[str, str]:
    """Return the outcome for each row, from the file of results if all were killed before."""
    tests = {row: index_tests().get(row, []) for row in mutant.rows}
    key = json.dumps([mutant.file, mutant.old, mutant.new, tests])
    outcomes = read_results().get(key, {})
    if set(outcomes.values()) != {"killed"}:
        copy = copies.get()
        try:
            outcomes = judge(mutant, tests, copy)
        finally:
            copies.put(copy)
        with RESULTS.open("a") as results:
            results.write(json.dumps([key, outcomes]) + "\n")
        print(mutant.file, *(f"{row} {outcome}" for row, outcome in outcomes.items()))
        sys.stdout.flush()
    return outcomes


def read_results() -> dict[str, dict[str, str]]:
    """Return what earlier runs have found."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return dict(json.loads(line) for line in lines)


def judge(mutant: Mutant, tests: dict[str, list[Test]], copy: Path) -> dict[str, str]:
    """Return for each row whether a test fails with the mutant that passes without it."""
    named = {test for row in tests.values() for test in row}
    path = copy / mutant.file
    original = path.read_text()
    try:
        write_source(path, mutant.apply(original))
        failed = run_tests(named, copy)
    finally:
        write_source(path, original)
    if isinstance(failed, str):
        return dict.fromkeys(tests, failed)
    if unsure := failed - _passing:  # a test that fails in any case proves nothing
        failing = run_tests(unsure, copy)
        _passing.update(set() if isinstance(failing, str) else unsure - failing)
    killers = failed & _passing
    return {
        row: "killed" if killers & set(named) else "survived" for row, named in tests.items()
    }


def write_source(path: Path, text: str) -> None:
    """Write the text, with a time of its own."""
    path.write_text(text)
    moment = next(_times)
    os.utime(path, (moment, moment))


def run_tests(tests: Iterable[Test], copy: Path) -> set[Test] | str:
    """Return those that failed, or why that is unknown."""
    tests = set(tests)
    paths = sorted({path for file, _ in tests for path in choose_paths(file, copy)})
    names = " or ".join(sorted({name for _, name in tests}))
    # Without compiled files, each process of each run would compile all that it imports.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "pytest", "--tb=no", "-rfE", "-p", "no:cacheprovider"]
    try:
        run = subprocess.run(
            [*command, "-k", names, *paths],
            cwd=copy,
            env=environment | {"PYTHONPATH": str(copy / "src")},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return DID_NOT_END
    lines = re.findall(r"^(?:FAILED|ERROR) (\S+?)::(?:\w+::)*(\w+)", run.stdout, re.MULTILINE)
    if run.returncode not in (0, 1) or (run.returncode == 1 and not lines):
        return "broken: the tests cannot be collected"
    return {test for test in tests for path, name in lines if is_same(test, path, name, copy)}


def is_same(test: Test, path: str, name: str, copy: Path) -> bool:
    return test[1] == name and path in choose_paths(test[0], copy)


def choose_paths(file: str, copy: Path) -> list[str]:
    """Return the file, or those that run the contract suite that it belongs to."""
    if Path(file).name.startswith("test_"):
        return [file]
    kind = Path(file).parent.name
    return [
        str(path.relative_to(copy))
        for path in (copy / "tests/contracts").glob(f"test_*{kind}*.py")
    ]


@cache
def index_tests() -> dict[str, list[Test]]:
    """Return file and name of the tests that carry each row's marker."""
    found: dict[str, set[Test]] = {}
    for folder in requirements.FOLDERS:
        for path in folder.rglob("*.py"):
            for test, row in requirements.marked_tests(path):
                found.setdefault(row, set()).add((str(path.relative_to(ROOT)), test))
    return {row: sorted(tests) for row, tests in found.items()}


def copy_tree(target: Path) -> Path:
    """Copy the tree with its compiled files, and lend the environment to the copy."""
    shutil.copytree(ROOT, target, ignore=shutil.ignore_patterns(".*", "build", "data"))
    (target / ".venv").symlink_to(ROOT / ".venv")
    return target


def report(
    mutants: list[Mutant], outcomes: dict[tuple[Mutant, str], str], unmutated: dict[str, str]
) -> None:
    """Print what survived, why other rows were not mutated, and the figure."""
    for (mutant, row), outcome in outcomes.items():
        if outcome != "killed":
            print(f"{row} {outcome}: {mutant.file}: {mutant.old!r} -> {mutant.new!r}")
    for reason, number in Counter(unmutated.values()).items():
        print(f"not mutated, {number} rows: {reason}")
    rows = {row for mutant in mutants for row in mutant.rows}
    left = {row for (_, row), outcome in outcomes.items() if outcome != "killed"}
    hung = {row for (_, row), outcome in outcomes.items() if outcome == DID_NOT_END}
    print(
        f"requirements: {len(rows) + len(unmutated)}, mutated: {len(rows)} by {len(mutants)} "
        f"mutants, killed: {len(rows - left)}, survived: {len(left - hung)}, "
        f"did not end: {len(hung)}"
    )


if __name__ == "__main__":
    sys.exit(main())
