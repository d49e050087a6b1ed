"""docs/requirements.md: no id of a finished part is missing, no test it names is made up."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FINISHED = {f"R001-{number:03d}" for number in range(1, 48)}
FINISHED |= {f"R000-{number:03d}" for number in range(1, 86)}
FINISHED |= {f"R001-{number:03d}" for number in range(48, 60)}
FINISHED |= {f"R003-{number:03d}" for number in range(1, 49)}
FINISHED |= {f"R002-{number:03d}" for number in range(1, 99)}
FINISHED |= {f"R004-{number:03d}" for number in range(1, 272)}


def rows() -> dict[str, str]:
    page = (ROOT / "docs" / "requirements.md").read_text()
    return dict(re.findall(r"^\| (R\d{3}-\d{3}) \| (.*) \|$", page, re.MULTILINE))


def all_tests() -> set[str]:
    folders = (ROOT / "tests", ROOT / "src/holdfast/testing/contracts")
    files = [file for folder in folders for file in folder.rglob("*.py")]
    return {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}


def test_no_requirement_of_a_finished_part_is_missing() -> None:
    assert FINISHED - rows().keys() == set()


def test_every_requirement_names_a_test_that_exists() -> None:
    named = {key: re.findall(r"`(test_\w+)`", row) for key, row in rows().items()}
    assert [key for key, names in named.items() if not names] == []
    assert {name for names in named.values() for name in names} - all_tests() == set()
