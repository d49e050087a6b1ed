"""The templates are deployed, used, compared with what was used, and removed.

ministack runs CloudFormation, the functions, the queues, the tables and the state machine, and
it enforces the policies of the roles. What it cannot do is in NOT_ON_MINISTACK.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from stack.cloud import CODE, SERVICE, Cloud, open_cloud
from stack.components import assume_role, describe_task
from stack.deployment import (
    NOT_ON_MINISTACK,
    PARTS,
    DeployedStack,
    get_client,
)
from stack.permissions import (
    Permission,
    Permissions,
    find_lacking,
    find_unused,
    iter_calls_of_ecs,
    iter_calls_of_lambda,
    iter_calls_of_rollout,
    iter_calls_of_step_functions,
    make_arn,
    read_allowed,
    read_used,
)
from stack.use_chats import find_function_url, use_conversations
from stack.use_work import use_exports, use_function, use_service

from support.cli.commands import Cli, Ran


@pytest.fixture
def cloud(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cloud]:
    with open_cloud(tmp_path, Cli(tmp_path, capsys, monkeypatch)) as cloud:
        for name, value in cloud.server.env.items():
            monkeypatch.setenv(name, value)
        yield cloud


@pytest.mark.nightly
def test_the_stack_works_and_its_roles_allow_exactly_what_is_used(cloud: Cloud) -> None:
    check_nested(cloud)
    check_doctor(cloud)
    try:
        use_function(cloud)
        use_service(cloud)
        use_exports(cloud)
        use_conversations(cloud)
    finally:  # a call that is denied stops what is used, and the roles tell why
        check_that_no_role_lacks_a_permission(cloud)
    check_that_every_permission_is_used(cloud)
    check_tear_down(cloud)
    for (template, resource), reason in NOT_ON_MINISTACK.items():
        print(f"left out: {resource} of {template}.yaml, because {reason}")


def check_nested(cloud: Cloud) -> None:
    """Check that template.yaml deploys the same resources as the three parts do alone."""
    switches = dict.fromkeys(("DeployQueue", "DeployExports", "DeployConversations"), "true")
    parameters = {"Consumer": "function", "Bucket": "mall-files", **CODE, **SERVICE, **switches}
    mall = DeployedStack.deploy(cloud.server, "mall", "template", Name="mall", **parameters)
    expected = {
        f"{part.capitalize()}.{name}" for part in PARTS for name in cloud.stacks[part].resources
    }
    assert {name for name in mall.resources if "." in name} == expected
    mall.delete()


# -- doctor


def check_doctor(cloud: Cloud) -> None:
    machine = cloud.stacks["exports"].resources["StateMachine"]
    target = ("--to", "s3://shop-files/exports", "--state-machine", machine)
    for queue in ("shop-work", "desk-work", "shop-export-jobs"):
        require_no_problem(cloud.cli("doctor", f"sqs:{queue}", "--json"))
    require_no_problem(
        cloud.cli("export", "doctor", "--jobs", "dynamodb:shop-", *target, "--json")
    )
    check_chat_doctor(cloud)
    worker = describe_task(cloud.stacks["desk"])["taskRoleArn"]
    with set_environment(assume_role(cloud.server, worker)):
        require_no_problem(cloud.cli("doctor", "sqs:desk-work", "--json"))


def check_chat_doctor(cloud: Cloud) -> None:
    """Check that the only problem is the one that there is: a URL that the function does not
    know, because `WebhookUrl` names a proxy."""
    url = {"HOLDFAST_CHAT_WEBHOOK_URL": find_function_url(cloud)}
    with set_environment(cloud.read_chat_settings() | url):
        ran = cloud.cli("chat", "doctor", "--json")
    [problem] = [each for each in ran.json if each["level"] != "ok"]
    assert problem["check"] == "webhook"
    assert "the function has this token and checks another URL" in problem["found"]
    assert ran.code == 1


@contextmanager
def set_environment(variables: dict[str, str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment:
        for name, value in variables.items():
            environment.setenv(name, value)
        yield


def require_no_problem(ran: Ran) -> None:
    assert [each for each in ran.json if each["level"] != "ok"] == []
    assert ran.code == 0


# -- roles


def check_that_no_role_lacks_a_permission(cloud: Cloud) -> None:
    used, allowed = list_used(cloud), list_allowed(cloud)
    lacking = {role: find_lacking(allowed[role], used[role]) for role in allowed}
    assert {role: permissions for role, permissions in lacking.items() if permissions} == {}


def check_that_every_permission_is_used(cloud: Cloud) -> None:
    used, allowed = list_used(cloud), list_allowed(cloud)
    unused = {role: find_unused(allowed[role], used[role]) for role in allowed}
    assert {role: permissions for role, permissions in unused.items() if permissions} == {}
    for role, permissions in allowed.items():
        check_that_changes_are_noticed(permissions, used[role])


def list_allowed(cloud: Cloud) -> dict[tuple[str, str], Permissions]:
    """Return what each role of the stacks allows, by its stack and its name."""
    iam = get_client(cloud.server, "iam")
    return {
        (name, role): read_allowed(iam, stack.resources[role])
        for name, stack in cloud.stacks.items()
        for role in stack.resources
        if role.endswith("Role")
    }


def check_that_changes_are_noticed(allowed: Permissions, used: Permissions) -> None:
    """Check that no permission can be removed, and that none can be added."""
    for permission in allowed:
        assert find_lacking(allowed - {permission}, used)
    for extra in (
        Permission("sqs:PurgeQueue", make_arn("sqs", "shop-work")),
        Permission(min(allowed).action, make_arn("sqs", "another")),
    ):
        assert find_unused(allowed | {extra}, used) == {extra}


def list_used(cloud: Cloud) -> dict[tuple[str, str], Permissions]:
    """Return what was used of each role, by its stack and its name."""
    queue, exports, chats, desk = (cloud.stacks[name] for name in (*PARTS, "desk"))
    machine = get_client(cloud.server, "stepfunctions").describe_state_machine(
        stateMachineArn=exports.resources["StateMachine"]
    )
    protection = "ecs:UpdateTaskProtection"

    def read(component: str) -> Permissions:
        return read_used(cloud.calls / f"{component}.jsonl")

    return {
        ("queue", "FunctionRole"): read("shop-work")
        | {*iter_calls_of_lambda(queue, "Function"), *iter_calls_of_rollout("shop-work")},
        ("desk", "TaskRole"): read("desk-work")
        | {Permission(protection, make_arn("ecs", "task/desk-work/1"))}
        | {*iter_calls_of_rollout("desk-work")},
        ("desk", "StartRole"): frozenset(iter_calls_of_ecs(desk)),
        ("exports", "TaskRole"): read("shop-export")
        | {Permission(protection, make_arn("ecs", "task/shop-export/1"))},
        ("exports", "StartRole"): frozenset(iter_calls_of_ecs(exports)),
        ("exports", "StateMachineRole"): frozenset(
            iter_calls_of_step_functions(json.loads(machine["definition"]))
        ),
        **{
            ("conversations", f"{name}Role"): read(f"shop-{name.lower()}")
            | {*iter_calls_of_lambda(chats, name)}
            for name in ("Staging", "Messaging", "Sweeping")
        },
    }


# -- the end


def check_tear_down(cloud: Cloud) -> None:
    dynamodb = get_client(cloud.server, "dynamodb")
    tables = dynamodb.list_tables()["TableNames"]
    assert len(tables) == 7
    for stack in cloud.stacks.values():
        stack.delete()
    assert dynamodb.list_tables()["TableNames"] == tables
    assert not get_client(cloud.server, "sqs").list_queues().get("QueueUrls")
    row = dynamodb.get_item(TableName="shop-ExportJobs", Key={"jobId": {"S": "job-1"}})
    assert row["Item"]["status"] == {"S": "COMPLETED"}
