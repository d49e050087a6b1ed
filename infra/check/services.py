"""ECS services: the command that their container runs, what it uses, and how it ends."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from infra.check.arns import find_queue, make_arn, make_log_arn, shorten_arn
from infra.check.deployment import (
    NO_STORE,
    Component,
    Deployment,
    Part,
    Uses,
    find_queue_uses,
)
from infra.check.permissions import ComponentKind, Use

from holdfast.doctor.checks import CheckFailed, CheckResult, fail, warn
from holdfast.exports.dynamodb.tables import JOBS, STATUS_INDEX, TASKS
from holdfast.text import parse_duration
from holdfast.urls import STORES, TARGETS, parse_url

_COMMANDS = {
    ("work",): ComponentKind.WORK_SERVICE,
    ("export", "serve"): ComponentKind.EXPORT_SERVICE,
}
_DEFAULT_STOP_SECONDS = 30  # of Fargate, if the task definition names none


def read_services(deployment: Deployment) -> None:
    """Add the services of the stack."""
    for arn in deployment.ids["AWS::ECS::Service"]:
        name = shorten_arn(arn)
        with deployment.note_problem(f"service {name}"):
            if service := _read_service(deployment, arn, name):
                deployment.parts.append(service)


def _read_service(deployment: Deployment, arn: str, name: str) -> Part | None:
    read = partial(deployment.reader.read, "ecs")
    words = arn.rpartition(":")[2].split("/")  # service/CLUSTER/NAME
    cluster = {"cluster": words[1]} if len(words) == 3 else {}
    response = read("describe_services", name, services=[arn], **cluster)
    if not response["services"]:
        raise CheckFailed(f"{name} does not exist", "deploy the stack again")
    service = response["services"][0]
    definition = service["taskDefinition"]
    task = read("describe_task_definition", name, taskDefinition=definition)["taskDefinition"]
    machines = deployment.ids["AWS::StepFunctions::StateMachine"]
    return _parse_service(service, task, machines)


@dataclass(frozen=True, slots=True)
class Command:
    """The command of a container, without `holdfast` itself, and its environment."""

    words: tuple[str, ...]
    env: Mapping[str, str]

    @classmethod
    def of_container(cls, container: Mapping[str, Any]) -> "Command":
        """Return the command of a container. Its environment is without secrets."""
        words = tuple(container.get("command") or ())
        env = {each["name"]: each["value"] for each in container.get("environment", ())}
        return cls(words[1:] if words[:1] == ("holdfast",) else words, env)

    @property
    def kind(self) -> ComponentKind | None:
        """What it runs, or None if it is not a command that serves a queue."""
        kinds = (kind for start, kind in _COMMANDS.items() if self.words[: len(start)] == start)
        return next(kinds, None)

    @property
    def store(self) -> str | None:
        """The URL of the job store of `export serve`, and None of other commands."""
        if self.kind is not ComponentKind.EXPORT_SERVICE:
            return None
        return self.find_option("jobs") or self.env.get("HOLDFAST_JOBS") or NO_STORE

    @property
    def drain_seconds(self) -> float:
        """The time that running work has to finish after SIGTERM. Raises ConfigError."""
        drain = parse_duration(self.find_option("drain") or "30s")
        # `export serve` then counts its results and gives its jobs back.
        return drain + (10 if self.kind is ComponentKind.EXPORT_SERVICE else 0)

    def find_option(self, name: str) -> str | None:
        """Return the value of an option, as --name=VALUE or --name VALUE."""
        for word, after in zip(self.words, (*self.words[1:], None), strict=True):
            if word == f"--{name}":
                return after
            if word.startswith(f"--{name}="):
                return word.partition("=")[2]
        return None

    def find_queue(self, neighbour: str) -> Mapping[str, Mapping[str, str]]:
        """Return the ARN of its queue with the options in its URL. Raises ConfigError.

        The result is empty if it is not an SQS queue.
        """
        candidates = (*self.words, self.env.get("HOLDFAST_QUEUE", ""))
        queues = (find_queue(neighbour, each) for each in candidates)
        return next(filter(None, queues), {})

    def find_queue_options(self) -> Mapping[str, Any]:
        """Return the settings of the queue that are options. Raises ConfigError."""
        lease, attempts = self.find_option("lease"), self.find_option("max-attempts")
        options = {"lease_seconds": lease and parse_duration(lease), "max_attempts": attempts}
        return {name: value for name, value in options.items() if value is not None}


def _parse_service(
    service: Mapping[str, Any], task: Mapping[str, Any], machines: Sequence[str]
) -> Part | None:
    """Return a service with what works and what starts its tasks, or None if it has neither.

    Raises ConfigError.
    """
    containers = [(each, Command.of_container(each)) for each in task["containerDefinitions"]]
    container, command = next((each for each in containers if each[1].kind), containers[0])
    arn = task["taskDefinitionArn"]
    part = Part(
        f"service {service['serviceName']}",
        list(_find_start(task, container)),
        [
            ("stop timeout", partial(_check_stop, container, command)),
            ("tasks", partial(_check_running, service)),
        ],
    )
    if command.kind is None:
        return part if part.components else None
    queues = command.find_queue(arn)
    cluster = shorten_arn(service["clusterArn"])
    uses = {
        **find_queue_uses(list(queues)),
        Use.TASK: [make_arn(arn, "ecs", f"task/{cluster}/any")],
    }
    if command.kind is ComponentKind.EXPORT_SERVICE:
        uses |= {Use.STATE_MACHINE: machines, **_find_export_uses(arn, command)}
    worker = Component(command.kind, task.get("taskRoleArn", ""), uses)
    return replace(
        part,
        components=[worker, *part.components],
        env=command.env,
        given=command.find_queue_options(),
        receives_from=queues,
        store=command.store,
    )


def _find_start(task: Mapping[str, Any], container: Mapping[str, Any]) -> Iterator[Component]:
    """Yield what starts the tasks, if it has a role."""
    if role := task.get("executionRoleArn"):
        driver = container.get("logConfiguration", {}).get("options", {})
        log = make_log_arn(task["taskDefinitionArn"], driver.get("awslogs-group", "any"))
        is_in_ecr = ".dkr.ecr." in str(container.get("image"))
        uses = {Use.REGISTRY: (), Use.REPOSITORY: ()} if is_in_ecr else {}
        yield Component(ComponentKind.TASK_START, role, {Use.LOG: [log], **uses})


def _find_export_uses(arn: str, command: Command) -> Uses:
    uses: dict[Use, Sequence[str]] = {}
    store = command.store or ""
    if store.startswith("dynamodb:"):
        prefix = parse_url(store, STORES).path
        jobs = make_arn(arn, "dynamodb", f"table/{prefix}{JOBS}")
        uses[Use.JOBS] = [jobs]
        uses[Use.JOBS_INDEX] = [f"{jobs}/index/{STATUS_INDEX}"]
        uses[Use.JOB_TASKS] = [make_arn(arn, "dynamodb", f"table/{prefix}{TASKS}")]
    if files := _find_s3_path(command.find_option("to")):
        uses[Use.FILES] = [make_arn(arn, "s3", f"{files}/any")]
    if lists := _find_s3_path(command.find_option("manifests")):
        uses[Use.LISTS] = [make_arn(arn, "s3", f"{lists}/any")]
        uses[Use.LISTS_BUCKET] = [make_arn(arn, "s3", lists.partition("/")[0])]
    return uses


def _find_s3_path(url: str | None) -> str:
    """Return the bucket and the prefix of an s3: URL, and an empty text of another."""
    target = parse_url(url, TARGETS) if url else None
    return target.path.rstrip("/") if target and target.scheme == "s3" else ""


# -- checks


def _check_stop(
    container: Mapping[str, Any], command: Command, _: Deployment
) -> Iterator[CheckResult]:
    """Compare the time until SIGKILL with the time that the command needs to drain."""
    stop = int(container.get("stopTimeout") or _DEFAULT_STOP_SECONDS)
    drain = command.drain_seconds
    if stop <= drain:
        yield fail(
            f"SIGKILL follows after {stop} s, and the drain may take {drain:g} s: work is cut "
            "off at every deployment",
            f"set stopTimeout to {min(120, int(drain) + 10)}, or --drain below it",
        )


def _check_running(service: Mapping[str, Any], _: Deployment) -> Iterator[CheckResult]:
    running, desired = int(service["runningCount"]), int(service["desiredCount"])
    if running < desired:
        yield warn(
            f"{running} of {desired} tasks run",
            "the service's events say why: `aws ecs describe-services`, and its log",
        )
