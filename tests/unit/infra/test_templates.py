"""The templates of infra/ agree with the code: tables, settings, timeouts, metrics, roles.

What must hold for any template, such as encryption, is in infra/guard (test_guard.py).
"""

import json
import re
from collections.abc import Iterable, Iterator
from inspect import signature
from itertools import pairwise
from math import inf
from typing import Any

import pytest

from holdfast.chat import events as cv
from holdfast.chat.actor import ConversationLocks
from holdfast.chat.dynamodb import tables as chat_tables
from holdfast.chat.lambdas import check_time, max_batch_seconds
from holdfast.chat.settings import ChatSettings
from holdfast.cli.main import CommandTable
from holdfast.doctor.checks import CheckLevel
from holdfast.events import QueueMeasured
from holdfast.exports.checks import check_definition
from holdfast.exports.commands.serve import serve
from holdfast.exports.dynamodb import tables as job_tables
from holdfast.exports.model import TOKEN_ERRORS
from holdfast.exports.settings import HeartbeatSettings
from holdfast.queues.settings import QueueSettings
from holdfast.queues.sqs import SQSQueue
from holdfast.telemetry.metrics import list_metrics
from holdfast.text import parse_duration
from holdfast.variables import find_known_variables
from support.paths import ROOT
from support.stack_template import (
    PSEUDO_PARAMETERS,
    Stack,
    iter_references,
    list_stacks,
    load_template,
)

TEMPLATES = ("template", "queue", "exports", "conversations")
STACKS = list_stacks()
METRICS_BY_NAME = {metric.cloudwatch_name: metric for metric in list_metrics()}
EXAMPLE = json.loads((ROOT / "examples/export/state-machine.json").read_text())
OUR_NAMESPACE = "holdfast/shop"
# Variables of boto3, Python and ECS, which are not settings of Holdfast.
FOREIGN_VARIABLES = {"TMPDIR"}

each_stack = pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)


# -- the templates themselves


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_reference_names_a_parameter_or_a_resource(name: str) -> None:
    template = load_template(name)
    known = {*template["Parameters"], *template["Resources"], *PSEUDO_PARAMETERS}
    references = set(iter_references([template["Resources"], template.get("Outputs")]))
    assert references - known <= {"AWS::NoValue"}


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_parameter_and_condition_is_used(name: str) -> None:
    template = load_template(name)
    texts = json.dumps({part: template[part] for part in template if part != "Parameters"})
    references = set(iter_references({**template, "Parameters": {}}))
    assert set(template["Parameters"]) <= references
    for condition in template["Conditions"]:
        assert texts.count(f'"{condition}"') > 1  # its definition, and a use


NESTED = load_template("template")["Resources"]
each_nested = pytest.mark.parametrize("nested", NESTED.values(), ids=NESTED)


@each_nested
def test_every_parameter_of_a_nested_stack_can_be_set_and_keeps_its_default(
    nested: dict[str, Any],
) -> None:
    outer = load_template("template")["Parameters"]
    inner = load_template(nested["Properties"]["TemplateURL"].removesuffix(".yaml"))[
        "Parameters"
    ]
    passed = nested["Properties"]["Parameters"]
    assert passed.keys() == inner.keys()
    for name, value in passed.items():
        (parameter,) = iter_references(value)
        assert outer[parameter]["Default"] == inner[name].get("Default", "")
        assert outer[parameter].get("AllowedValues") == inner[name].get("AllowedValues")


CODE = {"CodeBucket": "shop-code", "CodeKey": "code-1.zip"}
SERVICE = {"Image": "shop:1", "Subnets": "subnet-1,subnet-2", "SecurityGroups": "sg-1"}
NEEDS = [
    ("queue", {"Consumer": "function", **CODE}, CODE),
    ("queue", {"Consumer": "service", "Handler": "tasks:handle", **SERVICE}, SERVICE),
    ("template", {"DeployQueue": "true", "Consumer": "function", **CODE}, CODE),
    (
        "template",
        {"DeployQueue": "true", "Consumer": "service", "Handler": "tasks:handle", **SERVICE},
        [*SERVICE, "Handler"],
    ),
    (
        "template",
        {"DeployExports": "true", "Bucket": "shop-files", **SERVICE},
        [*SERVICE, "Bucket"],
    ),
    ("template", {"DeployConversations": "true", **CODE}, CODE),
]


