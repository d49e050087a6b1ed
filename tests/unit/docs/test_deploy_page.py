"""docs/how-to/deploy.md agrees with the templates, the counted calls and the doctor."""

import re

import pytest
from bench.scale.quotas import HEARTBEAT_BUCKET, HEARTBEAT_REFILL, QUOTAS
from tools.deploy_costs import BEGIN, END, PAGE, format_costs

from holdfast.doctor.sqs_queue import MAX_IN_FLIGHT
from holdfast.exports.settings import HeartbeatSettings
from support.shell_commands import find_commands, find_problems
from support.stack_template import Stack, load_template

TEXT = PAGE.read_text()


def read_between(begin: str, end: str) -> str:
    return TEXT.partition(begin)[2].partition(end)[0].strip()


def test_the_costs_are_what_the_tool_writes() -> None:
    """Run `python -m tools.deploy_costs` after a change of calls or prices."""
    assert read_between(BEGIN, END) == format_costs()


def test_every_command_exists() -> None:
    commands = find_commands(TEXT)
    assert len(commands) > 15
    assert [problem for words in commands for problem in find_problems(words)] == []


def test_parameters_and_templates_exist() -> None:
    [deploy] = [words for words in find_commands(TEXT) if "--parameter-overrides" in words]
    given = {word.partition("=")[0] for word in deploy if re.match(r"[A-Z]\w+=", word)}
    parameters = load_template("template")["Parameters"]
    assert len(given) > 10
    assert given <= set(parameters)
    switches = set(re.findall(r"`(Deploy\w+)=true`", TEXT))
    assert switches == {name for name in parameters if name.startswith("Deploy")}
    for name in re.findall(r"infra/(\w+)\.yaml", TEXT):
        assert load_template(name)


def test_the_table_of_parameters_has_their_defaults() -> None:
    rows = re.findall(r"^\| ((?:`[A-Z]\w+`(?:, )?)+) \| ([\w, ]+) \|", TEXT, re.MULTILINE)
    assert len(rows) > 4
    for names, defaults in rows:
        parameters = [
            load_template("template")["Parameters"][name] for name in names[1:-1].split("`, `")
        ]
        shown = [str(each["Default"]) or "none" for each in parameters]
        assert ", ".join(shown) == defaults


def list_tables(template: str) -> set[str]:
    """Return the names of the tables of a template, for the name that the page uses."""
    tables = Stack(load_template(template), Name="shop").find("AWS::DynamoDB::Table")
    return {table["TableName"] for table in tables.values()}


def test_every_table_is_named_that_a_failed_deployment_leaves() -> None:
    (names,) = re.findall(r"^for table in (.+); do$", TEXT, re.MULTILINE)
    assert {f"shop-{name}" for name in names.split()} == list_tables("conversations")
    imported = set(re.findall(r'"TableName": "([^"]+)"', TEXT))
    assert imported == set(re.findall(r"`(shop-Export\w+)`", TEXT)) == list_tables("exports")


def test_secrets_have_the_name_that_the_functions_read() -> None:
    text = str(load_template("conversations"))
    assert "${Name}/twilio" in text
    names = re.findall(r"create-secret --name (\S+)", TEXT)
    assert names == ["shop/twilio", "shop/openai"]


@pytest.mark.parametrize(
    ("interval_seconds", "beats"),
    [(HeartbeatSettings().interval_seconds, "10,500"), (60.0, "18,000")],
)
def test_the_beats_that_step_functions_accepts(interval_seconds: float, beats: str) -> None:
    """After a start they are sent in half an interval, during which the bucket is refilled."""
    accepted = HEARTBEAT_BUCKET + HEARTBEAT_REFILL * interval_seconds / 2
    assert f"{accepted:,.0f}" == beats
    assert f"{beats} beats" in TEXT


def test_the_quotas_are_those_of_the_study() -> None:
    assert QUOTAS["sqs.in_flight"].limit == MAX_IN_FLIGHT
    for name in ("sqs.in_flight", "dynamodb.index_write", "dynamodb.index_read"):
        assert f"{QUOTAS[name].limit:,}" in TEXT
    assert f"| {HEARTBEAT_REFILL} a second after a burst of {HEARTBEAT_BUCKET:,}" in TEXT
