"""`holdfast queues`: the queues of a data folder, a database and an AWS account."""

from pathlib import Path

import pytest

from holdfast import AnyMessage, SQLiteQueue, open_queue
from holdfast.exports.building import open_jobs
from support.cli.commands import Cli, require_one_line
from support.sqs.server import Sqs

EVIL = "evil\x1b[2J\u202e\n[red]"
HEADING = "queue\tready\tdelayed\tleased\tcompleted\tfailed"


def fill(url: str) -> None:
    """Leave two ready messages, one delayed, one leased, one completed and one dead letter."""
    with open_queue(url) as queue:
        queue.push_many(AnyMessage(id=f"{n}") for n in range(5))
        queue.push(AnyMessage(id="later"), delay_seconds=3600)
        done, dead, _ = queue.poll(3)
        queue.ack(done)
        queue.dead_letter(dead, "no use")


COUNTS = "\t2\t1\t1\t1\t1"


# -- a data folder


def test_the_queues_of_the_data_folder_are_listed_by_name(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("zebra", "acme/enrich"):
        fill(name)
    lines = [HEADING, f"acme/enrich{COUNTS}", f"default/zebra{COUNTS}"]
    assert cli("queues").out.splitlines() == lines
    monkeypatch.setenv("HOLDFAST_DATA_DIR", str(cli.folder / "data"))
    monkeypatch.chdir("/")
    assert cli("queues").out.splitlines() == lines


@pytest.mark.parametrize("place", ["./data", "data/", "file:data"])
def test_each_queue_is_named_as_other_commands_take_it(cli: Cli, place: str) -> None:
    fill("acme/enrich")
    [queue] = cli("queues", place, "--json").json
    assert (queue["ready"], queue["completed"], queue["problem"]) == (2, 1, None)
    assert cli("status", queue["queue"], "--json").json["queue"] == "acme/enrich"


def test_a_queue_that_cannot_be_read_does_not_hide_the_others(cli: Cli) -> None:
    fill("acme/enrich")
    (cli.folder / "data/queues/acme" / EVIL / "pending").mkdir(parents=True)
    (cli.folder / "data/queues/acme/not-a-queue").mkdir()
    ran = cli("queues")
    assert ran.code == 1
    assert ran.out.splitlines()[1] == f"acme/enrich{COUNTS}"
    assert ran.out.splitlines()[2].startswith("acme/evil\\x1b[2J\\u202e\\n[red]\t")
    assert "cannot be used" in ran.err
    assert "\x1b" not in ran.out + ran.err
    assert len(ran.err.splitlines()) == 1
    problems = {queue["queue"]: queue["problem"] for queue in cli("queues", "--json").json}
    assert problems["acme/enrich"] is None
    assert "cannot be used" in problems[f"acme/{EVIL}"]


def test_a_folder_without_queues_has_none(cli: Cli) -> None:
    assert cli("queues", ".").out == HEADING + "\n"
    assert cli("queues", ".", "--json").json == []


@pytest.mark.parametrize(
    ("place", "code", "complaint"),
    [
        ("", 3, "there is no data folder 'data'"),
        ("nowhere", 3, "there is no data folder 'nowhere'"),
        ("sqlite:nowhere.db", 3, "there is no database 'nowhere.db'"),
        ("sqlite:nowhere", 2, "names no database"),
        ("sqlite:work.db/enrich", 2, "as in `holdfast queues sqlite:work.db`"),
        ("memory:", 2, "in their own process only"),
        ("https://sqs.eu-west-1.amazonaws.com/1/q", 2, "the beginning of names"),
        ("amqp:x", 2, "no queue for amqp: URLs"),
    ],
)
def test_a_place_without_queues_is_one_line_and_nothing_is_created(
    cli: Cli, place: str, code: int, complaint: str
) -> None:
    ran = cli("queues", *([place] if place else []))
    assert ran.code == code
    assert complaint in require_one_line(ran)
    assert list(cli.folder.iterdir()) == []


# -- a database


def test_the_queues_of_a_database_are_listed_without_changing_it(cli: Cli) -> None:
    for name in ("", "/enrich", "/acme/enrich"):
        fill(f"sqlite:work.db{name}")
    before = (cli.folder / "work.db").read_bytes()
    assert cli("queues", "sqlite:work.db").out.splitlines() == [
        HEADING,
        f"sqlite:work.db/acme/enrich{COUNTS}",
        f"sqlite:work.db/default{COUNTS}",
        f"sqlite:work.db/enrich{COUNTS}",
    ]
    assert [path.name for path in cli.folder.iterdir()] == ["work.db"]
    assert (cli.folder / "work.db").read_bytes() == before


def test_a_database_in_use_is_listed_with_what_is_only_in_its_log(cli: Cli) -> None:
    with SQLiteQueue("work.db", queue="enrich") as queue:
        queue.push(AnyMessage())
        assert (cli.folder / "work.db-wal").stat().st_size > 0
        [listed] = cli("queues", "sqlite:work.db", "--json").json
    assert (listed["queue"], listed["ready"]) == ("sqlite:work.db/enrich", 1)


def test_a_name_of_a_queue_cannot_control_the_terminal(cli: Cli) -> None:
    SQLiteQueue("work.db", queue=EVIL).close()
    ran = cli("queues", "sqlite:work.db")
    assert ran.out.splitlines()[1].startswith("sqlite:work.db/evil\\x1b[2J\\u202e\\n[red]\t0")
    assert cli("queues", "sqlite:work.db", "--json").json[0]["queue"].endswith(EVIL)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_file_that_is_not_a_database_of_queues_is_refused(cli: Cli, damaged: bool) -> None:
    open_jobs("jobs.db").close()
    if damaged:
        (cli.folder / "jobs.db").write_bytes(b"not a database " * 500)
    ran = cli("queues", "sqlite:jobs.db")
    assert ran.code == 2
    reason = "not a SQLite database" if damaged else "another application, not a queue"
    assert reason in require_one_line(ran)


# -- an AWS account


def test_the_queues_of_an_account_are_listed(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from support.ministack_server import run_ministack  # pytest must load that module itself

    with run_ministack(tmp_path) as server:  # of its own, without the queues of other tests
        sqs = Sqs(server)
        for name, value in sqs.env.items():
            monkeypatch.setenv(name, value)
        name, other = sqs.new_queue(redrive_after=6), sqs.new_queue()
        with open_queue(f"sqs:{name}") as queue:
            queue.push_many([AnyMessage(), AnyMessage()])
        listed = {queue["queue"]: queue for queue in cli("queues", "sqs:", "--json").json}
        ran = cli("queues", f"sqs:{name}")
    assert list(listed) == sorted(listed)
    assert set(listed) == {f"sqs:{name}", f"sqs:{name}-dlq", f"sqs:{other}"}
    assert (listed[f"sqs:{name}"]["ready"], listed[f"sqs:{other}"]["ready"]) == (2, 0)
    assert [line.split("\t")[:2] for line in ran.out.splitlines()[1:]] == [
        [f"sqs:{name}", "2"],
        [f"sqs:{name}-dlq", "0"],
    ]


def test_an_account_that_cannot_be_reached_is_one_line(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    ran = cli("queues", "sqs:")
    assert ran.code == 2
    assert "no region" in require_one_line(ran)
