"""docs/how-to/step-functions.md says what the code does: snippets, names, numbers.

What it needs to run is on the page; here it is held against the code, so that a name that
changes in one of the two is noticed.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import prometheus_client
import pytest

from holdfast.adapters.aws.dynamodb.tables import JobTables, definitions
from holdfast.adapters.aws.stepfunctions import CLOSED
from holdfast.adapters.aws.stepfunctions_doctor import findings
from holdfast.adapters.observe.logging import name_of
from holdfast.adapters.observe.metrics import Metrics
from holdfast.config.settings import HeartbeatSettings
from holdfast.core.events import Event
from holdfast.jobs import events as ev

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/step-functions.md").read_text()
EXAMPLE = json.loads((ROOT / "examples/export/state-machine.json").read_text())
INTERVAL = HeartbeatSettings().interval_seconds


def section(title: str) -> str:
    """What is below that heading, up to the next of its kind."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    assert found, f"there is no section {title!r}"
    return found[1]


def rows(text: str) -> dict[str, list[str]]:
    """The rows of the tables in it, by what is first in each."""
    cells = (
        [cell.strip() for cell in row.split("|")]
        for row in re.findall(r"^\| (.+) \|$", text, re.MULTILINE)
    )
    return {first: rest for first, *rest in cells}


