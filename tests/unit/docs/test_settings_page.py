"""The page of the settings and infra/.env.example say what the code of the settings says."""

import pytest
from tools.settings_reference import EXAMPLE, PAGE, format_example, format_page, format_rows

from holdfast.queues.settings import QueueSettings
from holdfast.settings import read_settings
from holdfast.variables import find_known_variables, list_settings_kinds

NOT_FOR_OPERATORS = {"HOLDFAST_DEBUG"}  # shows tracebacks of the command line's own bugs


def read_example() -> dict[str, str]:
    """Return the variables of the file, as if the # of each line was removed."""
    lines = (line for line in EXAMPLE.read_text().splitlines() if line.startswith("#"))
    pairs = (line[1:].partition("=") for line in lines if "=" in line)
    return {name: value for name, _, value in pairs}


@pytest.mark.requirement("R004-031", "R004-207")
def test_both_files_are_what_the_tool_writes() -> None:
    assert EXAMPLE.read_text() == format_example()
    assert PAGE.read_text() == format_page(PAGE.read_text())


def test_both_files_have_every_setting() -> None:
    assert read_example().keys() == find_known_variables() - NOT_FOR_OPERATORS
    for kind in (QueueSettings, *list_settings_kinds()):
        own = [name for name in kind.model_fields if name in kind.__annotations__]
        rows = "".join(format_rows(kind)).splitlines()
        assert [row.split("`")[1] for row in rows] == own
        assert all(row in PAGE.read_text() for row in rows)


def test_a_process_that_sets_the_whole_file_has_the_defaults() -> None:
    env = {name: value for name, value in read_example().items() if value}
    for kind in list_settings_kinds():
        assert read_settings(kind, env) == kind()
