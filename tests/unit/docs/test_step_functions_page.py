"""Compare docs/how-to/step-functions.md with the code: snippets, names and numbers.

These tests notice a name that changes only in the page or only in the code.
"""

import json
import re
import tomllib
from typing import Any

import prometheus_client
import pytest

from holdfast.events import Event
from holdfast.exports import events as ev
from holdfast.exports.checks import check_definition
from holdfast.exports.dynamodb.tables import JobTables, define_tables
from holdfast.exports.settings import HeartbeatSettings
from holdfast.exports.step_functions import TOKEN_CLOSED
from holdfast.queue.event_log import get_event_name
from holdfast.telemetry.prometheus import Metrics
from support.paths import ROOT

PAGE = (ROOT / "docs/how-to/step-functions.md").read_text()
EXAMPLE = json.loads((ROOT / "examples/export/state-machine.json").read_text())
INTERVAL = HeartbeatSettings().interval_seconds


def read_section(title: str) -> str:
    """Return the text below that heading, up to the next one of its level."""
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    assert match, f"there is no section {title!r}"
    return match[1]


def read_rows(text: str) -> dict[str, list[str]]:
    """Return the rows of the tables in the text, by their first cell."""
    cells = (
        [cell.strip() for cell in row.split("|")]
        for row in re.findall(r"^\| (.+) \|$", text, re.MULTILINE)
    )
    return {first: rest for first, *rest in cells}


def find_code_words(text: str) -> list[str]:
    """Return the texts in backticks."""
    return re.findall(r"`([^`\n]+)`", text)


# -- the pattern


@pytest.mark.requirement("R004-206")
def test_the_page_begins_with_the_pattern_in_short() -> None:
    """The calls between the parts, and what a failed heartbeat does."""
    title, _, rest = PAGE.partition("\n")
    assert title.lower() == "# step functions: the heartbeat pattern"
    overview = rest.partition("\n## ")[0]
    for word in ("message with a task token", "SendTaskHeartbeat", "SendTaskSuccess", "SQS"):
        assert word in overview
    assert f"every {INTERVAL:g} s" in overview
    assert "never fails a job" in overview


@pytest.mark.requirement("R004-207")
def test_the_settings_on_the_page_exist() -> None:
    settings = {
        find_code_words(name)[0]: cells[0]
        for name, cells in read_rows(read_section("Set it up")).items()
        if "_" in name
    }
    fields = {
        HeartbeatSettings.to_variable(name): field.default
        for name, field in HeartbeatSettings.model_fields.items()
    }
    assert settings == {
        "STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS": str(
            fields["STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS"]
        ),
        "STEP_FUNCTIONS_HEARTBEAT_ENABLED": str(
            fields["STEP_FUNCTIONS_HEARTBEAT_ENABLED"]
        ).lower(),
    }
    assert "STEP_FUNCTIONS_HEARTBEAT_TIMEOUT_SECONDS" in find_code_words(
        read_section("Set it up")
    )


def read_snippet() -> Any:
    """Return the state of the page's JSON snippet."""
    [text] = re.findall(r"```json\n(.*?)```", read_section("Set it up"), re.DOTALL)
    return json.loads(f"{{{text}}}")["StartExportJob"]


@pytest.mark.requirement("R004-077", "R004-208", "R004-209", "R004-211", "R004-219")
def test_the_state_on_the_page_is_the_one_of_the_example_and_right() -> None:
    """The page has
    90 and 7200, where the seed has 60 and 3600."""
    state = read_snippet()
    example = EXAMPLE["States"]["StartExportJob"]
    assert state == {name: example[name] for name in state}
    assert state["Resource"].endswith("sqs:sendMessage.waitForTaskToken")
    assert (state["HeartbeatSeconds"], state["TimeoutSeconds"]) == (3 * INTERVAL, 7200)
    machine = {"StartAt": "a", "States": {"a": state}}
    assert {result.level.value for result in check_definition(machine, INTERVAL)} == {"ok"}


@pytest.mark.requirement("R004-209", "R004-217", "R004-218", "R004-219", "R004-220")
def test_the_page_says_how_the_two_clocks_relate_to_the_interval() -> None:
    heartbeat = read_section("HeartbeatSeconds and the interval")
    assert "**at least twice** the interval" in heartbeat
    assert f"({3 * INTERVAL:g} s with {INTERVAL:g} s)" in heartbeat
    timeout = read_section("TimeoutSeconds is absolute")
    assert "longest a job may take, with room for a restart of the service: 7200" in timeout


# -- metrics and alarms


def list_metrics() -> dict[str, str]:
    """Return the kind of every exported metric by its name."""
    registry = prometheus_client.CollectorRegistry()
    Metrics(registry)
    return {
        metric.name + ("_total" if metric.type == "counter" else ""): metric.type
        for metric in registry.collect()
    }