def words(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", text)


# -- the pattern


def test_the_page_begins_with_the_pattern_in_short() -> None:
    """R004-206: who sends what to whom, and what a failed heartbeat does."""
    title, _, rest = PAGE.partition("\n")
    assert title.lower() == "# step functions: the heartbeat pattern"
    overview = rest.partition("\n## ")[0]
    for word in ("message with a task token", "SendTaskHeartbeat", "SendTaskSuccess", "SQS"):
        assert word in overview
    assert f"every {INTERVAL:g} s" in overview
    assert "never fails a job" in overview


def test_the_settings_on_the_page_are_those_there_are() -> None:
    """R004-207."""
    told = {
        words(name)[0]: said[0]
        for name, said in rows(section("Set it up")).items()
        if "_" in name
    }
    fields = {field.alias: field.default for field in HeartbeatSettings.model_fields.values()}
    assert told == {
        "STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS": str(
            fields["STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS"]
        ),
        "STEP_FUNCTIONS_HEARTBEAT_ENABLED": str(
            fields["STEP_FUNCTIONS_HEARTBEAT_ENABLED"]
        ).lower(),
    }
    assert "STEP_FUNCTIONS_HEARTBEAT_TIMEOUT_SECONDS" in words(section("Set it up"))


def snippet() -> Any:
    [text] = re.findall(r"```json\n(.*?)```", section("Set it up"), re.DOTALL)
    return json.loads(f"{{{text}}}")["StartExportJob"]


def test_the_state_on_the_page_is_the_one_of_the_example_and_right() -> None:
    """R004-077, R004-208, R004-209, R004-211, R004-219, D-22: 90 and 7200 for 60 and 3600."""
    state = snippet()
    example = EXAMPLE["States"]["StartExportJob"]
    assert state == {name: example[name] for name in state}
    assert state["Resource"].endswith("sqs:sendMessage.waitForTaskToken")
    assert (state["HeartbeatSeconds"], state["TimeoutSeconds"]) == (3 * INTERVAL, 7200)
    machine = {"StartAt": "a", "States": {"a": state}}
    assert {one.level.value for one in findings(machine, INTERVAL)} == {"ok"}


def test_the_page_says_how_the_two_clocks_relate_to_the_interval() -> None:
    """R004-209, R004-217…220, D-21, D-22."""
    heartbeat = section("HeartbeatSeconds and the interval")
    assert "**at least twice** the interval" in heartbeat
    assert f"({3 * INTERVAL:g} s with {INTERVAL:g} s)" in heartbeat
    timeout = section("TimeoutSeconds is absolute")
    assert "longest a job may take, with room for a restart of the service: 7200" in timeout


# -- metrics and alarms


def exported() -> dict[str, str]:
    """Every metric there is, by its name, with its kind."""
    registry = prometheus_client.CollectorRegistry()
    Metrics(registry)
    return {
        metric.name + ("_total" if metric.type == "counter" else ""): metric.type
        for metric in registry.collect()
    }


def test_the_metrics_on_the_page_are_exported() -> None:
    """R004-222, R004-224…229."""
    metrics = exported()
    told = [name for row in rows(section("Metrics and alarms")) for name in words(row)]
    assert len(told) == 8
    assert [name for name in told if f"holdfast_{name}" not in metrics] == []
    assert metrics["holdfast_heartbeat_duration_ms"] == "histogram"
    assert metrics["holdfast_jobs_active_with_token"] == "gauge"


@pytest.mark.parametrize(
    ("alarm", "when", "over", "rule"),
    [
        (
            "HeartbeatFailureRate",
            "more than 5 % of beats fail",
            "300 s",
            "rate(holdfast_heartbeat_failure_total[5m]) "
            "/ rate(holdfast_heartbeat_sent_total[5m]) > 0.05",
        ),
        (
            "StepFunctionsTimeouts",
            "one or more",
            "3600 s",
            "increase(holdfast_stepfunctions_timeout_total[1h]) >= 1",
        ),
        (
            "HeartbeatLatency",
            "the 99th percentile is above 5000 ms",
            "300 s",
            "histogram_quantile(0.99, rate(holdfast_heartbeat_duration_ms_bucket[5m])) > 5000",
        ),
    ],
)
def test_an_alarm_has_its_bound_and_a_rule_over_metrics_there_are(
    alarm: str, when: str, over: str, rule: str
) -> None:
    """R004-230, R004-231, R004-232."""
    text = section("Metrics and alarms")
    assert rows(text)[alarm] == [when, over]
    assert rule in text.splitlines()
    used = re.findall(r"holdfast_\w+", rule)
    assert [name for name in used if name.removesuffix("_bucket") not in exported()] == []


# -- the tables


def test_the_tables_on_the_page_are_those_that_are_made() -> None:
    """R004-201…204, R004-233…235, D-19."""
    text = section("The tables")
    for table in definitions(JobTables()):
        keys, index = rows(text)[f"`{table['TableName']}`"]
        assert words(keys) == [key["AttributeName"] for key in table["KeySchema"]]
        indexes = table.get("GlobalSecondaryIndexes", [])
        assert words(index) == [
            word
            for one in indexes
            for word in (one["IndexName"], *(key["AttributeName"] for key in one["KeySchema"]))
        ]
        assert ("keys only" in index) is bool(indexes)
        assert table["BillingMode"] == "PAY_PER_REQUEST"
    assert "paid by use" in text


def test_the_page_says_what_reading_costs_and_where_that_is_seen() -> None:
    """R004-251, R004-252, R004-262: 100 jobs in two cycles a minute are 200 reads."""
    text = section("What it costs")
    assert f"{100 * 60 / INTERVAL:.0f} reads a minute" in text
    assert "`ConsumedReadCapacityUnits`" in text
    assert "A Scan of the table is never" in text
    assert f"500 jobs every {INTERVAL:g} s are {500 / INTERVAL:.0f} calls a second" in text


# -- when something is wrong


def test_the_page_leads_from_symptoms_to_causes() -> None:
    """R004-253, R004-254, R004-257…260: in the order one looks."""
    text = section("When something is wrong")
    timed_out, silent, closed = (
        part.partition("\n\n")[0]
        for part in re.split(r"^\*\*.+?\*\*", text, flags=re.MULTILINE)[1:4]
    )
    for clue in ("doctor --state-machine", "`orchestrator_started`", "wait in the queue"):
        assert clue in timed_out
    for clue in (
        "`STEP_FUNCTIONS_HEARTBEAT_ENABLED`",
        "`holdfast export list --with-token`",
        "`holdfast export list --status DOWNLOADING`",
    ):
        assert clue in silent
    for cause in ("execution was ended", "timeout passed", "another account or region"):
        assert cause in closed
    assert set(words(text)) >= CLOSED


def test_what_the_page_looks_for_in_the_log_is_written_there() -> None:
    """R004-257, R004-258, R004-264, R004-265."""
    kinds = [
        kind for kind in vars(ev).values() if isinstance(kind, type) and issubclass(kind, Event)
    ]
    known = {name_of(object.__new__(kind)) for kind in kinds}
    text = section("When something is wrong")
    told = {word for word in words(text) if re.fullmatch(r"[a-z]+(_[a-z]+)+", word)}
    assert {"orchestrator_started", "orchestrator_disabled", "heartbeat_failed"} <= told
    assert told - known == set()


# -- related pages


def test_the_layers_are_drawn_as_they_are_checked() -> None:
    """R004-210: ARCHITECTURE.md is where ports and adapters are laid out."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = project["tool"]["importlinter"]["contracts"][0]
    drawn = re.search(r"## Layers\n\n```\n(.+?)  ", text)
    assert drawn
    for told, checked in zip(drawn[1].split("──▶"), contract["layers"], strict=True):
        names = {name.strip().removeprefix("holdfast.") for name in checked.split("|")}
        assert {name.strip() for name in told.split("|")} <= names
    for page in (
        "docs/how-to/export-files.md",
        "docs/reference/cli.md",
        "examples/export/README.md",
    ):
        assert "how-to/step-functions.md" in (ROOT / page).read_text().replace(
            "](step-functions.md", "](how-to/step-functions.md"
        )


def test_the_recommended_number_of_workers_is_that_of_the_cores() -> None:
    """R004-018, R004-031."""
    page = (ROOT / "docs/reference/settings.md").read_text()
    said = rows(page)["`worker_pool_size`"]
    assert said[:2] == ["`WORKER_POOL_SIZE`", "4"]
    assert "as many as there are CPU cores, typically 4 to 8" in said[2]
