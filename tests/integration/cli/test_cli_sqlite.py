"""`holdfast` on `sqlite:` URLs: every command does what it does on files."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.chat.building import open_conversations
from holdfast.exports.building import open_jobs
from support.cli.commands import Cli, real, require_one_line
from support.cli.work_folder import HANDLERS

URL = "sqlite:work.db/enrich"


@pytest.fixture
def cli(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Cli:
    (tmp_path / "tasks.py").write_text(HANDLERS)
    return Cli(tmp_path, capsys, monkeypatch)


def counts(cli: Cli, url: str = URL) -> dict[str, int]:
    stats = cli("status", url, "--json").json
    return {name: stats[name] for name in ("ready", "leased", "completed", "failed")}


def test_a_message_is_pushed_worked_on_and_purged(cli: Cli) -> None:
    assert cli("push", URL, '{"id": "a", "name": "ada"}', '{"id": "b"}').out == "a\nb\n"
    assert cli("push", URL, "-", stdin=b'{"id": "c"}\n').out == "c\n"
    rows = [line.split("\t") for line in cli("list", URL).out.splitlines()[1:]]
    assert [row[:2] for row in rows] == [["a", "0"], ["b", "0"], ["c", "0"]]
    assert all(about.startswith("ready for ") for _, _, about in rows)
    assert '"name": "ada"' in cli("show", URL, "a").out
    assert "work.db message 1" in cli("explain", URL, "a").out
    ran = real(cli.folder, "work", URL, "tasks:gentle", "--isolation=async", "--until-empty")
    assert ran.code == 0, ran.err
    effects = (cli.folder / "effects").read_text().splitlines()
    assert effects == ["gently a", "gently b", "gently c"]
    assert counts(cli) == {"ready": 0, "leased": 0, "completed": 3, "failed": 0}
    assert cli("purge", URL, "--older-than=7d").out == "purged 0\n"
    assert cli("purge", URL, "--older-than=0s").out == "purged 3\n"
    assert counts(cli)["completed"] == 0


def test_dead_letters_are_listed_shown_redriven_and_dropped(cli: Cli) -> None:
    cli("push", URL, '{"id": "a", "secret": "canary"}', '{"id": "b"}')
    ran = real(cli.folder, "work", URL, "tasks:reject", "--until-empty", "--isolation=process")
    assert ran.code == 0, ran.err
    listed = cli("dead", "list", URL).out
    assert "a\t1\tcanary-reason" in listed
    assert "canary\n" not in listed
    assert "why         canary-reason" in cli("dead", "show", URL, "a").out
    assert cli("dead", "redrive", URL, "a").out == "redriven 1\n"
    assert cli("dead", "drop", URL, "b", "--yes").out == "dropped 1\n"
    assert counts(cli) == {"ready": 1, "leased": 0, "completed": 0, "failed": 0}
    ran = cli("dead", "redrive", URL, "missing", "--json")
    assert (ran.code, ran.json["missing"]) == (1, ["missing"])


def test_queues_of_one_database_are_separate(cli: Cli) -> None:
    for name in ("", "/enrich", "/acme/enrich"):
        cli("push", f"sqlite:work.db{name}", '{"id": "a"}')
    assert cli("status", "sqlite:work.db/acme/enrich", "--json").json["queue"] == "acme/enrich"
    cli("push", "sqlite:work.db/enrich", '{"id": "b"}')
    assert [counts(cli, f"sqlite:work.db{name}")["ready"] for name in ("", "/enrich")] == [1, 2]


def test_a_missing_queue_of_a_database_is_reported_and_not_created(cli: Cli) -> None:
    cli("push", URL, "{}")
    ran = cli("status", "sqlite:work.db/other")
    assert ran.code == 3
    assert f"there is no queue 'other' in '{cli.folder}/work.db'" in require_one_line(ran)
    with closing(sqlite3.connect(cli.folder / "work.db")) as database:
        assert database.execute("SELECT name FROM queues").fetchall() == [("enrich",)]


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("sqlite:work", "names no database"),
        ("sqlite:", "names no database"),
        ("sqlite:work.db/a/b/c", "3 names after the database"),
        ("sqlite:work.db/a b", "queue name 'a b' cannot be used"),
        ("sqlite:work.db?durability=hope", "?durability="),
    ],
)
def test_a_bad_url_is_one_line_and_code_2(cli: Cli, url: str, complaint: str) -> None:
    ran = cli("push", url, "{}")
    assert ran.code == 2
    assert complaint in require_one_line(ran)
    assert [path.name for path in cli.folder.iterdir()] == ["tasks.py"]


# -- exports and conversations


def test_export_serve_takes_jobs_from_a_database(cli: Cli) -> None:
    (cli.folder / "lists").mkdir()
    (cli.folder / "lists" / "nothing.jsonl").write_text("")
    job = '{"id": "job", "jobId": "job", "exportId": "nothing", "userId": "ada"}'
    assert cli("push", URL, job).code == 0
    ran = real(
        cli.folder, "export", "serve", URL, "--to=out", "--jobs=jobs.db", "--manifests=lists",
        "--until-empty", "--workers=1",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert counts(cli)["completed"] == 1
    [listed] = cli("export", "list", "--jobs=jobs.db", "--json").json
    assert (listed["job"], listed["status"]) == ("job", "COMPLETED")


def test_chat_works_on_queues_in_a_database(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for channel in ("whatsapp", "sms", "email"):
        variable = f"HOLDFAST_CHAT_{channel.upper()}_QUEUE"
        monkeypatch.setenv(variable, f"sqlite:data/queues.db/chat/{channel}")
    monkeypatch.setenv("HOLDFAST_CHAT_WINDOW_SECONDS", "0")
    monkeypatch.setenv("HOLDFAST_CHAT_QUIET_SECONDS", "0")
    assert cli("chat", "send", "hello").code == 0
    assert cli("status", "sqlite:data/queues.db/chat/whatsapp", "--json").json["ready"] == 1
    ran = cli("chat", "work", "--until-idle", "--no-inbound")
    assert ran.code == 0, ran.err
    assert "You said: hello" in cli("chat", "outbox", "--full").out
    assert counts(cli, "sqlite:data/queues.db/chat/whatsapp")["completed"] == 1
    assert "ready" in cli("chat", "doctor").out


@pytest.mark.parametrize("store", ["jobs", "conversations"])
def test_a_queue_and_a_store_cannot_share_a_file(cli: Cli, store: str) -> None:
    opener = open_jobs if store == "jobs" else open_conversations
    opener("store.db").close()
    ran = cli("push", "sqlite:store.db", "{}")
    assert ran.code == 2
    assert "of another application, not a queue: use another file" in require_one_line(ran)
    cli("push", URL, "{}")
    ran = cli("export", "serve", URL, "--to=out", "--jobs=work.db", "--until-empty")
    assert ran.code == 2
    assert "of another application, not a job store" in require_one_line(ran)
