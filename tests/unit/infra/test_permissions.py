"""The templates give each role the permissions that the table lists, and no others."""

from collections.abc import Iterator
from typing import Any

import pytest
from infra.permissions import PERMISSIONS

from support.stack_template import list_stacks

KINDS = {
    "FunctionRole": "function of a queue",
    "StateMachineRole": "state machine",
    "StagingRole": "staging",
    "MessagingRole": "messaging",
    "SweepingRole": "sweeping",
    "StartRole": "start of tasks",
}


def iter_roles() -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    for stack_name, stack in list_stacks().items():
        for name, role in stack.find("AWS::IAM::Role").items():
            worker = "holdfast export serve" if stack_name == "exports" else "holdfast work"
            yield stack_name, name, KINDS.get(name, worker), role


@pytest.mark.parametrize(
    ("stack", "name", "kind", "role"), list(iter_roles()), ids=lambda each: str(each)[:24]
)
def test_a_role_of_the_templates_has_the_actions_of_the_list(
    stack: str, name: str, kind: str, role: dict[str, Any]
) -> None:
    allowed = set()
    for policy in role["Policies"]:
        for statement in policy["PolicyDocument"]["Statement"]:
            actions = statement["Action"]
            allowed |= {actions} if isinstance(actions, str) else set(actions)
    assert allowed == {action for each in PERMISSIONS[kind].values() for action in each}
