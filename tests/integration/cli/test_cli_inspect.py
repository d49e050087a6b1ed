"""`holdfast status`, `list`, `show`, `explain`: their output for users and scripts."""

import json
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast import AnyMessage, open_queue
from holdfast.queue.message import get_lease
from support.cli.commands import Cli, OnTerminal, clean_env, command, require_one_line
from support.waiting import wait_until


def test_status_counts_every_state(cli: Cli) -> None:
    with open_queue("enrich") as queue:
        queue.push_many(AnyMessage(id=f"t{n}") for n in range(6))
        queue.push(AnyMessage(id="later"), delay_seconds=3600)
        done, dead, _ = queue.poll(3)
        queue.ack(done)
        queue.dead_letter(dead, "no such domain")
        stats = cli("status", "enrich", "--json").json
        text = cli("status", "enrich").out
    counts = {"ready": 3, "delayed": 1, "leased": 1, "completed": 1, "failed": 1}
    assert {name: stats[name] for name in counts} == counts
    assert stats["queue"] == "default/enrich"
    assert "ready\t3\n" in text
    assert "failed\t1\n" in text


@pytest.mark.parametrize(
    "name", ["enrich", "sqlite:work.db/enrich", "sqlite:work.db", "sqlite:new/work.db/enrich"]
)
@pytest.mark.parametrize(
    "words",
    [
        ["status", "QUEUE"],
        ["list", "QUEUE"],
        ["show", "QUEUE", "a"],
        ["explain", "QUEUE", "a"],
        ["purge", "QUEUE", "--older-than", "7d"],
        ["cancel", "QUEUE", "a"],
        ["dead", "list", "QUEUE"],
        ["dead", "show", "QUEUE", "a"],
        ["dead", "redrive", "QUEUE", "--all"],
        ["dead", "drop", "QUEUE", "a", "--yes"],
    ],
    ids=" ".join,
)
def test_read_only_commands_never_create_the_queue(
    cli: Cli, name: str, words: list[str]
) -> None:
    ran = cli(*(name if word == "QUEUE" else word for word in words))
    assert ran.code == 3
    assert "there is no queue at" in require_one_line(ran)
    assert "push to it first" in ran.err
    assert list(cli.folder.iterdir()) == []


def test_the_queue_may_be_left_out_when_the_environment_names_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("push", "acme/enrich", '{"id": "a"}')
    cli("push", "other", '{"id": "a"}')
    monkeypatch.setenv("HOLDFAST_QUEUE", "acme/enrich")
    assert cli("status", "--json").json["queue"] == "acme/enrich"
    assert "acme/enrich/pending" in cli("explain", "a").out
    assert "default/other/pending" in cli("explain", "other", "a").out


def test_list_shows_bodies_only_on_request(cli: Cli) -> None:
    cli("push", "enrich", '{"id": "a", "phone": "canary-555"}')
    for words in (["list", "enrich"], ["list", "enrich", "--json"], ["explain", "enrich", "a"]):
        assert "canary-555" not in cli(*words).out
        assert "canary-555" in cli(*words, "--body").out
    assert "canary-555" in cli("show", "enrich", "a").out


def test_list_takes_a_state_and_a_limit(cli: Cli) -> None:
    with open_queue("enrich") as queue:
        queue.push_many(AnyMessage(id=f"t{n}") for n in range(5))
        queue.ack_many(queue.poll(2))
        assert len(cli("list", "enrich", "--json", "--limit=2").json) == 2
        assert len(cli("list", "enrich", "--json", "--limit=0").json) == 3
        completed = cli("list", "enrich", "--json", "--state=completed").json
    assert [task["id"] for task in completed] == ["t0", "t1"]
    assert {task["state"] for task in completed} == {"completed"}
    ran = cli("list", "enrich", "--state", "lost")
    assert ran.code == 2
    assert "--state must be one of pending, leased, completed, failed" in require_one_line(ran)


@pytest.mark.requirement("R001-028")
def test_explain_shows_the_lease_in_the_seeds_format(cli: Cli) -> None:
    with open_queue("enrich", lease_seconds=600) as queue:
        queue.push(AnyMessage(id="a"))
        queue.nack(queue.poll()[0], delay_seconds=0, reason="the website was down")
        [message] = queue.poll()
        queue.save_checkpoint(message, {"page": 7})
        [message] = cli("explain", "enrich", "a", "--json").json
        text = cli("explain", "enrich", "a").out
    lease = message["lease"]
    assert {"worker_id", "timestamp", "attempt", "expires_at"} <= lease.keys()
    assert lease["attempt"] == message["attempts"] == 2
    held = datetime.fromisoformat(lease["expires_at"]) - datetime.fromisoformat(
        lease["timestamp"]
    )
    assert held.total_seconds() == pytest.approx(600)
    assert message["checkpoint"] == {"page": 7}
    assert message["past"][0]["reason"] == "the website was down"
    assert lease["worker_id"] in text
    assert "unless it is renewed" in text
    assert 'checkpoint  {"page": 7}' in text
    assert "attempt 1   retried" in text


