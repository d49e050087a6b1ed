"""Compare the roles of a stack with the list of permissions."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from infra.check.arns import shorten_arn
from infra.check.aws_reader import AwsReader
from infra.check.deployment import Component
from infra.check.permissions import PERMISSIONS, RUNS_USER_CODE

from holdfast.doctor.checks import CheckFailed, CheckResult, fail, warn

# They need no resource: the first has none, and the others take a task token, which is a secret
# and names its execution.
_NO_RESOURCE = frozenset(
    {
        "ecr:GetAuthorizationToken",
        "states:SendTaskHeartbeat",
        "states:SendTaskSuccess",
        "states:SendTaskFailure",
    }
)
# For a key of the user's own, which a bucket, a queue, a table or a secret may have.
_USES_KEY = frozenset({"kms:GenerateDataKey", "kms:Decrypt"})


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of a policy. Conditions are not evaluated: it counts as if they are met."""

    allows: bool
    actions: Sequence[str]
    resources: Sequence[str]

    def matches(self, action: str, arn: str | None) -> bool:
        """Return whether it is about the action on the resource; None is any resource."""
        # IAM compares actions without regard to case.
        if not any(_matches(action.lower(), each.lower()) for each in self.actions):
            return False
        return arn is None or any(_matches(arn, each) for each in self.resources)


def _matches(text: str, pattern: str) -> bool:
    """Return whether a pattern with the wildcards of IAM, * and ?, matches all of the text."""
    parts = (re.escape(part) for part in re.split(r"([*?])", pattern))
    translated = "".join({r"\*": ".*", r"\?": "."}.get(part, part) for part in parts)
    return re.fullmatch(translated, text, re.DOTALL) is not None


def check_role(reader: AwsReader, component: Component) -> Iterator[CheckResult]:
    """Report what the role of a component lacks, and what it allows without need.

    Raises CheckFailed if there is no role, or if it cannot be read.
    """
    if not component.role:
        remedy = "set TaskRoleArn of its task definition, as the templates of infra/ do"
        raise CheckFailed("it has no role, so it may not call AWS", remedy)
    statements = _read_statements(reader, shorten_arn(component.role))
    yield from _check_missing(component, statements)
    yield from check_excess(component, statements)


# -- policies


def _read_statements(reader: AwsReader, role: str) -> list[Statement]:
    """Read the inline and the attached policies of a role. Raises CheckFailed."""
    read = partial(reader.read, "iam", subject=role, RoleName=role)
    documents = [
        read("get_role_policy", PolicyName=policy)["PolicyDocument"]
        for policy in read("list_role_policies")["PolicyNames"]
    ]
    documents += [
        _read_managed_policy(reader, policy["PolicyArn"])
        for policy in read("list_attached_role_policies")["AttachedPolicies"]
    ]
    return [statement for document in documents for statement in _parse_policy(document)]


def _read_managed_policy(reader: AwsReader, arn: str) -> Any:
    name = shorten_arn(arn)
    version = reader.read("iam", "get_policy", name, PolicyArn=arn)["Policy"][
        "DefaultVersionId"
    ]
    policy = reader.read("iam", "get_policy_version", name, PolicyArn=arn, VersionId=version)
    return policy["PolicyVersion"]["Document"]


def _parse_policy(document: Mapping[str, Any]) -> Iterator[Statement]:
    """Yield the statements of a policy. NotAction and NotResource count as everything."""
    for each in _to_list(document.get("Statement")):
        actions = _to_list(each.get("Action", "*"))
        resources = _to_list(each.get("Resource", "*"))
        yield Statement(each.get("Effect") == "Allow", actions, resources)


def _to_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if value else []


# -- checks


def _check_missing(
    component: Component, statements: Sequence[Statement]
) -> Iterator[CheckResult]:
    """Report the permissions that the component needs and does not have."""
    needed = PERMISSIONS[component.kind]
    name = shorten_arn(component.role)
    for use, arns in component.uses.items():
        for arn in arns or (None,):
            actions = needed.get(use, ())
            missing = [action for action in actions if not _allow(statements, action, arn)]
            if missing:
                where = use.value if arn is None else f"{use.value}, {arn}"
                yield fail(
                    f"{name} lacks {', '.join(missing)} on {where}",
                    "allow it in the role's policy, as the templates of infra/ do",
                )


def _allow(statements: Sequence[Statement], action: str, arn: str | None) -> bool:
    """Return whether the statements allow the action on the resource; None is any resource."""
    verdicts = [each.allows for each in statements if each.matches(action, arn)]
    # A Deny on some resource does not refuse the action on every resource.
    return any(verdicts) if arn is None else bool(verdicts) and all(verdicts)


def check_excess(
    component: Component, statements: Sequence[Statement]
) -> Iterator[CheckResult]:
    """Report what the role allows and the component never uses.

    A component that runs the user's code may have more, but no wildcards.
    """
    listed = PERMISSIONS[component.kind].values()
    needed = {action for actions in listed for action in actions} | _USES_KEY
    name = shorten_arn(component.role)
    allowed = [each for each in statements if each.allows]
    granted = dict.fromkeys(action for each in allowed for action in each.actions)
    unused = [action for action in granted if action not in needed]
    if component.kind in RUNS_USER_CODE:
        unused = [action for action in unused if "*" in action]
    if unused:
        yield warn(
            f"{name} allows {', '.join(unused)}, which {component.kind.value} never uses",
            "name only the actions that are needed",
        )
    everywhere = [
        action
        for each in allowed
        if "*" in each.resources
        for action in each.actions
        if action in needed - _NO_RESOURCE
    ]
    if everywhere:
        yield warn(
            f"{name} allows {', '.join(everywhere)} on every resource",
            "name the ARNs of what the component uses",
        )
