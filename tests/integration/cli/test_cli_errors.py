"""Every error is one clear line with a documented code and no traceback."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import typer

from holdfast.cli.arguments import parse_duration
from holdfast.cli.console import ExitCode, exit_code_from_error, format_error
from holdfast.cli.main import CommandTable
from holdfast.errors import (
    ConfigError,
    HandlerNotFound,
    InvalidName,
    LeaseLost,
    MalformedMessage,
    QueueUnavailable,
)
from holdfast.text import format_duration
from support.cli.commands import Cli, clean_env, command, real, require_one_line
from support.paths import ROOT

GROUPS = {group: CommandTable(group) for group in ("", "export", "chat", "dead")}
COMMANDS = [[*group.split(), name] for group, table in GROUPS.items() for name in table]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(cli: Cli, words: list[str]) -> None:
    ran = cli(*words, "--help")
    assert ran.code == 0
    assert f"Usage: holdfast {' '.join(words)}" in ran.out


def test_every_command_is_in_the_reference() -> None:
    text = (ROOT / "docs/reference/cli.md").read_text()
    for words in COMMANDS:
        assert f"`holdfast {' '.join(words)}" in text, words


def test_the_reference_lists_every_exit_code() -> None:
    text = (ROOT / "docs/reference/cli.md").read_text()
    for code in ExitCode:
        assert f"| {code.value} |" in text, code


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["pusk"], "No such command 'pusk'"),
        (["status", "a", "b"], "unexpected extra argument"),
        (["status", "--jsno"], "--jsno"),
        (["explain"], "no queue is given"),
        (["explain", "enrich"], "one ID is needed after the queue, got 0"),
        (["explain", "enrich", "a", "b"], "one ID is needed after the queue, got 2"),
        (["work", "enrich", "a:b", "c:d"], "one MODULE:HANDLER is needed after the queue"),
        (["dead", "redrive", "enrich"], "`holdfast dead list` shows, or --all"),
        (["dead", "drop", "enrich"], "no id is given: give the ids of dead letters"),
        (["list", "enrich", "--limit=-1"], "--limit"),
        (["demo", "--tasks=1"], "--tasks"),
    ],
)
def test_a_command_written_wrongly_is_one_line_and_code_2(
    cli: Cli, words: list[str], complaint: str
) -> None:
    ran = cli(*words)
    assert ran.code == 2
    assert complaint in require_one_line(ran)


EVIL = "\x1b[2J\x1b]0;mine\x07\u202e\x9b31m\udcff"
LINES = f"{EVIL}\nall is well\r"


@pytest.mark.parametrize("name", [EVIL, LINES], ids=["escapes", "lines"])
@pytest.mark.parametrize(
    "words",
    [
        ["export", "run", "NAME", "--to", "out"],
        ["export", "run", "NAME/urls.txt", "--to", "out"],
        ["export", "run", "urls.txt", "--to", "NAME://x"],
        ["export", "run", "urls.txt", "--to", "urls.txt/NAME"],
        ["export", "run", "urls.txt", "--to", "out", "--max-size", "NAME"],
        ["export", "serve", "./q/NAME", "--to", "out"],
        ["export", "list", "--jobs", "NAME"],
        ["export", "list", "--jobs", "urls.txt", "--status", "NAME"],
        ["export", "show", "NAME", "--jobs", "missing"],
        ["export", "tables", "--jobs", "NAME"],
        ["queues", "NAME"],
        ["queues", "sqlite:NAME.db"],
        ["queues", "sqs:NAME"],
        ["status", "NAME"],
        ["status", "./NAME"],
        ["status", "sqs:NAME"],
        ["status", "enrich", "NAME"],
        ["list", "enrich", "--state", "NAME"],
        ["list", "enrich", "--limit", "NAME"],
        ["show", "./NAME", "x"],
        ["dead", "drop", "./NAME", "NAME", "--yes"],
        ["purge", "./NAME", "--older-than", "NAME"],
        ["push", "enrich", "--file", "NAME"],
        ["push", "enrich", "{}", "--delay", "NAME"],
        ["work", "enrich", "NAME:handle"],
        ["work", "enrich", "json:NAME"],
        ["work", "enrich", "json:loads", "--isolation", "NAME"],
        ["work", "enrich", "json:loads", "--log-format", "NAME"],
        ["chat", "show", "NAME"],
        ["chat", "work", "--channel", "NAME"],
        ["NAME"],
        ["--NAME"],
    ],
    ids=" ".join,
)
def test_no_control_character_of_a_name_reaches_the_terminal(
    cli: Cli, words: list[str], name: str
) -> None:
    (cli.folder / "urls.txt").write_text("")
    ran = cli(*(word.replace("NAME", name) for word in words))
    assert ran.code in (1, 2, 3, 4), ran.err
    assert require_one_line(ran).removesuffix("\n").isprintable()


LARGE = "9" * 23


@pytest.mark.parametrize("number", ["999999999", LARGE], ids=["9", "23"])
@pytest.mark.parametrize(
    "words",
    [
        ["work", "enrich", "json:loads", "-c"],
        ["export", "serve", "enrich", "--to", "out", "-c"],
        ["chat", "work", "-c"],
        ["work", "enrich", "json:loads", "--max-attempts"],
        ["work", "enrich", "json:loads", "--metrics-port"],
        ["export", "run", "urls.txt", "--to", "out", "--workers"],
        ["export", "run", "urls.txt", "--to", "out", "--downloads"],
        ["export", "run", "urls.txt", "--to", "out", "--per-host"],
        ["export", "run", "urls.txt", "--to", "out", "--attempts"],
        ["demo", "--tasks"],
    ],
    ids=" ".join,
)
def test_a_number_above_the_limit_is_one_line_and_code_2(
    cli: Cli, words: list[str], number: str
) -> None:
    (cli.folder / "urls.txt").write_text("")
    ran = cli(*words, number)
    assert ran.code == 2
    assert "less than or equal to" in require_one_line(ran)


@pytest.mark.parametrize(
    "words",
    [
        ["list", "enrich", "--limit", LARGE],
        ["dead", "list", "enrich", "--limit", LARGE],
        ["chat", "show", "customer", "--last", LARGE],
        ["export", "run", "urls.txt", "--to", "out", "--max-size", LARGE],
        ["export", "run", "urls.txt", "--to", "out", "--max-size", "9" * 400],
        ["work", "enrich", "json:loads", "--lease", LARGE],
        ["work", "enrich", "json:loads", "--drain", "9" * 400],
        ["purge", "enrich", "--older-than", LARGE],
        ["push", "enrich", "{}", "--delay", LARGE],
        ["status", "enrich", "--watch", "--every", LARGE],
    ],
    ids=lambda words: " ".join(words)[:60],
)
def test_a_huge_number_is_one_line_and_code_2(cli: Cli, words: list[str]) -> None:
    (cli.folder / "urls.txt").write_text("")
    assert cli("push", "enrich", "{}").code == 0
    ran = cli(*words)
    assert ran.code == 2
    assert require_one_line(ran)


@pytest.mark.parametrize("words", [[], ["dead"]])
def test_no_command_shows_the_help(cli: Cli, words: list[str]) -> None:
    ran = cli(*words)
    assert ran.code == 2
    assert "Usage: holdfast" in ran.out + ran.err


def test_the_version_is_shown(cli: Cli) -> None:
    assert cli("--version").out.startswith("holdfast 0.")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (InvalidName("x"), 2),
        (HandlerNotFound("x"), 2),
        (QueueUnavailable("x"), 3),
        (PermissionError(13, "Permission denied", "/srv/q"), 3),
        (MalformedMessage("x"), 4),
        (LeaseLost("x"), 1),
        (ZeroDivisionError("x"), 70),
    ],
)
def test_each_kind_of_error_has_its_code_and_is_one_line(error: Exception, code: int) -> None:
    assert exit_code_from_error(error) == code
    assert "\n" not in format_error(error)


def test_a_bug_says_where_it_is_and_quotes_no_data() -> None:
    """SQLite quotes a text that it cannot decode, and that may be a message's body."""
    try:
        raise sqlite3.OperationalError("could not decode to UTF-8 with text 'hunter2'")
    except sqlite3.OperationalError as error:
        text = format_error(error)
    assert "OperationalError in test_cli_errors.py, line" in text
    assert "HOLDFAST_DEBUG=1" in text
    assert "hunter2" not in text


