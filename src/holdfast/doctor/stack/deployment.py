"""Read the resources of a stack that concern Holdfast."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from holdfast.config.queue import SqsSettings
from holdfast.core.checks import CheckResult, fail
from holdfast.core.errors import ConfigError
from holdfast.doctor.runner import CheckFailed
from holdfast.doctor.sqs_queue import QueueConfiguration
from holdfast.doctor.stack import aws_reader as kinds
from holdfast.doctor.stack.aws_reader import AwsReader, Resource, shorten_arn
from holdfast.doctor.stack.components import (
    Component,
    DeployedFunction,
    DeployedMachine,
    DeployedService,
)
from holdfast.doctor.stack.permissions import Use
from holdfast.doctor.state_machine import iter_states

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DeployedQueue:
    """A queue and its attributes."""

    url: str
    attributes: QueueConfiguration

    @property
    def arn(self) -> str:
        """The queue's ARN."""
        return self.attributes.values["QueueArn"]

    @property
    def dead_letters_arn(self) -> str | None:
        """The ARN of its queue for dead letters, if it has one."""
        policy = json.loads(self.attributes.values.get("RedrivePolicy") or "{}")
        target = policy.get("deadLetterTargetArn")
        return None if target is None else str(target)


@dataclass
class Deployment:
    """What a stack has deployed. `problems` has a result for each part that cannot be read."""

    reader: AwsReader
    queues: dict[str, DeployedQueue] = field(default_factory=dict)
    functions: list[DeployedFunction] = field(default_factory=list)
    services: list[DeployedService] = field(default_factory=list)
    machines: list[DeployedMachine] = field(default_factory=list)
    components: list[Component] = field(default_factory=list)
    problems: list[CheckResult] = field(default_factory=list)

    def find_queue_settings(self, arn: str) -> SqsSettings:
        """Return the settings of the component that receives from a queue, or the defaults."""
        for component in self.components:
            if arn in component.receives_from:
                return component.read_queue_settings(arn)
        return SqsSettings()

    def attempt(self, name: str, read: Callable[..., T], *arguments: Any) -> T | None:
        """Return what `read` returns, or None and note the problem that keeps it from that."""
        try:
            return read(*arguments)
        except CheckFailed as error:
            self.problems.append(replace(error.result, check=name))
        except ConfigError as error:
            result = fail(str(error), "correct this setting, and deploy the stack again")
            self.problems.append(replace(result, check=name))
        return None


def read_deployment(reader: AwsReader, resources: Iterable[Resource]) -> Deployment:
    """Read the resources. What cannot be read is left out and noted in `problems`."""
    ids: dict[str, list[str]] = {}
    for resource in resources:
        ids.setdefault(resource.kind, []).append(resource.physical_id)
    deployed = Deployment(reader)
    for url in ids.get(kinds.QUEUE, ()):
        _add_queue(deployed, url)
    _read_functions(deployed, ids.get(kinds.FUNCTION, ()), ids.get(kinds.EVENT_SOURCE, ()))
    for arn in ids.get(kinds.SERVICE, ()):
        if service := deployed.attempt(shorten_arn(arn), _read_service, reader, arn):
            deployed.services.append(service)
    for arn in ids.get(kinds.MACHINE, ()):
        if machine := deployed.attempt(shorten_arn(arn), _read_machine, reader, arn):
            deployed.machines.append(machine)
    _find_components(deployed)
    return deployed


def _add_queue(deployed: Deployment, url: str) -> None:
    if queue := deployed.attempt(
        f"queue {shorten_arn(url)}", _read_queue, deployed.reader, url
    ):
        deployed.queues[queue.arn] = queue


def _read_queue(reader: AwsReader, url: str) -> DeployedQueue:
    name = shorten_arn(url)
    response = reader.read(
        "sqs", "get_queue_attributes", name, QueueUrl=url, AttributeNames=["All"]
    )
    return DeployedQueue(url, QueueConfiguration(name, response["Attributes"]))


