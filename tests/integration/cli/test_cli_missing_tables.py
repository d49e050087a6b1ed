"""Missing tables are reported once, with a command to paste that creates them."""

import os
import re
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pytest

from support.cli.commands import Cli, Ran, require_one_line

if TYPE_CHECKING:
    from support.ministack_server import Ministack

pytest_plugins = ["support.ministack_server"]

_HINT = re.compile(r"`([^`]*holdfast [^`]* tables [^`]*--create)`")


Run = Callable[[Mapping[str, str], tuple[str, ...]], Ran]


@pytest.fixture
def run(cli: Cli, ministack: "Ministack", monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a command with only these variables of Holdfast."""
    aws = {
        **ministack.env,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }

    def run(variables: Mapping[str, str], words: tuple[str, ...]) -> Ran:
        with monkeypatch.context() as environment:
            for name, value in {**aws, **variables}.items():
                environment.setenv(name, value)
            return cli(*words)

    return run


def paste(hint: str, run: Run) -> Ran:
    """Run the command of a hint as a shell would, with the variables before its name."""
    words = shlex.split(hint)
    name = words.index("holdfast")
    given = dict(word.split("=", 1) for word in words[:name])
    return run(given, tuple(words[name + 1 :]))


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (("export", "list", "--jobs", "dynamodb:a-"), {}),
        (("export", "list"), {"HOLDFAST_JOBS": "dynamodb:b-"}),
        (("export", "serve", "q", "--to", "out", "--jobs", "dynamodb:d-"), {}),
        (("chat", "show"), {"HOLDFAST_CHAT_STORE": "dynamodb:e-"}),
    ],
)
def test_a_command_reports_missing_tables_in_one_line_and_its_hint_creates_them(
    run: Run, words: tuple[str, ...], variables: dict[str, str]
) -> None:
    ran = run(variables, words)
    assert ran.code == 2, ran.err
    [hint] = _HINT.findall(require_one_line(ran))
    # Only the hint's own variables are set, and not those of the first command.
    made = paste(hint, run)
    assert made.code == 0, made.err + made.out
    again = run(variables, words) if "serve" not in words else made
    assert again.code in (0, 1), again.err
    assert "no such table" not in again.err


@pytest.mark.parametrize(
    ("words", "variables", "count"),
    [
        (("export", "doctor", "--jobs", "dynamodb:g-"), {}, 2),
        (("export", "tables", "--jobs", "dynamodb:h-"), {}, 2),
        (("chat", "doctor"), {"HOLDFAST_CHAT_STORE": "dynamodb:i-"}, 5),
        (("chat", "tables"), {"HOLDFAST_CHAT_STORE": "dynamodb:j-"}, 5),
    ],
)
def test_doctor_names_each_missing_table_once_and_its_hint_creates_them(
    run: Run,
    words: tuple[str, ...],
    variables: dict[str, str],
    count: int,
) -> None:
    ran = run(variables, (*words, "--json"))
    assert (ran.code, ran.err) == (1, "")
    failed = [finding for finding in ran.json if finding["level"] == "fail"]
    assert len(failed) == len({finding["found"] for finding in failed}) == count
    [hint] = {match for each in failed for match in _HINT.findall(each["remedy"])}
    made = paste(hint, run)
    assert made.code == 0, made.err + made.out
    assert run(variables, words).code == 0
