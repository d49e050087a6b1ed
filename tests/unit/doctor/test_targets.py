"""What `holdfast doctor` is given, and what it checks then."""

from pathlib import Path

import pytest

from holdfast import AnyMessage, SQLiteQueue
from holdfast.chat.building import open_conversations
from holdfast.doctor.targets import examine_target, find_targets
from holdfast.errors import ConfigError
from holdfast.exports.building import open_jobs
from support.paths import ROOT


def list_checks(target: str, **env: str) -> list[str]:
    return [result.check for result in examine_target(target, env)]


@pytest.mark.parametrize(
    ("env", "targets"),
    [
        ({}, []),
        ({"HOLDFAST_QUEUE": "enrich", "HOLDFAST_LEASE_SECONDS": "5"}, ["enrich"]),
        ({"HOLDFAST_DATA_DIR": "/srv", "HOLDFAST_CHAT_STORE": ""}, []),
        ({"HOLDFAST_CHAT_STORE": "dynamodb:"}, ["chat"]),
        ({"HOLDFAST_QUEUE": "q", "HOLDFAST_JOBS": "jobs.db"}, ["q", "export"]),
        ({"STEP_FUNCTIONS_HEARTBEAT_ENABLED": "1", "HOLDFAST_CHAT_OUTBOX": "o"},
         ["export", "chat"]),
    ],
)  # fmt: skip
def test_without_a_target_all_that_is_configured_is_checked(
    env: dict[str, str], targets: list[str]
) -> None:
    assert find_targets(env) == targets


def test_a_product_is_a_target(tmp_path: Path) -> None:
    assert (
        list_checks("exports") == list_checks("export") == ["heartbeats", "pycurl", "job store"]
    )
    assert {"leases", "store", "webhook"} <= set(list_checks("chat"))
    machine = str(ROOT / "examples/export/state-machine.json")
    assert list_checks(machine) == ["heartbeat", "timeout"]


def test_a_queue_is_where_its_url_and_settings_say(tmp_path: Path) -> None:
    for target, env in (
        ("q", {"HOLDFAST_DATA_DIR": str(tmp_path)}),
        (f"q?data_dir={tmp_path}", {}),
    ):
        first = next(examine_target(target, env))
        assert (first.check, str(tmp_path) in first.found) == ("queue", True)


def test_a_file_is_checked_as_what_it_is(tmp_path: Path) -> None:
    open_jobs(tmp_path / "jobs.db").close()
    open_conversations(tmp_path / "chat.db").close()
    with SQLiteQueue(tmp_path / "work.db") as queue:
        queue.push(AnyMessage())  # type: ignore[arg-type]
    for scheme in ("", "sqlite:"):
        assert list_checks(f"{scheme}{tmp_path}/jobs.db")[-2:] == ["store", "jobs"]
        last = list_checks(f"{scheme}{tmp_path}/chat.db")[-3:]
        assert last == ["store", "waiting", "parked"]
        assert "workers" in list_checks(f"{scheme}{tmp_path}/work.db")


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("redis:x", "no queue for redis: URLs.*doctor also checks stores.*export and chat"),
        ("memory:", "doctor can check folders"),
        ("sqs:q?lease_seconds=nonsense", r"\?lease_seconds="),
        ("sqs:not a name", "cannot be used"),
        ("https://sqs.us-east-1.amazonaws.com/1234/a%20b", "cannot be used"),
    ],
)
def test_what_cannot_be_checked_is_refused_with_what_can(target: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        examine_target(target, {})