def test_explain_shows_an_expired_lease(cli: Cli) -> None:
    with open_queue("enrich", lease_seconds=0.001) as queue:
        queue.push(AnyMessage(id="a"))
        queue.poll()
        wait_until(lambda: queue.stats().expired)
    assert "the next worker that polls takes it over" in cli("explain", "enrich", "a").out
    assert "expired" in cli("list", "enrich", "--state=leased").out


def test_explain_shows_every_message_with_an_id(cli: Cli) -> None:
    cli("push", "enrich", '{"id": "a"}')
    cli("push", "enrich", '{"id": "a"}', "--delay=1h")
    messages = cli("explain", "enrich", "a", "--json").json
    assert len({message["key"] for message in messages}) == 2


def test_a_missing_message_is_code_1(cli: Cli) -> None:
    cli("push", "enrich", '{"id": "a"}')
    for verb in ("show", "explain"):
        ran = cli(verb, "enrich", "missing")
        assert ran.code == 1
        assert "there is no message 'missing' in default/enrich" in require_one_line(ran)


@pytest.mark.parametrize(
    "message_id", ["a/b", "../../etc/passwd", "ключ", "x" * 300, "🦊", " "]
)
def test_ids_in_any_script_can_be_looked_up(cli: Cli, message_id: str) -> None:
    assert cli("push", "enrich", "--id", message_id, "{}").code == 0
    [message] = cli("explain", "enrich", message_id, "--json").json
    assert message["id"] == message_id


def test_content_of_a_queue_cannot_control_the_terminal(cli: Cli) -> None:
    hostile = "\x1b]0;owned\x07[red]bold[/red]\u009b31m"
    with open_queue("enrich") as queue:
        queue.push(AnyMessage(id=hostile, text=hostile))
        queue.dead_letter(queue.poll()[0], hostile, detail=hostile)
    for words in (
        ["list", "enrich", "--state=failed", "--body"],
        ["dead", "list", "enrich"],
        ["show", "enrich", hostile],
        ["explain", "enrich", hostile, "--body"],
    ):
        output = cli(*words).out
        assert "[red]bold[/red]" in output, words
        assert not set(output) & {"\x1b", "\x07", "\u009b"}, words


