"""`holdfast cancel`: stop messages that wait or run."""

from pathlib import Path

import pytest

from holdfast import AnyMessage, LeaseLost, open_queue
from support.cli.commands import Cli, eventually, require_one_line, start
from support.cli.work_folder import HANDLERS


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


def test_cancelling_never_creates_a_queue(cli: Cli, name: str) -> None:
    ran = cli("cancel", name, "a")
    assert ran.code == 3
    assert list(cli.folder.iterdir()) == []


def test_a_worker_process_ends_the_handler_of_a_cancelled_message(cli: Cli, name: str) -> None:
    (cli.folder / "handlers.py").write_text(HANDLERS)
    with open_queue(name) as queue:
        queue.push(AnyMessage(id="a"))
    words = ("work", name, "handlers:hang", "--isolation=process", "--lease=3s")
    worker = start(cli.folder, *words)
    try:
        effects = cli.folder / "effects"
        eventually(lambda: effects.exists() and "started a" in effects.read_text())
        assert cli("cancel", name, "a").out == "cancelled 1\n"
        with open_queue(name) as queue:
            queue.push(AnyMessage(id="b"))
        eventually(lambda: "started b" in effects.read_text())  # the only slot is free
    finally:
        (cli.folder / "finish").touch()
        worker.terminate()
        worker.communicate(timeout=60)
    [message] = cli("explain", name, "a", "--json").json
    assert message["reason"] == "cancelled by an operator"
    assert [past["outcome"] for past in message["past"]] == ["cancelled"]
