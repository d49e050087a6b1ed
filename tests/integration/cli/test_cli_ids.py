"""Ids on the command line: never cut in a table, and accepted by their beginning."""

import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

from holdfast import AnyMessage, open_queue
from support.cli.commands import (
    WAIT_TIMEOUT_SECONDS,
    Cli,
    clean_env,
    command,
    read_terminal,
    require_one_line,
)

FIRST = "4f1c" + "0" * 28
SECOND = "4f1d" + "0" * 28
LONG_REASON = "a long reason that does not fit on one line of a terminal " * 4


@pytest.fixture
def cli(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Cli:
    return Cli(tmp_path, capsys, monkeypatch)


@pytest.fixture(params=["enrich", "sqlite:work.db/enrich"])
def queue(request: pytest.FixtureRequest) -> str:
    url: str = request.param
    return url


def push(url: str, *ids: str) -> None:
    with open_queue(url) as queue:
        queue.push_many(AnyMessage(id=message_id) for message_id in ids)


def fail_all(url: str, reason: str = "broken") -> None:
    with open_queue(url) as queue:
        while messages := queue.poll():
            queue.dead_letter(messages[0], reason)


def show_on_terminal(folder: Path, *words: str) -> str:
    """Return what a terminal of 80 columns shows, without its control sequences."""
    terminal, other_end = pty.openpty()
    process = subprocess.Popen(
        command(*words),
        cwd=folder,
        env=clean_env(COLUMNS="80", TERM="xterm"),
        stdin=subprocess.DEVNULL,
        stdout=other_end,
    )
    os.close(other_end)
    shown = read_terminal(terminal)
    assert process.wait(WAIT_TIMEOUT_SECONDS) == 0
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())


@pytest.mark.parametrize("message_id", [FIRST, "order-" + "7" * 60, "x" * 200])
def test_a_table_never_cuts_an_id_or_a_reason(cli: Cli, message_id: str) -> None:
    push("enrich", message_id)
    fail_all("enrich", LONG_REASON)
    shown = show_on_terminal(cli.folder, "dead", "list", "enrich")
    assert message_id in shown
    assert "…" not in shown
    words = shown.replace(message_id, " ").split()
    assert [word for word in words if word.isalpha()][3:] == LONG_REASON.split()


def test_a_message_is_found_by_the_beginning_of_its_id(cli: Cli, queue: str) -> None:
    push(queue, FIRST, SECOND)
    for name in ("show", "explain"):
        [message] = cli(name, queue, "4f1c", "--json").json
        assert message["id"] == FIRST
    fail_all(queue)
    [letter] = cli("dead", "show", queue, "4f1d", "--json").json
    assert letter["id"] == SECOND


def test_several_candidates_are_named_and_nothing_is_changed(cli: Cli, queue: str) -> None:
    twin = "4f1c" + "1" * 28
    push(queue, FIRST, SECOND, twin)
    for name in ("show", "cancel"):
        ran = cli(name, queue, "4f1c")
        assert ran.code == 2
        assert f"beginning of 2 ids ({FIRST}, {twin}): write more" in require_one_line(ran)
    assert cli("status", queue, "--json").json["ready"] == 3


def test_an_id_in_full_comes_before_longer_ones(cli: Cli, queue: str) -> None:
    push(queue, "order-1", "order-10", "beef", "beef" + "0" * 28)
    assert [message["id"] for message in cli("show", queue, "order-1", "--json").json] == [
        "order-1"
    ]
    ran = cli("cancel", queue, "beef", "--json")
    assert ran.json == {"cancelled": 1, "missing": []}
    [letter] = cli("dead", "list", queue, "--json").json
    assert letter["id"] == "beef"


def test_a_generated_id_may_be_shortened_where_messages_are_changed(
    cli: Cli, queue: str
) -> None:
    push(queue, FIRST, SECOND)
    ran = cli("cancel", queue, "4f1c", "--json")
    assert ran.json == {"cancelled": 1, "missing": []}
    assert ran.err == f"4f1c is {FIRST}\n"
    assert cli("dead", "redrive", queue, "4f1c").out == "redriven 1\n"
    fail_all(queue)
    assert cli("dead", "drop", queue, "4f1d", "--yes").out == "dropped 1\n"
    assert [each["id"] for each in cli("dead", "list", queue, "--json").json] == [FIRST]


@pytest.mark.parametrize("given", ["order-1", "4f1", ""])
def test_a_change_never_reaches_an_id_that_may_only_look_alike(
    cli: Cli, queue: str, given: str
) -> None:
    """If order-1 was purged, a script that cancels it must not cancel order-10."""
    push(queue, "order-10", FIRST)
    ran = cli("cancel", queue, given)
    assert ran.code == 1
    assert cli("status", queue, "--json").json["ready"] == 2
