"""EMF lines of a worker that runs as a container would run it."""

from pathlib import Path

from holdfast import open_queue
from holdfast.queue.message import AnyMessage
from support.cli.commands import clean_env, real
from support.telemetry.emf_lines import find_lines, get_labels, get_values

TASKS = """
def handle(message):
    if message.id == "bad":
        raise ValueError("no such luck")
"""


def test_a_worker_writes_its_metrics_to_its_output(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    url = f"sqlite:{tmp_path}/work.db"
    with open_queue(url) as queue:
        queue.push_many([AnyMessage(id=name) for name in ("a", "b", "bad")])
    ran = real(
        tmp_path,
        "work", url, "tasks:handle", "--until-empty", "--max-attempts=1",
        env=clean_env(HOLDFAST_EMF_NAMESPACE="shop"),
    )  # fmt: skip
    assert ran.code == 0
    lines = find_lines(ran.out)
    values = {
        (name, get_labels(line).get("outcome") or get_labels(line).get("state")): value
        for line in lines
        for name, value in get_values(line).items()
    }
    assert values["attempts.total", "completed"] == 2
    assert values["attempts.total", "dead_lettered"] == 1
    assert len(values["attempt_seconds", None]) == 3
    assert ("queue.depth", "ready") in values
    assert "completed 2, retried 0, dead lettered 1" in ran.out


def test_a_namespace_that_cloudwatch_refuses_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    env = clean_env(HOLDFAST_EMF_NAMESPACE="AWS/SQS")
    ran = real(tmp_path, "work", "q", "tasks:handle", "--until-empty", env=env)
    assert ran.code != 0
    assert "'AWS/SQS'" in ran.err
    assert "Traceback" not in ran.err
