"""The commands and the files of README.md, in their order, as a new user meets them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`([\w/]+\.py)`")


@dataclass(frozen=True, slots=True)
class FileStep:
    """A block of Python. The sentence before the block names its file."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class ShellStep:
    """A block of commands."""

    text: str


def read_steps(page: str) -> Iterator[FileStep | ShellStep]:
    """Yield the `sh` and `python` blocks of the page. Others are only read."""
    end = 0
    for block in _BLOCK.finditer(page):
        language, text = block.groups()
        before = page[end : block.start()].strip().rpartition("\n\n")[2]
        end = block.end()
        if language == "python":
            yield FileStep(_read_name(before, text), text)
        elif language == "sh":
            yield ShellStep(text)


def _read_name(before: str, text: str) -> str:
    names = _FILE.findall(before)
    assert names, f"the sentence before this block must name its file in backticks:\n{text}"
    return str(names[-1])