def _read_functions(
    deployed: Deployment, names: Sequence[str], mapping_ids: Sequence[str]
) -> None:
    """Read the functions of the stack, and those that its event source mappings invoke."""
    mappings: dict[str, list[Any]] = {name: [] for name in names}
    for uuid in mapping_ids:
        part = f"event source mapping {uuid}"
        if mapping := deployed.attempt(part, _read_mapping, deployed.reader, part, uuid):
            name = mapping["FunctionArn"].partition(":function:")[2].partition(":")[0]
            mappings.setdefault(name, []).append(mapping)
    for name, each in mappings.items():
        part = f"function {name}"
        if configuration := deployed.attempt(part, _read_function, deployed.reader, name):
            deployed.functions.append(DeployedFunction(configuration, each))


def _read_mapping(reader: AwsReader, part: str, uuid: str) -> Any:
    return reader.read("lambda", "get_event_source_mapping", part, UUID=uuid)


def _read_function(reader: AwsReader, name: str) -> Any:
    return reader.read("lambda", "get_function_configuration", name, FunctionName=name)


def _read_service(reader: AwsReader, arn: str) -> DeployedService:
    name = shorten_arn(arn)
    parts = arn.rpartition(":")[2].split("/")  # service/CLUSTER/NAME
    cluster = {"cluster": parts[1]} if len(parts) == 3 else {}
    response = reader.read("ecs", "describe_services", name, services=[arn], **cluster)
    if not response["services"]:
        raise CheckFailed(f"{name} does not exist", "deploy the stack again")
    service = response["services"][0]
    task = reader.read(
        "ecs", "describe_task_definition", name, taskDefinition=service["taskDefinition"]
    )["taskDefinition"]
    candidates = [DeployedService(service, task, each) for each in task["containerDefinitions"]]
    return next((each for each in candidates if each.kind), candidates[0])


def _read_machine(reader: AwsReader, arn: str) -> DeployedMachine:
    name = shorten_arn(arn)
    description = reader.read(
        "stepfunctions", "describe_state_machine", name, stateMachineArn=arn
    )
    try:
        return DeployedMachine(description, json.loads(description["definition"]))
    except (ValueError, KeyError):
        text = f"{name}: its definition is not JSON"
        raise CheckFailed(text, "deploy the stack again") from None


def _find_components(deployed: Deployment) -> None:
    machines = [machine.description["stateMachineArn"] for machine in deployed.machines]
    found: list[Component | None] = []
    for function in deployed.functions:
        found.append(deployed.attempt(function.part, function.find_component))
    for service in deployed.services:
        found += deployed.attempt(service.part, service.find_components, machines) or ()
    found += [
        machine.make_component(_find_queue_urls(machine)) for machine in deployed.machines
    ]
    components = [component for component in found if component is not None]
    _read_other_queues(deployed, components)
    deployed.components = [_add_dead_letters(deployed, each) for each in components]


def _read_other_queues(deployed: Deployment, components: Sequence[Component]) -> None:
    """Read the queues that components receive from and another stack has made."""
    arns = {arn for component in components for arn in component.receives_from}
    known = {shorten_arn(queue.url) for queue in deployed.queues.values()}
    unread = {problem.check for problem in deployed.problems}
    for arn in sorted(arns):
        name = shorten_arn(arn)
        if name in known or f"queue {name}" in unread:
            continue
        if url := deployed.attempt(f"queue {name}", _find_queue_url, deployed.reader, arn):
            _add_queue(deployed, url)


def _find_queue_url(reader: AwsReader, arn: str) -> str:
    *_, account, name = arn.split(":")
    response = reader.read(
        "sqs", "get_queue_url", name, QueueName=name, QueueOwnerAWSAccountId=account
    )
    return str(response["QueueUrl"])


def _add_dead_letters(deployed: Deployment, component: Component) -> Component:
    """Add the queues for dead letters of the queues that it receives from."""
    sources = (deployed.queues.get(arn) for arn in component.receives_from)
    arns = {source.dead_letters_arn for source in sources if source} - {None}
    if not arns:
        return component
    uses = {**component.uses, Use.DEAD_LETTERS: sorted(filter(None, arns))}
    return replace(component, uses=uses)


def _find_queue_urls(machine: DeployedMachine) -> list[str]:
    parameters = (
        state.get("Parameters") or state.get("Arguments") or {}
        for _, state in iter_states(machine.definition)
    )
    urls = (each.get("QueueUrl") for each in parameters if isinstance(each, dict))
    return [url for url in urls if isinstance(url, str)]
