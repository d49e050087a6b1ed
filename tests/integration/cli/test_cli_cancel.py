"""`holdfast cancel`: stop messages that wait or run."""

import re

import pytest

from holdfast import AnyMessage, LeaseLost, open_queue
from support.cli.commands import Cli, OnTerminal, require_one_line, start
from support.cli.work_folder import HANDLERS
from support.waiting import wait_until


def test_a_waiting_message_becomes_a_dead_letter_and_can_come_back(cli: Cli, name: str) -> None:
    with open_queue(name) as queue:
        queue.push(AnyMessage(id="a"))
    assert cli("cancel", name, "a").out == "cancelled 1\n"
    text = cli("explain", name, "a").out
    assert "why         cancelled by an operator" in text
    assert "cancelled   cancelled " in text
    assert cli("dead", "redrive", name, "a").out == "redriven 1\n"
    [message] = cli("explain", name, "a", "--json").json
    assert message["state"] == "pending"
    assert [past["outcome"] for past in message["past"]] == ["cancelled", "redriven"]


def test_the_holder_of_a_leased_message_is_refused_and_named(cli: Cli, name: str) -> None:
    with open_queue(name) as queue:
        queue.push(AnyMessage(id="a"))
        [held] = queue.poll()
        [message] = cli("explain", name, "a", "--json").json
        assert cli("cancel", name, "a").code == 0
        with pytest.raises(LeaseLost):
            queue.ack(held)
    text = cli("explain", name, "a").out
    assert f"while it was held by {message['lease']['worker_id']}" in text


def test_several_ids_are_cancelled_and_the_others_are_named(cli: Cli, name: str) -> None:
    with open_queue(name) as queue:
        queue.push_many(AnyMessage(id=each) for each in ("done", "a", "b"))
        queue.ack(next(message for message in queue.poll(3) if message.id == "done"))
    ran = cli("cancel", name, "a", "done", "b", "gone", "--json")
    assert ran.code == 1
    assert ran.json == {"cancelled": 2, "missing": ["done", "gone"]}
    assert ran.err == (
        "holdfast: found no waiting or leased message 'done', 'gone': see `holdfast list`\n"
    )
    stats = cli("status", name, "--json").json
    assert (stats["completed"], stats["failed"], stats["leased"]) == (1, 2, 0)


def test_ids_are_needed(cli: Cli, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = cli("cancel", name)
    assert ran.code == 2
    assert "no id is given" in require_one_line(ran)
    monkeypatch.setenv("HOLDFAST_QUEUE", name)
    ran = cli("cancel")
    assert ran.code == 2
    assert "no id is given: give the ids of waiting or leased messages" in require_one_line(ran)


def test_a_worker_process_ends_the_handler_of_a_cancelled_message(cli: Cli, name: str) -> None:
    (cli.folder / "handlers.py").write_text(HANDLERS)
    with open_queue(name) as queue:
        queue.push(AnyMessage(id="a"))
    words = ("work", name, "handlers:hang", "--isolation=process", "--lease=3s")
    worker = start(cli.folder, *words)
    try:
        effects = cli.folder / "effects"
        wait_until(lambda: effects.exists() and "started a" in effects.read_text())
        assert cli("cancel", name, "a").out == "cancelled 1\n"
        with open_queue(name) as queue:
            queue.push(AnyMessage(id="b"))
        wait_until(lambda: "started b" in effects.read_text())  # the only slot is free
    finally:
        (cli.folder / "finish").touch()
        worker.terminate()
        worker.communicate(timeout=60)
    [message] = cli("explain", name, "a", "--json").json
    assert message["reason"] == "cancelled by an operator"
    assert [past["outcome"] for past in message["past"]] == ["cancelled"]


FIRST = "4f1c" + "0" * 28
SECOND = "4f1d" + "0" * 28
LONG_REASON = "a long reason that does not fit on one line of a terminal " * 4


def push(url: str, *ids: str) -> None:
    with open_queue(url) as queue:
        queue.push_many(AnyMessage(id=message_id) for message_id in ids)


def fail_all(url: str, reason: str = "broken") -> None:
    with open_queue(url) as queue:
        while messages := queue.poll():
            queue.dead_letter(messages[0], reason)


@pytest.mark.parametrize("message_id", [FIRST, "order-" + "7" * 60, "x" * 200])
def test_a_table_never_cuts_an_id_or_a_reason(cli: Cli, message_id: str) -> None:
    push("enrich", message_id)
    fail_all("enrich", LONG_REASON)
    words = ("dead", "list", "enrich")
    terminal = OnTerminal(cli.folder, *words, stream="stdout", COLUMNS="80")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.read().decode())
    assert message_id in shown
    assert "…" not in shown
    words = shown.replace(message_id, " ").split()
    assert [word for word in words if word.isalpha()][3:] == LONG_REASON.split()


@pytest.mark.parametrize("given", ["order-1", FIRST[:31], ""])
def test_no_command_reaches_an_id_that_only_begins_so(cli: Cli, name: str, given: str) -> None:
    """If order-1 was purged, a script that cancels it must not cancel order-10."""
    push(name, "order-10", FIRST)
    assert cli("show", name, given).code == 1
    assert cli("cancel", name, given).code == 1
    assert cli("status", name, "--json").json["ready"] == 2
