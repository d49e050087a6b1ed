"""`holdfast push`: every source of messages."""

import json
import os
import re
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from support.cli.commands import (
    Cli,
    clean_env,
    command,
    real,
    require_one_line,
    run_unprivileged,
)


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


def test_a_pipe_may_be_given_as_a_file(cli: Cli) -> None:
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


SIX_GOOD_ONE_BAD = (
    "".join(f'{{"id": "t{n}"}}\n' for n in range(1, 7)) + '{"id": "t7"\n{"x": 1}\n'
)


@pytest.mark.parametrize(
    ("words", "name"),
    [(("--file", "tasks.jsonl"), "tasks.jsonl"), (("-",), "standard input")],
)
def test_a_broken_line_is_named_and_nothing_is_pushed(
    cli: Cli, words: tuple[str, ...], name: str
) -> None:
    (cli.folder / "tasks.jsonl").write_text(SIX_GOOD_ONE_BAD)
    ran = cli("push", "enrich", *words, stdin=SIX_GOOD_ONE_BAD.encode())
    assert ran.code == 4
    line = require_one_line(ran)
    assert f"{name}, line 7: not JSON" in line
    assert "nothing was pushed" in line
    assert count(cli) == 0


def test_a_broken_line_far_down_is_counted_right(cli: Cli) -> None:
    text = '{"n": 1}\n\n' * 20_000 + "{broken}\n"
    (cli.folder / "tasks.jsonl").write_text(text)
    assert "line 40001:" in require_one_line(cli("push", "enrich", "--file", "tasks.jsonl"))
    assert count(cli) == 0  # although many batches could have been pushed before it


def test_a_broken_array_is_named_by_its_line(cli: Cli) -> None:
    (cli.folder / "tasks.json").write_text('[\n  {"id": "a"},\n  {"id": "b"\n]\n')
    ran = cli("push", "enrich", "--file", "tasks.json")
    assert "line 4: not JSON" in require_one_line(ran)
    assert count(cli) == 0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"id": ""}', "id: String should have at least 1 character"),
        ('{"id": 7}', "id: "),
        ('{"created_at": "yesterday"}', "created_at: "),
        ('{"n": NaN}', "NaN is not JSON"),
        ('{"n": -Infinity}', "-Infinity is not JSON"),
        ("[1, 2]", "a JSON object is needed, got a number"),
        ('{"a": 1}{"b": 2}', "not JSON: Extra data"),
        ('{"a": "\\ud800"}', "cannot be written as JSON"),
        ('{"a":' + "[" * 100_000 + "]" * 100_000 + "}", "not JSON"),
    ],
)
def test_input_that_is_not_a_message_is_refused(cli: Cli, text: str, complaint: str) -> None:
    (cli.folder / "task.json").write_text(text)
    ran = cli("push", "enrich", "--file", "task.json")
    assert ran.code == 4
    assert complaint in require_one_line(ran)
    assert count(cli) == 0


def test_a_body_is_never_repeated_in_an_error(cli: Cli) -> None:
    for field in ("created_at", "attempts"):
        ran = cli("push", "enrich", json.dumps({field: "s3cret-canary"}))
        assert ran.code == 4
        assert "s3cret-canary" not in require_one_line(ran)


def test_input_that_is_not_utf8_is_refused_by_its_line(cli: Cli) -> None:
    (cli.folder / "latin1").write_bytes(b'{"a": 1}\n{"a": "caf\xe9"}\n')
    ran = cli("push", "enrich", "--file", "latin1")
    assert ran.code == 4
    assert "line 2: not UTF-8" in require_one_line(ran)
    assert count(cli) == 0
    (cli.folder / "utf16").write_bytes('{"a": 1}\n'.encode("utf-16"))
    assert "not UTF-8" in require_one_line(cli("push", "enrich", "--file", "utf16"))


def test_an_argument_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [*(os.fsencode(word) for word in command("push", "enrich")), b'{"a": "\xff"}'],
        cwd=tmp_path,
        env=clean_env(),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 4
    assert b"not UTF-8" in done.stderr


def test_a_payload_over_a_mebibyte_is_refused_and_costs_nothing_else(cli: Cli) -> None:
    lines = ['{"id": "small"}', json.dumps({"id": "big", "data": "x" * (1 << 20)})]
    (cli.folder / "tasks.jsonl").write_text("\n".join(lines))
    ran = cli("push", "enrich", "--file", "tasks.jsonl")
    assert ran.code == 4
    line = require_one_line(ran)
    assert "line 2: message 'big' is 1,048," in line
    assert "store the payload elsewhere" in line
    assert count(cli) == 0


def test_an_endless_line_is_refused_before_it_fills_the_memory(cli: Cli) -> None:
    ran = cli("push", "enrich", "-", stdin=b"{" + b" " * (9 << 20))
    assert ran.code == 4
    assert "line 1: longer than 8,388,608 bytes" in require_one_line(ran)


@pytest.mark.parametrize("queue", ["..", "acme/..", "../../x/..", "a b", "x" * 300, ".hidden"])
def test_a_queue_name_that_leads_elsewhere_is_refused(cli: Cli, queue: str) -> None:
    ran = cli("push", queue, '{"a": 1}')
    assert ran.code == 2
    assert "cannot be used" in require_one_line(ran)
    assert list(cli.folder.iterdir()) == []


@pytest.mark.parametrize("duration", ["soon", "-5s", "5 parsecs", "inf", "nan", "1e9", "4000d"])
def test_a_delay_that_is_not_a_duration_is_refused(cli: Cli, duration: str) -> None:
    ran = cli("push", "enrich", '{"a": 1}', f"--delay={duration}")
    assert ran.code == 2
    assert "duration" in require_one_line(ran) or "ten years" in ran.err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["push"], "no queue is given"),
        (["push", "enrich"], "no message is given"),
        (["push", "enrich", "{}", "-"], "give no other JSON with it"),
        (["push", "enrich", "{}", "--file", "x"], "cannot be combined"),
        (["push", "enrich", "--file", "missing.json"], "cannot read 'missing.json'"),
        (["push", "enrich", "--file", "."], "cannot read '.'"),
        (["push", "enrich", "{}", "{}", "--id", "a"], "--id needs a single message"),
        (["push", "enrich", "{}", "--dleay", "5s"], "--dleay"),
        (["push", "amqp:enrich", "{}"], "no queue for amqp: URLs"),
        (["push", "enrich?lease_seconds=-1", "{}"], "lease_seconds"),
    ],
)
def test_a_command_written_wrongly_says_so(cli: Cli, words: list[str], complaint: str) -> None:
    ran = cli(*words)
    assert ran.code == 2
    assert complaint in require_one_line(ran)


def test_a_read_only_folder_is_reported_and_nothing_is_lost(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        ran = run_unprivileged(tmp_path, "push", str(tmp_path / "acme/enrich"), '{"a": 1}')
    finally:
        tmp_path.chmod(0o755)
    assert ran.code == 3
    assert "permission denied: check owner and mode" in ran.err
    assert ran.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_real_processes_end_with_the_same_codes(tmp_path: Path) -> None:
    assert real(tmp_path, "push", "enrich", '{"id": "a"}').out == "a\n"
    assert real(tmp_path, "push", "enrich", "{broken").code == 4
    assert real(tmp_path, "push", "..", "{}").code == 2
