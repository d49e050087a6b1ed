"""`python -m infra.check` with answers of AWS that an emulator does not give."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from infra.check.deployment import Component
from infra.check.examine import examine_stack
from infra.check.functions import parse_function
from infra.check.permissions import PERMISSIONS, ComponentKind, Use
from infra.check.roles import Statement, check_excess

from holdfast.doctor.checks import CheckLevel, CheckResult
from support.stack_template import list_stacks

ACCOUNT = "eu-west-1:123456789012"
SERVICE = f"arn:aws:ecs:{ACCOUNT}:service/shop-work/shop-work"
TASK = f"arn:aws:ecs:{ACCOUNT}:task-definition/shop-work:1"
ROLE = "arn:aws:iam::123456789012:role/shop-task"
Answers = dict[str, list[tuple[str, Any]]]


@contextmanager
def stub_clients(answers: Answers) -> Iterator[Any]:
    """Make clients that give these answers, in this order for each service."""
    clients = {}
    with ExitStack() as stack:
        for service, responses in answers.items():
            clients[service] = boto3.client(
                service,
                "eu-west-1",
                aws_access_key_id="test",
                aws_secret_access_key="test",
            )
            stub = stack.enter_context(Stubber(clients[service]))
            for operation, response in responses:
                stub.add_response(operation, response)
        yield clients.__getitem__


def examine(answers: Answers) -> list[CheckResult]:
    with stub_clients(answers) as make_client:
        return list(examine_stack("shop", make_client))


def describe_stack(status: str, reason: str = "") -> tuple[str, Any]:
    stack = {"StackName": "shop", "CreationTime": "2026-11-17T00:00:00Z", "StackStatus": status}
    return "describe_stacks", {"Stacks": [stack | {"StackStatusReason": reason}]}


def list_resources(*resources: tuple[str, str], token: str | None = None) -> tuple[str, Any]:
    summaries = [
        {
            "LogicalResourceId": physical_id[-20:],
            "PhysicalResourceId": physical_id,
            "ResourceType": kind,
            "LastUpdatedTimestamp": "2026-11-17T00:00:00Z",
            "ResourceStatus": "CREATE_COMPLETE",
        }
        for kind, physical_id in resources
    ]
    more = {} if token is None else {"NextToken": token}
    return "list_stack_resources", {"StackResourceSummaries": summaries, **more}


def describe_alarms(*names: str, actions: bool = True) -> tuple[str, Any]:
    topics = [f"arn:aws:sns:{ACCOUNT}:t"] if actions else []
    alarms = [{"AlarmName": name, "AlarmActions": topics} for name in names]
    return "describe_alarms", {"MetricAlarms": alarms}


# -- the stack


@pytest.mark.parametrize(
    ("status", "level"),
    [
        ("CREATE_COMPLETE", CheckLevel.OK),
        ("UPDATE_COMPLETE", CheckLevel.OK),
        ("UPDATE_IN_PROGRESS", CheckLevel.WARN),
        ("UPDATE_ROLLBACK_COMPLETE", CheckLevel.WARN),
        ("ROLLBACK_COMPLETE", CheckLevel.FAIL),
        ("UPDATE_ROLLBACK_FAILED", CheckLevel.FAIL),
    ],
)
def test_the_state_of_a_stack(status: str, level: CheckLevel) -> None:
    result, *_ = examine({"cloudformation": [describe_stack(status, "why"), list_resources()]})
    assert (result.check, result.level) == ("stack", level)
    if level is CheckLevel.FAIL:
        assert result.found == f"shop is {status}: why"


def test_a_stack_without_anything_for_holdfast_says_so() -> None:
    bucket = list_resources(("AWS::S3::Bucket", "pictures"))
    _, result = examine({"cloudformation": [describe_stack("CREATE_COMPLETE"), bucket]})
    assert (result.level, result.found) == (
        CheckLevel.WARN,
        "shop has nothing that Holdfast uses",
    )


def test_every_page_of_every_nested_stack_is_read() -> None:
    nested = f"arn:aws:cloudformation:{ACCOUNT}:stack/nested/1"
    results = examine(
        {
            "cloudformation": [
                describe_stack("CREATE_COMPLETE"),
                list_resources(("AWS::CloudFormation::Stack", nested), token="more"),
                list_resources(("AWS::CloudWatch::Alarm", "in-nested")),
                list_resources(("AWS::CloudWatch::Alarm", "on-second-page")),
            ],
            "cloudwatch": [describe_alarms("in-nested", "on-second-page")],
        }
    )
    assert [each.check for each in results[2:]] == ["alarm in-nested", "alarm on-second-page"]


def test_an_alarm_that_was_deleted_by_hand() -> None:
    alarms = [("AWS::CloudWatch::Alarm", name) for name in ("a", "b")]
    results = examine(
        {
            "cloudformation": [describe_stack("CREATE_COMPLETE"), list_resources(*alarms)],
            "cloudwatch": [describe_alarms("a")],
        }
    )
    assert (results[-1].level, results[-1].found) == (CheckLevel.FAIL, "b does not exist")


# -- a service


def make_service_answers(service: dict[str, Any], *command: str, stop: int = 120) -> Answers:
    container = {
        "name": "worker",
        "image": "shop:1",
        "command": list(command),
        "stopTimeout": stop,
    }
    task = {"taskDefinitionArn": TASK, "containerDefinitions": [container], "taskRoleArn": ROLE}
    cluster = f"arn:aws:ecs:{ACCOUNT}:cluster/shop-work"
    counts = {"runningCount": 1, "desiredCount": 1}
    described = {"serviceName": "shop-work", "clusterArn": cluster, "taskDefinition": TASK}
    actions = [
        action for each in PERMISSIONS[ComponentKind.WORK_SERVICE].values() for action in each
    ]
    arn = "arn:aws:*:eu-west-1:*"
    policy = {"Statement": [{"Effect": "Allow", "Action": actions, "Resource": arn}]}
    return {
        "cloudformation": [
            describe_stack("CREATE_COMPLETE"),
            list_resources(("AWS::ECS::Service", SERVICE)),
        ],
        "ecs": [
            ("describe_services", {"services": [described | counts | service]}),
            ("describe_task_definition", {"taskDefinition": task}),
        ],
        "sqs": [
            ("get_queue_url", {"QueueUrl": "https://sqs.eu-west-1.amazonaws.com/1/other"}),
            ("get_queue_attributes", {"Attributes": make_queue_attributes()}),
        ],
        "iam": [
            ("list_role_policies", {"PolicyNames": []}),
            (
                "list_attached_role_policies",
                {"AttachedPolicies": [{"PolicyName": "p", "PolicyArn": f"{ROLE}-policy"}]},
            ),
            ("get_policy", {"Policy": {"DefaultVersionId": "v3"}}),
            ("get_policy_version", {"PolicyVersion": {"Document": json.dumps(policy)}}),
        ],
    }


def make_queue_attributes() -> dict[str, str]:
    return {
        "QueueArn": f"arn:aws:sqs:{ACCOUNT}:other",
        "VisibilityTimeout": "60",
        "ApproximateNumberOfMessagesNotVisible": "120000",
    }


def find(results: list[CheckResult], check: str) -> CheckResult:
    [result] = [each for each in results if each.check == check]
    return result


def test_fewer_tasks_than_desired() -> None:
    counts = {"runningCount": 1, "desiredCount": 3}
    results = examine(make_service_answers(counts, "work", "sqs:other", "t:h", "--drain=90s"))
    assert find(results, "service shop-work: tasks").found == "1 of 3 tasks run"


def test_a_service_without_a_role() -> None:
    answers = make_service_answers({}, "work", "sqs:other", "t:h", "--drain=90s")
    del answers["ecs"][1][1]["taskDefinition"]["taskRoleArn"]
    result = find(examine(answers), "service shop-work: role")
    assert (result.level, result.found) == (
        CheckLevel.FAIL,
        "it has no role, so it may not call AWS",
    )


def test_the_queue_of_another_stack_is_checked_too() -> None:
    results = examine(make_service_answers({}, "work", "sqs:other", "t:h", "--drain=90s"))
    assert find(results, "queue other: redrive policy").level is CheckLevel.FAIL
    assert find(results, "queue other: in flight").level is CheckLevel.FAIL


def test_options_of_the_command_and_of_the_queue_win_over_the_environment() -> None:
    words = ("holdfast", "work", "sqs:other?max_attempts=7", "t:h", "--lease", "2m")
    results = examine(make_service_answers({}, *words))
    assert "hide it for 120 s" in find(results, "queue other: visibility").found
    assert "maxReceiveCount of 8" in find(results, "queue other: redrive policy").remedy


# -- a function


@pytest.mark.parametrize(("queue", "is_postponed"), [("other", True), ("other.fifo", False)])
def test_only_in_a_standard_queue_is_a_newer_message_sent_again(
    queue: str, is_postponed: bool
) -> None:
    arn = f"arn:aws:sqs:{ACCOUNT}:{queue}"
    function = f"arn:aws:lambda:{ACCOUNT}:function:work"
    configuration = {"FunctionName": "work", "FunctionArn": function, "Role": ROLE}
    part = parse_function(configuration, [{"EventSourceArn": arn}])
    assert part is not None
    [component] = part.components
    assert component.uses.get(Use.POSTPONED) == ([arn] if is_postponed else None)


# -- roles


@pytest.mark.parametrize(
    ("action", "resource", "problem"),
    [
        ("kms:Decrypt", "arn:aws:kms:eu-west-1:123456789012:key/1", None),
        ("kms:Decrypt", "*", "shop-task allows kms:Decrypt on every resource"),
        ("kms:Encrypt", "arn:aws:kms:eu-west-1:123456789012:key/1", "kms:Encrypt, which"),
    ],
)
def test_a_role_may_use_a_key_that_it_names(
    action: str, resource: str, problem: str | None
) -> None:
    component = Component(ComponentKind.EXPORT_SERVICE, ROLE, {})
    results = list(check_excess(component, [Statement(True, [action], [resource])]))
    assert len(results) == (0 if problem is None else 1)
    assert all(problem is not None and problem in result.found for result in results)


# -- the list of permissions and the templates

KINDS = {
    "FunctionRole": ComponentKind.WORK_FUNCTION,
    "StateMachineRole": ComponentKind.STATE_MACHINE,
    "StagingRole": ComponentKind.STAGING,
    "MessagingRole": ComponentKind.MESSAGING,
    "SweepingRole": ComponentKind.SWEEPING,
    "StartRole": ComponentKind.TASK_START,
}


def iter_roles() -> Iterator[tuple[str, str, ComponentKind, dict[str, Any]]]:
    for stack_name, stack in list_stacks().items():
        for name, role in stack.find("AWS::IAM::Role").items():
            worker = (
                ComponentKind.EXPORT_SERVICE
                if stack_name == "exports"
                else ComponentKind.WORK_SERVICE
            )
            yield stack_name, name, KINDS.get(name, worker), role


@pytest.mark.parametrize(
    ("stack", "name", "kind", "role"), list(iter_roles()), ids=lambda each: str(each)[:24]
)
def test_a_role_of_the_templates_has_the_actions_of_the_list(
    stack: str, name: str, kind: ComponentKind, role: dict[str, Any]
) -> None:
    allowed = set()
    for policy in role["Policies"]:
        for statement in policy["PolicyDocument"]["Statement"]:
            actions = statement["Action"]
            allowed |= {actions} if isinstance(actions, str) else set(actions)
    assert allowed == {action for each in PERMISSIONS[kind].values() for action in each}


def test_every_use_has_a_component() -> None:
    assert {use for uses in PERMISSIONS.values() for use in uses} == set(Use)
