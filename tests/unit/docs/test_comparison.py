"""Every cell of the README's comparison has a line with its source in docs/comparison.md."""

import re

import pytest

from support.paths import ROOT

README = (ROOT / "README.md").read_text()
SOURCES = (ROOT / "docs" / "comparison.md").read_text()


def read_section(page: str, heading: str) -> str:
    """Return the text below a heading of the second level."""
    return page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


HEADING, _, *QUESTIONS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in read_section(README, "Comparison").splitlines()
    if line.startswith("|")
]
TOOLS = HEADING[1:]


def read_rows(section: str) -> list[list[str]]:
    """Return the rows of the table in a section of the page of sources."""
    lines = [
        line for line in read_section(SOURCES, section).splitlines() if line.startswith("| ")
    ]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_the_table_is_complete() -> None:
    assert TOOLS == [
        "Holdfast",
        "Celery",
        "dramatiq",
        "taskiq",
        "RQ",
        "huey",
        "procrastinate",
        "Temporal",
        "Lambda durable functions",
    ]
    assert all(len(row) == len(HEADING) and all(row) for row in QUESTIONS)


@pytest.mark.parametrize("tool", TOOLS)
def test_each_cell_has_a_source(tool: str) -> None:
    expected = [row[0] for row in read_rows("Holdfast")]
    rows = read_rows(tool)
    assert [row[0] for row in rows] == expected
    assert len(rows) == len(QUESTIONS)
    for cell, answer, source in rows:
        assert answer, cell
        assert re.search(r"\]\(|`|the same", source), f"{cell} names no source: {source!r}"


@pytest.mark.parametrize("tool", TOOLS[1:])
def test_each_tool_names_the_version_that_was_read(tool: str) -> None:
    introduction = read_section(SOURCES, tool).partition("\n|")[0]
    assert re.search(r"\d+\.\d+\.\d+|2026", introduction)
