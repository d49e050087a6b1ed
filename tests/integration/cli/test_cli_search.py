"""`holdfast list --where` and `--error`: find messages by what is in them."""

import os
import pty
from pathlib import Path
from typing import Any

import pytest

from holdfast import AnyMessage, open_queue
from support.cli.commands import Cli, read_terminal, require_one_line, start


@pytest.fixture
def cli(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Cli:
    return Cli(tmp_path, capsys, monkeypatch)


@pytest.fixture(params=["enrich", "sqlite:work.db/enrich"])
def name(request: pytest.FixtureRequest) -> str:
    """The queue, on files and in SQLite."""
    queue: str = request.param
    return queue


@pytest.fixture
def messages(cli: Cli, name: str) -> None:
    """A dead letter, a message that was retried, a completed one and one that waits."""
    with open_queue(f"{name}?max_attempts=9") as queue:
        for message_id, domain in (("dead", "x.com"), ("retried", "x.com"), ("done", "y.com")):
            queue.push(AnyMessage(id=message_id, domain=domain, site={"port": 80}))
        held = {message.id: message for message in queue.poll(3)}
        queue.dead_letter(held["dead"], "Timeout after 30 s")
        queue.nack(held["retried"], delay_seconds=0, reason="ReadTimeout: canary")
        queue.ack(held["done"])
        queue.push(AnyMessage(id="fresh", domain="x.com", urgent=True))


def find(cli: Cli, name: str, *options: str) -> list[str]:
    found: Any = cli("list", name, "--json", *options).json
    return sorted(message["id"] for message in found)


@pytest.mark.usefixtures("messages")
def test_messages_are_found_by_their_fields_in_any_state(cli: Cli, name: str) -> None:
    assert find(cli, name, "--where", "domain=x.com") == ["dead", "fresh", "retried"]
    assert find(cli, name, "--where=site.port=80", "--where=domain=x.com") == [
        "dead",
        "retried",
    ]
    assert find(cli, name, "--where=urgent=true") == ["fresh"]
    assert find(cli, name, "--where=domain=x.com", "--state=failed") == ["dead"]
    assert len(find(cli, name, "--where=domain=x.com", "--limit=2")) == 2
    assert len(find(cli, name, "--where=domain=x.com", "--limit=0")) == 3


@pytest.mark.usefixtures("messages")
def test_messages_are_found_by_their_errors_in_any_state(cli: Cli, name: str) -> None:
    assert find(cli, name, "--error", "timeout") == ["dead", "retried"]
    assert find(cli, name, "--error=timeout", "--where=domain=x.com", "--state=pending") == [
        "retried"
    ]
    assert find(cli, name, "--error=no such error") == []


@pytest.mark.usefixtures("messages")
def test_the_table_of_a_search_shows_the_states(cli: Cli, name: str) -> None:
    headings, *rows = cli("list", name, "--error", "timeout").out.splitlines()
    assert headings == "id\tstate\tattempts\tabout"
    assert sorted(rows) == [
        "dead\tfailed\t1\tTimeout after 30 s",
        "retried\tpending\t1\tready",
    ]
    assert cli("list", name, "--error=timeout", "--state=failed").out.splitlines() == [
        "id\tattempts\tabout",
        "dead\t1\tTimeout after 30 s",
    ]


@pytest.mark.usefixtures("messages")
def test_without_a_condition_only_waiting_messages_are_listed(cli: Cli, name: str) -> None:
    assert find(cli, name) == ["fresh", "retried"]


def test_a_value_may_hold_equals_signs_and_be_empty(cli: Cli, name: str) -> None:
    with open_queue(name) as queue:
        queue.push(AnyMessage(id="a", query="a=b=c", note=""))
    assert find(cli, name, "--where=query=a=b=c", "--where=note=") == ["a"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--where", "domain"], "--where must be FIELD=VALUE, as in domain=example.com"),
        (["--where", "=x"], "--where must be FIELD=VALUE, as in domain=example.com"),
        (["--where", "a=1", "--where", "a=2"], "--where 'a' is given twice"),
        (["--where", "a=1", "--state", "lost"], "--state must be one of pending"),
    ],
)
def test_a_condition_that_cannot_be_understood_is_refused(
    cli: Cli, name: str, options: list[str], complaint: str
) -> None:
    ran = cli("list", name, *options)
    assert ran.code == 2
    assert complaint in require_one_line(ran)


def test_a_long_search_shows_a_progress_bar_on_a_terminal(cli: Cli) -> None:
    with open_queue("enrich") as queue:  # large bodies take long to read
        queue.push_many(AnyMessage(id=f"m{n}", rows=[[0]] * 150_000) for n in range(12))
    terminal, other_end = pty.openpty()
    words = ("list", "enrich", "--where", "id=m3", "--json")
    searching = start(cli.folder, *words, stderr=other_end)
    os.close(other_end)
    shown = read_terminal(terminal)
    assert b'"m3"' in searching.communicate(timeout=60)[0]
    assert b"searching" in shown
    assert b"/12" in shown
