"""Checks of the alarms of a stack, and of the topics that they tell."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from infra.check.arns import shorten_arn
from infra.check.aws_reader import AwsReader

from holdfast.doctor.checks import CheckFailed, CheckResult, fail, warn

RUNBOOKS = "https://github.com/holdfast-py/holdfast/blob/main/docs/runbooks.md"
_MAX_NAMES = 100  # in one call


def read_alarms(reader: AwsReader, names: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the alarms with these names. Raises CheckFailed."""
    rest = iter(names)
    while batch := list(islice(rest, _MAX_NAMES)):
        response = reader.read("cloudwatch", "describe_alarms", "alarms", AlarmNames=batch)
        alarms = {alarm["AlarmName"]: alarm for alarm in response["MetricAlarms"]}
        for name in batch:
            if name not in alarms:
                raise CheckFailed(f"{name} does not exist", "deploy the stack again")
            yield alarms[name]


def check_actions(alarm: Mapping[str, Any]) -> Iterator[CheckResult]:
    """Check that an alarm tells a topic."""
    if not alarm.get("AlarmActions"):
        yield fail(
            "has no action, so an alarm reaches no operator", "name a topic in its AlarmActions"
        )
    elif not alarm.get("ActionsEnabled", True):
        yield warn(
            "its actions are disabled, so an alarm reaches no operator",
            f"`aws cloudwatch enable-alarm-actions --alarm-names {alarm['AlarmName']}`",
        )


def check_state(alarm: Mapping[str, Any]) -> Iterator[CheckResult]:
    """Report an alarm that is on, with the section of its runbook."""
    if alarm.get("StateValue") == "ALARM":
        section = str(alarm["AlarmName"]).rpartition("-")[2].lower()
        yield warn(
            f"is in alarm: {alarm.get('StateReason', 'no reason is given')}",
            f"see {RUNBOOKS}#{section}",
        )


ALARM = (("actions", check_actions), ("state", check_state))


def check_topic(reader: AwsReader, arn: str) -> Iterator[CheckResult]:
    """Check that a topic has a confirmed subscription."""
    name = shorten_arn(arn)
    attributes = reader.read("sns", "get_topic_attributes", name, TopicArn=arn)["Attributes"]
    if int(attributes.get("SubscriptionsConfirmed") or 0):
        return
    pending = int(attributes.get("SubscriptionsPending") or 0)
    waiting = f"; {pending} of them wait for their confirmation" if pending else ""
    yield warn(
        f"has no confirmed subscription, so its alarms reach no operator{waiting}",
        "confirm the e-mail that AWS sent, or subscribe: `aws sns subscribe --topic-arn "
        f"{arn} --protocol email --notification-endpoint ADDRESS`",
    )
