"""Compare the roles of a stack with the list of permissions."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from holdfast.core.checks import CheckResult, fail, warn
from holdfast.doctor.stack.aws_reader import AwsReader, shorten_arn
from holdfast.doctor.stack.components import Component
from holdfast.doctor.stack.permissions import PERMISSIONS, RUNS_USER_CODE

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
        if not any(fnmatchcase(action.lower(), each.lower()) for each in self.actions):
            return False
        return arn is None or any(_matches_arn(arn, each) for each in self.resources)


def _matches_arn(arn: str, pattern: str) -> bool:
    parts = (re.escape(part) for part in re.split(r"([*?])", pattern))
    translated = "".join({r"\*": ".*", r"\?": "."}.get(part, part) for part in parts)
    return re.fullmatch(translated, arn, re.DOTALL) is not None


@dataclass(frozen=True, slots=True)
class Role:
    """A component and the statements of its role."""

    component: Component
    statements: Sequence[Statement]

    def allows(self, action: str, arn: str | None) -> bool:
        """Return whether the role allows the action on the resource."""
        verdicts = [each.allows for each in self.statements if each.matches(action, arn)]
        # A Deny on some resource does not refuse the action on every resource.
        return any(verdicts) if arn is None else bool(verdicts) and all(verdicts)


def read_role(reader: AwsReader, component: Component) -> Role:
    """Read the inline and the attached policies of a component's role. Raises CheckFailed."""
    name = shorten_arn(component.role)
    arguments = {"RoleName": name}
    documents = [
        reader.read("iam", "get_role_policy", name, PolicyName=policy, **arguments)[
            "PolicyDocument"
        ]
        for policy in reader.read("iam", "list_role_policies", name, **arguments)["PolicyNames"]
    ]
    attached = reader.read("iam", "list_attached_role_policies", name, **arguments)
    for policy in attached["AttachedPolicies"]:
        documents.append(_read_managed_policy(reader, policy["PolicyArn"]))
    return Role(component, [each for text in documents for each in parse_policy(text)])


def _read_managed_policy(reader: AwsReader, arn: str) -> Any:
    name = shorten_arn(arn)
    version = reader.read("iam", "get_policy", name, PolicyArn=arn)["Policy"][
        "DefaultVersionId"
    ]
    policy = reader.read("iam", "get_policy_version", name, PolicyArn=arn, VersionId=version)
    return policy["PolicyVersion"]["Document"]


def parse_policy(document: Mapping[str, Any]) -> Iterator[Statement]:
    """Yield the statements of a policy. NotAction and NotResource count as everything."""
    for each in _to_list(document.get("Statement")):
        actions = _to_list(each.get("Action", "*"))
        resources = _to_list(each.get("Resource", "*"))
        yield Statement(each.get("Effect") == "Allow", actions, resources)


def _to_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if value else []


# -- checks


def check_missing(role: Role) -> Iterator[CheckResult]:
    """Report the permissions that the component needs and does not have."""
    needed = PERMISSIONS[role.component.kind]
    name = shorten_arn(role.component.role)
    for use, arns in role.component.uses.items():
        for arn in arns or (None,):
            actions = needed.get(use, ())
            missing = [action for action in actions if not role.allows(action, arn)]
            if missing:
                where = use.value if arn is None else f"{use.value}, {arn}"
                yield fail(
                    f"{name} lacks {', '.join(missing)} on {where}",
                    "allow it in the role's policy, as the templates of infra/ do",
                )


def check_excess(role: Role) -> Iterator[CheckResult]:
    """Report what the role allows and the component never uses.

    A component that runs the user's code may have more, but no wildcards.
    """
    listed = PERMISSIONS[role.component.kind].values()
    needed = {action for actions in listed for action in actions} | _USES_KEY
    name = shorten_arn(role.component.role)
    allowed = [each for each in role.statements if each.allows]
    granted = dict.fromkeys(action for each in allowed for action in each.actions)
    unused = [action for action in granted if action not in needed]
    if role.component.kind in RUNS_USER_CODE:
        unused = [action for action in unused if "*" in action]
    if unused:
        yield warn(
            f"{name} allows {', '.join(unused)}, which {role.component.kind.value} never uses",
            "name only the actions that are needed",
        )
    yield from _check_everywhere(name, allowed, needed - _NO_RESOURCE)


def _check_everywhere(
    name: str, allowed: Iterable[Statement], needed: set[str]
) -> Iterator[CheckResult]:
    everywhere = [
        action for each in allowed if "*" in each.resources for action in each.actions
    ]
    if actions := [action for action in everywhere if action in needed]:
        yield warn(
            f"{name} allows {', '.join(actions)} on every resource",
            "name the ARNs of what the component uses",
        )


ROLE = (("role", check_missing), ("role", check_excess))