@pytest.mark.parametrize(("name", "given", "needed"), NEEDS)
def test_a_template_is_refused_if_a_parameter_is_missing_that_a_part_needs(
    name: str, given: dict[str, str], needed: Iterable[str]
) -> None:
    template = load_template(name)
    assert not Stack(template, **given).list_broken_rules()
    for parameter in needed:
        rest = {key: value for key, value in given.items() if key != parameter}
        (description,) = Stack(template, **rest).list_broken_rules()
        assert re.search(rf"\b{parameter}\b", description)


@pytest.mark.parametrize("part", ["Queue", "Exports", "Conversations"])
def test_each_part_can_be_deployed_alone(part: str) -> None:
    stack = Stack(load_template("template"), **{f"Deploy{part}": "true"})
    assert list(stack.resources) == [part]


def test_without_a_switch_the_template_is_refused() -> None:
    (description,) = Stack(load_template("template")).list_broken_rules()
    assert "DeployQueue" in description


# -- tables


def list_expected_tables() -> dict[str, tuple[dict[str, Any], str | None]]:
    """Return the arguments of CreateTable and the attribute by which rows expire."""
    jobs = job_tables.JobTables("shop-ExportJobs", "shop-ExportTasks")
    chats = chat_tables.tables_from_prefix("shop-")
    return {
        **{table["TableName"]: (table, "ttl") for table in job_tables.define_tables(jobs)},
        **{
            table["TableName"]: (table, chats.expiring.get(table["TableName"]))
            for table in chat_tables.define_tables(chats)
        },
    }


def list_tables() -> dict[str, dict[str, Any]]:
    tables = (stack.find("AWS::DynamoDB::Table") for stack in STACKS.values())
    return {table["TableName"]: table for found in tables for table in found.values()}


def test_the_templates_have_the_tables_of_the_code_and_no_others() -> None:
    assert list_tables().keys() == list_expected_tables().keys()


@pytest.mark.parametrize("name", list_expected_tables())
def test_a_table_is_what_the_code_would_create(name: str) -> None:
    table = dict(list_tables()[name])
    definition, expires_by = list_expected_tables()[name]
    expiry = table.pop("TimeToLiveSpecification", None)
    enabled = {"AttributeName": expires_by, "Enabled": True}
    assert expiry == (None if expires_by is None else enabled)
    assert table.pop("PointInTimeRecoverySpecification") == {"PointInTimeRecoveryEnabled": True}
    assert table.pop("SSESpecification") == {"SSEEnabled": True}
    assert table.pop("DeletionProtectionEnabled") is True
    assert table == definition


# -- queues


