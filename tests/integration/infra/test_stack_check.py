"""`python -m infra.check` on stacks of infra/ that ministack has deployed.

Each test changes one thing as an operator might, with the API of its service, and expects the
one finding that names it.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from infra.check.__main__ import app as check_app
from infra.check.alarms import RUNBOOKS
from infra.check.examine import examine_stack
from stack.deployment import (
    CODE_BUCKET,
    CODE_KEY,
    ONLY_ON_MINISTACK,
    DeployedStack,
    upload_code,
)
from typer.testing import CliRunner

from holdfast.cli.main import CommandTable, app
from holdfast.doctor.checks import CheckLevel, CheckResult
from support.paths import ROOT
from support.shell_commands import find_commands
from support.stack_template import load_template

if TYPE_CHECKING:
    from support.ministack_server import Ministack

pytest_plugins = ["support.ministack_server"]

CODE = {"CodeBucket": CODE_BUCKET, "CodeKey": CODE_KEY}
NETWORK = {
    "Image": "1.dkr.ecr.us-east-1.amazonaws.com/shop:1",
    "Subnets": "s",
    "SecurityGroups": "g",
}
STACKS = {
    "work": ("queue", {"Consumer": "function", **CODE}),
    "chat": ("conversations", CODE),
    "export": ("exports", {"Bucket": CODE_BUCKET, **NETWORK}),
    # The service is in a nested stack.
    "all": (
        "template",
        {
            "Name": "all",
            "DeployQueue": "true",
            "Consumer": "service",
            "Handler": "t:h",
            **NETWORK,
        },
    ),
}


COMMANDS = set(CommandTable(""))
# What changes something, or needs an id.
NOT_RUN = {"push", "redrive", "drop", "sweep"}
NOT_RUN |= {"--retry", "--sent", "--drop", "ID", "job-1"}


def list_inspecting_commands() -> list[tuple[str, ...]]:
    """Return the words of our commands in the pages that only inspect what is deployed."""
    texts = [(ROOT / "docs" / page).read_text() for page in ("how-to/deploy.md", "runbooks.md")]
    commands = {tuple(words[1:]) for text in texts for words in find_commands(text)}
    return sorted(
        words
        for words in commands
        if words[0] == "chat" or (words[0] in COMMANDS and "shop" in " ".join(words))
        if not NOT_RUN & set(words)
    )


class Stacks:
    """The deployed stacks. A change of a test is undone after it."""

    def __init__(self, server: "Ministack") -> None:
        self.new_client = server.client
        self.client = cache(server.client)  # making a client takes longer than all its calls
        self._cleanup = ExitStack()

    def undo_later(self, call: Callable[..., Any], **arguments: Any) -> None:
        self._cleanup.callback(call, **arguments)

    def undo(self) -> None:
        self._cleanup.close()

    def examine(self, name: str) -> list[CheckResult]:
        return list(examine_stack(name, self.client))

    def find_problems(self, name: str) -> list[CheckResult]:
        return [each for each in self.examine(name) if each.level is not CheckLevel.OK]

    def find_only_problem(self, name: str) -> CheckResult:
        [problem] = self.find_problems(name)
        return problem

    # -- changes

    def set_queue(self, name: str, **attributes: str) -> None:
        sqs = self.client("sqs")
        url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
        before = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        former = {each: before.get(each, "") for each in attributes}
        self.undo_later(sqs.set_queue_attributes, QueueUrl=url, Attributes=former)
        sqs.set_queue_attributes(QueueUrl=url, Attributes=attributes)

    def set_mapping(self, function: str, **settings: Any) -> None:
        client = self.client("lambda")
        [mapping] = client.list_event_source_mappings(FunctionName=function)[
            "EventSourceMappings"
        ]
        former = {each: mapping.get(each) for each in settings}
        uuid = mapping["UUID"]
        self.undo_later(client.update_event_source_mapping, UUID=uuid, **former)
        client.update_event_source_mapping(UUID=uuid, **settings)

    def set_function(self, name: str, **settings: Any) -> None:
        client = self.client("lambda")
        former = client.get_function_configuration(FunctionName=name)
        undo = {each: former[each] for each in settings}
        self.undo_later(client.update_function_configuration, FunctionName=name, **undo)
        client.update_function_configuration(FunctionName=name, **settings)

    def change_policy(self, role: str, change: Callable[[list[dict[str, Any]]], None]) -> str:
        """Change the statements of a role, "STACK-LOGICAL_NAME". Returns its name."""
        iam = self.client("iam")
        name = next(
            each["RoleName"]
            for each in iam.list_roles()["Roles"]
            if each["RoleName"].startswith(f"{role}-")
        )
        [policy] = iam.list_role_policies(RoleName=name)["PolicyNames"]
        where = {"RoleName": name, "PolicyName": policy}
        document = iam.get_role_policy(**where)["PolicyDocument"]
        text = json.dumps(document)
        self.undo_later(iam.put_role_policy, PolicyDocument=text, **where)
        change(document["Statement"])
        iam.put_role_policy(PolicyDocument=json.dumps(document), **where)
        return str(name)


Change = Callable[[Stacks], None]


@pytest.fixture(scope="module")
def deployed(ministack: "Ministack") -> Stacks:
    """Deploy the stacks of infra/, with what ministack does not take from their templates."""
    upload_code(ministack, {"tasks.py": ""})
    for name, (template, parameters) in STACKS.items():
        values = {"Name": "shop", **parameters}
        stack = DeployedStack.deploy(ministack, name, template, **values)
        remove_additions(ministack.client("iam"), stack)
    finish(ministack)
    return Stacks(ministack)


@pytest.fixture
def stacks(deployed: Stacks) -> Iterator[Stacks]:
    yield deployed
    deployed.undo()


def remove_additions(iam: Any, stack: DeployedStack) -> None:
    """Remove what other tests need in a role, and AWS does not."""
    for name, role in stack.resources.items():
        if name.endswith("Role"):
            with suppress(iam.exceptions.NoSuchEntityException):
                iam.delete_role_policy(RoleName=role, PolicyName=ONLY_ON_MINISTACK)


def finish(server: "Ministack") -> None:
    """Set what ministack ignores in a template, and subscribe to the topics."""
    dynamodb, sns, sqs = map(server.client, ("dynamodb", "sns", "sqs"))
    # In pages, because the server may have tables of other tests.
    for page in dynamodb.get_paginator("list_tables").paginate():
        for table in page["TableNames"]:
            if table.startswith(("shop-", "all-")):
                set_recovery(dynamodb, table, True)
    inbox = sqs.create_queue(QueueName="operator")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=inbox, AttributeNames=["QueueArn"])["Attributes"]
    for topic in sns.list_topics()["Topics"]:
        sns.subscribe(TopicArn=topic["TopicArn"], Protocol="sqs", Endpoint=arn["QueueArn"])


def set_recovery(dynamodb: Any, table: str, enabled: bool) -> None:
    dynamodb.update_continuous_backups(
        TableName=table,
        PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": enabled},
    )


# -- all is well


@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_of_the_templates_has_no_problem(stacks: Stacks, stack: str) -> None:
    results = stacks.examine(stack)
    assert [each for each in results if each.level is not CheckLevel.OK] == []
    parts = {each.check.partition(" ")[0] for each in results}
    assert {"stack", "queue", "alarm", "topic"} <= parts
    assert parts & {"function", "service"}


def test_every_call_only_reads_and_is_among_the_permissions_of_the_page(stacks: Stacks) -> None:
    calls: set[str] = set()

    def make_client(service: str) -> Any:
        client, prefix = stacks.new_client(service), {"stepfunctions": "states"}

        def note(model: Any, **_: Any) -> None:
            calls.add(f"{prefix.get(service, service)}:{model.name}")

        client.meta.events.register("before-call", note)
        return client

    for stack in STACKS:
        list(examine_stack(stack, make_client))
    assert all(re.search(":(Get|List|Describe)", call) for call in calls)
    page = (ROOT / "docs/how-to/deploy.md").read_text()
    listed = page.partition("<!-- permissions:begin -->")[2].partition("<!-- permissions:end")[
        0
    ]
    # These are for policies that are attached, and for queues of other stacks.
    others = {"iam:GetPolicy", "iam:GetPolicyVersion", "sqs:GetQueueUrl"}
    assert calls | others == set(re.findall(r"`(\w+:\w+)`", listed))


def test_the_command_prints_the_results(
    deployed: Stacks, ministack: "Ministack", monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ministack.env.items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(check_app, ["all"])
    assert (result.exit_code, "service all-work" in result.stdout) == (0, True)


@pytest.mark.parametrize("words", list_inspecting_commands(), ids=" ".join)
def test_a_command_of_the_pages_works_on_the_stacks(
    deployed: Stacks,
    ministack: "Ministack",
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    for name, value in (ministack.env | {"HOLDFAST_CHAT_STORE": "dynamodb:shop-"}).items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output


def test_a_stack_that_does_not_exist(stacks: Stacks) -> None:
    problem = stacks.find_only_problem("typo")
    assert (problem.found, problem.level) == ("there is no stack typo", CheckLevel.FAIL)
    assert "check the name and the region" in problem.remedy


# -- one change, one finding


def change_queue(name: str, **attributes: str) -> Change:
    return lambda stacks: stacks.set_queue(name, **attributes)


def change_function(**settings: Any) -> Change:
    return lambda stacks: stacks.set_function("shop-work", **settings)


def set_variable(name: str, value: str) -> Change:
    return change_function(Environment={"Variables": {name: value}})


def remove_store(stacks: Stacks) -> None:
    client = stacks.client("lambda")
    environment = client.get_function_configuration(FunctionName="shop-staging")["Environment"]
    others = dict(environment["Variables"])
    del others["HOLDFAST_CHAT_STORE"]
    stacks.set_function("shop-staging", Environment={"Variables": others})


def change_task(name: str, drain: str | None, stop: int | None) -> Change:
    """Let a service run another version of its task."""

    def change(stacks: Stacks) -> None:
        ecs = stacks.client("ecs")
        former = ecs.describe_task_definition(taskDefinition=name)["taskDefinition"]
        [container] = former["containerDefinitions"]
        words = [word for word in container["command"] if not word.startswith("--drain")]
        words += ["--drain", drain] if drain else []
        changed = {**container, "command": words, "stopTimeout": stop}
        changed.pop("healthCheck", None)
        if stop is None:
            del changed["stopTimeout"]
        roles = {each: former[each] for each in ("taskRoleArn", "executionRoleArn")}
        new = ecs.register_task_definition(family=name, containerDefinitions=[changed], **roles)
        where = {"cluster": name, "service": name}
        arn = new["taskDefinition"]["taskDefinitionArn"]
        stacks.undo_later(
            ecs.update_service, taskDefinition=former["taskDefinitionArn"], **where
        )
        ecs.update_service(taskDefinition=arn, **where)

    return change


def slow_heartbeats(stacks: Stacks) -> None:
    machines = stacks.client("stepfunctions")
    # The server may have machines of other tests.
    listed = machines.list_state_machines()["stateMachines"]
    [arn] = [each["stateMachineArn"] for each in listed if each["name"] == "shop-export"]
    before = machines.describe_state_machine(stateMachineArn=arn)["definition"]
    stacks.undo_later(machines.update_state_machine, stateMachineArn=arn, definition=before)
    definition = before.replace('"HeartbeatSeconds": 90', '"HeartbeatSeconds": 45')
    machines.update_state_machine(stateMachineArn=arn, definition=definition)


def change_table(name: str, change: str, setting: str, before: Any, after: Any) -> Change:
    def change_one(stacks: Stacks) -> None:
        call = getattr(stacks.client("dynamodb"), change)
        stacks.undo_later(call, TableName=name, **{setting: before})
        call(TableName=name, **{setting: after})

    return change_one


def remove_index(stacks: Stacks) -> None:
    dynamodb = stacks.client("dynamodb")
    updates = "GlobalSecondaryIndexUpdates"
    jobs = {"TableName": "shop-ExportJobs"}
    [definition] = [
        each["Properties"]["GlobalSecondaryIndexes"][0]
        for each in load_template("exports")["Resources"].values()
        if "GlobalSecondaryIndexes" in each.get("Properties", {})
    ]
    attributes = [
        {"AttributeName": name, "AttributeType": "S"}
        for name in ("jobId", "status", "createdAt")
    ]
    restored = {"AttributeDefinitions": attributes, updates: [{"Create": definition}]}
    stacks.undo_later(dynamodb.update_table, **jobs, **restored)
    dynamodb.update_table(**jobs, **{updates: [{"Delete": {"IndexName": "status-index"}}]})


def change_alarm(**changes: Any) -> Change:
    def change(stacks: Stacks) -> None:
        alarms = stacks.client("cloudwatch")
        [described] = alarms.describe_alarms(AlarmNames=[ALARM])["MetricAlarms"]
        known = alarms.meta.service_model.operation_model("PutMetricAlarm").input_shape.members
        former = {name: value for name, value in described.items() if name in known}
        stacks.undo_later(alarms.put_metric_alarm, **former)
        alarms.put_metric_alarm(**{**former, **changes})

    return change


def raise_alarm(stacks: Stacks) -> None:
    alarms = stacks.client("cloudwatch")
    state = {"AlarmName": ALARM, "StateReason": "1 datapoint"}
    stacks.undo_later(alarms.set_alarm_state, StateValue="OK", **state)
    alarms.set_alarm_state(StateValue="ALARM", **state)


def unsubscribe(stacks: Stacks) -> None:
    sns = stacks.client("sns")
    topic = "arn:aws:sns:us-east-1:000000000000:shop-work-alarms"
    [subscription] = sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
    former = {"Protocol": "sqs", "Endpoint": subscription["Endpoint"]}
    stacks.undo_later(sns.subscribe, TopicArn=topic, **former)
    sns.unsubscribe(SubscriptionArn=subscription["SubscriptionArn"])


def allow_redrive(**policy: Any) -> Change:
    return change_queue("shop-work-dead", RedriveAllowPolicy=json.dumps(policy))


ALARM = "shop-work-DeadLetters"
MAPPING, TABLES = "function shop-work: event source", "tables dynamodb:shop-"
REDRIVE = "queue shop-work-dead: redrive allow"
TTL = {"AttributeName": "ttl", "Enabled": True}
CHANGES = [
    ("work", change_queue("shop-work", VisibilityTimeout="364"), MAPPING, "Timeout to 365"),
    ("work", change_function(Timeout=900), MAPPING, "may run 900 s, the queue hides its"),
    ("work", lambda stacks: stacks.set_mapping("shop-work", FunctionResponseTypes=[]),
     MAPPING, "ReportBatchItemFailures is off"),
    # The settings of a queue are those of the component that receives, not the defaults.
    ("export", change_queue("shop-export-jobs", VisibilityTimeout="30"),
     "queue shop-export-jobs: visibility", "30 s"),
    ("work", set_variable("HOLDFAST_MAX_ATTEMPTS", "11"),
     "queue shop-work: redrive policy", "maxReceiveCount 10 is below max_attempts 11"),
    ("work", change_queue("shop-work-dead", MessageRetentionPeriod="864000"),
     "queue shop-work-dead: retention", "10 days"),
    ("work", allow_redrive(redrivePermission="denyAll"), REDRIVE, "accepts no dead letters"),
    ("work", allow_redrive(redrivePermission="allowAll"), REDRIVE, "of every queue"),
    ("work", allow_redrive(redrivePermission="byQueue", sourceQueueArns=["arn:aws:sqs:::x"]),
     REDRIVE, "the dead letters of arn:aws:sqs:us-east-1:000000000000:shop-work"),
    ("work", set_variable("HOLDFAST_MAX_ATTEMPT", "3"),
     "function shop-work: settings", "did you mean HOLDFAST_MAX_ATTEMPTS"),
    ("chat", remove_store, "function shop-staging: store", "its store is a file, because none"),
    ("all", change_task("all-work", "2m", 120), "service all-work: stop timeout", "SIGKILL"),
    ("all", change_task("all-work", "90s", None), "service all-work: stop timeout", "30 s"),
    ("all", change_task("all-work", None, None), "service all-work: stop timeout", "30 s"),
    # The drain of exports includes the time to give jobs back.
    ("export", change_task("shop-export", "60s", 70), "service shop-export: stop timeout",
     "after 70 s, and the drain may take 70 s"),
    ("export", slow_heartbeats, "state machine shop-export: heartbeat",
     "HeartbeatSeconds 45, a beat every 30 s"),
    ("export", change_table("shop-ExportTasks", "update_time_to_live",
     "TimeToLiveSpecification", TTL, {**TTL, "Enabled": False}),
     f"{TABLES}: expiry", "shop-ExportTasks keeps finished rows forever"),
    ("chat", change_table("shop-conversations", "update_continuous_backups",
     "PointInTimeRecoverySpecification", {"PointInTimeRecoveryEnabled": True},
     {"PointInTimeRecoveryEnabled": False}),
     f"{TABLES}: recovery", "shop-conversations cannot be restored"),
    ("chat", change_table("shop-conversations-parked", "update_table",
     "DeletionProtectionEnabled", True, False),
     f"{TABLES}: protection", "shop-conversations-parked can be deleted"),
    ("export", remove_index, f"{TABLES}: index", "shop-ExportJobs has no status-index"),
    ("work", change_alarm(AlarmActions=[]), f"alarm {ALARM}: actions", "has no action"),
    ("work", change_alarm(ActionsEnabled=False), f"alarm {ALARM}: actions", "are disabled"),
    ("work", raise_alarm, f"alarm {ALARM}: state",
     f"is in alarm: 1 datapoint\nsee {RUNBOOKS}#deadletters"),
    ("work", unsubscribe, "topic shop-work-alarms: subscriptions", "no confirmed subscription"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("stack", "change", "check", "words"), CHANGES, ids=[row[2] for row in CHANGES]
)
def test_a_change_is_the_only_finding(
    stacks: Stacks, stack: str, change: Change, check: str, words: str
) -> None:
    change(stacks)
    problem = stacks.find_only_problem(stack)
    assert problem.check == check
    assert words in f"{problem.found}\n{problem.remedy}"


def test_a_drain_that_fits_is_no_problem(stacks: Stacks) -> None:
    change_task("all-work", "90s", 120)(stacks)
    assert stacks.find_problems("all") == []


def test_a_setting_with_a_bad_value_is_a_finding_of_each_part_that_reads_it(
    stacks: Stacks,
) -> None:
    set_variable("HOLDFAST_LEASE_SECONDS", "soon")(stacks)
    problems = stacks.find_problems("work")
    assert [each.check for each in problems] == [
        "queue shop-work: settings",
        "function shop-work: settings",
    ]
    assert all("HOLDFAST_LEASE_SECONDS='soon'" in each.found for each in problems)


# -- roles


@pytest.mark.parametrize(
    ("stack", "role", "action", "where"),
    [
        ("work", "FunctionRole", "sqs:DeleteMessage", "sqs:us-east-1:000000000000:shop-work"),
        ("work", "FunctionRole", "logs:PutLogEvents", "/holdfast/shop/work"),
        ("chat", "MessagingRole", "dynamodb:BatchGetItem", "table/shop-conversation-messages"),
        ("chat", "StagingRole", "secretsmanager:GetSecretValue", "secret:shop/twilio"),
        ("chat", "SweepingRole", "dynamodb:Scan", "table/shop-conversations-stage"),
        ("export", "TaskRole", "states:SendTaskHeartbeat", "stateMachine:shop-export"),
        ("export", "TaskRole", "s3:ListBucket", f"arn:aws:s3:::{CODE_BUCKET}"),
        ("export", "TaskRole", "ecs:UpdateTaskProtection", "task/shop-export/"),
        ("export", "StartRole", "ecr:BatchGetImage", "the repository"),
        ("export", "StateMachineRole", "sqs:SendMessage", "shop-export-jobs"),
    ],
)
def test_a_role_that_lacks_an_action(
    stacks: Stacks, stack: str, role: str, action: str, where: str
) -> None:
    def remove(statements: list[dict[str, Any]]) -> None:
        for statement in statements:
            given = statement["Action"]
            actions = given if isinstance(given, list) else [given]
            statement["Action"] = [each for each in actions if each != action]

    name = stacks.change_policy(f"{stack}-{role}", remove)
    problem = stacks.find_only_problem(stack)
    assert problem.level is CheckLevel.FAIL
    assert f"{name} lacks {action} on " in problem.found
    assert where in problem.found


def test_a_role_that_allows_the_actions_on_another_resource(stacks: Stacks) -> None:
    def move(statements: list[dict[str, Any]]) -> None:
        for statement in statements:
            if str(statement["Resource"]).endswith("conversations-stage"):
                statement["Resource"] += "-old"

    stacks.change_policy("chat-StagingRole", move)
    problem = stacks.find_only_problem("chat")
    assert "lacks dynamodb:PutItem on the table of staged messages" in problem.found


def test_a_role_that_denies_an_action(stacks: Stacks) -> None:
    deny = {"Effect": "Deny", "Action": "sqs:Delete*", "Resource": "*"}
    stacks.change_policy("work-FunctionRole", lambda statements: statements.append(deny))
    assert "lacks sqs:DeleteMessage" in stacks.find_only_problem("work").found


@pytest.mark.parametrize(
    ("stack", "role", "action", "resource", "words"),
    [
        (
            "chat",
            "SweepingRole",
            "s3:GetObject",
            "arn:aws:s3:::x/*",
            "which sweeping never uses",
        ),
        ("chat", "SweepingRole", "dynamodb:*", "arn:aws:dynamodb:::t", "allows dynamodb:*"),
        ("chat", "SweepingRole", "dynamodb:Scan", "*", "dynamodb:Scan on every resource"),
        ("work", "FunctionRole", "sqs:*", "arn:aws:sqs:::x", "allows sqs:*"),
        ("work", "FunctionRole", "s3:GetObject", "arn:aws:s3:::x/*", None),  # of the handler
    ],
)
def test_a_role_that_allows_more(
    stacks: Stacks, stack: str, role: str, action: str, resource: str, words: str | None
) -> None:
    allow = {"Effect": "Allow", "Action": action, "Resource": resource}
    stacks.change_policy(f"{stack}-{role}", lambda statements: statements.append(allow))
    problems = stacks.find_problems(stack)
    if words is None:
        assert problems == []
    else:
        [problem] = problems
        assert (problem.level, words in problem.found) == (CheckLevel.WARN, True)


def test_a_policy_that_is_attached_counts(stacks: Stacks) -> None:
    iam = stacks.client("iam")
    name = stacks.change_policy("work-FunctionRole", lambda statements: statements.pop())
    assert "logs:PutLogEvents" in stacks.find_only_problem("work").found
    actions = ["logs:CreateLogStream", "logs:PutLogEvents"]
    allow = {"Effect": "Allow", "Action": actions, "Resource": "arn:aws:logs:us-east-1:*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": allow})
    arn = iam.create_policy(PolicyName="log", PolicyDocument=document)["Policy"]["Arn"]
    stacks.undo_later(iam.detach_role_policy, RoleName=name, PolicyArn=arn)
    iam.attach_role_policy(RoleName=name, PolicyArn=arn)
    assert stacks.find_problems("work") == []


# -- what may not be read


@pytest.mark.parametrize(
    ("stack", "service", "operation", "permission"),
    [
        ("work", "cloudformation", "describe_stacks", "cloudformation:DescribeStacks"),
        ("work", "cloudformation", "list_stack_resources", "cloudformation:ListStackResources"),
        ("work", "sqs", "get_queue_attributes", "sqs:GetQueueAttributes"),
        ("work", "lambda", "get_event_source_mapping", "lambda:GetEventSourceMapping"),
        ("work", "lambda", "get_function_configuration", "lambda:GetFunctionConfiguration"),
        ("work", "iam", "list_role_policies", "iam:ListRolePolicies"),
        ("work", "cloudwatch", "describe_alarms", "cloudwatch:DescribeAlarms"),
        ("work", "sns", "get_topic_attributes", "sns:GetTopicAttributes"),
        ("export", "ecs", "describe_services", "ecs:DescribeServices"),
        ("export", "ecs", "describe_task_definition", "ecs:DescribeTaskDefinition"),
        ("export", "stepfunctions", "describe_state_machine", "states:DescribeStateMachine"),
        ("export", "dynamodb", "describe_table", "dynamodb:DescribeTable"),
        ("export", "dynamodb", "describe_time_to_live", "dynamodb:DescribeTimeToLive"),
        (
            "export",
            "dynamodb",
            "describe_continuous_backups",
            "dynamodb:DescribeContinuousBackups",
        ),
    ],
)
def test_a_call_that_is_denied_is_a_finding_that_names_the_permission(
    stacks: Stacks, stack: str, service: str, operation: str, permission: str
) -> None:
    def make_client(name: str) -> Any:
        if name != service:
            return stacks.client(name)
        client = stacks.new_client(name)
        deny(client, operation)
        return client

    results = list(examine_stack(stack, make_client))
    denied = [each for each in results if f"allow this user {permission}" == each.remedy]
    assert denied
    assert all(each.level is CheckLevel.FAIL for each in denied)


def deny(client: Any, operation: str) -> None:
    """Let AWS refuse every call of an operation, before it is sent."""
    api_name = client.meta.method_to_api_mapping[operation]
    code = "AuthorizationError" if api_name == "GetTopicAttributes" else "AccessDenied"

    def refuse(**_: Any) -> Any:
        response = type("Response", (), {"status_code": 403})()
        return response, {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {}}

    client.meta.events.register(f"before-call.*.{api_name}", refuse)