def test_a_body_that_is_not_utf_8_blocks_no_command(cli: Cli) -> None:
    for message_id in ("bad", "good"):
        cli("push", "sqlite:work.db", "--id", message_id, "{}")
    with closing(sqlite3.connect(cli.folder / "work.db")) as connection, connection:
        body = b"hunter2 \xff"
        statement = "UPDATE messages SET body = CAST(? AS TEXT) WHERE id = 'bad'"
        connection.execute(statement, (body,))
    for words in (
        ["list"],
        ["list", "--where", "id=good"],
        ["status"],
        ["purge", "--older-than", "1h"],
    ):
        verb, *options = words
        ran = cli(verb, "sqlite:work.db", *options)
        assert ran.code == 0, ran.err
        assert "hunter2" not in ran.out + ran.err
    for verb in ("show", "explain"):
        assert cli(verb, "sqlite:work.db", "bad").code == 0


def test_debugging_shows_the_traceback(tmp_path: Path) -> None:
    ran = real(tmp_path, "status", "nosuch", env={"HOLDFAST_DEBUG": "1"})
    assert "Traceback" in ran.err
    assert "QueueNotFound" in ran.err
    assert "Traceback" not in real(tmp_path, "status", "nosuch").err


def list_modules(folder: Path, *arguments: str) -> set[str]:
    """Return the modules that are loaded after a command has run."""
    program = (
        "import sys, json; from holdfast.cli.main import run; run(sys.argv[1:]); "
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        capture_output=True,
        check=True,
        env=clean_env(),
    )
    return set(json.loads(done.stderr))


