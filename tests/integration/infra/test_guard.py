"""The rules of infra/guard hold for every template, and each rule finds what it forbids."""

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from support.stack_template import FOLDER, load_template

# It has no wheels for Python 3.13.
run_checks = pytest.importorskip("cfn_guard_rs").run_checks
RULES = (FOLDER / "guard/holdfast.guard").read_text()
DEFINITIONS, *_ = re.split(r"^rule ", RULES, maxsplit=1, flags=re.MULTILINE)
EACH_RULE = dict(re.findall(r"^(rule (?:\w+)) (when .*?^\})", RULES, re.MULTILINE | re.DOTALL))
NAMES = [rule.removeprefix("rule ") for rule in EACH_RULE]


def is_kept(rule: str, template: dict[str, Any]) -> bool:
    """Return whether a template keeps a rule. A rule without a resource to check is kept."""
    text = f"{DEFINITIONS}rule {rule} {EACH_RULE[f'rule {rule}']}"
    try:
        return run_checks(template, text).status != "FAIL"
    except json.JSONDecodeError:  # the library garbles a long report of violations
        return False


@pytest.mark.parametrize("template", ["template", "queue", "exports", "conversations"])
def test_a_template_keeps_every_rule(template: str) -> None:
    assert [rule for rule in NAMES if not is_kept(rule, load_template(template))] == []


# A resource, the path of a value in it, and the value that breaks the rule. None removes it.
VIOLATIONS = [
    ("queues_are_encrypted", "Queue/Properties/SqsManagedSseEnabled", False),
    ("queues_survive_their_replacement", "Queue/UpdateReplacePolicy", None),
    ("sqs_gives_up_after_the_workers", "Queue/Properties/RedrivePolicy/maxReceiveCount", 5),
    ("dead_letters_are_kept_for_14_days", "DeadLetters/Properties/MessageRetentionPeriod", 60),
    ("dead_letters_are_kept_for_14_days", "Queue/Properties/RedrivePolicy", None),
    ("dead_letters_are_kept_for_14_days", "DeadLetters/Properties/RedriveAllowPolicy", None),
    (
        "work_expires_before_its_dead_letters",
        "Queue/Properties/MessageRetentionPeriod",
        1209600,
    ),
    ("tables_are_kept", "JobsTable/DeletionPolicy", "Delete"),
    ("tables_are_kept", "JobsTable/UpdateReplacePolicy", None),
    ("tables_are_kept", "JobsTable/Properties/DeletionProtectionEnabled", None),
    ("tables_are_kept", "TasksTable/Properties/PointInTimeRecoverySpecification", None),
    ("tables_are_encrypted", "TasksTable/Properties/SSESpecification", None),
    ("functions_log_to_a_group_of_the_template", "Sweeping/Properties/LoggingConfig", None),
    ("functions_log_to_a_group_of_the_template", "Function/Properties/Timeout", None),
    (
        "functions_take_no_secret_from_the_template",
        "Staging/Properties/Environment/Variables/TWILIO_AUTH_TOKEN",
        "a-token",
    ),
    ("mappings_report_failed_records", "MessagingSms/Properties/FunctionResponseTypes", None),
    ("mappings_report_failed_records", "MessagingSms/Properties/ScalingConfig", None),
    (
        "only_staging_has_a_public_url",
        "StagingUrl/Properties/TargetFunctionArn/Ref",
        "Sweeping",
    ),
    ("logs_are_not_kept_forever", "Log/Properties/RetentionInDays", None),
    (
        "roles_allow_named_actions_on_named_resources",
        "TaskRole/Properties/ManagedPolicyArns",
        ["arn:aws:iam::aws:policy/AmazonSQSFullAccess"],
    ),
    (
        "roles_allow_named_actions_on_named_resources",
        "StagingRole/Properties/Policies/0/PolicyDocument/Statement/0/Action",
        ["dynamodb:*"],
    ),
    (
        "policies_allow_named_actions_on_named_resources",
        "BucketKeyPolicy/Properties/PolicyDocument/Statement/0/Action",
        ["kms:*"],
    ),
    (
        "policies_allow_named_actions_on_named_resources",
        "BucketKeyPolicy/Properties/PolicyDocument/Statement/0/Resource",
        "*",
    ),
    (
        "only_actions_without_a_resource_are_allowed_on_all",
        "TaskRole/Properties/Policies/0/PolicyDocument/Statement/0/Resource",
        "*",
    ),
    (
        "roles_are_assumed_by_one_service",
        "TaskRole/Properties/AssumeRolePolicyDocument/Statement/0/Principal",
        {"AWS": "*"},
    ),
    ("containers_are_confined", "Task/Properties/ContainerDefinitions/0/User", "root"),
    ("containers_are_confined", "Task/Properties/ContainerDefinitions/0/StopTimeout", None),
    (
        "containers_are_confined",
        "Task/Properties/ContainerDefinitions/0/ReadonlyRootFilesystem",
        None,
    ),
    (
        "services_roll_back",
        "Service/Properties/DeploymentConfiguration/DeploymentCircuitBreaker/Rollback",
        False,
    ),
    ("alarms_notify_the_topic", "DeadLettersAlarm/Properties/AlarmActions", []),
]


@pytest.mark.parametrize(("rule", "path", "value"), VIOLATIONS)
def test_a_rule_finds_what_it_forbids(rule: str, path: str, value: Any) -> None:
    for template in iter_templates_with(path.partition("/")[0]):
        assert is_kept(rule, template)
        set_value(template["Resources"], path.split("/"), value)
        assert not is_kept(rule, template)


def test_every_rule_is_broken_once() -> None:
    assert {rule for rule, _, _ in VIOLATIONS} == set(NAMES)


def iter_templates_with(resource: str) -> Iterator[dict[str, Any]]:
    templates = map(load_template, ("queue", "exports", "conversations"))
    having = [template for template in templates if resource in template["Resources"]]
    assert having
    return map(deepcopy, having)


def set_value(tree: Any, path: list[str], value: Any) -> None:
    *parents, last = path
    for step in parents:
        tree = tree[int(step) if isinstance(tree, list) else step]
    if value is None:
        del tree[last]
    else:
        tree[last] = value
