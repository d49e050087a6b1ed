"""State machines: what their states send to, and whether heartbeats come in time."""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from infra.check.arns import make_arn, shorten_arn
from infra.check.deployment import Component, Deployment, Part
from infra.check.permissions import ComponentKind, Use

from holdfast.doctor.checks import CheckFailed, CheckResult
from holdfast.exports.checks import check_definition, iter_states
from holdfast.exports.settings import HeartbeatSettings
from holdfast.settings import read_settings


def read_machines(deployment: Deployment) -> None:
    """Add the state machines of the stack."""
    for arn in deployment.ids["AWS::StepFunctions::StateMachine"]:
        name = shorten_arn(arn)
        with deployment.note_problem(f"state machine {name}"):
            description = deployment.reader.read(
                "stepfunctions", "describe_state_machine", name, stateMachineArn=arn
            )
            deployment.parts.append(_parse_machine(arn, name, description))


def _parse_machine(arn: str, name: str, description: Mapping[str, Any]) -> Part:
    try:
        definition = json.loads(description["definition"])
    except (ValueError, KeyError):
        text = f"{name}: its definition is not JSON"
        raise CheckFailed(text, "deploy the stack again") from None
    queues = [make_arn(arn, "sqs", shorten_arn(url)) for url in _iter_queue_urls(definition)]
    return Part(
        f"state machine {name}",
        [Component(ComponentKind.STATE_MACHINE, description["roleArn"], {Use.QUEUE: queues})],
        [("definition", partial(_check_machine, definition))],
    )


def _iter_queue_urls(definition: Any) -> Iterator[str]:
    """Yield the URLs of the queues that its states send to."""
    for _, state in iter_states(definition):
        parameters = state.get("Parameters") or state.get("Arguments") or {}
        url = parameters.get("QueueUrl") if isinstance(parameters, dict) else None
        if isinstance(url, str):
            yield url


def _check_machine(definition: Any, deployment: Deployment) -> Iterator[CheckResult]:
    services = (part.env for part in deployment.parts if part.is_export_service)
    interval = read_settings(HeartbeatSettings, next(services, {})).interval_seconds
    return check_definition(definition, interval)