def test_a_reader_that_closes_the_pipe_is_not_an_error(tmp_path: Path) -> None:
    with open_queue(tmp_path / "acme/enrich") as queue:
        queue.push_many(AnyMessage(id=f"t{n}" * 20) for n in range(3000))
    pipeline = subprocess.Popen(
        command("list", str(tmp_path / "acme/enrich"), "--limit=0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_env(),
    )
    assert pipeline.stdout is not None
    pipeline.stdout.readline()
    pipeline.stdout.close()
    assert pipeline.stderr is not None
    assert pipeline.stderr.read() == b""
    assert pipeline.wait(60) == 0
    pipeline.stderr.close()


def test_a_message_that_is_not_json_is_shown_by_its_key(cli: Cli) -> None:
    with open_queue("enrich") as queue:
        queue.push(AnyMessage(id="a"))
        [message] = queue.poll()
        task = get_lease(message).handle
        path = next((cli.folder / "data/queues/default/enrich/leased").iterdir())
        path.write_bytes(b"\xff\x00 torn")
        assert cli("list", "enrich", "--state=leased").code == 0
        ran = cli("show", "enrich", task.task.key)
    assert "not a JSON object" in ran.out


# -- files that no queue wrote

KEY = "0123456789abcdef0"
DEEP = b"[" * 900 + b"]" * 900
PAST = {"attempt": 1, "outcome": "retried", "worker_id": "w", "reason": "why"}


def _past(**fields: object) -> bytes:
    return json.dumps({**PAST, "at": "2026-01-01T00:00:00+00:00", **fields}).encode()


PLANTED: dict[str, dict[str, bytes]] = {
    "a due time beyond the calendar": {
        f"pending/1700000000001-ab12-0/{KEY}1~0~999999999999999.json": b'{"id": "x"}'
    },
    "a fence beyond reason": {
        f"pending/1700000000001-ab12-0/{KEY}1~999999998~1700000000001.json": b'{"id": "x"}'
    },
    "a lease beyond the calendar": {
        f"leased/{KEY}1~1~abcdef~999999999999999+999999999999999.json": b'{"id": "x"}',
        "workers/abcdef.json": b"[" * 100_000,
    },
    "a completion beyond the calendar": {
        f"completed/2020-01-01T00/{KEY}1~1~abcdef~999999999999999.json": b'{"id": "x"}'
    },
    "a reason that is no text": {
        f"failed/{KEY}1~1.json": b'{"id": "x"}',
        f"failed/{KEY}1~1.reason.json": b'{"reason": ["not", {"text": 1}]}',
    },
    "a deeply nested reason": {
        f"failed/{KEY}1~1.json": b'{"id": "x"}',
        f"failed/{KEY}1~1.reason.json": b'{"reason": ' + DEEP + b"}",
    },
    "a deeply nested body": {f"failed/{KEY}1~1.json": b'{"id": "x", "y": ' + DEEP + b"}"},
    "a deeply nested id": {f"failed/{KEY}1~1.json": b'{"id": ' + DEEP + b"}"},
    "a deeply nested checkpoint": {
        f"failed/{KEY}1~1.json": b'{"id": "x"}',
        f"checkpoints/{KEY}1/1.json": DEEP,
    },
    "half a character": {f"failed/{KEY}1~1.json": b'{"id": "\\ud800", "y": "\\udfff"}'},
    "deeply nested history": {
        f"failed/{KEY}1~1.json": b'{"id": "x"}',
        f"history/{KEY}1.jsonl": b"[" * 100_000 + b"\n" + _past(detail=[]) + b"\n7\n\xff\n",
    },
    "history with naive times": {
        f"failed/{KEY}1~1.json": b'{"id": "x"}',
        f"history/{KEY}1.jsonl": _past(at="2026-01-01T00:00:00"),
    },
    "history at the ends of the calendar": {
        f"failed/{KEY}1~1.json": b'{"id": "x"}',
        f"history/{KEY}1.jsonl": b"\n".join(
            [_past(at="0001-01-01T00:00:00+23:59"), _past(at="9999-12-31T23:59:59-23:59")]
        ),
    },
    "history that is no text": {
        f"failed/{KEY}1~1.json": b'{"id": "x"}',
        f"history/{KEY}1.jsonl": b"\n".join(
            [_past(**{name: {"a": 1}}) for name in (*PAST, "detail", "at")]
        ),
    },
}


@pytest.mark.parametrize("planted", PLANTED)
def test_files_that_no_queue_wrote_are_shown_as_far_as_possible(cli: Cli, planted: str) -> None:
    queue = open_queue("enrich")
    for name, body in PLANTED[planted].items():
        path = Path("data/queues/default/enrich", name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(body)
    queue.close()
    states = [["list", "--state", s] for s in ("pending", "leased", "completed", "failed")]
    looks = [["status"], ["dead", "list"], *states]
    for look in looks:
        for more in ([], ["--json"], ["--body"], ["--body", "--json"]):
            if "--body" in more and look == ["status"]:
                continue
            ran = cli(*look, "enrich", *more)
            assert ran.code == 0, ran.err
    for look in (["show"], ["explain"], ["dead", "show"]):
        for more in ([], ["--json"]):
            ran = cli(*look, "enrich", f"{KEY}1", *more)
            assert ran.code == 0 or "there is no dead letter" in require_one_line(ran)


def test_history_with_naive_times_is_shown(cli: Cli) -> None:
    test_files_that_no_queue_wrote_are_shown_as_far_as_possible(cli, "history with naive times")
    output = cli("explain", "enrich", f"{KEY}1").out
    assert "retried 2026-01-01 00:00 UTC" in output


def test_the_body_has_the_attempts_of_the_message(cli: Cli) -> None:
    with open_queue("enrich") as queue:
        queue.push(AnyMessage(id="a"))
        queue.nack(queue.poll()[0], delay_seconds=0)
    text = cli("show", "enrich", "a").out
    assert "1 attempt" in text
    assert '"attempts": 1' in text
    for words in (["show", "enrich", "a"], ["explain", "enrich", "a", "--body"]):
        [message] = cli(*words, "--json").json
        assert message["body"]["attempts"] == message["attempts"] == 1
    assert '"attempts": 1' in cli("list", "enrich", "--body").out


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
    dead, retried = sorted(rows)
    assert dead == "dead\tfailed\t1\tTimeout after 30 s"
    assert retried.startswith("retried\tpending\t1\tready for ")
    assert cli("list", name, "--error=timeout", "--state=failed").out.splitlines() == [
        "id\tattempts\tabout",
        "dead\t1\tTimeout after 30 s",
    ]


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
    words = ("list", "enrich", "--where", "id=m3", "--json")
    searching = OnTerminal(cli.folder, *words)
    shown = searching.read()
    assert b'"m3"' in searching.process.communicate(timeout=60)[0]
    assert b"searching" in shown
    assert b"12/?" in shown
