"""`holdfast push`: every source of messages."""

import json
import os
import re
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from support.cli.commands import Cli, eventually, require_one_line, start


@pytest.fixture
def cli(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Cli:
    return Cli(tmp_path, capsys, monkeypatch)


def bodies(cli: Cli, queue: str = "enrich") -> list[dict[str, Any]]:
    return [task["body"] for task in cli("list", queue, "--json", "--body", "--limit=0").json]


def count(cli: Cli, queue: str = "enrich") -> int:
    ran = cli("status", queue, "--json")
    return ran.json["ready"] if ran.code == 0 else 0


# -- sources


def test_an_argument_becomes_a_message_and_its_id_is_printed(cli: Cli) -> None:
    ran = cli("push", "enrich", '{"domain": "a.example"}')
    assert ran.code == 0
    [body] = bodies(cli)
    assert body["domain"] == "a.example"
    assert ran.out.strip() == body["id"]


def test_several_arguments_become_several_messages_in_order(cli: Cli) -> None:
    ran = cli("push", "enrich", '{"id": "a"}', '{"id": "b"}')
    assert ran.out.split() == ["a", "b"]
    assert [body["id"] for body in bodies(cli)] == ["a", "b"]


@pytest.mark.parametrize(
    "text",
    [
        '{"id": "a"}\n{"id": "b"}\n',
        '{"id": "a"}\r\n\r\n{"id": "b"}',
        '[{"id": "a"}, {"id": "b"}]',
        '[\n  {\n    "id": "a"\n  },\n  {"id": "b"}\n]\n',
        '\ufeff{"id": "a"}\n{"id": "b"}',
    ],
    ids=["lines", "crlf and blank lines", "array", "array over lines", "byte order mark"],
)
def test_a_file_may_hold_lines_or_an_array(cli: Cli, text: str) -> None:
    (cli.folder / "tasks.json").write_text(text, newline="")
    assert cli("push", "enrich", "--file", "tasks.json").code == 0
    assert [body["id"] for body in bodies(cli)] == ["a", "b"]


def test_a_file_may_hold_one_object_over_many_lines(cli: Cli) -> None:
    (cli.folder / "task.json").write_text(json.dumps({"id": "a", "n": {"m": 1}}, indent=4))
    assert cli("push", "enrich", "--file", "task.json").out == "a\n"


def test_lines_come_from_standard_input(cli: Cli) -> None:
    assert cli("push", "enrich", "-", stdin=b'{"id": "a"}\n{"id": "b"}').out == "a\nb\n"


def test_of_many_only_the_number_is_printed(cli: Cli) -> None:
    lines = "".join(f'{{"n": {n}}}\n' for n in range(5000))
    assert cli("push", "enrich", "-", stdin=lines.encode()).out == (
        "pushed 5,000 messages to default/enrich\n"
    )
    assert count(cli) == 5000


def test_json_lists_every_id(cli: Cli) -> None:
    lines = "".join(f'{{"id": "t{n}"}}\n' for n in range(300))
    output = cli("push", "enrich", "-", "--json", stdin=lines.encode()).json
    assert output == {
        "queue": "default/enrich",
        "pushed": 300,
        "ids": [f"t{n}" for n in range(300)],
    }


def test_a_delayed_message_waits(cli: Cli) -> None:
    cli("push", "enrich", '{"id": "a"}', "--delay", "1h30m")
    stats = cli("status", "enrich", "--json").json
    assert (stats["ready"], stats["delayed"]) == (0, 1)
    assert "in 1 h 29 min" in cli("explain", "enrich", "a").out


def test_the_id_can_be_given(cli: Cli) -> None:
    assert cli("push", "enrich", "--id", "mine", '{"id": "theirs"}').out == "mine\n"


def test_the_queue_can_come_from_the_environment(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_QUEUE", "acme/enrich")
    assert cli("push", '{"id": "a"}').code == 0
    assert cli("push", "-", stdin=b'{"id": "b"}').code == 0
    assert cli("push", "other", '{"id": "c"}').code == 0  # a given name wins
    assert [body["id"] for body in bodies(cli, "acme/enrich")] == ["a", "b"]
    assert [body["id"] for body in bodies(cli, "other")] == ["c"]


def test_a_stream_is_pushed_as_it_comes(cli: Cli) -> None:
    pushing = start(cli.folder, "push", "enrich", "-", stdin=subprocess.PIPE)
    try:
        assert pushing.stdin is not None
        for number in (1, 2):
            pushing.stdin.write(b'{"a": 1}\n')
            pushing.stdin.flush()
            eventually(lambda number=number: count(cli) == number)
        pushing.stdin.close()
        assert pushing.wait(60) == 0
    finally:
        pushing.kill()
        pushing.wait()


def test_a_pipe_given_as_a_file_is_read_as_a_stream(cli: Cli) -> None:
    fifo = cli.folder / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=lambda: fifo.write_bytes(b'{"id": "a"}\n{"id": "b"}\n'))
    writer.start()
    assert cli("push", "enrich", "--file", "fifo").out == "a\nb\n"
    writer.join()


# -- the queue


@pytest.mark.parametrize(
    "words", [["push", "memory:", "{}"], ["work", "memory:q", "os:fspath"]]
)
def test_a_queue_that_would_end_with_the_command_is_refused(cli: Cli, words: list[str]) -> None:
    ran = cli(*words)
    assert ran.code == 2
    assert "a memory: queue ends with its process" in require_one_line(ran)


@pytest.mark.parametrize(
    ("queue", "path"),
    [
        ("enrich", "data/queues/default/enrich"),
        ("a/b/c", "a/queues/b/c"),
        ("sqlite:work.db", "work.db"),
    ],
)
def test_a_push_says_once_that_it_created_the_queue(cli: Cli, queue: str, path: str) -> None:
    assert cli("push", queue, "{}").err == f"created the queue {path}\n"
    assert cli("push", queue, "{}").err == ""


@pytest.mark.parametrize("words", [["push", "enrich", "{}"], ["status", "enrich"], ["queues"]])
def test_a_file_in_the_place_of_the_data_folder_is_named(cli: Cli, words: list[str]) -> None:
    (cli.folder / "data").write_text("")
    ran = cli(*words)
    assert ran.code == 3
    error = require_one_line(ran)
    assert re.search("'data' is (not a folder|a file)", error)
    assert "gone" not in error
