"""`holdfast purge` and `holdfast doctor`."""

import subprocess
from pathlib import Path

import pytest

from holdfast import AnyMessage, open_queue
from support.cli.commands import Cli, clean_env, command, drop_privileges, require_one_line


def test_purge_removes_only_what_was_completed_long_ago(cli: Cli) -> None:
    with open_queue("enrich") as queue:
        queue.push_many(AnyMessage(id=f"t{n}") for n in range(5))
        queue.ack_many(queue.poll(3))
    assert cli("purge", "enrich", "--older-than=7d").out == "purged 0\n"
    assert cli("purge", "enrich", "--older-than=0s", "--json").json == {"purged": 3}
    stats = cli("status", "enrich", "--json").json
    assert (stats["ready"], stats["completed"]) == (2, 0)


def test_purge_does_not_guess_how_old(cli: Cli) -> None:
    cli("push", "enrich", "{}")
    ran = cli("purge", "enrich")
    assert ran.code == 2
    assert "--older-than" in require_one_line(ran)


def test_doctor_passes_a_healthy_queue(cli: Cli) -> None:
    cli("push", "enrich", "{}")
    with open_queue("enrich") as queue:
        queue.poll()
    ran = cli("doctor", "enrich")
    assert ran.code == 0
    assert "4 threads raced for 250 files: each had one winner" in ran.out
    findings = cli("doctor", "enrich", "--json").json
    assert {finding["check"] for finding in findings} >= {
        "filesystem", "space", "permissions", "one device", "rename", "link", "lock",
        "foreign files", "workers",
    }  # fmt: skip
    assert "fail" not in {finding["level"] for finding in findings}


def test_doctor_shows_what_a_user_without_permissions_must_do(tmp_path: Path) -> None:
    with open_queue(tmp_path / "acme/enrich") as queue:
        queue.push(AnyMessage(id="a"))
    leased = tmp_path / "queues/acme/enrich/leased"
    leased.chmod(0o555)
    try:
        finished = subprocess.run(
            command("doctor", str(tmp_path / "acme/enrich")),
            env=clean_env(),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            preexec_fn=drop_privileges,
        )
    finally:
        leased.chmod(0o755)
    assert finished.returncode == 1, finished.stdout
    assert "this user cannot read, write and enter leased" in finished.stdout
    assert "chmod" in finished.stdout


def test_doctor_checks_several_targets_and_all_that_is_configured(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("push", "enrich", "{}")
    assert "export, chat), or set HOLDFAST_QUEUE" in require_one_line(cli("doctor"))
    assert "doctor also checks stores" in require_one_line(cli("doctor", "enrich", "foo:bar"))
    monkeypatch.setenv("HOLDFAST_QUEUE", "enrich")
    monkeypatch.setenv("HOLDFAST_CHAT_WINDOW_SECONDS", "5")
    monkeypatch.setenv("HOLDFAST_LEASE", "5")
    ran = cli("doctor")
    assert ran.code == 0
    first, *lines = ran.out.splitlines()
    assert (first, "chat" in lines) == ("enrich", True)
    checks = {result["check"] for result in cli("doctor", "--json").json}
    assert {"enrich: rename", "chat: leases"} <= checks