HEAVY = {"asyncio", "multiprocessing", "prometheus_client", "boto3", "sqlite3"}


def test_help_does_not_wait_for_heavy_imports(tmp_path: Path) -> None:
    """Heavy imports make a command line slow, and --help has a budget."""
    loaded = list_modules(tmp_path, "--help")
    assert not (HEAVY | {"pydantic"}) & loaded
    assert "rich.table" in loaded  # the help is formatted as usual
    own = {name for name in loaded if name.startswith("holdfast.cli.")}
    assert own == {f"holdfast.cli.{name}" for name in ("main", "console")}


def test_a_command_imports_only_what_it_needs(tmp_path: Path) -> None:
    assert real(tmp_path, "push", "enrich", "{}").code == 0
    loaded = list_modules(tmp_path, "status", "enrich")
    assert not (HEAVY | {"rich"}) & loaded
    tables = {"holdfast.chat.product", "holdfast.exports.product"}
    of_products = ("holdfast.chat.", "holdfast.exports.")
    assert not [name for name in loaded - tables if name.startswith(of_products)]


def test_the_list_of_commands_repeats_the_help_of_each() -> None:
    table = CommandTable("")
    assert {name: table[name].help for name in table} == {
        name: table.load(name).help for name in table
    }


@pytest.mark.parametrize("words", [["--help"], ["push", "--help"]])
def test_help_into_a_closed_pipe_is_not_an_error(tmp_path: Path, words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            command(*words),
            stdout=writer,
            stderr=subprocess.PIPE,
            env=clean_env(),
            check=False,
            timeout=60,
        )
    finally:
        os.close(writer)
    assert done.stderr == b""
    assert done.returncode == 0


def test_a_terminal_without_unicode_is_not_an_error(tmp_path: Path) -> None:
    assert real(tmp_path, "push", "enrich", '{"id": "ключ"}').code == 0
    ran = real(tmp_path, "list", "enrich", env={"PYTHONIOENCODING": "latin-1"})
    assert ran.code == 0
    assert "\\u043a\\u043b\\u044e\\u0447" in ran.out


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("30s", 30),
        ("5m", 300),
        ("2h", 7200),
        ("7d", 604_800),
        ("1w", 604_800),
        ("250ms", 0.25),
        ("1h30m", 5400),
        ("1 h 30 m", 5400),
        ("90", 90),
        ("0.5", 0.5),
        ("1.5H", 5400),
    ],
)
def test_durations_are_parsed_with_their_units(text: str, value: float) -> None:
    assert parse_duration(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "s", "-1", "1y", "5mm", "1e3", "∞", "٣s", "h1"])
def test_text_that_is_not_a_duration_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_duration(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.25, "250 ms"),
        (4.2, "4.2 s"),
        (42, "42 s"),
        (60, "1 min"),
        (135, "2 min 15 s"),
        (7260, "2 h 1 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_durations_are_formatted_readably(value: float, text: str) -> None:
    assert format_duration(value) == text


@pytest.mark.parametrize("words", [[], ["work"], ["dead", "redrive"]])
def test_the_help_shows_no_type_for_flags(cli: Cli, words: list[str]) -> None:
    assert "<bool>" not in cli(*words, "--help").out


def test_the_help_explains_every_option() -> None:
    commands = [(name, table.load(name)) for table in GROUPS.values() for name in table]
    options = [(name, option) for name, command in commands for option in command.params]
    assert [f"{name} {option.opts[0]}" for name, option in options if not option.help] == []