@pytest.mark.requirement(
    "R004-222", "R004-224", "R004-225", "R004-226", "R004-227", "R004-228", "R004-229"
)
def test_the_metrics_on_the_page_are_exported() -> None:
    metrics = list_metrics()
    names = [
        name
        for row in read_rows(read_section("Metrics and alarms"))
        for name in find_code_words(row)
    ]
    assert len(names) == 8
    assert [name for name in names if f"holdfast_{name}" not in metrics] == []
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
def test_an_alarm_has_its_limit_and_a_rule_over_existing_metrics(
    alarm: str, when: str, over: str, rule: str
) -> None:
    text = read_section("Metrics and alarms")
    assert read_rows(text)[alarm] == [when, over]
    assert rule in text.splitlines()
    used = re.findall(r"holdfast_\w+", rule)
    assert [name for name in used if name.removesuffix("_bucket") not in list_metrics()] == []


# -- the tables


@pytest.mark.requirement(
    "R004-201", "R004-202", "R004-203", "R004-204", "R004-233", "R004-234", "R004-235"
)
def test_the_tables_on_the_page_are_those_that_are_made() -> None:
    text = read_section("The tables")
    for table in define_tables(JobTables()):
        keys, index = read_rows(text)[f"`{table['TableName']}`"]
        assert find_code_words(keys) == [key["AttributeName"] for key in table["KeySchema"]]
        indexes = table.get("GlobalSecondaryIndexes", [])
        assert find_code_words(index) == [
            word
            for entry in indexes
            for word in (
                entry["IndexName"],
                *(key["AttributeName"] for key in entry["KeySchema"]),
            )
        ]
        assert ("keys only" in index) is bool(indexes)
        assert table["BillingMode"] == "PAY_PER_REQUEST"
    assert "paid by use" in text


@pytest.mark.requirement("R004-251", "R004-252", "R004-262")
def test_the_page_says_what_reading_costs_and_where_that_is_seen() -> None:
    """100 jobs in four listings a minute are 400 reads."""
    text = read_section("What it costs")
    assert f"{100 * 60 / (INTERVAL / 2):.0f} reads a minute" in text
    assert "`ConsumedReadCapacityUnits`" in text
    assert "A Scan of the table is never" in text
    assert f"500 jobs every {INTERVAL:g} s are {500 / INTERVAL:.0f} calls a second" in text


# -- when something is wrong


@pytest.mark.requirement("R004-253", "R004-254", "R004-257", "R004-258", "R004-259", "R004-260")
def test_the_page_leads_from_symptoms_to_causes() -> None:
    """In the order of a search."""
    text = read_section("When something is wrong")
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
    assert set(find_code_words(text)) >= TOKEN_CLOSED


@pytest.mark.requirement("R004-257", "R004-258", "R004-264", "R004-265")
def test_what_the_page_looks_for_in_the_log_is_written_there() -> None:
    kinds = [
        kind for kind in vars(ev).values() if isinstance(kind, type) and issubclass(kind, Event)
    ]
    known = {get_event_name(object.__new__(kind)) for kind in kinds}
    text = read_section("When something is wrong")
    events = {word for word in find_code_words(text) if re.fullmatch(r"[a-z]+(_[a-z]+)+", word)}
    assert {"orchestrator_started", "orchestrator_disabled", "heartbeat_failed"} <= events
    assert events - known == set()


# -- related pages


@pytest.mark.requirement("R004-210")
def test_the_layers_are_drawn_as_they_are_checked() -> None:
    """ARCHITECTURE.md is where ports and adapters are laid out."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = project["tool"]["importlinter"]["contracts"][0]
    drawn = re.search(r"from top to bottom:\n\n```\n(.+?)\n```", text, re.DOTALL)
    assert drawn
    lines = [line.partition("   ")[0] for line in drawn[1].splitlines()]
    assert lines == [checked.replace("holdfast.", "") for checked in contract["layers"]]
    for page in (
        "docs/how-to/export-files.md",
        "docs/reference/cli.md",
        "examples/export/README.md",
    ):
        assert "how-to/step-functions.md" in (ROOT / page).read_text().replace(
            "](step-functions.md", "](how-to/step-functions.md"
        )


@pytest.mark.requirement("R004-018", "R004-031")
def test_the_recommended_number_of_workers_is_that_of_the_cores() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text()
    cells = read_rows(page)["`worker_pool_size`"]
    assert cells[:2] == ["`WORKER_POOL_SIZE`", "4"]
    assert "as many as there are CPU cores, typically 4 to 8" in cells[2]