def split_queues(stack: Stack) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the queues for work, and those for dead letters."""
    queues = stack.find("AWS::SQS::Queue")
    work = {name: queue for name, queue in queues.items() if "RedrivePolicy" in queue}
    return work, {name: queue for name, queue in queues.items() if name not in work}


@each_stack
def test_sqs_gives_up_after_the_workers_and_dead_letters_are_kept_longest(stack: Stack) -> None:
    work, dead = split_queues(stack)
    for queue in work.values():
        assert queue["RedrivePolicy"]["maxReceiveCount"] > QueueSettings().max_attempts
        target = dead[queue["RedrivePolicy"]["deadLetterTargetArn"].removesuffix(".Arn")]
        assert target["MessageRetentionPeriod"] == 14 * 86_400
        assert queue["MessageRetentionPeriod"] < target["MessageRetentionPeriod"]
        sources = target["RedriveAllowPolicy"]["sourceQueueArns"]
        assert f"arn:aws:sqs:eu-west-1:123456789012:{queue['QueueName']}" in sources
    for queue in dead.values():
        assert queue["RedriveAllowPolicy"]["redrivePermission"] == "byQueue"
        assert len(queue["RedriveAllowPolicy"]["sourceQueueArns"]) == len(work)


@each_stack
def test_queues_hide_a_message_for_a_lease(stack: Stack) -> None:
    for queue in split_queues(stack)[0].values():
        assert queue["VisibilityTimeout"] >= QueueSettings().lease_seconds


# -- functions


def iter_mappings() -> Iterator[tuple[Stack, dict[str, Any]]]:
    timeouts = load_template("queue")["Parameters"]["FunctionTimeoutSeconds"]["AllowedValues"]
    stacks = [
        Stack(load_template("queue"), Consumer="function", FunctionTimeoutSeconds=timeout)
        for timeout in timeouts
    ]
    for stack in [*stacks, STACKS["conversations"]]:
        for mapping in stack.find("AWS::Lambda::EventSourceMapping").values():
            yield stack, mapping


def test_a_queue_hides_messages_for_six_timeouts_and_the_window() -> None:
    for stack, mapping in iter_mappings():
        function = stack.find("AWS::Lambda::Function")[mapping["FunctionName"]]
        queue = stack.find("AWS::SQS::Queue")[mapping["EventSourceArn"].removesuffix(".Arn")]
        window = mapping.get("MaximumBatchingWindowInSeconds", 0)
        assert queue["VisibilityTimeout"] >= 6 * int(function["Timeout"]) + window


def test_messaging_has_time_for_one_batch_after_a_cold_start() -> None:
    timeout = STACKS["conversations"].find("AWS::Lambda::Function")["Messaging"]["Timeout"]
    check_time(timeout - 10, max_batch_seconds(ChatSettings().policy))


@pytest.mark.parametrize(
    ("given", "reserved"), [({}, None), ({"StagingConcurrency": "100"}, "100")]
)
def test_staging_reserves_concurrency_if_it_is_given(
    given: dict[str, str], reserved: str | None
) -> None:
    stack = Stack(load_template("conversations"), **given)
    staging = stack.find("AWS::Lambda::Function")["Staging"]
    assert staging.get("ReservedConcurrentExecutions") == reserved


def test_sweeps_do_not_overlap() -> None:
    stack = STACKS["conversations"]
    function = stack.find("AWS::Lambda::Function")["Sweeping"]
    (rule,) = stack.find("AWS::Events::Rule").values()
    assert rule["ScheduleExpression"] == "rate(5 minutes)"
    assert 240 < function["Timeout"] < 300
    assert function["ReservedConcurrentExecutions"] == 1


@each_stack
def test_a_log_group_is_named_after_what_logs_there(stack: Stack) -> None:
    groups = stack.find("AWS::Logs::LogGroup")
    names = {
        function["FunctionName"]: function["LoggingConfig"]["LogGroup"]
        for function in stack.find("AWS::Lambda::Function").values()
    } | {
        task["Family"]: container["LogConfiguration"]["Options"]["awslogs-group"]
        for task in stack.find("AWS::ECS::TaskDefinition").values()
        for container in task["ContainerDefinitions"]
    }
    assert {groups[group]["LogGroupName"] for group in names.values()} == {
        f"/holdfast/shop/{name.removeprefix('shop-')}" for name in names
    }
    assert len(groups) == len(names)


@each_stack
def test_handlers_of_holdfast_exist(stack: Stack) -> None:
    from importlib import import_module

    for function in stack.find("AWS::Lambda::Function").values():
        module, _, name = function["Handler"].rpartition(".")
        if module.startswith("holdfast."):
            assert callable(getattr(import_module(module), name))


# -- the service


def list_containers(stack: Stack) -> list[dict[str, Any]]:
    tasks = stack.find("AWS::ECS::TaskDefinition").values()
    return [container for task in tasks for container in task["ContainerDefinitions"]]


CONTAINERS = [
    container
    for name in ("queue-service", "exports")
    for container in list_containers(STACKS[name])
]
each_container = pytest.mark.parametrize(
    "container", CONTAINERS, ids=[container["Name"] for container in CONTAINERS]
)


@each_container
def test_a_container_is_killed_only_after_its_drain(container: dict[str, Any]) -> None:
    (drain,) = (word for word in container["Command"] if word.startswith("--drain="))
    give_back_seconds = 10  # of `export serve`, after its downloads have drained
    needed = parse_duration(drain.partition("=")[2]) + give_back_seconds
    assert needed < container["StopTimeout"] <= 120  # what Fargate allows


@each_container
def test_a_container_writes_only_to_its_volume(container: dict[str, Any]) -> None:
    variables = {each["Name"]: each["Value"] for each in container["Environment"]}
    (mount,) = container["MountPoints"]
    assert variables["HOLDFAST_DATA_DIR"] == variables["TMPDIR"] == mount["ContainerPath"]


@each_container
def test_the_health_check_asks_the_port_of_the_metrics(container: dict[str, Any]) -> None:
    (port,) = (word for word in container["Command"] if word.startswith("--metrics-port="))
    check = container["HealthCheck"]["Command"]
    assert check == ["CMD", "holdfast", "doctor", port]


@each_container
def test_the_command_of_a_container_is_one_of_the_command_line(
    container: dict[str, Any],
) -> None:
    words = list(container["Command"])
    command = CommandTable("").load(words.pop(0))
    if words[0] in getattr(command, "commands", ()):
        command = command.commands.load(words.pop(0))
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert options <= {option for each in command.params for option in each.opts}


@each_stack
def test_an_update_of_the_stack_keeps_the_number_of_tasks(stack: Stack) -> None:
    for service in stack.find("AWS::ECS::Service").values():
        assert "DesiredCount" not in service


@each_stack
def test_a_task_may_protect_itself_in_its_own_cluster(stack: Stack) -> None:
    (cluster,) = stack.find("AWS::ECS::Cluster").values() or [None]
    allowed = [
        statement["Resource"]
        for statement in iter_statements(stack)
        if statement["Action"] == "ecs:UpdateTaskProtection"
    ]
    arn = "arn:aws:ecs:eu-west-1:123456789012:task/{ClusterName}/*"
    assert allowed == ([] if cluster is None else [arn.format(**cluster)])


# -- the state machine


def test_the_state_machine_passes_the_doctor() -> None:
    (machine,) = STACKS["exports"].find("AWS::StepFunctions::StateMachine").values()
    interval = HeartbeatSettings().interval_seconds
    results = list(check_definition(machine["Definition"], interval))
    assert [result for result in results if result.level is not CheckLevel.OK] == []


def test_the_service_knows_the_heartbeat_seconds_of_the_state_machine() -> None:
    (machine,) = STACKS["exports"].find("AWS::StepFunctions::StateMachine").values()
    (container,) = list_containers(STACKS["exports"])
    variables = {each["Name"]: each["Value"] for each in container["Environment"]}
    seconds = machine["Definition"]["States"]["StartExportJob"]["HeartbeatSeconds"]
    interval_ms = int(variables["STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS"])
    assert int(variables["STEP_FUNCTIONS_HEARTBEAT_TIMEOUT_SECONDS"]) == seconds
    assert seconds >= 3 * interval_ms / 1000


def test_a_message_that_sqs_does_not_accept_is_sent_again_for_five_minutes() -> None:
    (machine,) = STACKS["exports"].find("AWS::StepFunctions::StateMachine").values()
    rules = machine["Definition"]["States"]["StartExportJob"]["Retry"]
    (rule,) = [rule for rule in rules if "SQS.SdkClientException" in rule["ErrorEquals"]]
    assert "SQS.AmazonSQSException" in rule["ErrorEquals"]
    assert sum(list_waits(rule)) >= 300


def list_waits(rule: dict[str, Any]) -> list[float]:
    """Return the seconds before each attempt of a Retry rule."""
    return [
        min(
            rule["IntervalSeconds"] * rule["BackoffRate"] ** n, rule.get("MaxDelaySeconds", inf)
        )
        for n in range(rule["MaxAttempts"])
    ]


def test_a_job_waits_for_the_token_of_every_retry() -> None:
    """The first token is found closed at once, and all but the last message come too late."""
    (machine,) = STACKS["exports"].find("AWS::StepFunctions::StateMachine").values()
    state = machine["Definition"]["States"]["StartExportJob"]
    timeouts, not_sent = state["Retry"]
    assert {"States.Timeout", "States.HeartbeatTimeout", *TOKEN_ERRORS} <= set(
        timeouts["ErrorEquals"]
    )
    in_queue = state["HeartbeatSeconds"]
    grace = HeartbeatSettings().retry_grace_seconds
    assert grace >= sum(wait + in_queue for wait in list_waits(timeouts))
    assert grace >= sum(list_waits(not_sent)) + in_queue  # messages that SQS did not accept
    assert EXAMPLE["States"]["StartExportJob"]["Retry"] == state["Retry"]


def test_a_service_without_options_holds_as_many_jobs_as_a_deployed_one() -> None:
    """No heartbeat is sent for a job that waits in the queue, so a burst needs the slots."""
    [container] = list_containers(STACKS["exports"])
    deployed = next(word for word in container["Command"] if word.startswith("--concurrency="))
    default = signature(serve).parameters["concurrency"].default
    assert deployed == f"--concurrency={default}"
    reference = (ROOT / "docs/reference/cli.md").read_text()
    assert f"jobs handled at the same time ({default}," in reference


# -- settings


def iter_variables(stack: Stack) -> Iterator[str]:
    for function in stack.find("AWS::Lambda::Function").values():
        yield from function["Environment"]["Variables"]
    for container in list_containers(stack):
        yield from (variable["Name"] for variable in container["Environment"])


@each_stack
def test_every_variable_is_a_setting(stack: Stack) -> None:
    assert set(iter_variables(stack)) - FOREIGN_VARIABLES <= find_known_variables()


# -- alarms and dashboards

Series = tuple[str, str, dict[str, str]]
"""The namespace, the name and the dimensions of a metric."""


def iter_alarm_metrics(stack: Stack) -> Iterator[Series]:
    for alarm in stack.find("AWS::CloudWatch::Alarm").values():
        parts = [
            part["MetricStat"]["Metric"]
            for part in alarm.get("Metrics", ())
            if "MetricStat" in part
        ]
        for part in parts or [alarm]:
            dimensions = {each["Name"]: each["Value"] for each in part.get("Dimensions", ())}
            yield part["Namespace"], part["MetricName"], dimensions


def iter_dashboard_metrics(stack: Stack) -> Iterator[Series]:
    for dashboard in stack.find("AWS::CloudWatch::Dashboard").values():
        for widget in json.loads(dashboard["DashboardBody"])["widgets"]:
            for row in widget["properties"]["metrics"]:
                namespace, name, *rest = (part for part in row if isinstance(part, str))
                yield namespace, name, dict(zip(rest[::2], rest[1::2], strict=True))


@each_stack
def test_every_metric_of_ours_exists_with_these_dimensions(stack: Stack) -> None:
    series = [*iter_alarm_metrics(stack), *iter_dashboard_metrics(stack)]
    assert series
    for namespace, name, dimensions in series:
        if not namespace.startswith("AWS/"):
            assert namespace == OUR_NAMESPACE
            assert set(METRICS_BY_NAME[name].labels) == set(dimensions)


@each_stack
def test_no_metric_needs_a_worker_that_measures_its_queue(stack: Stack) -> None:
    """A function does not, so its dashboard and its alarms would stay empty."""
    for namespace, name, _ in [*iter_alarm_metrics(stack), *iter_dashboard_metrics(stack)]:
        if namespace == OUR_NAMESPACE:
            assert QueueMeasured not in {kind for kind, _ in METRICS_BY_NAME[name].sources}


@each_stack
def test_metrics_of_a_queue_have_its_name_in_events(stack: Stack) -> None:
    queues = stack.find("AWS::SQS::Queue").values()
    names = {SQSQueue(queue["QueueName"]).name for queue in queues} | {ConversationLocks.name}
    for _, _, dimensions in [*iter_alarm_metrics(stack), *iter_dashboard_metrics(stack)]:
        assert dimensions.get("queue") in {None, *names}


@each_stack
def test_every_alarm_tells_the_topic_and_is_quiet_without_data_unless_data_is_missed(
    stack: Stack,
) -> None:
    for alarm in stack.find("AWS::CloudWatch::Alarm").values():
        assert alarm["AlarmActions"] == alarm["OKActions"] == ["Alarms"]
        is_absence = alarm["ComparisonOperator"] == "LessThanThreshold"
        assert alarm["TreatMissingData"] == ("breaching" if is_absence else "notBreaching")
        assert len(alarm["AlarmDescription"]) > 20


def list_alarms(name: str) -> dict[str, dict[str, Any]]:
    alarms = STACKS[name].find("AWS::CloudWatch::Alarm")
    return {alarm["AlarmName"].rpartition("-")[2]: alarm for alarm in alarms.values()}


@pytest.mark.requirement("R004-230", "R004-231", "R004-232")
@pytest.mark.parametrize(
    ("alarm", "operator", "threshold", "period", "metrics"),
    [
        (
            "HeartbeatFailureRate",
            "GreaterThanThreshold",
            5,
            300,
            [("heartbeat.sent.total", "Sum"), ("heartbeat.failure.total", "Sum")],
        ),
        (
            "StepFunctionsTimeouts",
            "GreaterThanOrEqualToThreshold",
            1,
            3600,
            [("stepfunctions.timeout.total", "Sum")],
        ),
        (
            "HeartbeatLatency",
            "GreaterThanThreshold",
            5000,
            300,
            [("heartbeat.duration.ms", "p99")],
        ),
    ],
)
def test_the_alarms_of_the_heartbeat_document(
    alarm: str, operator: str, threshold: int, period: int, metrics: list[tuple[str, str]]
) -> None:
    properties = list_alarms("exports")[alarm]
    parts = [
        part["MetricStat"] for part in properties.get("Metrics", ()) if "MetricStat" in part
    ]
    series = [(part["Metric"]["MetricName"], part["Stat"], part["Period"]) for part in parts]
    statistic = properties.get("Statistic") or properties.get("ExtendedStatistic")
    if not series:
        series = [(properties["MetricName"], statistic, properties["Period"])]
    assert series == [(name, statistic, period) for name, statistic in metrics]
    assert properties["ComparisonOperator"] == operator
    assert properties["Threshold"] == threshold
    assert properties["EvaluationPeriods"] == 1


def test_the_alarm_on_lost_leases_counts_every_queue_and_the_locks() -> None:
    stack = STACKS["conversations"]
    queues = {SQSQueue(queue["QueueName"]).name for queue in split_queues(stack)[0].values()}
    (total, *parts) = list_alarms("conversations")["LostLeases"]["Metrics"]
    metrics = {part["Id"]: part["MetricStat"]["Metric"] for part in parts}
    assert set(re.findall(r"[a-z]+", total["Expression"])) == metrics.keys()
    assert {get_dimension(metric, "queue") for metric in metrics.values()} == {
        *queues,
        ConversationLocks.name,
    }


def test_an_outage_of_the_webhook_rings_and_a_scanner_does_not() -> None:
    """What the function cannot report itself, a crash or a throttle, is counted, too."""
    alarms = list_alarms("conversations")
    total, *parts = alarms["WebhookFailures"]["Metrics"]
    metrics = {part["Id"]: part["MetricStat"]["Metric"] for part in parts}
    assert set(re.findall(r"[a-z]+", total["Expression"])) == metrics.keys()
    assert {metric["MetricName"]: metric.get("Dimensions") for metric in metrics.values()} == {
        "chat.webhooks_failed.total": None,
        "Url5xxCount": [{"Name": "FunctionName", "Value": "Staging"}],
        "Throttles": [{"Name": "FunctionName", "Value": "Staging"}],
    }
    assert alarms["WebhookFailures"]["Threshold"] == 0
    refused = alarms["WebhookRefused"]
    assert refused["MetricName"] == "chat.webhooks_refused.total"
    assert (refused["Threshold"], refused["Period"]) == (3, 3600)
    assert refused["ComparisonOperator"] == "GreaterThanOrEqualToThreshold"


def test_the_dashboard_has_every_reason_of_the_webhook() -> None:
    """The reasons are those that the events document."""
    shown = {
        dimensions["reason"]
        for _, name, dimensions in iter_dashboard_metrics(STACKS["conversations"])
        if name == "chat.webhook_problems.total"
    }
    documented = f"{cv.WebhookRefused.__doc__}{cv.WebhookFailed.__doc__}"
    assert shown == set(re.findall(r"`(\w+)`", documented)) - {"reason"}


def test_a_sweeper_that_is_not_started_rings() -> None:
    missing = list_alarms("conversations")["SweeperMissing"]
    assert (missing["MetricName"], missing["Threshold"]) == ("Invocations", 1)
    assert missing["Dimensions"] == [{"Name": "FunctionName", "Value": "Sweeping"}]
    (rule,) = STACKS["conversations"].find("AWS::Events::Rule").values()
    assert rule["ScheduleExpression"] == "rate(5 minutes)"
    assert missing["Period"] == 3 * 300


def get_dimension(metric: dict[str, Any], name: str) -> str:
    (value,) = (each["Value"] for each in metric["Dimensions"] if each["Name"] == name)
    return str(value)


def test_every_part_has_its_alarms() -> None:
    work = {"OldestMessage", "DeadLetters", "LostLeases"}
    heartbeats = {"HeartbeatFailureRate", "StepFunctionsTimeouts", "HeartbeatLatency"}
    assert list_alarms("queue-none").keys() == work
    assert list_alarms("exports").keys() == work | heartbeats
    chats = {"Parked", "SentNotRecorded", "SweeperErrors", "SweeperMissing"}
    webhook = {"WebhookFailures", "WebhookRefused"}
    assert list_alarms("conversations").keys() == work | chats | webhook


# -- roles


def iter_statements(stack: Stack) -> Iterator[dict[str, Any]]:
    for role in stack.find("AWS::IAM::Role").values():
        for policy in role["Policies"]:
            yield from policy["PolicyDocument"]["Statement"]


def test_only_these_resources_have_wildcards() -> None:
    """A wider one would allow what is used, so the comparison with the calls accepts it."""
    resources = {
        resource.removeprefix("arn:aws:").replace(":eu-west-1:123456789012:", ":")
        for stack in STACKS.values()
        for statement in iter_statements(stack)
        for resource in (
            [statement["Resource"]]
            if isinstance(statement["Resource"], str)
            else statement["Resource"]
        )
    }
    assert {resource for resource in resources if "*" in resource} == {
        "*",  # see only_actions_without_a_resource_are_allowed_on_all of the guard
        "ecr:repository/*",  # the parameter Image does not tell the name of the repository
        "ecs:task/shop-work/*",
        "ecs:task/shop-export/*",
        "s3:::<Bucket>/exports/*",
        "s3:::<Bucket>/lists/*",
        "secretsmanager:secret:shop/twilio*",  # AWS adds six characters to the name
        "secretsmanager:secret:shop/*",  # profiles name secrets of messaging
    }


def test_the_service_may_use_the_key_of_the_bucket_only_if_it_is_given() -> None:
    key = "arn:aws:kms:eu-west-1:123456789012:key/1"
    exports = load_template("exports")
    assert not Stack(exports).find("AWS::IAM::Policy")
    (policy,) = Stack(exports, BucketKey=key).find("AWS::IAM::Policy").values()
    assert policy["Roles"] == ["TaskRole"]
    assert policy["PolicyDocument"]["Statement"] == [
        {"Effect": "Allow", "Action": ["kms:GenerateDataKey", "kms:Decrypt"], "Resource": key}
    ]


@each_stack
def test_each_component_has_its_own_role(stack: Stack) -> None:
    roles = [function["Role"] for function in stack.find("AWS::Lambda::Function").values()]
    for task in stack.find("AWS::ECS::TaskDefinition").values():
        roles += [task["TaskRoleArn"], task["ExecutionRoleArn"]]
    machines = stack.find("AWS::StepFunctions::StateMachine").values()
    roles += [machine["RoleArn"] for machine in machines]
    assert sorted(roles) == sorted(f"{name}.Arn" for name in stack.find("AWS::IAM::Role"))
    assert all(first != second for first, second in pairwise(sorted(roles)))
