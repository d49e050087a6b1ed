"""infra/.env.example has every setting, with the default of the code."""

from tools.env_example import FILE, format_example

from holdfast.settings import read_settings
from holdfast.variables import find_known_variables, list_settings_kinds

NOT_FOR_OPERATORS = {"HOLDFAST_DEBUG"}  # shows tracebacks of the command line's own bugs


def read_example() -> dict[str, str]:
    """Return the variables of the file, as if the # of each line was removed."""
    lines = (line for line in FILE.read_text().splitlines() if line.startswith("#"))
    pairs = (line[1:].partition("=") for line in lines if "=" in line)
    return {name: value for name, _, value in pairs}


def test_the_file_is_what_the_tool_writes() -> None:
    assert FILE.read_text() == format_example()


def test_the_file_has_every_setting_and_no_other_variable() -> None:
    assert read_example().keys() == find_known_variables() - NOT_FOR_OPERATORS


def test_a_process_that_sets_the_whole_file_has_the_defaults() -> None:
    env = {name: value for name, value in read_example().items() if value}
    for kind in list_settings_kinds():
        assert read_settings(kind, env) == kind()
