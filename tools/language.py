"""Check that the repository speaks plainly: no banned word, no id that is not explained.

Run by `make lint`. The rules are in CONTRIBUTING.md. Prints one line for each fault and exits
with 1 if there is any.
"""

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SAFETY_PAGES = sorted((ROOT / "docs").glob("safety*.md"))
REQUIREMENTS = ROOT / "docs" / "requirements.toml"
SUFFIXES = {".py", ".md", ".toml", ".yml", ".yaml"}
EXEMPT = {"tools/language.py", "constraints.txt"}

# Each word with what to write instead. An underscore counts as the end of a word, so that
# test names are checked too.
WORDS = {
    "somebody|someone|anybody|anyone|everybody|everyone|nobody|whoever|whomever": (
        "the process, worker, caller or row"
    ),
    "he|him|his|himself|she|her": "the process, worker, caller or operator",
    "bury|buries|buried|burying|burial|burials": "dead-letter",
    "thief|thieves|theft|steal|steals|stole|stolen|stealing": "take over",
    "zombie|zombies": "stale holder",
    "mercy|patience": "…_timeout_seconds",
    "good for nothing": "that died before finishing a task",
    "is no (?!longer|more|less|later|earlier|larger|smaller|newer|older|better|faster)": (
        "is not a"
    ),
}
# Names of variables, parameters, functions and attributes that say nothing.
NAMES = {"told", "said", "ours", "theirs", "mine"}
NAME_PREFIXES = ("longest_", "mercy_", "patience_")
ID = re.compile(r"\b(?:I-)?(?:HB|FQ|MS|JB|WD|LO|SQ|D)-\d{1,2}\b")
REQUIREMENT = re.compile(r"\bR\d{3}-\d{3}\b")
WORD_PATTERNS = [
    (re.compile(rf"(?<![A-Za-z])(?:{words})(?![A-Za-z])", re.IGNORECASE), instead)
    for words, instead in WORDS.items()
]


def main() -> int:
    """Print every fault; return 1 if there is one."""
    known = {id_ for page in SAFETY_PAGES for id_ in ID.findall(page.read_text())}
    known |= set(REQUIREMENT.findall(REQUIREMENTS.read_text()))
    faults = [
        f"{path}:{number}: {fault}"
        for path in tracked_files()
        for number, fault in faults_in(path, (ROOT / path).read_text(), known)
    ]
    print("\n".join([*faults, f"banned words, vague names and unexplained ids: {len(faults)}"]))
    return min(1, len(faults))


def tracked_files() -> list[str]:
    """Return the paths of all texts in the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [path for path in listed.stdout.splitlines() if path not in EXEMPT]
    return [p for p in paths if Path(p).suffix in SUFFIXES and (ROOT / p).is_file()]


def faults_in(path: str, text: str, known: set[str]) -> Iterator[tuple[int, str]]:
    """Yield the line number and the description of each fault in one text."""
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, instead in WORD_PATTERNS:
            for match in pattern.finditer(line):
                yield number, f"{match[0].strip()!r}: write {instead!r} instead"
        for match in [*ID.finditer(line), *REQUIREMENT.finditer(line)]:
            if match[0] not in known:
                yield number, f"{match[0]} is not explained in docs/"
    if path.endswith(".py"):
        yield from vague_names(text)


def vague_names(text: str) -> Iterator[tuple[int, str]]:
    """Yield the names in Python code that do not name the thing."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        name = token.string.lower().lstrip("_")
        if token.type == tokenize.NAME and (name in NAMES or name.startswith(NAME_PREFIXES)):
            yield token.start[0], f"name {token.string!r}: name the thing"


if __name__ == "__main__":
    sys.exit(main())
