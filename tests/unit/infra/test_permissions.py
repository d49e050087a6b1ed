"""The templates give each role the permissions that the table lists, and no others."""

from collections.abc import Iterator
from typing import Any

import pytest
from infra.permissions import PERMISSIONS, ComponentKind, Use

from support.stack_template import list_stacks

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
