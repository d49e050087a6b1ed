"""`holdfast` on `sqs:` URLs: commands that SQS supports, others, and missing parts."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.cli.commands import (
    Cli,
    Ran,
    clean_env,
    log_contains,
    real,
    require_one_line,
    start,
)
from support.cli.work_folder import HANDLERS
from support.paths import ROOT
from support.sqs.server import Sqs
from support.waiting import WAIT_TIMEOUT_SECONDS, wait_until

if TYPE_CHECKING:  # because pytest must load that module itself
    from support.ministack_server import Ministack

pytest_plugins = ["support.ministack_server"]

EXAMPLES = ROOT / "examples"


@pytest.fixture
def sqs(ministack: "Ministack") -> Sqs:
    return Sqs(ministack)


@pytest.fixture
def queue(sqs: Sqs) -> str:
    """Create a queue that passes doctor."""
    name = sqs.new_queue(redrive_after=6, VisibilityTimeout="60")
    sqs.client.set_queue_attributes(
        QueueUrl=sqs.url(f"{name}-dlq"), Attributes={"MessageRetentionPeriod": "1209600"}
    )
    return name


@pytest.fixture
def cli(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    sqs: Sqs,
) -> Cli:
    for name, value in sqs.env.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "tasks.py").write_text(HANDLERS)
    return Cli(tmp_path, capsys, monkeypatch)


def work(folder: Path, sqs: Sqs, queue: str, *words: str) -> Ran:
    return real(folder, "work", f"sqs:{queue}", *words, "--until-empty", env=sqs.env)


# -- pushing


@pytest.mark.requirement("R001-049", "R001-050", "R003-020")
def test_what_is_pushed_by_argument_is_in_the_queue(cli: Cli, sqs: Sqs, queue: str) -> None:
    ran = cli("push", f"sqs:{queue}", '{"id": "a", "domain": "example.com"}')
    assert (ran.code, ran.out) == (0, "a\n")
    assert cli("push", sqs.url(queue), '{"id": "b"}').code == 0
    bodies = {json.loads(raw["Body"])["id"]: raw["Body"] for raw in sqs.take(queue)}
    assert json.loads(bodies["a"])["domain"] == "example.com"
    assert set(bodies) == {"a", "b"}


def test_a_message_too_large_for_the_queue_is_refused_with_the_count_before_it(
    cli: Cli, sqs: Sqs
) -> None:
    queue = sqs.new_queue(MaximumMessageSize="1024")
    stream = b'{"n": 1}\n' * 10 + b'{"n": "%s"}\n' % (b"x" * 2000)
    ran = cli("push", f"sqs:{queue}", "-", stdin=stream)
    assert ran.code == 4
    assert "the 10 before it were pushed" in require_one_line(ran)
    assert sqs.waiting(queue) == 10


@pytest.mark.parametrize(
    ("fifo", "words", "why"),
    [
        ("", ["{}", "--delay", "1h"], "at most 900"),
        (".fifo", ["{}", "--delay", "5s"], "no delay per message"),
    ],
)
def test_a_delay_that_sqs_does_not_support_is_a_usage_error(
    cli: Cli, sqs: Sqs, fifo: str, words: list[str], why: str
) -> None:
    name = sqs.new_queue() if not fifo else f"{sqs.new_queue()}{fifo}"
    if fifo:
        sqs.client.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})
    ran = cli("push", f"sqs:{name}", *words)
    assert ran.code == 2
    assert why in require_one_line(ran)
    assert sqs.waiting(name) == 0


# -- working


@pytest.mark.requirement("R003-013")
def test_work_until_empty_handles_and_deletes_everything(
    cli: Cli, sqs: Sqs, queue: str
) -> None:
    cli("push", f"sqs:{queue}", *(f'{{"name": "n{n}"}}' for n in range(12)))
    ran = work(cli.folder, sqs, queue, "tasks:greet", "-c", "4", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["completed"] == 12
    effects = (cli.folder / "effects").read_text().splitlines()
    assert sorted(effects) == sorted(f"Greeting n{n}" for n in range(12))
    assert (sqs.waiting(queue), sqs.held(queue)) == (0, 0)


def start_worker(folder: Path, sqs: Sqs, queue: str, handler: str) -> "subprocess.Popen[bytes]":
    worker = start(
        folder,
        "work",
        f"sqs:{queue}",
        handler,
        "--log-format=text",
        env=clean_env(**sqs.env),
    )
    assert log_contains(worker, b"worker_started")
    return worker


def test_ctrl_c_does_not_wait_for_a_long_poll(cli: Cli, sqs: Sqs, queue: str) -> None:
    """A lease of a minute lets the receive wait for twenty seconds."""
    worker = start_worker(cli.folder, sqs, queue, "tasks:greet")
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(2)  # long enough for the poll to have started
        worker.send_signal(signal.SIGINT)
        out, err = worker.communicate(timeout=12)
    finally:
        worker.kill()
        worker.communicate()
    assert worker.returncode == 0
    assert b"draining" in err
    assert out.startswith(b"completed 0")


def test_sigterm_lets_running_work_finish(cli: Cli, sqs: Sqs, queue: str) -> None:
    cli("push", f"sqs:{queue}", '{"id": "a"}')
    worker = start_worker(cli.folder, sqs, queue, "tasks:slow")
    try:
        # A message that is claimed, but not started, would be given back.
        effects = cli.folder / "effects"
        wait_until(lambda: effects.exists() and "started a" in effects.read_text())
        worker.send_signal(signal.SIGTERM)
        assert log_contains(worker, b"draining")
        (cli.folder / "finish").touch()
        out, _ = worker.communicate(timeout=WAIT_TIMEOUT_SECONDS)
    finally:
        worker.kill()
        worker.communicate()
    assert worker.returncode == 0
    assert out.startswith(b"completed 1")
    assert (sqs.waiting(queue), sqs.held(queue)) == (0, 0)


# -- read-only commands


def test_status_shows_what_sqs_counts_and_nothing_else(cli: Cli, sqs: Sqs, queue: str) -> None:
    cli("push", f"sqs:{queue}", *["{}"] * 12)
    assert len(sqs.take(queue)) == 10
    ran = cli("status", f"sqs:{queue}")
    rows = dict(line.split("\t") for line in ran.out.splitlines())
    assert rows == {
        "state": f"sqs:{queue}",
        "ready": "2",
        "delayed": "0",
        "leased": "10",
        "failed": "0",
    }
    counts = cli("status", f"sqs:{queue}", "--json").json
    assert (counts["ready"], counts["leased"], counts["completed"]) == (2, 10, None)


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["list", "Q"], "holdfast status"),
        (["list", "Q", "--state=leased"], "holdfast status"),
        (["list", "Q", "--state=completed"], "neither listed nor counted; the workers' logs"),
        (["show", "Q", "a"], "holdfast dead"),
        (["explain", "Q", "a"], "holdfast dead"),
        (["list", "Q", "--where=domain=x.com"], "holdfast dead"),
        (["list", "Q", "--error=Timeout", "--state=failed"], "holdfast dead"),
        (["cancel", "Q", "a"], "let its handler return Reject"),
        (["purge", "Q", "--older-than=7d"], "nothing to purge"),
    ],
)
def test_what_sqs_cannot_do_is_one_line_with_an_alternative(
    cli: Cli, queue: str, words: list[str], remedy: str
) -> None:
    ran = cli(*[f"sqs:{queue}" if word == "Q" else word for word in words])
    assert ran.code == 2
    assert remedy in require_one_line(ran)


# -- dead letters


@pytest.fixture
def with_dead(cli: Cli, sqs: Sqs, queue: str) -> str:
    cli("push", f"sqs:{queue}", '{"id": "a", "n": 1}', '{"id": "b", "n": 2}')
    ran = work(cli.folder, sqs, queue, "tasks:reject")
    assert ran.code == 0, ran.err
    return queue


def test_dead_letters_are_listed_and_shown_with_their_reasons(
    cli: Cli, sqs: Sqs, with_dead: str
) -> None:
    assert sqs.waiting(f"{with_dead}-dlq") == 2
    listed = cli("dead", "list", f"sqs:{with_dead}", "--json").json
    assert {(letter["id"], letter["reason"]) for letter in listed} == {
        ("a", "canary-reason"),
        ("b", "canary-reason"),
    }
    assert cli("list", f"sqs:{with_dead}", "--state=failed").code == 0
    shown = cli("dead", "show", f"sqs:{with_dead}", "b", "--body")
    assert "canary-reason" in shown.out
    assert '"n": 2' in shown.out
    assert sqs.waiting(f"{with_dead}-dlq") == 2  # listing them hides nothing


def test_a_missing_dead_letter_is_name_queue(cli: Cli, with_dead: str) -> None:
    for verb in ("show", "redrive"):
        ran = cli("dead", verb, f"sqs:{with_dead}", "zzz")
        assert ran.code == 1
        assert "no dead letter 'zzz'" in ran.err
        assert "holdfast dead list" in ran.err


def test_dead_letters_are_redriven_one_by_one_or_all(
    cli: Cli, sqs: Sqs, with_dead: str
) -> None:
    assert cli("dead", "redrive", f"sqs:{with_dead}", "a", "--json").json["redriven"] == 1
    assert (sqs.waiting(with_dead), sqs.waiting(f"{with_dead}-dlq")) == (1, 1)
    assert cli("dead", "redrive", f"sqs:{with_dead}", "--all", "--json").json["redriven"] == 1
    assert (sqs.waiting(with_dead), sqs.waiting(f"{with_dead}-dlq")) == (2, 0)


def test_dead_letters_are_dropped_permanently(cli: Cli, sqs: Sqs, with_dead: str) -> None:
    assert cli("dead", "drop", f"sqs:{with_dead}", "a", "--yes").out == "dropped 1\n"
    assert cli("status", f"sqs:{with_dead}", "--json").json["failed"] == 1


# -- doctor


def test_doctor_passes_a_queue_that_is_set_up_well(cli: Cli, queue: str) -> None:
    ran = cli("doctor", f"sqs:{queue}", "--json")
    assert ran.code == 0, ran.out
    assert {finding["level"] for finding in ran.json} == {"ok"}
    checks = {finding["check"] for finding in ran.json}
    assert {"queue", "visibility", "redrive policy", "dead letters"} <= checks


def test_doctor_fails_without_a_redrive_policy_and_says_what_to_set(cli: Cli, sqs: Sqs) -> None:
    ran = cli("doctor", f"sqs:{sqs.new_queue()}?max_attempts=7")
    assert ran.code == 1
    assert "redrive policy" in ran.out
    assert "maxReceiveCount of 8 or more" in ran.out


# -- missing or unreachable


ALL = [
    ["push", "Q", "{}"],
    ["work", "Q", "tasks:greet"],
    ["status", "Q"],
    ["dead", "list", "Q"],
    ["dead", "redrive", "Q", "--all"],
]


@pytest.mark.requirement("R003-020")
@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_a_missing_queue_is_reported_at_once(cli: Cli, words: list[str]) -> None:
    ran = cli(*["sqs:missing-queue" if word == "Q" else word for word in words])
    assert ran.code == 2
    assert "there is no such queue" in require_one_line(ran)


def test_an_unreachable_server_is_one_line(cli: Cli, sqs: Sqs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    env = {**sqs.env, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    ran = real(cli.folder, "status", "sqs:q", env=env)
    assert ran.code == 3
    assert "queue 'sqs:q'" in require_one_line(ran)
    assert f"no response from http://127.0.0.1:{port}" in ran.err
    ran = real(cli.folder, "push", "sqs:q", "{}", env=env)
    assert ran.code == 3
    assert "it is unknown whether this message was pushed" in require_one_line(ran)
    ran = real(cli.folder, "push", "sqs:q", "{}", "{}", env=env)
    assert "perhaps some of the 2 after them" in require_one_line(ran)


def test_settings_of_another_kind_of_queue_are_refused_by_name(cli: Cli) -> None:
    assert "on_nack" in require_one_line(cli("status", "enrich?on_nack=now"))
    ran = cli("status", "sqs:q?on_nack=sometimes")
    assert ran.code == 2
    assert "?on_nack=" in require_one_line(ran)


@pytest.mark.requirement("R001-055", "R001-056", "R001-057", "R001-058", "R001-059")
@pytest.mark.parametrize("kind", ["folder", "sqs"])
def test_the_seeds_enricher_moves_between_folder_and_sqs_by_one_variable(
    cli: Cli, sqs: Sqs, queue: str, kind: str
) -> None:
    """The scraper pushes, `holdfast work` is the loop, and neither
    knows which queue it is."""
    url = f"sqs:{queue}" if kind == "sqs" else str(cli.folder / "acme" / "enrich")
    env = {"HOLDFAST_QUEUE": url, "ENRICHMENT_RESULTS": str(cli.folder / "enriched")}
    scraper = [sys.executable, "enrichment.py", "3"]
    subprocess.run(scraper, cwd=EXAMPLES, env={**os.environ, **env}, check=True)
    ran = real(EXAMPLES, "work", "enrichment:enrich", "-c3", "--until-empty", "--json", env=env)
    assert ran.code == 0, ran.err
    assert ran.json["completed"] == 3
    results = sorted(path.name for path in (cli.folder / "enriched").iterdir())
    assert results == [f"company-{number:03}.json" for number in range(3)]
